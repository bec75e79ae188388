-- What transactions that weren't the server's own made or woke: gives partitions their missing consumer rows and sets what is
-- pending to ready. A wake stays while somebody holds a row that it needs. Answers the queues to wake and how many wakes were taken.
CREATE OR REPLACE FUNCTION queen.take_wakes(p_limit int DEFAULT 1000, OUT queues int[], OUT taken int)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_ids   bigint[];
    v_parts int[];
    v_got   int[];
    v_now   timestamptz;
    v_new   int[];
    v_may   boolean;
    v_queues int[];
    v_queue int;
    v_p     int[];
    v_g     int[];
BEGIN
    taken := 0;
    -- By partition, so that many wakes of one that is held don't hide the others'.
    SELECT array_agg(w.id), array_agg(DISTINCT w.partition_id) INTO v_ids, v_parts
      FROM (SELECT id, partition_id FROM queen.wakes
             WHERE partition_id = ANY (ARRAY(SELECT DISTINCT partition_id FROM queen.wakes ORDER BY partition_id LIMIT p_limit))
             LIMIT 100000 FOR UPDATE SKIP LOCKED) w;
    IF v_ids IS NULL THEN
        RETURN;
    END IF;
    SELECT coalesce(array_agg(DISTINCT p.queue_id), '{}') INTO v_new
      FROM queen.wakes w JOIN queen.partitions p ON p.id = w.partition_id WHERE w.id = ANY (v_ids) AND w.new_queue;
    v_may := v_new = '{}' OR queen.try_lock_subscriptions();
    -- Never waits: what concerns a queue whose lock somebody holds stays for the next time.
    SELECT coalesce(array_agg(q.id), '{}') INTO v_queues
      FROM (SELECT DISTINCT queue_id AS id FROM queen.partitions WHERE id = ANY (v_parts) ORDER BY queue_id) q
     WHERE CASE WHEN q.id = ANY (v_new) THEN v_may AND queen.try_lock_queue(q.id, true) ELSE queen.try_lock_queue(q.id) END;
    SELECT array_agg(DISTINCT w.partition_id), array_agg(w.id) INTO v_parts, v_ids
      FROM queen.wakes w LEFT JOIN queen.partitions p ON p.id = w.partition_id
     WHERE w.id = ANY (v_ids) AND (p.id IS NULL OR p.queue_id = ANY (v_queues));
    -- A queue and a subscription that were made at the same time didn't see each other.
    FOREACH v_queue IN ARRAY v_new LOOP
        CONTINUE WHEN NOT v_queue = ANY (v_queues);
        IF queen.match_subscriptions(v_queue) > 0 THEN
            PERFORM queen.make_rows(array_agg(p.id)) FROM queen.partitions p WHERE p.queue_id = v_queue;
        END IF;
    END LOOP;
    SELECT array_agg(l.partition_id) INTO v_got FROM (
        SELECT partition_id FROM queen.partition_lookup WHERE partition_id = ANY (v_parts) ORDER BY partition_id FOR KEY SHARE SKIP LOCKED) l;
    PERFORM queen.make_rows(v_got);
    SELECT array_agg(c.partition_id), array_agg(c.group_id) INTO v_p, v_g FROM (
        SELECT partition_id, group_id FROM queen.partition_consumers WHERE partition_id = ANY (v_got) AND ready_at IS NULL
         ORDER BY partition_id, group_id FOR NO KEY UPDATE SKIP LOCKED) c;
    v_now := queen.now();
    UPDATE queen.partition_consumers c SET ready_at = v_now FROM unnest(v_p, v_g) k(p, g), queen.partition_lookup l
     WHERE c.partition_id = k.p AND c.group_id = k.g AND l.partition_id = c.partition_id AND l.next_seq > greatest(c.cursor_seq + 1, l.first_seq);
    -- Kept: partitions that somebody holds exclusively, and those with a pending row that we couldn't wake.
    DELETE FROM queen.wakes w WHERE w.id = ANY (v_ids)
       AND (w.partition_id = ANY (v_got) OR NOT EXISTS (SELECT FROM queen.partition_lookup l WHERE l.partition_id = w.partition_id))
       AND NOT EXISTS (SELECT FROM queen.partition_consumers c JOIN queen.partition_lookup l ON l.partition_id = c.partition_id
                        WHERE c.partition_id = w.partition_id AND c.ready_at IS NULL AND l.next_seq > greatest(c.cursor_seq + 1, l.first_seq));
    GET DIAGNOSTICS taken = ROW_COUNT;
    SELECT array_agg(DISTINCT queue_id) INTO queues FROM queen.partitions WHERE id = ANY (v_parts);
END
$$;
