-- The slow way of a push, under the partitions' locks: finds duplicates (inside the call and against what is stored) and
-- stores the rest. Answers by position; bases move on by what was really stored.
CREATE OR REPLACE FUNCTION queen.push_rows(
    p_partitions int[], p_bases bigint[], p_created timestamptz[], p_which int[], p_transactions text[], p_payloads json[],
    p_traces uuid[], p_encrypted boolean[], p_producers text[], p_headers json[], p_not_before timestamptz[],
    OUT seqs bigint[], OUT duplicates boolean[], OUT stored bigint[])
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    -- One pass with windows: joins of what these steps found are nested loops in a plan that was made for few items.
    WITH item AS (
        SELECT u.ord, u.which, p_partitions[u.which] AS partition_id, p_bases[u.which] AS base, u.transaction_id,
               row_number() OVER (PARTITION BY u.which, u.transaction_id ORDER BY u.ord) AS copy
          FROM unnest(p_which, p_transactions) WITH ORDINALITY u(which, transaction_id, ord)
    ), known AS (
        SELECT i.*, m.seq AS stored_seq
          FROM item i LEFT JOIN queen.messages m ON m.partition_id = i.partition_id AND m.transaction_id = i.transaction_id AND i.base IS NOT NULL
    ), placed AS (
        SELECT k.*, CASE WHEN k.stored_seq IS NULL AND k.copy = 1
                         THEN k.base - 1 + count(*) FILTER (WHERE k.stored_seq IS NULL AND k.copy = 1) OVER (PARTITION BY k.which ORDER BY k.ord) END AS new_seq
          FROM known k
    ), written AS (
        INSERT INTO queen.messages (partition_id, seq, transaction_id, trace_id, created_at, is_encrypted, producer, headers, not_before, payload)
        SELECT p.partition_id, p.new_seq, p.transaction_id, p_traces[p.ord], p_created[p.which], p_encrypted[p.ord], p_producers[p.ord],
               p_headers[p.ord], p_not_before[p.ord], p_payloads[p.ord]
          FROM placed p WHERE p.new_seq IS NOT NULL ORDER BY p.ord
        RETURNING partition_id
    ), answer AS (
        SELECT p.ord, coalesce(p.stored_seq, max(p.new_seq) OVER (PARTITION BY p.which, p.transaction_id)) AS seq,
               CASE WHEN p.base IS NOT NULL THEN p.stored_seq IS NOT NULL OR p.copy > 1 END AS duplicate
          FROM placed p
    )
    SELECT array_agg(a.seq ORDER BY a.ord), array_agg(a.duplicate ORDER BY a.ord),
           (SELECT array_agg(coalesce(s.count, 0) ORDER BY q.ord)
              FROM unnest(p_partitions) WITH ORDINALITY q(partition_id, ord)
              LEFT JOIN (SELECT w.partition_id, count(*) FROM written w GROUP BY w.partition_id) s ON s.partition_id = q.partition_id)
      INTO seqs, duplicates, stored
      FROM answer a;
END
$$;
