-- The server's step before a push to partitions that it doesn't know: makes what is missing, wakes what sleeps, and answers
-- the ids by position (null: somebody makes that name right now or holds its queue; set aside). Never waits. At most 500 names a call,
-- in (queue, name) order.
CREATE OR REPLACE FUNCTION queen.make_partitions(p_queues text[], p_partitions text[],
    OUT queue_ids int[], OUT partition_ids int[], OUT versions bigint[])
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_missing boolean;
    v_claimed boolean[];
    v_new     text[];
    v_queues  int[];
    v_ids     int[];
BEGIN
    IF cardinality(p_queues) > 500 THEN
        RAISE EXCEPTION 'at most 500 names a call' USING ERRCODE = 'QM010';
    END IF;
    SELECT * INTO queue_ids, partition_ids, versions, v_missing FROM queen.find_partitions(p_queues, p_partitions);
    IF NOT v_missing THEN
        RETURN;
    END IF;
    SELECT array_agg(c.ok ORDER BY c.ord) INTO v_claimed
      FROM (SELECT u.ord, u.id IS NULL AND pg_try_advisory_xact_lock(queen.name_key(u.q, u.p)) AS ok
              FROM unnest(p_queues, p_partitions, partition_ids) WITH ORDINALITY u(q, p, id, ord) ORDER BY u.q, u.p) c;
    SELECT array_agg(DISTINCT u.q ORDER BY u.q) INTO v_new
      FROM unnest(p_queues, queue_ids) u(q, id) WHERE u.id IS NULL;
    IF v_new IS NOT NULL AND queen.try_lock_subscriptions() THEN
        -- A queue's own name is claimed too: two makers of different partitions would meet in its unique index.
        SELECT array_agg(c.ok AND (NOT u.q = ANY (v_new) OR c2.ok) ORDER BY c.ord) INTO v_claimed
          FROM unnest(v_claimed) WITH ORDINALITY c(ok, ord)
          JOIN unnest(p_queues) WITH ORDINALITY u(q, ord) USING (ord)
          LEFT JOIN (SELECT n.q, pg_try_advisory_xact_lock(queen.name_key(n.q, NULL)) AS ok FROM unnest(v_new) n(q)) c2 ON c2.q = u.q;
        PERFORM queen.make_queue(n.q) FROM (SELECT DISTINCT u.q FROM unnest(p_queues, v_claimed) u(q, ok)
                                             WHERE u.ok AND u.q = ANY (v_new) ORDER BY u.q) n;
    END IF;
    SELECT array_agg(k.id) INTO v_queues
      FROM (SELECT q.id FROM queen.queues q WHERE q.name IN (SELECT u.q FROM unnest(p_queues, v_claimed) u(q, ok) WHERE u.ok)
             ORDER BY q.id FOR KEY SHARE OF q SKIP LOCKED) k
     WHERE queen.try_lock_queue(k.id);
    SELECT array_agg(u.ok AND coalesce(q.id = ANY (v_queues), false) ORDER BY u.ord) INTO v_claimed
      FROM unnest(p_queues, v_claimed) WITH ORDINALITY u(q, ok, ord) LEFT JOIN queen.queues q ON q.name = u.q;
    v_ids := queen.wake_partitions(p_queues, p_partitions, v_claimed);
    PERFORM queen.make_rows(v_ids);
    SELECT * INTO queue_ids, partition_ids, versions, v_missing FROM queen.find_partitions(p_queues, p_partitions);
END
$$;

-- What is there and awake, by position.
CREATE OR REPLACE FUNCTION queen.find_partitions(p_queues text[], p_partitions text[],
    OUT queue_ids int[], OUT partition_ids int[], OUT versions bigint[], OUT missing boolean)
LANGUAGE sql STABLE SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
    SELECT array_agg(q.id ORDER BY u.ord), array_agg(l.partition_id ORDER BY u.ord), array_agg(q.config_version ORDER BY u.ord),
           bool_or(l.partition_id IS NULL)
      FROM unnest(p_queues, p_partitions) WITH ORDINALITY u(queue, partition, ord)
      LEFT JOIN queen.queues q ON q.name = u.queue
      -- One look into the index each: on tables that were never analysed a join reads all names of the queue.
      LEFT JOIN LATERAL (SELECT p.id FROM queen.partitions p WHERE p.queue_id = q.id AND p.name = u.partition LIMIT 1) p ON true
      LEFT JOIN queen.partition_lookup l ON l.partition_id = p.id
$$;

-- Makes the partitions whose names are claimed, or wakes them, and gives them their counter rows. Answers the ids that it made
-- or woke. Sleepers are woken by an UPDATE before their counter row is inserted, so that above READ COMMITTED whatever was
-- made, slept or woken since the snapshot ends in 40001.
CREATE OR REPLACE FUNCTION queen.wake_partitions(p_queues text[], p_partitions text[], p_claimed boolean[]) RETURNS int[]
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_ids int[];
BEGIN
    INSERT INTO queen.partitions (queue_id, name)
    SELECT DISTINCT q.id, u.p FROM unnest(p_queues, p_partitions, p_claimed) u(q, p, ok) JOIN queen.queues q ON q.name = u.q
     WHERE u.ok ORDER BY q.id, u.p
    ON CONFLICT DO NOTHING;
    WITH named AS (
        SELECT DISTINCT p.id FROM unnest(p_queues, p_partitions, p_claimed) u(q, p, ok)
          JOIN queen.queues q ON q.name = u.q
          CROSS JOIN LATERAL (SELECT x.id FROM queen.partitions x WHERE x.queue_id = q.id AND x.name = u.p LIMIT 1) p
         WHERE u.ok AND NOT EXISTS (SELECT FROM queen.partition_lookup l WHERE l.partition_id = p.id)
    ), sleeping AS (
        SELECT p.id, p.asleep_next_seq, p.asleep_last_created_at FROM queen.partitions p JOIN named n ON n.id = p.id
         ORDER BY p.id FOR NO KEY UPDATE OF p
    ), awake AS (
        UPDATE queen.partitions p SET asleep_next_seq = NULL, asleep_last_created_at = NULL FROM sleeping s WHERE p.id = s.id
        RETURNING p.id, s.asleep_next_seq AS next_seq, s.asleep_last_created_at AS last_at
    ), counted AS (
        INSERT INTO queen.partition_lookup (partition_id, next_seq, first_seq, last_message_created_at, updated_at)
        SELECT a.id, coalesce(a.next_seq, 1), coalesce(a.next_seq, 1), a.last_at, queen.now() FROM awake a ORDER BY a.id
        ON CONFLICT DO NOTHING RETURNING partition_id
    )
    SELECT array_agg(partition_id ORDER BY partition_id) INTO v_ids FROM counted;
    RETURN v_ids;
END
$$;
