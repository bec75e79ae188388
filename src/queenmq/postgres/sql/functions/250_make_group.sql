-- A group's first pop: stores its subscription and gives it a row in every awake partition of its queue (or of every queue of
-- its namespace and task). Later values are ignored while the metadata stands. Answers the group's id, null for a subscription
-- that waits for its queue.
CREATE OR REPLACE FUNCTION queen.make_group(p_queue text, p_group text, p_mode text, p_from timestamptz) RETURNS int
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_queue int;
    v_group int;
BEGIN
    SELECT id INTO v_queue FROM queen.queues WHERE name = p_queue;
    IF v_queue IS NULL THEN
        PERFORM queen.lock_subscriptions(true);
        SELECT id INTO v_queue FROM queen.queues WHERE name = p_queue;
        IF v_queue IS NULL THEN
            INSERT INTO queen.consumer_groups_metadata (consumer_group, queue_name, subscription_mode, subscription_timestamp)
            VALUES (p_group, p_queue, p_mode, coalesce(p_from, queen.now())) ON CONFLICT DO NOTHING;
            RETURN NULL;
        END IF;
    END IF;
    PERFORM queen.lock_queue(v_queue, true);
    INSERT INTO queen.consumer_groups_metadata (consumer_group, queue_id, queue_name, subscription_mode, subscription_timestamp)
    SELECT p_group, q.id, q.name, p_mode, coalesce(p_from, queen.now()) FROM queen.queues q WHERE q.id = v_queue
    ON CONFLICT DO NOTHING RETURNING id INTO v_group;
    IF v_group IS NULL THEN
        SELECT id INTO v_group FROM queen.consumer_groups_metadata WHERE queue_id = v_queue AND consumer_group = p_group;
        IF v_group IS NULL THEN
            -- It waited for the queue's name while a user's transaction made the queue.
            UPDATE queen.consumer_groups_metadata g SET queue_id = q.id FROM queen.queues q
             WHERE q.id = v_queue AND g.queue_name = q.name AND g.consumer_group = p_group AND g.queue_id IS NULL RETURNING g.id INTO v_group;
            PERFORM queen.make_rows(array_agg(p.id)) FROM queen.partitions p WHERE p.queue_id = v_queue;
        END IF;
        RETURN v_group;
    END IF;
    PERFORM queen.place_group(v_group);
    RETURN v_group;
END
$$;

-- The rows of a new group in the partitions that are awake, placed as its subscription says. The caller holds the queue's
-- lock exclusive, and this is a later statement. (Partitions that appear later start before their first message.)
CREATE OR REPLACE FUNCTION queen.place_group(p_group int) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    INSERT INTO queen.partition_consumers (partition_id, group_id, cursor_seq, ready_at)
    SELECT l.partition_id, g.id,
           CASE WHEN g.subscription_mode = 'all' THEN l.first_seq - 1
                WHEN g.subscription_mode = 'from' THEN queen.seq_at(l.partition_id, g.subscription_timestamp) - 1
                ELSE l.next_seq - 1 END,
           queen.now()
      FROM queen.consumer_groups_metadata g
      JOIN queen.partitions p ON p.queue_id = g.queue_id
      JOIN queen.partition_lookup l ON l.partition_id = p.id
     WHERE g.id = p_group
     ORDER BY l.partition_id
    ON CONFLICT DO NOTHING;
END
$$;

-- The first seq whose message is not older than the moment (next_seq where there is none): created_at never falls as seq
-- rises, so it is a binary search.
CREATE OR REPLACE FUNCTION queen.seq_at(p_partition int, p_moment timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
    v_low  bigint;
    v_high bigint;
    v_mid  bigint;
    v_at   timestamptz;
    v_seq  bigint;
BEGIN
    SELECT first_seq, next_seq INTO v_low, v_high FROM queen.partition_lookup WHERE partition_id = p_partition;
    WHILE v_low < v_high LOOP
        v_mid := (v_low + v_high) / 2;
        SELECT seq, created_at INTO v_seq, v_at FROM queen.messages
         WHERE partition_id = p_partition AND seq >= v_mid AND seq < v_high ORDER BY seq LIMIT 1;
        IF v_seq IS NULL OR v_at >= p_moment THEN
            v_high := v_mid;
        ELSE
            v_low := v_seq + 1;
        END IF;
    END LOOP;
    RETURN v_high;
END
$$;

-- A namespace/task subscription: stored, and turned into a group of every queue that matches now.
CREATE OR REPLACE FUNCTION queen.make_subscription(p_namespace text, p_task text, p_group text, p_mode text, p_from timestamptz) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_id    int;
    v_queue record;
    v_group int;
BEGIN
    PERFORM queen.lock_subscriptions(true);
    INSERT INTO queen.consumer_groups_metadata (consumer_group, namespace, task, subscription_mode, subscription_timestamp)
    VALUES (p_group, p_namespace, p_task, p_mode, coalesce(p_from, queen.now())) ON CONFLICT DO NOTHING RETURNING id INTO v_id;
    IF v_id IS NULL THEN
        RETURN false;
    END IF;
    FOR v_queue IN SELECT q.id, q.name FROM queen.queues q
                    WHERE (p_namespace IS NULL OR q.namespace = p_namespace) AND (p_task IS NULL OR q.task = p_task) ORDER BY q.id LOOP
        PERFORM queen.lock_queue(v_queue.id, true);
        INSERT INTO queen.consumer_groups_metadata (consumer_group, queue_id, queue_name, subscription_mode, subscription_timestamp)
        VALUES (p_group, v_queue.id, v_queue.name, p_mode, coalesce(p_from, queen.now())) ON CONFLICT DO NOTHING RETURNING id INTO v_group;
        IF v_group IS NOT NULL THEN
            PERFORM queen.place_group(v_group);
        END IF;
    END LOOP;
    RETURN true;
END
$$;
