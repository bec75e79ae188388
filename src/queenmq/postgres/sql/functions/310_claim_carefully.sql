-- The claim of one partition that isn't plain: something is acked above the cursor, a message failed, a lease expired, the
-- queue delays or expires messages, seqs are missing. The caller holds the consumer row. It never waits for a lock.
-- Answers what happened: 'take' (lo..hi hold v_count messages that are neither acked nor another group's), 'hold' until
-- a moment, 'drained', 'held' (a pusher holds the partition: ask again).

-- Counts an attempt of the first unsettled message of a lease that has run out, and moves the lease to "last".
CREATE OR REPLACE FUNCTION queen.expire_lease(c queen.partition_consumers, p_now timestamptz) RETURNS queen.partition_consumers
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_seq     bigint;
    v_attempt jsonb;
BEGIN
    SELECT m.seq INTO v_seq FROM queen.messages m
     WHERE m.partition_id = c.partition_id AND m.seq BETWEEN greatest(c.lease_from, c.cursor_seq + 1) AND c.lease_to
       AND (c.acked IS NULL OR NOT c.acked @> m.seq) AND (c.answered IS NULL OR NOT c.answered ? m.seq::text)
       AND queen.meant_for(m.partition_id, m.seq, c.group_id)
     ORDER BY m.seq LIMIT 1;
    c := queen.end_lease(c);
    IF v_seq IS NOT NULL THEN
        v_attempt := queen.fail_message(c, v_seq, 'the lease expired', p_now, 0, false);
        IF v_attempt IS NULL THEN
            c := queen.settle(c, int8multirange(int8range(v_seq, v_seq, '[]')));
        ELSE
            c.attempts := coalesce(c.attempts, '{}') || jsonb_build_object(v_seq::text, v_attempt);
        END IF;
    END IF;
    RETURN c;
END
$$;

-- The lease becomes the last one, under which acks may be repeated.
CREATE OR REPLACE FUNCTION queen.end_lease(c queen.partition_consumers) RETURNS queen.partition_consumers
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    c.last_lease_id := c.lease_id;
    c.last_lease_from := c.lease_from;
    c.last_lease_to := c.lease_to;
    c.last_answered := c.answered;
    c.last_open := nullif(int8multirange(int8range(c.lease_from, c.lease_to + 1) * int8range(c.cursor_seq + 1, NULL)) - coalesce(c.acked, '{}'), '{}');
    c.lease_id := NULL;
    c.lease_from := NULL;
    c.lease_to := NULL;
    c.lease_count := NULL;
    c.lease_until := NULL;
    c.answered := NULL;
    RETURN c;
END
$$;

-- Whether the group is given this message: no audience, or it is in it.
CREATE OR REPLACE FUNCTION queen.meant_for(p_partition int, p_seq bigint, p_group int) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (SELECT FROM queen.message_audience WHERE partition_id = p_partition AND seq = p_seq)
        OR EXISTS (SELECT FROM queen.message_audience a JOIN queen.consumer_groups_metadata g ON g.consumer_group = a.consumer_group
                    WHERE a.partition_id = p_partition AND a.seq = p_seq AND g.id = p_group)
$$;

-- Marks seqs as settled and lifts the cursor over everything settled without a gap.
CREATE OR REPLACE FUNCTION queen.settle(c queen.partition_consumers, p_seqs int8multirange) RETURNS queen.partition_consumers
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_all  int8multirange := coalesce(c.acked, '{}') + p_seqs;
    v_head int8multirange;
BEGIN
    v_head := v_all * int8multirange(int8range(c.cursor_seq + 1, NULL));
    WHILE NOT isempty(v_head) AND lower(v_head) = c.cursor_seq + 1 LOOP
        c.cursor_seq := (SELECT upper(r) - 1 FROM unnest(v_head) r ORDER BY r LIMIT 1);
        v_head := v_head * int8multirange(int8range(c.cursor_seq + 1, NULL));
    END LOOP;
    c.acked := nullif(v_head, '{}'::int8multirange);
    IF c.attempts IS NOT NULL THEN
        c.attempts := (SELECT jsonb_object_agg(a.key, a.value) FROM jsonb_each(c.attempts) a
                        WHERE a.key::bigint > c.cursor_seq AND (c.acked IS NULL OR NOT c.acked @> a.key::bigint));
    END IF;
    RETURN c;
END
$$;

-- Counts a failed attempt of one message: [count, retry moment in ms, error]. Past the queue's retry limit it becomes a dead letter:
-- null, and the caller settles it.
CREATE OR REPLACE FUNCTION queen.fail_message(c queen.partition_consumers, p_seq bigint, p_error text, p_now timestamptz, p_delay_ms bigint,
    p_at_once boolean) RETURNS jsonb
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_count int := coalesce((c.attempts -> p_seq::text ->> 0)::int, 0) + CASE WHEN p_at_once THEN 0 ELSE 1 END;
    v_queue queen.queues;
    v_group text;
BEGIN
    SELECT q.* INTO v_queue FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE p.id = c.partition_id;
    IF NOT p_at_once AND v_count <= v_queue.retry_limit THEN
        RETURN jsonb_build_array(v_count, floor(extract(epoch FROM p_now) * 1000)::bigint + coalesce(p_delay_ms, v_queue.retry_delay), p_error);
    END IF;
    SELECT consumer_group INTO v_group FROM queen.consumer_groups_metadata WHERE id = c.group_id;
    INSERT INTO queen.dead_letter_queue (queue_id, partition_id, seq, transaction_id, trace_id, consumer_group, error_message, retry_count,
                                         is_encrypted, producer, headers, payload, created_at, failed_at)
    SELECT v_queue.id, m.partition_id, m.seq, m.transaction_id, m.trace_id, v_group, p_error, v_count,
           m.is_encrypted, m.producer, m.headers, m.payload, m.created_at, p_now
      FROM queen.messages m WHERE m.partition_id = c.partition_id AND m.seq = p_seq;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION queen.claim_carefully(INOUT c queen.partition_consumers, p_now timestamptz, p_limit int,
    OUT outcome text, OUT lo bigint, OUT hi bigint, OUT taken int, OUT moment timestamptz)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_queue  queen.queues;
    v_first  bigint;
    v_next   bigint;
    v_last   timestamptz;
    v_skip   int8range[] := '{}';
    v_gaps   int8range[] := '{}';
    v_seen   bigint;
    v_range  int8range;
    v_due    timestamptz;
    v_oldest timestamptz;
    v_budget int := 1000 + p_limit;
    m        record;
BEGIN
    SELECT q.* INTO v_queue FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE p.id = c.partition_id;
    SELECT first_seq, next_seq, last_message_created_at INTO v_first, v_next, v_last FROM queen.partition_lookup WHERE partition_id = c.partition_id;
    IF c.cursor_seq < v_first - 1 THEN
        c := queen.settle(c, int8multirange(int8range(c.cursor_seq + 1, v_first)));
    END IF;
    taken := 0;
    IF c.lease_until > p_now THEN
        outcome := 'hold';
        moment := c.lease_until;
        RETURN;
    ELSIF c.lease_id IS NOT NULL THEN
        c := queen.expire_lease(c, p_now);
    END IF;
    v_seen := c.cursor_seq;
    <<scan>>
    FOR v_range IN SELECT r FROM unnest(int8multirange(int8range(c.cursor_seq + 1, v_next)) - coalesce(c.acked, '{}')) r ORDER BY r LOOP
        v_seen := lower(v_range) - 1;
        FOR m IN SELECT s.seq, s.created_at, s.not_before, queen.meant_for(s.partition_id, s.seq, c.group_id) AS ours
                   FROM queen.messages s WHERE s.partition_id = c.partition_id AND s.seq >= lower(v_range) AND s.seq < upper(v_range)
                  ORDER BY s.seq LIMIT v_budget LOOP
            v_budget := v_budget - 1;
            IF m.seq > v_seen + 1 THEN
                v_gaps := v_gaps || int8range(v_seen + 1, m.seq);
            END IF;
            v_seen := m.seq;
            v_due := greatest(m.not_before, m.created_at + nullif(v_queue.delayed_processing, 0) * interval '1 second',
                              to_timestamp((c.attempts -> m.seq::text ->> 1)::float8 / 1000));
            IF NOT m.ours OR m.created_at + v_queue.ttl * interval '1 second' <= p_now THEN
                v_skip := v_skip || int8range(m.seq, m.seq, '[]');
                CONTINUE;
            ELSIF v_due > p_now THEN
                moment := least(v_due, m.created_at + v_queue.ttl * interval '1 second');
                EXIT scan;
            END IF;
            taken := taken + 1;
            lo := coalesce(lo, m.seq);
            v_oldest := coalesce(v_oldest, m.created_at);
            hi := m.seq;
            EXIT scan WHEN taken >= p_limit;
        END LOOP;
        -- The budget is spent on messages that are not for us: what is settled is written, and the next claim goes on.
        IF v_budget <= 0 THEN
            moment := p_now;
            EXIT scan;
        ELSIF v_seen < upper(v_range) - 1 THEN
            v_gaps := v_gaps || int8range(v_seen + 1, upper(v_range));
        END IF;
    END LOOP scan;
    IF v_gaps <> '{}' THEN
        PERFORM queen.explain_gaps(c.partition_id, (SELECT range_agg(r) FROM unnest(v_gaps) r));
    END IF;
    IF v_gaps <> '{}' OR v_skip <> '{}' THEN
        c := queen.settle(c, (SELECT range_agg(r) FROM unnest(v_gaps || v_skip) r));
    END IF;
    IF taken > 0 AND v_queue.window_buffer > 0 THEN
        v_due := least(v_last + v_queue.window_buffer * interval '1 second',
                       v_oldest + coalesce(v_queue.window_max_wait, 10 * v_queue.window_buffer) * interval '1 second');
        IF v_due > p_now THEN
            taken := 0;
            moment := v_due;
        END IF;
    END IF;
    IF taken > 0 THEN
        outcome := 'take';
    ELSIF moment IS NOT NULL THEN
        outcome := 'hold';
    ELSE
        outcome := queen.try_drain(c.partition_id, c.cursor_seq);
    END IF;
END
$$;

-- 'drained' when nothing is pending, and no push can change that before we commit; 'held' when a pusher has the row; 'more'
-- when messages came meanwhile.
CREATE OR REPLACE FUNCTION queen.try_drain(p_partition int, p_cursor bigint) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    PERFORM 1 FROM queen.partition_lookup WHERE partition_id = p_partition AND next_seq <= greatest(p_cursor + 1, first_seq) FOR SHARE SKIP LOCKED;
    RETURN CASE WHEN FOUND THEN 'drained' ELSE 'held' END;
END
$$;

-- Missing seqs that removed_messages doesn't name are data loss: it says so, and is recorded so that the partition goes on.
CREATE OR REPLACE FUNCTION queen.explain_gaps(p_partition int, p_gaps int8multirange) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_lost int8range;
BEGIN
    FOR v_lost IN SELECT unnest(p_gaps - coalesce((SELECT range_agg(int8range(from_seq, to_seq, '[]')) FROM queen.removed_messages
                                                    WHERE partition_id = p_partition AND to_seq >= lower(p_gaps) AND from_seq < upper(p_gaps)), '{}')) LOOP
        RAISE WARNING 'queen: data loss: partition % lacks seq % to %', p_partition, lower(v_lost), upper(v_lost) - 1;
        INSERT INTO queen.removed_messages (partition_id, from_seq, to_seq, reason, removed_at)
        VALUES (p_partition, lower(v_lost), upper(v_lost) - 1, 'lost', queen.now());
    END LOOP;
END
$$;
