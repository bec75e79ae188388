-- The claim. For each request a walk over the ready partitions of its groups, in the order in which they became ready, taking
-- up to p_spread partitions and p_batches messages under one lease id. It never waits for a lock: what others hold is skipped.
-- Decisions are made in later statements than the locks. `now` is read once.
-- Answers message rows, and one row per request with a null seq whose payload tells how the walk went:
-- {"more":[ready_at,partition] | null, "group":the group whose walk goes on there, "held":bool, "next":ready_at | null, "first":ready_at | null, "gone":bool}; created_at is the
-- lease's end. Moments travel as microseconds since 1970.
CREATE OR REPLACE FUNCTION queen.pop_messages(
    p_batches int[], p_spread int[], p_partitions int[], p_lease_ids uuid[], p_lease_seconds int[],
    p_walk_request int[], p_walk_group int[], p_walk_ready bigint[], p_walk_partition int[])
RETURNS TABLE (request int, partition_id int, seq bigint, transaction_id text, trace_id uuid, created_at timestamptz,
               is_encrypted boolean, producer text, headers json, payload json, attempts int)
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET enable_sort = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    v_now      timestamptz := queen.now();
    v_walk     refcursor;
    c          queen.partition_consumers;
    r          record;
    v_request  int := 0;
    v_group    int;
    v_left     int;
    v_spread   int;
    v_examined int;
    v_lo       bigint;
    v_hi       bigint;
    v_n        int;
    v_special  bigint;
    v_outcome  text;
    v_moment   timestamptz;
    v_until    timestamptz;
    v_lease    int;
    v_plain    boolean;
    v_first    timestamptz;
    v_more     json;
    v_last     int;
    v_held     boolean;
    v_careful  boolean;
    v_took     boolean;
    v_after    timestamptz;
BEGIN
    FOR w IN 1 .. cardinality(p_walk_request) LOOP
        IF p_walk_request[w] <> v_request THEN
            v_request := p_walk_request[w];
            v_left := p_batches[v_request];
            v_spread := p_spread[v_request];
            v_examined := 0;
            v_until := NULL; v_first := NULL; v_more := NULL; v_last := NULL; v_held := false; v_took := false;
        END IF;
        v_group := p_walk_group[w];
        v_lease := NULL;
        IF v_left > 0 AND v_spread > 0 AND v_more IS NULL THEN
            IF p_partitions[v_request] IS NULL THEN
                v_after := 'epoch'::timestamptz + p_walk_ready[w] * interval '1 microsecond';
                OPEN v_walk FOR
                    SELECT * FROM queen.partition_consumers pc
                     WHERE pc.group_id = v_group AND pc.ready_at IS NOT NULL AND pc.ready_at <= v_now
                       AND (pc.ready_at, pc.partition_id) >= (v_after, p_walk_partition[w])
                     ORDER BY pc.ready_at, pc.partition_id LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED;
            ELSE
                OPEN v_walk FOR
                    SELECT * FROM queen.partition_consumers pc
                     WHERE pc.partition_id = p_partitions[v_request] AND pc.group_id = v_group AND pc.ready_at <= v_now
                       FOR NO KEY UPDATE SKIP LOCKED;
            END IF;
            LOOP
                FETCH v_walk INTO c;
                EXIT WHEN NOT FOUND;
                v_examined := v_examined + 1;
                v_first := least(v_first, c.ready_at);
                IF v_lease IS NULL THEN
                    SELECT coalesce(p_lease_seconds[v_request], q.lease_time), q.delayed_processing = 0 AND q.window_buffer = 0 AND q.ttl IS NULL
                      INTO v_lease, v_plain
                      FROM queen.consumer_groups_metadata g JOIN queen.queues q ON q.id = g.queue_id WHERE g.id = v_group;
                    v_until := v_now + v_lease * interval '1 second';
                END IF;
                v_careful := true;
                IF v_plain AND c.lease_id IS NULL AND c.acked IS NULL AND c.attempts IS NULL THEN
                    SELECT count(*), min(m.seq), max(m.seq), count(m.not_before) INTO v_n, v_lo, v_hi, v_special
                      FROM (SELECT s.seq, s.not_before FROM queen.messages s
                             WHERE s.partition_id = c.partition_id AND s.seq > c.cursor_seq ORDER BY s.seq LIMIT v_left) m;
                    IF v_n = 0 THEN
                        -- Drained, unless seqs were removed or a pusher is at work.
                        v_careful := queen.try_drain(c.partition_id, c.cursor_seq) <> 'drained';
                        v_outcome := 'drained';
                    ELSIF v_lo = c.cursor_seq + 1 AND v_hi - v_lo + 1 = v_n AND v_special = 0 THEN
                        SELECT EXISTS (SELECT FROM queen.message_audience a WHERE a.partition_id = c.partition_id AND a.seq BETWEEN v_lo AND v_hi)
                          INTO v_careful;
                        v_outcome := 'take';
                    END IF;
                END IF;
                IF v_careful THEN
                    SELECT * INTO r FROM queen.claim_carefully(c, v_now, v_left);
                    c := r.c; v_outcome := r.outcome; v_lo := r.lo; v_hi := r.hi; v_n := r.taken; v_moment := r.moment;
                END IF;
                IF v_outcome = 'take' THEN
                    IF v_careful THEN
                        UPDATE queen.partition_consumers pc
                           SET cursor_seq = c.cursor_seq, acked = c.acked, attempts = c.attempts, answered = NULL,
                               last_lease_id = c.last_lease_id, last_lease_from = c.last_lease_from, last_lease_to = c.last_lease_to,
                               last_answered = c.last_answered, last_open = c.last_open,
                               lease_id = p_lease_ids[v_request], lease_from = v_lo, lease_to = v_hi, lease_count = v_n,
                               lease_until = v_until, ready_at = v_until, last_consumed_at = v_now
                         WHERE CURRENT OF v_walk;
                        RETURN QUERY SELECT v_request, m.partition_id, m.seq, m.transaction_id, m.trace_id, m.created_at, m.is_encrypted, m.producer,
                                            m.headers, m.payload, coalesce((c.attempts -> m.seq::text ->> 0)::int, 0)
                                       FROM queen.messages m
                                      WHERE m.partition_id = c.partition_id AND m.seq BETWEEN v_lo AND v_hi
                                        AND (c.acked IS NULL OR NOT c.acked @> m.seq)
                                      ORDER BY m.seq;
                    ELSE
                        UPDATE queen.partition_consumers pc
                           SET lease_id = p_lease_ids[v_request], lease_from = v_lo, lease_to = v_hi, lease_count = v_n,
                               lease_until = v_until, ready_at = v_until, last_consumed_at = v_now
                         WHERE CURRENT OF v_walk;
                        RETURN QUERY SELECT v_request, m.partition_id, m.seq, m.transaction_id, m.trace_id, m.created_at, m.is_encrypted, m.producer,
                                            m.headers, m.payload, 0
                                       FROM queen.messages m
                                      WHERE m.partition_id = c.partition_id AND m.seq BETWEEN v_lo AND v_hi ORDER BY m.seq;
                    END IF;
                    v_took := true;
                    v_left := v_left - v_n;
                    v_spread := v_spread - 1;
                    EXIT WHEN v_left <= 0 OR v_spread <= 0;
                ELSIF v_outcome = 'drained' AND NOT v_careful THEN
                    UPDATE queen.partition_consumers pc SET ready_at = NULL WHERE CURRENT OF v_walk;
                ELSE
                    v_held := v_held OR v_outcome = 'held';
                    IF v_outcome = 'hold' AND v_moment <= v_now THEN
                        v_more := json_build_array(queen.micros(c.ready_at), c.partition_id);
                    END IF;
                    UPDATE queen.partition_consumers pc
                       SET cursor_seq = c.cursor_seq, acked = c.acked, attempts = c.attempts, answered = c.answered,
                           last_lease_id = c.last_lease_id, last_lease_from = c.last_lease_from, last_lease_to = c.last_lease_to,
                           last_answered = c.last_answered, last_open = c.last_open,
                           lease_id = c.lease_id, lease_from = c.lease_from, lease_to = c.lease_to, lease_count = c.lease_count, lease_until = c.lease_until,
                           ready_at = CASE v_outcome WHEN 'drained' THEN NULL WHEN 'hold' THEN v_moment ELSE pc.ready_at END
                     WHERE CURRENT OF v_walk;
                END IF;
                IF v_examined >= 1000 THEN
                    v_more := coalesce(v_more, json_build_array(queen.micros(c.ready_at), c.partition_id));
                    EXIT;
                END IF;
            END LOOP;
            CLOSE v_walk;
            v_last := CASE WHEN v_more IS NOT NULL THEN v_group END;
        END IF;
        IF w = cardinality(p_walk_request) OR p_walk_request[w + 1] <> v_request THEN
            v_moment := NULL;
            IF NOT v_took THEN
                SELECT min(n.ready_at) INTO v_moment FROM unnest(p_walk_request, p_walk_group) x(req, grp),
                       LATERAL (SELECT pc.ready_at FROM queen.partition_consumers pc WHERE pc.group_id = x.grp AND pc.ready_at > v_now
                                 ORDER BY pc.ready_at LIMIT 1) n
                 WHERE x.req = v_request;
            END IF;
            RETURN QUERY SELECT v_request, NULL::int, NULL::bigint, NULL::text, NULL::uuid, v_until, NULL::boolean, NULL::text, NULL::json,
                json_build_object('more', v_more, 'group', v_last, 'held', v_held, 'first', queen.micros(v_first), 'next', queen.micros(v_moment),
                    'gone', NOT v_took AND v_first IS NULL AND NOT EXISTS (SELECT FROM queen.consumer_groups_metadata g WHERE g.id = v_group AND g.queue_id IS NOT NULL)),
                NULL::int;
        END IF;
    END LOOP;
END
$$;
