-- Makes the queue unless it is there, with its groups: those of subscriptions that waited for its name, and those of
-- subscriptions to its namespace and task. The caller holds the subscriptions' lock shared (servers) or leaves a wake.
CREATE OR REPLACE FUNCTION queen.make_queue(p_queue text) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    v_id int;
BEGIN
    INSERT INTO queen.queues (name, namespace, task)
    SELECT p_queue, n.namespace, n.task FROM queen.name_parts(p_queue) n
    ON CONFLICT (name) DO NOTHING RETURNING id INTO v_id;
    IF v_id IS NULL THEN
        SELECT id INTO v_id FROM queen.queues WHERE name = p_queue;
        RETURN v_id;
    END IF;
    PERFORM queen.match_subscriptions(v_id);
    RETURN v_id;
END
$$;

-- Gives the queue a group for every stored subscription that matches it. Answers how many groups were made.
CREATE OR REPLACE FUNCTION queen.match_subscriptions(p_queue int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    v_waiting int;
    v_made    int;
BEGIN
    UPDATE queen.consumer_groups_metadata g SET queue_id = q.id
      FROM queen.queues q WHERE q.id = p_queue AND g.queue_name = q.name AND g.queue_id IS NULL;
    GET DIAGNOSTICS v_waiting = ROW_COUNT;
    INSERT INTO queen.consumer_groups_metadata (consumer_group, queue_id, queue_name, subscription_mode, subscription_timestamp)
    SELECT DISTINCT ON (g.consumer_group) g.consumer_group, q.id, q.name, g.subscription_mode, g.subscription_timestamp
      FROM queen.queues q
      JOIN queen.consumer_groups_metadata g ON g.queue_name IS NULL
           AND (g.namespace IS NULL OR g.namespace = q.namespace) AND (g.task IS NULL OR g.task = q.task)
     WHERE q.id = p_queue
     ORDER BY g.consumer_group, g.id
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS v_made = ROW_COUNT;
    RETURN v_waiting + v_made;
END
$$;
