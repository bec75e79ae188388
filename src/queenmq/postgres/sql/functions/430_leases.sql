-- Leases by id, without naming partitions. All of them lock the rows of all named leases in (partition, group) order first.

-- Prolongs what is still live; never shortens. Answers by position: the new end, null when nothing was live.
CREATE OR REPLACE FUNCTION queen.extend_leases(p_leases uuid[], p_seconds int[], p_skip boolean DEFAULT false,
    OUT expires_at timestamptz[], OUT was_expiring_at timestamptz[], OUT held boolean[])
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now timestamptz;
    v_p   int[];
    v_g   int[];
BEGIN
    SELECT * INTO v_p, v_g FROM queen.lock_leases(p_leases, p_skip);
    v_now := queen.now();
    WITH before AS (
        SELECT u.ord, max(c.lease_until) FILTER (WHERE c.lease_until > v_now) AS until,
               bool_or(c.partition_id IS NOT NULL AND l.p IS NULL) AS held
          FROM unnest(p_leases) WITH ORDINALITY u(lease, ord)
          LEFT JOIN queen.partition_consumers c ON c.lease_id = u.lease
          LEFT JOIN unnest(v_p, v_g) l(p, g) ON l.p = c.partition_id AND l.g = c.group_id
         GROUP BY u.ord
    ), longer AS (
        UPDATE queen.partition_consumers c
           SET lease_until = greatest(c.lease_until, v_now + s.seconds * interval '1 second'),
               ready_at = greatest(c.lease_until, v_now + s.seconds * interval '1 second')
          FROM unnest(v_p, v_g) l(p, g), (SELECT lease, max(seconds) AS seconds FROM unnest(p_leases, p_seconds) x(lease, seconds) GROUP BY lease) s
         WHERE c.partition_id = l.p AND c.group_id = l.g AND s.lease = c.lease_id AND c.lease_until > v_now
        RETURNING c.lease_id, c.lease_until
    )
    SELECT array_agg((SELECT max(n.lease_until) FROM longer n WHERE n.lease_id = p_leases[b.ord]) ORDER BY b.ord),
           array_agg(b.until ORDER BY b.ord), array_agg(b.held ORDER BY b.ord)
      INTO expires_at, was_expiring_at, held FROM before b;
END
$$;

-- Ends leases without counting an attempt (the client left) or, settled, as if every message had been completed (autoAck after
-- the reply was written). Answers the queues whose partitions are free again, and which leases somebody held (p_skip).
CREATE OR REPLACE FUNCTION queen.release_leases(p_leases uuid[], p_settled boolean[], p_skip boolean DEFAULT false,
    OUT queues int[], OUT held uuid[], OUT ended uuid[])
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_now timestamptz;
    v_p   int[];
    v_g   int[];
    c     queen.partition_consumers;
    v_set boolean;
BEGIN
    SELECT * INTO v_p, v_g FROM queen.lock_leases(p_leases, p_skip);
    v_now := queen.now();
    FOR c IN SELECT pc.* FROM unnest(v_p, v_g) l(p, g) JOIN queen.partition_consumers pc ON pc.partition_id = l.p AND pc.group_id = l.g
              WHERE pc.lease_id = ANY (p_leases) AND pc.lease_until > v_now LOOP
        v_set := p_settled[array_position(p_leases, c.lease_id)];
        ended := ended || c.lease_id;
        c := queen.end_lease(c);
        IF v_set THEN
            c := queen.settle(c, int8multirange(int8range(c.last_lease_from, c.last_lease_to, '[]')));
            c.last_open := NULL;
        END IF;
        UPDATE queen.partition_consumers
           SET cursor_seq = c.cursor_seq, acked = c.acked, attempts = c.attempts, answered = NULL,
               lease_id = NULL, lease_from = NULL, lease_to = NULL, lease_count = NULL, lease_until = NULL,
               last_lease_id = c.last_lease_id, last_lease_from = c.last_lease_from, last_lease_to = c.last_lease_to, last_answered = c.last_answered, last_open = c.last_open,
               ready_at = queen.head_moment(c, v_now)
         WHERE partition_id = c.partition_id AND group_id = c.group_id;
    END LOOP;
    SELECT array_agg(DISTINCT p.queue_id) INTO queues FROM queen.partitions p WHERE p.id = ANY (v_p);
    IF p_skip THEN
        SELECT array_agg(DISTINCT pc.lease_id) INTO held FROM queen.partition_consumers pc
         WHERE pc.lease_id = ANY (p_leases) AND pc.lease_until > v_now;
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION queen.lock_leases(p_leases uuid[], p_skip boolean, OUT partitions int[], OUT groups int[])
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    IF p_skip THEN
        SELECT array_agg(l.partition_id), array_agg(l.group_id) INTO partitions, groups
          FROM (SELECT partition_id, group_id FROM queen.partition_consumers WHERE lease_id = ANY (p_leases)
                 ORDER BY partition_id, group_id FOR NO KEY UPDATE SKIP LOCKED) l;
    ELSE
        SELECT array_agg(l.partition_id), array_agg(l.group_id) INTO partitions, groups
          FROM (SELECT partition_id, group_id FROM queen.partition_consumers WHERE lease_id = ANY (p_leases)
                 ORDER BY partition_id, group_id FOR NO KEY UPDATE) l;
    END IF;
END
$$;
