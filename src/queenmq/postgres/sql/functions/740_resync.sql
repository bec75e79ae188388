-- Checks one partition against its messages and mends what is wrong; run twice, the second time there is nothing to mend.
-- Answers what was mended: stale (counter lost, or behind what is known), rows (missing consumer rows), stranded (pending but not ready).
CREATE OR REPLACE FUNCTION queen.resync_partition(p_partition int, OUT stale int, OUT rows int, OUT stranded int)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_wait text := current_setting('lock_timeout');
    v_max  bigint;
    v_last timestamptz;
    v_min  bigint;
    v_made int := 0;
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    PERFORM queen.lock_queue(queue_id, false) FROM queen.partitions WHERE id = p_partition;
    PERFORM 1 FROM queen.partition_lookup WHERE partition_id = p_partition FOR UPDATE;
    IF NOT FOUND THEN
        -- Asleep without messages is right; anything else has lost its counter, which is made anew behind everything that is known.
        INSERT INTO queen.partition_lookup (partition_id, next_seq, first_seq, updated_at)
        SELECT p.id, k.next_seq, coalesce(k.first_seq, k.next_seq), queen.now()
          FROM queen.partitions p,
               LATERAL (SELECT greatest(p.asleep_next_seq, 1,
                                        (SELECT max(seq) + 1 FROM queen.messages WHERE partition_id = p.id),
                                        (SELECT max(cursor_seq) + 1 FROM queen.partition_consumers WHERE partition_id = p.id),
                                        (SELECT max(to_seq) + 1 FROM queen.removed_messages WHERE partition_id = p.id)) AS next_seq,
                               (SELECT min(seq) FROM queen.messages WHERE partition_id = p.id) AS first_seq) k
         WHERE p.id = p_partition AND (p.asleep_next_seq IS NULL OR k.first_seq IS NOT NULL)
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS v_made = ROW_COUNT;
        IF v_made > 0 THEN
            UPDATE queen.partitions SET asleep_next_seq = NULL, asleep_last_created_at = NULL WHERE id = p_partition AND asleep_next_seq IS NOT NULL;
        END IF;
        PERFORM 1 FROM queen.partition_lookup WHERE partition_id = p_partition FOR UPDATE;
    END IF;
    PERFORM 1 FROM queen.partition_consumers WHERE partition_id = p_partition ORDER BY group_id FOR NO KEY UPDATE;
    SELECT max(seq), max(created_at), min(seq) INTO v_max, v_last, v_min FROM (
        (SELECT seq, created_at FROM queen.messages WHERE partition_id = p_partition ORDER BY seq LIMIT 1)
        UNION ALL (SELECT seq, created_at FROM queen.messages WHERE partition_id = p_partition ORDER BY seq DESC LIMIT 1)) ends;
    -- A group never stands behind what was not given yet: its cursor tells how far the counter had been.
    v_max := greatest(v_max, (SELECT max(cursor_seq) FROM queen.partition_consumers WHERE partition_id = p_partition));
    UPDATE queen.partition_lookup SET next_seq = greatest(next_seq, v_max + 1), first_seq = least(first_seq, v_min), updated_at = queen.now(),
           last_message_created_at = greatest(last_message_created_at, v_last)
     WHERE partition_id = p_partition AND (next_seq <= v_max OR first_seq > v_min OR last_message_created_at IS DISTINCT FROM greatest(last_message_created_at, v_last));
    GET DIAGNOSTICS stale = ROW_COUNT;
    stale := greatest(stale, v_made);
    rows := queen.make_rows(ARRAY[p_partition]);
    UPDATE queen.partition_consumers c SET ready_at = queen.now() FROM queen.partition_lookup l
     WHERE c.partition_id = p_partition AND l.partition_id = c.partition_id AND c.ready_at IS NULL AND l.next_seq > greatest(c.cursor_seq + 1, l.first_seq);
    GET DIAGNOSTICS stranded = ROW_COUNT;
    IF stale + rows + stranded > 0 THEN
        PERFORM pg_notify('queen_wake', queue_id::text) FROM queen.partitions WHERE id = p_partition;
    END IF;
    PERFORM set_config('lock_timeout', v_wait, true);
END
$$;
