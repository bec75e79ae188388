-- name: stored
-- What the queue holds and whether its partitions are dense: rows, partitions with a gap, partitions whose counter disagrees.
WITH held AS (
    SELECT p.id, count(m.seq) AS rows, coalesce(min(m.seq), 0) AS first, coalesce(max(m.seq), 0) AS last
    FROM queen.queues q
    JOIN queen.partitions p ON p.queue_id = q.id
    LEFT JOIN queen.messages m ON m.partition_id = p.id
    WHERE q.name = $1
    GROUP BY p.id
)
SELECT coalesce(sum(h.rows), 0)::bigint AS rows,
       count(*) FILTER (WHERE h.rows > 0 AND h.last - h.first + 1 <> h.rows) AS with_gap,
       count(*) FILTER (WHERE l.next_seq IS DISTINCT FROM h.last + 1) AS disagreeing
FROM held h LEFT JOIN queen.partition_lookup l ON l.partition_id = h.id;

-- name: make_partitions
SELECT partition_ids FROM queen.make_partitions($1::text[], $2::text[]);

-- name: make_group
SELECT queen.make_group($1, $2, 'all', NULL);

-- name: push_messages
SELECT bases, seqs, duplicates
FROM queen.push_messages($1::int[], $2::int[], $3::int[], $4::int[], $5::text[], $6::json[], p_notify => false);

-- name: push_packed
SELECT bases, seqs, duplicates
FROM queen.push_messages($1::int[], $2::int[], NULL, NULL, NULL, NULL, p_notify => false,
                         p_packed_transactions => $3::text[], p_packed_payloads => $4::text[]);

-- name: pop_messages
SELECT partition_id, seq, transaction_id, created_at, payload
FROM queen.pop_messages($1::int[], $2::int[], $3::int[], $4::uuid[], $5::int[], $6::int[], $7::int[], $8::bigint[], $9::int[]);

-- name: ack_messages
SELECT states, successes
FROM queen.ack_messages($1::int[], $2::text[], $3::uuid[], $4::int[], $5::text[], NULL, NULL);

-- name: pending
-- Partitions of the group with something to give.
SELECT count(*) FROM queen.partition_consumers c JOIN queen.partition_lookup l USING (partition_id)
WHERE c.group_id = $1 AND l.next_seq > greatest(c.cursor_seq + 1, l.first_seq);
