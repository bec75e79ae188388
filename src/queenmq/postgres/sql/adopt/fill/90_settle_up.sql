-- Looks once more before the commit: as many messages here as were there, or all is undone. Keeps the figures and tidies up.
DO $$
DECLARE
    v_old  bigint := (SELECT count(*) FROM queen.adopt_old_messages);
    v_lost bigint := (SELECT count(*) FROM queen.adopt_old_messages m
                       WHERE NOT EXISTS (SELECT FROM queen.adopt_partition p WHERE p.old_id = m.partition_id));
    v_new  bigint := (SELECT count(*) FROM queen.messages);
    v_off  text[];
BEGIN
    IF v_old - v_lost <> v_new THEN
        RAISE EXCEPTION 'the older tables hold % messages with a partition and % were taken over', v_old - v_lost, v_new;
    END IF;

    -- Where messages older than the ttl still wait, the older system had not enforced it: nor do we, until it is configured anew.
    WITH waiting AS (
        SELECT DISTINCT q.id FROM queen.queues q
          JOIN queen.partitions p ON p.queue_id = q.id
          JOIN queen.partition_lookup l ON l.partition_id = p.id
          CROSS JOIN LATERAL (SELECT coalesce(min(c.cursor_seq), 0) AS cursor_seq FROM queen.partition_consumers c WHERE c.partition_id = p.id) c
          JOIN LATERAL (SELECT m.created_at FROM queen.messages m WHERE m.partition_id = p.id AND m.seq > c.cursor_seq ORDER BY m.seq LIMIT 1) m ON true
         WHERE m.created_at + q.ttl * interval '1 second' <= queen.now()
    ), off AS (
        UPDATE queen.queues q SET ttl = NULL FROM waiting w WHERE q.id = w.id RETURNING q.name
    )
    SELECT array_agg(name ORDER BY name) INTO v_off FROM off;

    INSERT INTO queen.system_state (key, value) VALUES ('adoption', jsonb_build_object(
        'at', queen.now(),
        'queues', (SELECT count(*) FROM queen.queues),
        'partitions', (SELECT count(*) FROM queen.partitions),
        'last_partition', (SELECT max(id) FROM queen.partitions),
        'messages', v_new,
        'groups', (SELECT count(*) FROM queen.consumer_groups_metadata WHERE queue_id IS NOT NULL),
        'subscriptions', (SELECT count(*) FROM queen.adopt_subscription),
        'cursors', (SELECT count(*) FROM queen.adopt_position WHERE cursor_seq IS NOT NULL),
        'dead_letters', (SELECT count(*) FROM queen.dead_letter_queue),
        'leases_ended', (SELECT coalesce(sum(leases), 0) FROM queen.adopt_position),
        'transaction_ids_made', (SELECT count(*) FROM queen.adopt_old_messages WHERE coalesce(transaction_id, '') = ''),
        'transaction_ids_renamed', (SELECT count(*) FROM queen.adopt_renamed),
        'messages_without_partition', v_lost,
        'dead_letters_without_partition', (SELECT count(*) FROM queen.adopt_dead WHERE partition_id IS NULL),
        'ttl_left_off', coalesce(to_jsonb(v_off), '[]')));

    DROP VIEW queen.adopt_old_queues, queen.adopt_old_partitions, queen.adopt_old_messages, queen.adopt_old_partition_consumers,
              queen.adopt_old_consumer_groups_metadata, queen.adopt_old_dead_letter_queue;
    DROP TABLE queen.adopt_partition, queen.adopt_message, queen.adopt_renamed, queen.adopt_subscription, queen.adopt_position, queen.adopt_dead;
END
$$;
