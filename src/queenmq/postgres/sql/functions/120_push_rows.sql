-- The slow way of a push, under the partitions' locks: finds duplicates (inside the call and against what is stored) and
-- stores the rest. Answers by position; bases move on by what was really stored.
CREATE OR REPLACE FUNCTION queen.push_rows(
    p_partitions int[], p_bases bigint[], p_created timestamptz[], p_which int[], p_transactions text[], p_payloads json[],
    p_traces uuid[], p_encrypted boolean[], p_producers text[], p_headers json[], p_not_before timestamptz[],
    OUT seqs bigint[], OUT duplicates boolean[], OUT stored bigint[])
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    WITH item AS (
        SELECT u.ord, u.which, p_partitions[u.which] AS partition_id, u.transaction_id,
               row_number() OVER (PARTITION BY u.which, u.transaction_id ORDER BY u.ord) AS copy
          FROM unnest(p_which, p_transactions) WITH ORDINALITY u(which, transaction_id, ord)
         WHERE p_bases[u.which] IS NOT NULL
    ), known AS (
        SELECT i.*, m.seq AS stored_seq
          FROM item i LEFT JOIN LATERAL (SELECT x.seq FROM queen.messages x
                                          WHERE x.partition_id = i.partition_id AND x.transaction_id = i.transaction_id LIMIT 1) m ON true
    ), placed AS (
        SELECT k.*, p_bases[k.which] + row_number() OVER (PARTITION BY k.which ORDER BY k.ord) - 1 AS new_seq
          FROM known k WHERE k.stored_seq IS NULL AND k.copy = 1
    ), written AS (
        INSERT INTO queen.messages (partition_id, seq, transaction_id, trace_id, created_at, is_encrypted, producer, headers, not_before, payload)
        SELECT p.partition_id, p.new_seq, p.transaction_id, p_traces[p.ord], p_created[p.which], p_encrypted[p.ord], p_producers[p.ord],
               p_headers[p.ord], p_not_before[p.ord], p_payloads[p.ord]
          FROM placed p ORDER BY p.ord
        RETURNING partition_id
    ), answer AS (
        SELECT k.ord, coalesce(k.stored_seq, p.new_seq) AS seq, k.stored_seq IS NOT NULL OR k.copy > 1 AS duplicate
          FROM known k LEFT JOIN placed p ON p.which = k.which AND p.transaction_id = k.transaction_id
    )
    SELECT array_agg(a.seq ORDER BY o.ord), array_agg(a.duplicate ORDER BY o.ord),
           (SELECT array_agg((SELECT count(*) FROM written w WHERE w.partition_id = q.partition_id) ORDER BY q.ord)
              FROM unnest(p_partitions) WITH ORDINALITY q(partition_id, ord))
      INTO seqs, duplicates, stored
      FROM generate_series(1, cardinality(p_which)) o(ord) LEFT JOIN answer a ON a.ord = o.ord;
END
$$;
