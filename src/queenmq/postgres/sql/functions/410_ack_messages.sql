-- Answers to delivered messages. The server groups them into rows of one partition, group and lease (null: none) each; a null group
-- is the lease's group, or queue mode. Per ack: which row (1-based), the transaction id, the status (null array: all completed), the error.
-- states: 0 = somebody holds the row, nothing was done (only with p_skip); 1 = every ack of the row completed and the lease
-- ended; 2 = see the details, one per ack of such rows; 3 = no such partition or group.
-- Lock order: the consumer rows by (partition, group), all before anything is changed.
CREATE OR REPLACE FUNCTION queen.ack_messages(
    p_partitions int[], p_groups text[], p_leases uuid[], p_which int[], p_transactions text[], p_statuses text[], p_errors text[],
    p_skip boolean DEFAULT false,
    OUT states int[], OUT details int[], OUT successes boolean[], OUT errors text[], OUT released boolean[], OUT dead boolean[])
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_ids  int[];
    v_now  timestamptz;
    v_row  int;
    d      record;
BEGIN
    SELECT * INTO v_ids, states FROM queen.lock_consumers(p_partitions, p_groups, p_leases, p_skip);
    v_now := queen.now();
    states := queen.ack_whole_batches(p_partitions, v_ids, states, p_leases, p_which, p_transactions, p_statuses, v_now);
    IF NOT 2 = ANY (states) THEN
        RETURN;
    END IF;
    FOR v_row IN 1 .. coalesce(cardinality(states), 0) LOOP
        CONTINUE WHEN states[v_row] <> 2;
        SELECT * INTO d FROM queen.ack_row(p_partitions[v_row], v_ids[v_row], p_leases[v_row], v_row, p_which, p_transactions, p_statuses, p_errors, v_now, true);
        details := details || d.details;
        successes := successes || d.successes;
        errors := errors || d.errors;
        released := released || d.released;
        dead := dead || d.dead;
    END LOOP;
END
$$;

-- Resolves the groups by name and locks their rows in order. states: 2 = locked, 0 = held by somebody, 3 = not there.
CREATE OR REPLACE FUNCTION queen.lock_consumers(p_partitions int[], p_groups text[], p_leases uuid[], p_skip boolean, OUT group_ids int[], OUT states int[])
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_got int8[];
BEGIN
    SELECT array_agg(coalesce(g.id, own.group_id, plain.id) ORDER BY u.ord) INTO group_ids
      FROM unnest(p_partitions, p_groups, p_leases) WITH ORDINALITY u(p, grp, lease, ord)
      LEFT JOIN queen.partitions p ON p.id = u.p
      LEFT JOIN queen.consumer_groups_metadata g ON g.queue_id = p.queue_id AND g.consumer_group = u.grp
      LEFT JOIN LATERAL (SELECT c.group_id FROM queen.partition_consumers c
                          WHERE u.grp IS NULL AND c.partition_id = u.p AND (c.lease_id = u.lease OR c.last_lease_id = u.lease) LIMIT 1) own ON true
      LEFT JOIN queen.consumer_groups_metadata plain ON u.grp IS NULL AND plain.queue_id = p.queue_id AND plain.consumer_group = '__QUEUE_MODE__';
    IF p_skip THEN
        SELECT array_agg(l.key) INTO v_got FROM (
            SELECT (c.partition_id::int8 << 32) + c.group_id AS key FROM unnest(p_partitions, group_ids) u(p, g)
              JOIN queen.partition_consumers c ON c.partition_id = u.p AND c.group_id = u.g
             ORDER BY c.partition_id, c.group_id FOR NO KEY UPDATE OF c SKIP LOCKED) l;
    ELSE
        SELECT array_agg(l.key) INTO v_got FROM (
            SELECT (c.partition_id::int8 << 32) + c.group_id AS key FROM unnest(p_partitions, group_ids) u(p, g)
              JOIN queen.partition_consumers c ON c.partition_id = u.p AND c.group_id = u.g
             ORDER BY c.partition_id, c.group_id FOR NO KEY UPDATE OF c) l;
    END IF;
    IF cardinality(v_got) = cardinality(p_partitions) THEN
        states := array_fill(2, ARRAY[cardinality(p_partitions)]);
        RETURN;
    END IF;
    SELECT array_agg(CASE WHEN (u.p::int8 << 32) + u.g = ANY (v_got) THEN 2
                          WHEN p_skip AND EXISTS (SELECT FROM queen.partition_consumers c WHERE c.partition_id = u.p AND c.group_id = u.g) THEN 0
                          ELSE 3 END ORDER BY u.ord)
      INTO states FROM unnest(p_partitions, group_ids) WITH ORDINALITY u(p, g, ord);
END
$$;

-- The plain case, many rows at once: all completed under the live lease of a batch without holes, and none is left out.
CREATE OR REPLACE FUNCTION queen.ack_whole_batches(
    p_partitions int[], p_ids int[], p_states int[], p_leases uuid[], p_which int[], p_transactions text[], p_statuses text[], p_now timestamptz)
RETURNS int[]
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_done int[];
BEGIN
    WITH counted AS (
        SELECT a.which, count(DISTINCT m.seq) AS found, count(*) AS asked, min(m.seq) AS lo, max(m.seq) AS hi
          FROM unnest(p_which, p_transactions, p_statuses) a(which, transaction_id, status)
          -- LATERAL … LIMIT 1: one look into the index each, also in a plan that was made when the table was empty.
          LEFT JOIN LATERAL (SELECT x.seq FROM queen.messages x
                              WHERE x.partition_id = p_partitions[a.which] AND x.transaction_id = a.transaction_id LIMIT 1) m ON true
         WHERE p_leases[a.which] IS NOT NULL AND p_states[a.which] = 2
         GROUP BY a.which
        HAVING bool_and(a.status IS NULL OR a.status IN ('completed', 'success'))
    ), done AS (
        UPDATE queen.partition_consumers c
           SET cursor_seq = c.lease_to, answered = NULL,
               attempts = CASE WHEN c.attempts IS NOT NULL
                               THEN (SELECT jsonb_object_agg(a.key, a.value) FROM jsonb_each(c.attempts) a WHERE a.key::bigint > c.lease_to) END,
               last_lease_id = c.lease_id, last_lease_from = c.lease_from, last_lease_to = c.lease_to, last_answered = NULL, last_open = NULL,
               lease_id = NULL, lease_from = NULL, lease_to = NULL, lease_count = NULL, lease_until = NULL,
               ready_at = p_now, last_consumed_at = p_now
          FROM counted n
         WHERE c.partition_id = p_partitions[n.which] AND c.group_id = p_ids[n.which]
           AND c.lease_id = p_leases[n.which] AND c.lease_until > p_now AND c.acked IS NULL AND c.answered IS NULL
           AND c.cursor_seq = c.lease_from - 1 AND c.lease_count = c.lease_to - c.lease_from + 1
           AND n.found = c.lease_count AND n.asked = n.found AND n.lo = c.lease_from AND n.hi = c.lease_to
        RETURNING n.which
    )
    SELECT array_agg(which) INTO v_done FROM done;
    IF v_done IS NULL THEN
        RETURN p_states;
    END IF;
    RETURN (SELECT array_agg(CASE WHEN s.ord = ANY (v_done) THEN 1 ELSE s.state END ORDER BY s.ord) FROM unnest(p_states) WITH ORDINALITY s(state, ord));
END
$$;
