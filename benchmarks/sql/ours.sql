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
