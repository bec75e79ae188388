-- The consumer rows of partitions that were just made or woke, one for every group of their queue: born ready, placed before
-- the message that made the partition appear. The caller holds the queue's lock shared, and this is a later statement.
CREATE OR REPLACE FUNCTION queen.make_rows(p_partitions int[]) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_made bigint;
BEGIN
    INSERT INTO queen.partition_consumers (partition_id, group_id, cursor_seq, ready_at)
    SELECT p.id, g.id, l.first_seq - 1, queen.now()
      FROM queen.partitions p
      JOIN queen.partition_lookup l ON l.partition_id = p.id
      JOIN queen.consumer_groups_metadata g ON g.queue_id = p.queue_id
     WHERE p.id = ANY (p_partitions)
     ORDER BY p.id, g.id
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS v_made = ROW_COUNT;
    RETURN v_made;
END
$$;
