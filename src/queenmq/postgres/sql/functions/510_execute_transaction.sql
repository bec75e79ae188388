-- Transactions of many requests at once, each all or nothing: one that fails leaves the others alone. The rows of all of them are
-- locked first, in the one order; only the changes run inside a subtransaction each.
-- Arrays: p_partitions distinct and ascending (what is pushed to); items and acks name their transaction (1-based). An ack without a
-- lease uses the required lease that covers its partition, and that lease's group.
-- outcomes: 0 = held by somebody, nothing done (only with p_skip), 1 = done, 2 = failed with failures[t].
CREATE OR REPLACE FUNCTION queen.execute_transaction(
    p_count int, p_partitions int[],
    p_item_tx int[], p_item_which int[], p_item_ids text[], p_payloads json[],
    p_traces uuid[], p_encrypted boolean[], p_producers text[], p_headers json[], p_delays float8[],
    p_ack_tx int[], p_ack_partitions int[], p_ack_groups text[], p_ack_ids text[], p_ack_statuses text[], p_ack_errors text[], p_ack_leases uuid[],
    p_lease_tx int[], p_leases uuid[], p_queues int[] DEFAULT NULL, p_versions bigint[] DEFAULT NULL, p_skip boolean DEFAULT false,
    OUT outcomes int[], OUT failures text[], OUT item_seqs bigint[], OUT item_duplicates boolean[],
    OUT ack_successes boolean[], OUT ack_errors text[], OUT ack_released boolean[], OUT ack_dead boolean[])
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_maintained text := current_setting('queen.lookup_maintained', true);
    v_first   bigint[];
    v_bases   bigint[];
    v_created timestamptz[];
    v_now     timestamptz;
    v_leases  uuid[];
    v_groups  int[];
    v_p       int[];
    v_g       int[];
    v_got     int8[];
    r         record;
BEGIN
    IF cardinality(p_partitions) > 0 THEN
        SELECT * INTO v_bases, v_created FROM queen.lock_partitions(p_partitions, p_skip);
    END IF;
    IF p_queues IS NOT NULL AND (SELECT count(*) FROM unnest(p_queues, p_versions) u(id, version)
                                   JOIN queen.queues q ON q.id = u.id AND q.config_version = u.version) < cardinality(p_queues) THEN
        RAISE EXCEPTION 'the options of a queue have changed' USING ERRCODE = 'QM003';
    END IF;
    SELECT * INTO v_leases, v_groups FROM queen.resolve_acks(p_ack_tx, p_ack_partitions, p_ack_groups, p_ack_leases, p_lease_tx, p_leases);
    SELECT array_agg(k.p ORDER BY k.p, k.g), array_agg(k.g ORDER BY k.p, k.g) INTO v_p, v_g FROM (
        SELECT a.p, a.g FROM unnest(p_ack_partitions, v_groups) a(p, g) WHERE a.g IS NOT NULL
        UNION SELECT c.partition_id, c.group_id FROM queen.partition_consumers c WHERE c.lease_id = ANY (p_leases)
        UNION SELECT c.partition_id, c.group_id FROM queen.partition_consumers c WHERE c.partition_id = ANY (p_partitions) AND c.ready_at IS NULL) k;
    SELECT * INTO v_got FROM queen.lock_keys(v_p, v_g, p_skip);
    v_now := queen.now();
    v_first := v_bases;
    SELECT array_agg(greatest(v_now, c) ORDER BY ord) INTO v_created FROM unnest(v_created) WITH ORDINALITY u(c, ord);
    item_seqs := array_fill(NULL::bigint, ARRAY[coalesce(cardinality(p_item_tx), 0)]);
    item_duplicates := array_fill(NULL::boolean, ARRAY[coalesce(cardinality(p_item_tx), 0)]);
    ack_successes := array_fill(NULL::boolean, ARRAY[coalesce(cardinality(p_ack_tx), 0)]);
    ack_errors := array_fill(NULL::text, ARRAY[coalesce(cardinality(p_ack_tx), 0)]);
    ack_released := ack_successes;
    ack_dead := ack_successes;
    failures := array_fill(NULL::text, ARRAY[p_count]);
    outcomes := array_fill(1, ARRAY[p_count]);
    PERFORM set_config('queen.lookup_maintained', 'on', true);
    FOR t IN 1 .. p_count LOOP
        IF p_skip AND queen.transaction_held(t, p_partitions, v_bases, p_item_tx, p_item_which, p_ack_tx, p_ack_partitions, v_groups, p_lease_tx, p_leases, v_got) THEN
            outcomes[t] := 0;
            CONTINUE;
        END IF;
        BEGIN
            PERFORM queen.check_leases(t, p_lease_tx, p_leases, v_now);
            IF t = ANY (p_item_tx) THEN
                SELECT * INTO r FROM queen.push_transaction(t, p_partitions, v_bases, v_created, p_item_tx, p_item_which, p_item_ids, p_payloads,
                                                            p_traces, p_encrypted, p_producers, p_headers, p_delays, v_now);
                FOR i IN 1 .. cardinality(r.ords) LOOP
                    item_seqs[r.ords[i]] := r.seqs[i];
                    item_duplicates[r.ords[i]] := r.duplicates[i];
                END LOOP;
            END IF;
            IF t = ANY (p_ack_tx) THEN
                SELECT * INTO ack_successes, ack_errors, ack_released, ack_dead
                  FROM queen.ack_transaction(t, p_ack_tx, p_ack_partitions, v_groups, p_ack_ids, p_ack_statuses, p_ack_errors, v_leases, v_now,
                                             ack_successes, ack_errors, ack_released, ack_dead);
            END IF;
            IF t = ANY (p_item_tx) THEN
                v_bases := r.bases;
            END IF;
        EXCEPTION WHEN SQLSTATE 'QM011' THEN
            outcomes[t] := 2;
            failures[t] := SQLERRM;
            FOR i IN 1 .. coalesce(cardinality(p_item_tx), 0) LOOP
                IF p_item_tx[i] = t THEN
                    item_seqs[i] := NULL;
                    item_duplicates[i] := NULL;
                END IF;
            END LOOP;
        END;
    END LOOP;
    PERFORM set_config('queen.lookup_maintained', coalesce(v_maintained, ''), true);
    UPDATE queen.partition_lookup l SET next_seq = u.base, last_message_created_at = u.created, updated_at = v_now
      FROM unnest(p_partitions, v_first, v_bases, v_created) u(partition_id, before, base, created)
     WHERE l.partition_id = u.partition_id AND u.base > u.before;
    UPDATE queen.partition_consumers c SET ready_at = v_now FROM unnest(v_p, v_g) k(p, g)
     WHERE c.partition_id = k.p AND c.group_id = k.g AND c.ready_at IS NULL AND c.partition_id = ANY (p_partitions)
       AND (c.partition_id::int8 << 32) + c.group_id = ANY (v_got);
END
$$;

-- The lease and the group that each ack acts under. A group named beside a lease of another group is an error of its transaction:
-- it comes back as group null.
CREATE OR REPLACE FUNCTION queen.resolve_acks(p_tx int[], p_partitions int[], p_groups text[], p_acks uuid[], p_lease_tx int[], p_leases uuid[],
    OUT leases uuid[], OUT group_ids int[])
LANGUAGE sql STABLE SET enable_seqscan = off AS $$
    SELECT array_agg(coalesce(a.lease, cover.lease_id) ORDER BY a.ord),
           array_agg(CASE WHEN own.group_id IS NULL OR a.grp IS NULL OR named.id = own.group_id
                          THEN coalesce(own.group_id, named.id, plain.id) END ORDER BY a.ord)
      FROM unnest(p_tx, p_partitions, p_groups, p_acks) WITH ORDINALITY a(tx, p, grp, lease, ord)
      LEFT JOIN queen.partitions p ON p.id = a.p
      LEFT JOIN LATERAL (SELECT c.lease_id FROM unnest(p_lease_tx, p_leases) r(tx, lease)
                           JOIN queen.partition_consumers c ON c.lease_id = r.lease AND c.partition_id = a.p
                           LEFT JOIN queen.consumer_groups_metadata g ON g.id = c.group_id
                          WHERE a.lease IS NULL AND r.tx = a.tx
                          ORDER BY (g.consumer_group = a.grp) DESC NULLS LAST, c.group_id LIMIT 1) cover ON true
      LEFT JOIN queen.partition_consumers own ON own.partition_id = a.p AND own.lease_id = coalesce(a.lease, cover.lease_id)
      LEFT JOIN queen.consumer_groups_metadata named ON named.queue_id = p.queue_id AND named.consumer_group = a.grp
      LEFT JOIN queen.consumer_groups_metadata plain ON a.grp IS NULL AND plain.queue_id = p.queue_id AND plain.consumer_group = '__QUEUE_MODE__'
$$;

-- Locks consumer rows named by key, in order. Answers the keys that it got.
CREATE OR REPLACE FUNCTION queen.lock_keys(p_p int[], p_g int[], p_skip boolean, OUT keys int8[])
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    IF p_skip THEN
        SELECT array_agg(l.key) INTO keys FROM (
            SELECT (c.partition_id::int8 << 32) + c.group_id AS key FROM unnest(p_p, p_g) u(p, g)
              JOIN queen.partition_consumers c ON c.partition_id = u.p AND c.group_id = u.g
             ORDER BY c.partition_id, c.group_id FOR NO KEY UPDATE OF c SKIP LOCKED) l;
    ELSE
        SELECT array_agg(l.key) INTO keys FROM (
            SELECT (c.partition_id::int8 << 32) + c.group_id AS key FROM unnest(p_p, p_g) u(p, g)
              JOIN queen.partition_consumers c ON c.partition_id = u.p AND c.group_id = u.g
             ORDER BY c.partition_id, c.group_id FOR NO KEY UPDATE OF c) l;
    END IF;
    keys := coalesce(keys, '{}');
END
$$;

-- Whether one transaction lacks a row that somebody else holds.
CREATE OR REPLACE FUNCTION queen.transaction_held(p_t int, p_partitions int[], p_bases bigint[], p_item_tx int[], p_item_which int[],
    p_ack_tx int[], p_ack_partitions int[], p_groups int[], p_lease_tx int[], p_leases uuid[], p_got int8[]) RETURNS boolean
LANGUAGE sql STABLE SET enable_seqscan = off AS $$
    SELECT EXISTS (SELECT FROM unnest(p_item_tx, p_item_which) i(tx, which) WHERE i.tx = p_t AND p_bases[i.which] IS NULL)
        OR EXISTS (SELECT FROM unnest(p_item_tx, p_item_which) i(tx, which) JOIN queen.partition_consumers c ON c.partition_id = p_partitions[i.which]
                    WHERE i.tx = p_t AND c.ready_at IS NULL AND NOT (c.partition_id::int8 << 32) + c.group_id = ANY (p_got))
        OR EXISTS (SELECT FROM unnest(p_ack_tx, p_ack_partitions, p_groups) a(tx, p, g) JOIN queen.partition_consumers c ON c.partition_id = a.p AND c.group_id = a.g
                    WHERE a.tx = p_t AND NOT (a.p::int8 << 32) + a.g = ANY (p_got))
        OR EXISTS (SELECT FROM unnest(p_lease_tx, p_leases) l(tx, lease) JOIN queen.partition_consumers c ON c.lease_id = l.lease
                    WHERE l.tx = p_t AND NOT (c.partition_id::int8 << 32) + c.group_id = ANY (p_got))
$$;

CREATE OR REPLACE FUNCTION queen.check_leases(p_t int, p_lease_tx int[], p_leases uuid[], p_now timestamptz) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_lease uuid;
BEGIN
    SELECT r.lease INTO v_lease FROM unnest(p_lease_tx, p_leases) r(tx, lease)
     WHERE r.tx = p_t AND NOT EXISTS (SELECT FROM queen.partition_consumers c WHERE c.lease_id = r.lease AND c.lease_until > p_now) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'Invalid or expired lease: %', v_lease USING ERRCODE = 'QM011';
    END IF;
END
$$;

-- The items of one transaction; bases come back moved on.
CREATE OR REPLACE FUNCTION queen.push_transaction(p_t int, p_partitions int[], p_bases bigint[], p_created timestamptz[],
    p_tx int[], p_which int[], p_ids text[], p_payloads json[], p_traces uuid[], p_encrypted boolean[], p_producers text[], p_headers json[],
    p_delays float8[], p_now timestamptz, OUT ords int[], OUT seqs bigint[], OUT duplicates boolean[], OUT bases bigint[])
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    i record;
    r record;
BEGIN
    SELECT array_agg(u.ord::int ORDER BY u.ord) AS ords, array_agg(u.which ORDER BY u.ord) AS which, array_agg(u.id ORDER BY u.ord) AS ids,
           array_agg(p_payloads[u.ord] ORDER BY u.ord) AS payloads, array_agg(p_traces[u.ord] ORDER BY u.ord) AS traces,
           array_agg(p_encrypted[u.ord] ORDER BY u.ord) AS encrypted, array_agg(p_producers[u.ord] ORDER BY u.ord) AS producers,
           array_agg(p_headers[u.ord] ORDER BY u.ord) AS headers,
           array_agg(p_now + p_delays[u.ord] * interval '1 second' ORDER BY u.ord) AS not_before
      INTO i FROM unnest(p_tx, p_which, p_ids) WITH ORDINALITY u(tx, which, id, ord) WHERE u.tx = p_t;
    SELECT * INTO r FROM queen.push_rows(p_partitions, p_bases, p_created, i.which, i.ids, i.payloads,
                                         i.traces, i.encrypted, i.producers, i.headers, i.not_before);
    ords := i.ords;
    seqs := r.seqs;
    duplicates := r.duplicates;
    SELECT array_agg(b.base + b.stored ORDER BY b.ord) INTO bases FROM unnest(p_bases, r.stored) WITH ORDINALITY b(base, stored, ord);
END
$$;

-- The acks of one transaction; the first that doesn't succeed ends it.
CREATE OR REPLACE FUNCTION queen.ack_transaction(p_t int, p_tx int[], p_partitions int[], p_groups int[], p_ids text[], p_statuses text[], p_errors text[],
    p_leases uuid[], p_now timestamptz,
    INOUT successes boolean[], INOUT errors text[], INOUT released boolean[], INOUT dead boolean[])
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    k record;
    d record;
    v_which int[];
BEGIN
    FOR k IN SELECT DISTINCT a.p, a.g, a.lease FROM unnest(p_tx, p_partitions, p_groups, p_leases) a(tx, p, g, lease)
              WHERE a.tx = p_t ORDER BY a.p, a.g, a.lease LOOP
        IF k.g IS NULL OR NOT EXISTS (SELECT FROM queen.partition_consumers c WHERE c.partition_id = k.p AND c.group_id = k.g) THEN
            RAISE EXCEPTION 'An ack names no consumer group of partition %, or another one than its lease''s', k.p USING ERRCODE = 'QM011';
        END IF;
        SELECT array_agg((a.tx = p_t AND a.p = k.p AND a.g = k.g AND a.lease IS NOT DISTINCT FROM k.lease)::int ORDER BY a.ord) INTO v_which
          FROM unnest(p_tx, p_partitions, p_groups, p_leases) WITH ORDINALITY a(tx, p, g, lease, ord);
        SELECT * INTO d FROM queen.ack_row(k.p, k.g, k.lease, 1, v_which, p_ids, p_statuses, p_errors, p_now, false);
        FOR i IN 1 .. cardinality(d.details) LOOP
            IF NOT d.successes[i] THEN
                RAISE EXCEPTION '%: %', d.errors[i], p_ids[d.details[i]] USING ERRCODE = 'QM011';
            END IF;
            successes[d.details[i]] := true;
            errors[d.details[i]] := d.errors[i];
            released[d.details[i]] := d.released[i];
            dead[d.details[i]] := d.dead[i];
        END LOOP;
    END LOOP;
END
$$;
