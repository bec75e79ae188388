-- Removes a stretch of a partition's messages, settled or not, also while they are leased. What some group had not settled is
-- recorded with its reason, so that claims and acks can tell; a prefix moves first_seq. Answers how many messages went.
CREATE OR REPLACE FUNCTION queen.remove_messages(p_partition int, p_from bigint, p_to bigint, p_reason text) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_wait       text := current_setting('lock_timeout');
    v_maintained text := current_setting('queen.lookup_maintained', true);
    v_first      bigint;
    v_next       bigint;
    v_to         bigint;
    v_gone       bigint;
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    PERFORM queen.lock_queue(queue_id, false) FROM queen.partitions WHERE id = p_partition;
    SELECT first_seq, next_seq INTO v_first, v_next FROM queen.partition_lookup WHERE partition_id = p_partition FOR UPDATE;
    IF v_first IS NULL THEN
        RAISE EXCEPTION 'partition % is asleep or gone', p_partition USING ERRCODE = 'QM008';
    END IF;
    v_to := least(p_to, v_next - 1);
    PERFORM 1 FROM queen.partition_consumers WHERE partition_id = p_partition ORDER BY group_id FOR NO KEY UPDATE;
    PERFORM set_config('queen.lookup_maintained', 'on', true);
    DELETE FROM queen.messages WHERE partition_id = p_partition AND seq BETWEEN p_from AND v_to;
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    PERFORM set_config('queen.lookup_maintained', coalesce(v_maintained, ''), true);
    PERFORM queen.note_removed(p_partition, greatest(p_from, v_first), v_to, p_reason);
    PERFORM set_config('lock_timeout', v_wait, true);
    RETURN v_gone;
END
$$;

-- Records a removed stretch and settles it in every group; the caller holds the partition's rows. A lease whose last open message
-- went ends; what may be claimed next has changed for all unleased rows.
CREATE OR REPLACE FUNCTION queen.note_removed(p_partition int, p_from bigint, p_to bigint, p_reason text) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_now    timestamptz := queen.now();
    v_prefix boolean;
    c        queen.partition_consumers;
BEGIN
    IF p_from > p_to THEN
        RETURN;
    END IF;
    DELETE FROM queen.message_audience WHERE partition_id = p_partition AND seq BETWEEN p_from AND p_to;
    SELECT NOT EXISTS (SELECT FROM queen.messages WHERE partition_id = p_partition AND seq < p_from) INTO v_prefix;
    IF NOT v_prefix OR EXISTS (SELECT FROM queen.partition_consumers pc WHERE pc.partition_id = p_partition AND pc.cursor_seq < p_to) THEN
        INSERT INTO queen.removed_messages (partition_id, from_seq, to_seq, reason, removed_at) VALUES (p_partition, p_from, p_to, p_reason, v_now);
    END IF;
    IF v_prefix THEN
        UPDATE queen.partition_lookup SET first_seq = greatest(first_seq, p_to + 1), updated_at = v_now WHERE partition_id = p_partition;
    END IF;
    FOR c IN SELECT * FROM queen.partition_consumers WHERE partition_id = p_partition AND cursor_seq < p_to ORDER BY group_id LOOP
        c := queen.settle(c, int8multirange(int8range(greatest(p_from, c.cursor_seq + 1), p_to, '[]')));
        IF c.lease_id IS NOT NULL AND c.lease_until > v_now AND NOT queen.batch_open(c) THEN
            c := queen.end_lease(c);
        END IF;
        UPDATE queen.partition_consumers
           SET cursor_seq = c.cursor_seq, acked = c.acked, attempts = c.attempts, answered = c.answered,
               lease_id = c.lease_id, lease_from = c.lease_from, lease_to = c.lease_to, lease_count = c.lease_count, lease_until = c.lease_until,
               last_lease_id = c.last_lease_id, last_lease_from = c.last_lease_from, last_lease_to = c.last_lease_to, last_answered = c.last_answered, last_open = c.last_open,
               ready_at = CASE WHEN c.lease_id IS NOT NULL AND c.lease_until > v_now THEN c.ready_at ELSE v_now END
         WHERE partition_id = p_partition AND group_id = c.group_id;
    END LOOP;
    PERFORM pg_notify('queen_wake', queue_id::text) FROM queen.partitions WHERE id = p_partition;
END
$$;
