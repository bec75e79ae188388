-- Locks the lookup rows of awake partitions in id order and reads what a push needs. Fewer rows than asked end the call
-- without effect (QM001): the partition went to sleep or was deleted while we waited; the caller makes or wakes it and calls again.
-- With p_skip, what somebody holds comes back as null in every array: set aside by the caller.
CREATE OR REPLACE FUNCTION queen.lock_partitions(p_partitions int[], p_skip boolean,
    OUT bases bigint[], OUT created timestamptz[])
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_got int[];
BEGIN
    IF NOT p_skip THEN
        SELECT array_agg(l.partition_id), array_agg(l.next_seq), array_agg(l.last_message_created_at)
          INTO v_got, bases, created
          FROM (SELECT partition_id, next_seq, last_message_created_at FROM queen.partition_lookup
                 WHERE partition_id = ANY (p_partitions) ORDER BY partition_id FOR NO KEY UPDATE) l;
    ELSE
        SELECT array_agg(l.next_seq ORDER BY u.ord), array_agg(l.last_message_created_at ORDER BY u.ord)
          INTO bases, created
          FROM unnest(p_partitions) WITH ORDINALITY u(partition_id, ord)
          LEFT JOIN (SELECT partition_id, next_seq, last_message_created_at FROM queen.partition_lookup
                      WHERE partition_id = ANY (p_partitions) ORDER BY partition_id FOR NO KEY UPDATE SKIP LOCKED) l USING (partition_id);
    END IF;
    IF NOT p_skip AND v_got IS NOT DISTINCT FROM p_partitions THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM (SELECT p, lag(p) OVER (ORDER BY ord) AS before FROM unnest(p_partitions) WITH ORDINALITY u(p, ord)) s
                WHERE p <= before OR p IS NULL) THEN
        RAISE EXCEPTION 'partition ids must be distinct and ascending' USING ERRCODE = 'QM002';
    END IF;
    IF NOT p_skip OR (SELECT count(*) FROM queen.partition_lookup WHERE partition_id = ANY (p_partitions)) < cardinality(p_partitions) THEN
        RAISE EXCEPTION 'a partition is asleep or gone' USING ERRCODE = 'QM001';
    END IF;
END
$$;
