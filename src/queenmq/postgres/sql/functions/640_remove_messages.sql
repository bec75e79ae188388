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
    IF greatest(p_from, v_first) <= v_to THEN
        PERFORM queen.note_removed(p_partition, int8multirange(int8range(greatest(p_from, v_first), v_to, '[]')), p_reason);
    END IF;
    PERFORM set_config('lock_timeout', v_wait, true);
    RETURN v_gone;
END
$$;

-- Records removed stretches; the caller holds the partition's rows. Of a live lease's batch they are settled, and a lease whose last
-- open message went ends; everywhere else the next claim steps over them. What may be claimed next has changed for all unleased rows.
CREATE OR REPLACE FUNCTION queen.note_removed(p_partition int, p_ranges int8multirange, p_reason text) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_now   timestamptz := queen.now();
    v_first bigint;
    v_known int8multirange;
    v_least bigint;
    c       queen.partition_consumers;
BEGIN
    DELETE FROM queen.message_audience a USING unnest(p_ranges) r WHERE a.partition_id = p_partition AND a.seq >= lower(r) AND a.seq < upper(r);
    -- first_seq moves over what is known to have gone, never over a seq that nobody can explain.
    SELECT first_seq INTO v_first FROM queen.partition_lookup WHERE partition_id = p_partition;
    SELECT p_ranges + coalesce(range_agg(int8range(from_seq, to_seq, '[]')), '{}') INTO v_known
      FROM queen.removed_messages WHERE partition_id = p_partition AND to_seq >= v_first;
    v_known := (v_known + int8multirange(int8range(v_first - 1, v_first))) * int8multirange(int8range(v_first - 1, NULL));
    v_first := (SELECT upper(r) FROM unnest(v_known) r LIMIT 1);
    UPDATE queen.partition_lookup SET first_seq = v_first, updated_at = v_now WHERE partition_id = p_partition AND first_seq < v_first;
    -- What every group had settled, and first_seq tells, needs no reason.
    SELECT min(cursor_seq) INTO v_least FROM queen.partition_consumers WHERE partition_id = p_partition;
    INSERT INTO queen.removed_messages (partition_id, from_seq, to_seq, reason, removed_at)
    SELECT p_partition, lower(r), upper(r) - 1, p_reason, v_now FROM unnest(p_ranges) r WHERE upper(r) > v_first OR upper(r) - 1 > v_least;
    FOR c IN SELECT * FROM queen.partition_consumers WHERE partition_id = p_partition AND cursor_seq < upper(p_ranges) - 1 ORDER BY group_id LOOP
        IF c.lease_id IS NOT NULL THEN
            c := queen.settle(c, p_ranges * int8multirange(int8range(c.cursor_seq + 1, greatest(c.lease_to, c.cursor_seq) + 1)));
        END IF;
        -- A retry moment of what went must hold nobody back.
        IF c.attempts IS NOT NULL THEN
            c.attempts := (SELECT jsonb_object_agg(a.key, a.value) FROM jsonb_each(c.attempts) a WHERE NOT p_ranges @> a.key::bigint);
        END IF;
        IF c.lease_until > v_now AND NOT queen.batch_open(c) THEN
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
