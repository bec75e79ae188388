-- Stores messages of many requests at once. The server prepares the arrays: p_partitions distinct and ascending, p_counts items
-- in each; per item which partition (1-based), its position there (0-based; both null when there is one partition), its transaction
-- id and payload; the rare columns only when some item has one.
-- Plain items may come packed instead, per partition one text of ids and one of payloads, separated by U+001E (which no JSON text contains;
-- an id that does goes unpacked): a driver encodes one text many times faster than an array of as many, and the arrays above are null.
-- Answers: bases[which] + position is an item's seq; where there were duplicates, seqs and duplicates by position instead. A null base: somebody holds that partition (only with p_skip): nothing was stored in it.
-- Lock order: lookup rows by id, then, in a later statement, the drained consumer rows, then the change.
CREATE OR REPLACE FUNCTION queen.push_messages(
    p_partitions int[], p_counts int[], p_which int[], p_position int[], p_transactions text[], p_payloads json[],
    p_traces uuid[] DEFAULT NULL, p_encrypted boolean[] DEFAULT NULL, p_producers text[] DEFAULT NULL,
    p_headers json[] DEFAULT NULL, p_delays float8[] DEFAULT NULL,
    p_queues int[] DEFAULT NULL, p_versions bigint[] DEFAULT NULL,
    p_skip boolean DEFAULT false, p_notify boolean DEFAULT true,
    p_packed_transactions text[] DEFAULT NULL, p_packed_payloads text[] DEFAULT NULL,
    OUT bases bigint[], OUT seqs bigint[], OUT duplicates boolean[])
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_maintained text := current_setting('queen.lookup_maintained', true);
    v_one        boolean := cardinality(p_partitions) = 1;
    v_rare       boolean := num_nonnulls(p_traces, p_encrypted, p_producers, p_headers, p_delays) > 0;
    v_partition  int := p_partitions[1];
    v_base       bigint;
    v_now        timestamptz;
    v_created    timestamptz[];
    v_stored     bigint[];
    v_not_before timestamptz[];
    v_wake       int[];
    v_groups     int[];
    v_held       int[];
    v_packed     boolean := p_packed_transactions IS NOT NULL;
    v_own        boolean := current_setting('transaction_isolation') LIKE 'read %';
BEGIN
    -- One partition, packed: unpacked before the lock, so that another call may store meanwhile.
    IF v_packed AND v_one THEN
        p_transactions := string_to_array(p_packed_transactions[1], E'\x1e');
        p_payloads := string_to_array(p_packed_payloads[1], E'\x1e')::json[];
        v_packed := false;
        IF cardinality(p_transactions) <> p_counts[1] OR cardinality(p_payloads) <> p_counts[1] THEN
            RAISE EXCEPTION 'the ids and payloads must be as many as the counts say' USING ERRCODE = 'QM002';
        END IF;
    END IF;
    -- One partition: its items need not say which, nor where.
    IF v_one AND p_which IS NULL AND NOT v_packed AND (p_skip OR v_rare) THEN
        p_which := array_fill(1, ARRAY[p_counts[1]]);
        p_position := ARRAY(SELECT generate_series(0, p_counts[1] - 1));
    END IF;
    SELECT * INTO bases, v_created FROM queen.lock_partitions(p_partitions, p_skip);
    IF p_queues IS NOT NULL AND (SELECT count(*) FROM unnest(p_queues, p_versions) u(id, version)
                                   JOIN queen.queues q ON q.id = u.id AND q.config_version = u.version) < cardinality(p_queues) THEN
        RAISE EXCEPTION 'the options of a queue have changed' USING ERRCODE = 'QM003';
    END IF;
    IF v_own THEN
        -- Under the lookup locks no consumer row can become drained: this set only shrinks.
        IF p_skip THEN
            SELECT array_agg(c.partition_id), array_agg(c.group_id) INTO v_wake, v_groups
              FROM (SELECT partition_id, group_id FROM queen.partition_consumers
                     WHERE partition_id = ANY (p_partitions) AND ready_at IS NULL
                     ORDER BY partition_id, group_id FOR NO KEY UPDATE SKIP LOCKED) c;
            SELECT array_agg(DISTINCT c.partition_id) INTO v_held FROM queen.partition_consumers c
             WHERE c.partition_id = ANY (p_partitions) AND c.ready_at IS NULL
               AND NOT EXISTS (SELECT FROM unnest(v_wake, v_groups) w(p, g) WHERE w.p = c.partition_id AND w.g = c.group_id);
            IF v_held IS NOT NULL THEN
                SELECT array_agg(CASE WHEN u.p = ANY (v_held) THEN NULL ELSE u.base END ORDER BY u.ord)
                  INTO bases FROM unnest(p_partitions, bases) WITH ORDINALITY u(p, base, ord);
            END IF;
        ELSE
            SELECT array_agg(c.partition_id), array_agg(c.group_id) INTO v_wake, v_groups
              FROM (SELECT partition_id, group_id FROM queen.partition_consumers
                     WHERE partition_id = ANY (p_partitions) AND ready_at IS NULL
                     ORDER BY partition_id, group_id FOR NO KEY UPDATE) c;
        END IF;
    END IF;
    v_now := queen.now();
    IF v_one THEN
        v_created := ARRAY[greatest(v_now, v_created[1])];
    ELSE
        SELECT array_agg(greatest(v_now, c) ORDER BY ord) INTO v_created FROM unnest(v_created) WITH ORDINALITY u(c, ord);
    END IF;
    IF p_delays IS NOT NULL THEN
        SELECT array_agg(v_now + d * interval '1 second' ORDER BY ord) INTO v_not_before FROM unnest(p_delays) WITH ORDINALITY u(d, ord);
    END IF;

    PERFORM set_config('queen.lookup_maintained', 'on', true);
    BEGIN
        IF v_packed THEN
            -- In each partition: in the sum alone, one could take the other's seqs. (Payloads that don't match the ids end in a null.)
            IF EXISTS (SELECT FROM unnest(p_counts, p_packed_transactions) u(n, ids)
                        WHERE octet_length(u.ids) - octet_length(replace(u.ids, E'\x1e', '')) + 1 <> u.n) THEN
                RAISE EXCEPTION 'the ids must be as many as the counts say' USING ERRCODE = 'QM002';
            END IF;
            INSERT INTO queen.messages (partition_id, seq, transaction_id, created_at, payload)
            SELECT u.id, u.base + i.position - 1, i.transaction_id, u.created, i.payload
              FROM unnest(p_partitions, bases, v_created, p_packed_transactions, p_packed_payloads) u(id, base, created, transactions, payloads),
                   LATERAL unnest(string_to_array(u.transactions, E'\x1e'), string_to_array(u.payloads, E'\x1e')::json[])
                           WITH ORDINALITY i(transaction_id, payload, position)
             WHERE u.base IS NOT NULL;
        ELSIF p_skip OR v_rare THEN
            INSERT INTO queen.messages (partition_id, seq, transaction_id, trace_id, created_at, is_encrypted, producer, headers, not_before, payload)
            SELECT p_partitions[u.which], bases[u.which] + u.position, u.transaction_id, u.trace_id, v_created[u.which],
                   u.encrypted, u.producer, u.headers, u.not_before, u.payload
              FROM unnest(p_which, p_position, p_transactions, p_payloads, p_traces, p_encrypted, p_producers, p_headers, v_not_before)
                   u(which, position, transaction_id, payload, trace_id, encrypted, producer, headers, not_before)
             WHERE bases[u.which] IS NOT NULL;
        ELSIF v_one THEN
            v_base := bases[1];
            INSERT INTO queen.messages (partition_id, seq, transaction_id, created_at, payload)
            SELECT v_partition, v_base + u.position - 1, u.transaction_id, v_created[1], u.payload
              FROM unnest(p_transactions, p_payloads) WITH ORDINALITY u(transaction_id, payload, position);
        ELSE
            INSERT INTO queen.messages (partition_id, seq, transaction_id, created_at, payload)
            SELECT p_partitions[u.which], bases[u.which] + u.position, u.transaction_id, v_created[u.which], u.payload
              FROM unnest(p_which, p_position, p_transactions, p_payloads) u(which, position, transaction_id, payload);
        END IF;
    EXCEPTION WHEN unique_violation THEN
        IF v_packed THEN
            SELECT array_agg(u.which::int ORDER BY u.which, i.position), array_agg(i.transaction_id ORDER BY u.which, i.position),
                   array_agg(i.payload ORDER BY u.which, i.position)
              INTO p_which, p_transactions, p_payloads
              FROM unnest(p_packed_transactions, p_packed_payloads) WITH ORDINALITY u(transactions, payloads, which),
                   LATERAL unnest(string_to_array(u.transactions, E'\x1e'), string_to_array(u.payloads, E'\x1e')::json[])
                           WITH ORDINALITY i(transaction_id, payload, position);
        END IF;
        SELECT r.seqs, r.duplicates, r.stored INTO seqs, duplicates, v_stored
          FROM queen.push_rows(p_partitions, bases, v_created, coalesce(p_which, array_fill(1, ARRAY[p_counts[1]])), p_transactions, p_payloads,
                               p_traces, p_encrypted, p_producers, p_headers, v_not_before) r;
    END;
    PERFORM set_config('queen.lookup_maintained', coalesce(v_maintained, ''), true);

    -- Outside the block: inside, every push would cost a MultiXact.
    IF v_one AND v_stored IS NULL AND NOT p_skip THEN
        UPDATE queen.partition_lookup SET next_seq = bases[1] + p_counts[1], last_message_created_at = v_created[1], updated_at = v_now
         WHERE partition_id = v_partition;
    ELSE
        UPDATE queen.partition_lookup l SET next_seq = u.base + u.stored, last_message_created_at = u.created, updated_at = v_now
          FROM unnest(p_partitions, bases, coalesce(v_stored, p_counts::bigint[]), v_created) u(partition_id, base, stored, created)
         WHERE l.partition_id = u.partition_id AND u.base IS NOT NULL AND u.stored > 0;
    END IF;
    IF NOT v_own THEN
        INSERT INTO queen.wakes (partition_id)
        SELECT u.p FROM unnest(p_partitions, bases, coalesce(v_stored, p_counts::bigint[])) u(p, base, stored) WHERE u.base IS NOT NULL AND u.stored > 0;
    ELSIF v_wake IS NOT NULL THEN
        UPDATE queen.partition_consumers c SET ready_at = v_now FROM unnest(v_wake, v_groups) w(p, g)
         WHERE c.partition_id = w.p AND c.group_id = w.g
           AND (v_stored IS NULL OR v_stored[array_position(p_partitions, w.p)] > 0);
    END IF;
    IF p_notify THEN
        PERFORM pg_notify('queen_wake', q.queue_id::text)
           FROM (SELECT DISTINCT queue_id FROM queen.partitions WHERE id = ANY (p_partitions)) q;
    END IF;
END
$$;
