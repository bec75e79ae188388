-- The answers to one consumer row, one by one in their order; the caller holds the row. p_repeat: an ack under the row's last
-- lease is answered as it was the first time (not inside transactions).
CREATE OR REPLACE FUNCTION queen.ack_row(
    p_partition int, p_group int, p_lease uuid, p_row int, p_which int[], p_transactions text[], p_statuses text[], p_errors text[],
    p_now timestamptz, p_repeat boolean,
    OUT details int[], OUT successes boolean[], OUT errors text[], OUT released boolean[], OUT dead boolean[])
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    c       queen.partition_consumers;
    v_old   queen.partition_consumers;
    a       record;
    r       record;
    v_held  boolean;
    v_done  bigint[] := '{}';
    v_seqs  text[] := '{}';
    v_says  text[] := '{}';
    v_keys  text[] := '{}';
    v_tries jsonb[] := '{}';
BEGIN
    SELECT * INTO c FROM queen.partition_consumers WHERE partition_id = p_partition AND group_id = p_group;
    v_old := c;
    FOR a IN SELECT u.ord::int AS ord, u.transaction_id, m.seq, u.error, row_number() OVER (PARTITION BY m.seq ORDER BY u.ord) AS copy,
                    CASE u.status WHEN 'success' THEN 'completed' ELSE coalesce(u.status, 'completed') END AS status
               FROM unnest(p_which, p_transactions, p_statuses, p_errors) WITH ORDINALITY u(which, transaction_id, status, error, ord)
               LEFT JOIN LATERAL (SELECT x.seq FROM queen.messages x
                                   WHERE x.partition_id = p_partition AND x.transaction_id = u.transaction_id LIMIT 1) m ON true
              WHERE u.which = p_row ORDER BY u.ord LOOP
        -- The row changes in one step at the end (or when a message is named again): one by one, many answers would cost their square.
        IF a.copy > 1 AND a.seq IS NOT NULL THEN
            c := queen.apply_answers(c, v_done, v_seqs, v_says, v_keys, v_tries);
            v_done := '{}'; v_seqs := '{}'; v_says := '{}'; v_keys := '{}'; v_tries := '{}';
        END IF;
        SELECT * INTO r FROM queen.ack_one(c, a.seq, a.status, a.error, p_lease, p_now, p_repeat);
        IF r.settles THEN
            v_done := v_done || a.seq;
        END IF;
        IF r.answer IS NOT NULL THEN
            v_seqs := v_seqs || a.seq::text;
            v_says := v_says || r.answer;
        END IF;
        IF r.attempt IS NOT NULL THEN
            v_keys := v_keys || a.seq::text;
            v_tries := v_tries || r.attempt;
        END IF;
        details := details || a.ord;
        successes := successes || r.success;
        errors := errors || r.error;
        dead := dead || r.dead;
    END LOOP;
    c := queen.apply_answers(c, v_done, v_seqs, v_says, v_keys, v_tries);
    v_held := c.lease_id IS NOT NULL AND c.lease_until > p_now;
    IF v_held AND NOT queen.batch_open(c) THEN
        c := queen.end_lease(c);
        v_held := false;
    END IF;
    released := array_fill(v_old.lease_id IS NOT NULL AND c.lease_id IS NULL, ARRAY[cardinality(details)]);
    IF c IS DISTINCT FROM v_old THEN
        UPDATE queen.partition_consumers
           SET cursor_seq = c.cursor_seq, acked = c.acked, answered = c.answered, attempts = c.attempts,
               lease_id = c.lease_id, lease_from = c.lease_from, lease_to = c.lease_to, lease_count = c.lease_count, lease_until = c.lease_until,
               last_lease_id = c.last_lease_id, last_lease_from = c.last_lease_from, last_lease_to = c.last_lease_to, last_answered = c.last_answered, last_open = c.last_open,
               ready_at = CASE WHEN v_held THEN c.ready_at ELSE queen.head_moment(c, p_now) END, last_consumed_at = p_now
         WHERE partition_id = p_partition AND group_id = p_group;
    END IF;
END
$$;

-- Whether an existing message of the leased batch has not been answered yet.
CREATE OR REPLACE FUNCTION queen.batch_open(c queen.partition_consumers) RETURNS boolean
LANGUAGE sql STABLE SET enable_seqscan = off AS $$
    SELECT EXISTS (SELECT FROM queen.messages m
                    WHERE m.partition_id = c.partition_id AND m.seq BETWEEN greatest(c.lease_from, c.cursor_seq + 1) AND c.lease_to
                      AND (c.acked IS NULL OR NOT c.acked @> m.seq) AND (c.answered IS NULL OR NOT c.answered ? m.seq::text)
                      AND queen.meant_for(m.partition_id, m.seq, c.group_id))
$$;

-- When the row may be claimed again: at the retry moment of the message at its head, else now.
CREATE OR REPLACE FUNCTION queen.head_moment(c queen.partition_consumers, p_now timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE SET enable_seqscan = off AS $$
    -- Where messages expire the head may be gone before its retry moment: the next claim computes the true one.
    SELECT CASE WHEN c.lease_id IS NOT NULL OR c.attempts IS NULL THEN p_now
                WHEN (SELECT q.ttl IS NOT NULL FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE p.id = c.partition_id) THEN p_now
                ELSE greatest(p_now, to_timestamp((c.attempts -> (c.cursor_seq + 1)::text ->> 1)::float8 / 1000)) END
$$;

-- Settles, answers and counted attempts, put into the row.
CREATE OR REPLACE FUNCTION queen.apply_answers(c queen.partition_consumers, p_done bigint[], p_seqs text[], p_says text[], p_keys text[], p_tries jsonb[])
RETURNS queen.partition_consumers
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_keys <> '{}' THEN
        c.attempts := coalesce(c.attempts, '{}') || (SELECT jsonb_object_agg(u.k, u.t) FROM unnest(p_keys, p_tries) u(k, t));
    END IF;
    IF p_seqs <> '{}' THEN
        c.answered := coalesce(c.answered, '{}') || jsonb_object(p_seqs, p_says);
    END IF;
    IF p_done <> '{}' THEN
        c := queen.settle(c, (SELECT range_agg(int8range(s, s, '[]')) FROM unnest(p_done) s));
    END IF;
    RETURN c;
END
$$;

-- One answer, decided on the row as it stands; what it does to the row comes back: settle the message, note the answer, the attempt.
CREATE OR REPLACE FUNCTION queen.ack_one(c queen.partition_consumers, p_seq bigint, p_status text, p_error text, p_lease uuid,
    p_now timestamptz, p_repeat boolean, OUT success boolean, OUT error text, OUT dead boolean, OUT settles boolean, OUT answer text, OUT attempt jsonb)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_live    boolean := c.lease_id IS NOT NULL AND c.lease_until > p_now;
    v_covered boolean := v_live AND p_seq BETWEEN c.lease_from AND c.lease_to;
    v_settled boolean := p_seq <= c.cursor_seq OR coalesce(c.acked @> p_seq, false);
    v_limbo   boolean := p_lease IS NULL AND NOT v_live AND p_seq BETWEEN c.lease_from AND c.lease_to;
    v_first   text;
BEGIN
    dead := false;
    settles := false;
    success := true;
    IF p_lease IS NOT NULL AND NOT (v_live AND p_lease = c.lease_id) THEN
        SELECT r.success, r.error, r.dead INTO success, error, dead FROM queen.repeat_ack(c, p_seq, p_status, p_lease, p_repeat) r;
        RETURN;
    END IF;
    IF p_seq IS NULL THEN
        error := CASE WHEN v_live THEN queen.removal_reason(c.partition_id, c.lease_from, c.lease_to) END;
        success := error IS NOT NULL;
        error := coalesce('removed: ' || error, 'Message not found');
        RETURN;
    END IF;
    v_first := CASE WHEN v_covered THEN c.answered ->> p_seq::text END;
    IF v_first IS NOT NULL THEN
        success := v_first = p_status OR v_first = 'failed-dead' AND p_status = 'failed';
        dead := success AND v_first IN ('dlq', 'failed-dead');
        error := CASE WHEN NOT success THEN 'Already answered: ' || replace(v_first, '-dead', '') END;
        RETURN;
    ELSIF v_settled THEN
        success := p_status = 'completed';
        error := CASE WHEN NOT success THEN 'Already settled' END;
        RETURN;
    ELSIF p_lease IS NOT NULL AND NOT v_covered THEN
        success := false;
        error := 'Not a message of this lease';
        RETURN;
    END IF;
    IF p_status = 'completed' THEN
        settles := true;
        RETURN;
    ELSIF p_status = 'retry' THEN
        v_first := 'retry';
    ELSE
        attempt := queen.fail_message(c, p_seq, p_error, p_now, NULL, p_status = 'dlq');
        dead := attempt IS NULL;
        settles := dead;
        v_first := CASE WHEN dead AND p_status = 'failed' THEN 'failed-dead' ELSE p_status END;
    END IF;
    -- Also under a lease that ran out and that nobody took: the same failure isn't counted twice.
    IF v_covered OR v_limbo THEN
        answer := v_first;
    END IF;
END
$$;

-- An ack under a lease that isn't live: as the first time if it was answered under the row's last lease (or under one that has just
-- run out), else refused.
CREATE OR REPLACE FUNCTION queen.repeat_ack(c queen.partition_consumers, p_seq bigint, p_status text, p_lease uuid, p_repeat boolean,
    OUT success boolean, OUT error text, OUT dead boolean)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_first text;
    v_from  bigint;
    v_to    bigint;
BEGIN
    success := false;
    dead := false;
    error := 'Invalid or expired lease';
    IF p_repeat AND p_lease = c.last_lease_id THEN
        v_from := c.last_lease_from;
        v_to := c.last_lease_to;
        v_first := coalesce(c.last_answered ->> p_seq::text, CASE WHEN c.last_open IS NULL OR NOT c.last_open @> p_seq THEN 'completed' END);
    ELSIF p_repeat AND p_lease = c.lease_id THEN
        v_from := c.lease_from;
        v_to := c.lease_to;
        v_first := coalesce(c.answered ->> p_seq::text, CASE WHEN p_seq <= c.cursor_seq OR c.acked @> p_seq THEN 'completed' END);
    ELSE
        RETURN;
    END IF;
    IF p_seq IS NULL THEN
        error := coalesce('removed: ' || queen.removal_reason(c.partition_id, v_from, v_to), error);
        success := error LIKE 'removed: %';
    ELSIF p_seq BETWEEN v_from AND v_to AND (v_first = p_status OR v_first = 'failed-dead' AND p_status = 'failed') THEN
        success := true;
        dead := v_first IN ('dlq', 'failed-dead');
        error := NULL;
    END IF;
END
$$;

-- Why messages of this stretch are no longer there; null when none was removed. What went when every group had settled it left no
-- reason behind, only first_seq.
CREATE OR REPLACE FUNCTION queen.removal_reason(p_partition int, p_from bigint, p_to bigint) RETURNS text
LANGUAGE sql STABLE SET enable_seqscan = off AS $$
    SELECT coalesce((SELECT reason FROM queen.removed_messages
                      WHERE partition_id = p_partition AND to_seq >= p_from AND from_seq <= p_to ORDER BY to_seq DESC LIMIT 1),
                    (SELECT 'settled' FROM queen.partition_lookup WHERE partition_id = p_partition AND first_seq > p_from))
$$;
