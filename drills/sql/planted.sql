-- The flaw of CORRECTIONS P1, planted into the drill's own database: created_at is the transaction's beginning, and a group's cursor is
-- (created_at, id). Everything else of the drill stays as it is.

-- name: install
CREATE TABLE drill.cursors (partition_id int, group_id int, created_at timestamptz, seq bigint, PRIMARY KEY (partition_id, group_id));
CREATE INDEX planted_order ON queen.messages (partition_id, created_at, seq);
CREATE FUNCTION drill.began() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.created_at := transaction_timestamp();
    RETURN NEW;
END
$$;
CREATE TRIGGER zz_planted BEFORE INSERT ON queen.messages FOR EACH ROW EXECUTE FUNCTION drill.began();

CREATE OR REPLACE FUNCTION queen.pop_messages(
    p_batches int[], p_spread int[], p_partitions int[], p_lease_ids uuid[], p_lease_seconds int[],
    p_walk_request int[], p_walk_group int[], p_walk_ready bigint[], p_walk_partition int[])
RETURNS TABLE (request int, partition_id int, seq bigint, transaction_id text, trace_id uuid, created_at timestamptz,
               is_encrypted boolean, producer text, headers json, payload json, attempts int)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    v_now  timestamptz := clock_timestamp();
    v_left int;
    v_n    int;
    c      record;
BEGIN
    FOR v_request IN 1 .. cardinality(p_batches) LOOP
        v_left := p_batches[v_request];
        FOR c IN SELECT pc.partition_id, pc.group_id FROM queen.partition_consumers pc
                  WHERE pc.group_id IN (SELECT x.g FROM unnest(p_walk_request, p_walk_group) x(r, g) WHERE x.r = v_request)
                    AND (pc.lease_until IS NULL OR pc.lease_until <= v_now)
                    AND EXISTS (SELECT FROM drill.unread(pc.partition_id, pc.group_id, 1))
                  ORDER BY pc.last_consumed_at NULLS FIRST LIMIT p_spread[v_request] FOR NO KEY UPDATE OF pc SKIP LOCKED LOOP
            EXIT WHEN v_left <= 0;
            UPDATE queen.partition_consumers pc
               SET lease_id = p_lease_ids[v_request], lease_until = v_now + p_lease_seconds[v_request] * interval '1 second', last_consumed_at = v_now
             WHERE pc.partition_id = c.partition_id AND pc.group_id = c.group_id;
            RETURN QUERY SELECT v_request, m.partition_id, m.seq, m.transaction_id, m.trace_id, m.created_at, m.is_encrypted, m.producer,
                                m.headers, m.payload, 0
                           FROM drill.unread(c.partition_id, c.group_id, v_left) m;
            GET DIAGNOSTICS v_n = ROW_COUNT;
            v_left := v_left - v_n;
        END LOOP;
        RETURN QUERY SELECT v_request, NULL::int, NULL::bigint, NULL::text, NULL::uuid, v_now, NULL::boolean, NULL::text, NULL::json,
            '{"more":null,"group":null,"held":false,"first":null,"next":null,"gone":false}'::json, NULL::int;
    END LOOP;
END
$$;

CREATE FUNCTION drill.unread(p_partition int, p_group int, p_limit int) RETURNS SETOF queen.messages
LANGUAGE plpgsql AS $$
DECLARE
    v_at  timestamptz := '-infinity';
    v_seq bigint := 0;
BEGIN
    SELECT u.created_at, u.seq INTO v_at, v_seq FROM drill.cursors u WHERE u.partition_id = p_partition AND u.group_id = p_group;
    RETURN QUERY SELECT * FROM queen.messages m
                  WHERE m.partition_id = p_partition AND (m.created_at, m.seq) > (coalesce(v_at, '-infinity'), coalesce(v_seq, 0))
                  ORDER BY m.created_at, m.seq LIMIT p_limit;
END
$$;

CREATE OR REPLACE FUNCTION queen.ack_messages(
    p_partitions int[], p_groups text[], p_leases uuid[], p_which int[], p_transactions text[], p_statuses text[], p_errors text[],
    p_skip boolean DEFAULT false,
    OUT states int[], OUT details int[], OUT successes boolean[], OUT errors text[], OUT released boolean[], OUT dead boolean[])
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_group int;
BEGIN
    states := '{}';
    FOR v_row IN 1 .. cardinality(p_partitions) LOOP
        UPDATE queen.partition_consumers c SET lease_id = NULL, lease_until = NULL
         WHERE c.partition_id = p_partitions[v_row] AND c.lease_id = p_leases[v_row] RETURNING c.group_id INTO v_group;
        states := states || CASE WHEN FOUND THEN 1 ELSE 3 END;
        INSERT INTO drill.cursors AS u
        SELECT m.partition_id, v_group, m.created_at, m.seq FROM unnest(p_which, p_transactions) a(which, name)
          JOIN queen.messages m ON m.partition_id = p_partitions[v_row] AND m.transaction_id = a.name
         WHERE a.which = v_row AND v_group IS NOT NULL ORDER BY m.created_at DESC, m.seq DESC LIMIT 1
        ON CONFLICT (partition_id, group_id) DO UPDATE SET created_at = excluded.created_at, seq = excluded.seq;
    END LOOP;
END
$$;

-- name: pending
SELECT count(*) FROM queen.partition_consumers c WHERE EXISTS (SELECT FROM drill.unread(c.partition_id, c.group_id, 1))
