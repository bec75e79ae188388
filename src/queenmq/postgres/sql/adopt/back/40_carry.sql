-- Into the older tables: queues and partitions that are new, their messages, where every group stands now, dead letters. The older
-- tables differ from version to version: only columns that are there are named, in their own types. Their triggers fire.
CREATE FUNCTION queen_after.adopt_insert(p_table text, p_source text, p_columns text[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_made bigint;
BEGIN
    EXECUTE (SELECT format('INSERT INTO queen.%I (%s) SELECT %s FROM %s', p_table, string_agg(format('%I', a.attname), ', '),
                           string_agg(format('s.%s::%s', split_part(c.spec, '=', 2), format_type(a.atttypid, NULL)), ', '), p_source)
               FROM unnest(p_columns) c(spec)
               JOIN pg_attribute a ON a.attrelid = format('queen.%I', p_table)::regclass AND a.attname = split_part(c.spec, '=', 1) AND NOT a.attisdropped);
    GET DIAGNOSTICS v_made = ROW_COUNT;
    RETURN v_made;
END
$$;

DO $$
DECLARE
    v_messages bigint;
    v_dead     bigint := 0;
    v_moved    bigint := 0;
    v_made     bigint := 0;
    v_lease    text := '';
BEGIN
    PERFORM queen_after.adopt_insert('queues',
        '(SELECT DISTINCT n.name, n.namespace, n.task FROM queen_after.adopt_queue n WHERE NOT EXISTS (SELECT FROM queen.queues q
           WHERE coalesce(nullif(q.name, ''''), ''unnamed'') = n.name)) s', ARRAY['name=name', 'namespace=namespace', 'task=task']);
    PERFORM queen_after.adopt_insert('partitions',
        '(SELECT q.id, n.partition FROM queen_after.adopt_queue n JOIN queen.queues q ON coalesce(nullif(q.name, ''''), ''unnamed'') = n.name
           WHERE NOT EXISTS (SELECT FROM queen.partitions p WHERE p.queue_id = q.id AND coalesce(nullif(p.name, ''''), ''Default'') = n.partition)) s',
        ARRAY['queue_id=id', 'name=partition']);
    CREATE TABLE queen_after.adopt_name AS
        SELECT DISTINCT ON (1, 2) coalesce(nullif(q.name, ''), 'unnamed') COLLATE "C" AS queue,
               coalesce(nullif(p.name, ''), 'Default') COLLATE "C" AS partition, p.id
          FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id
         ORDER BY 1, 2, 3;
    ANALYZE queen_after.adopt_name;
    v_messages := queen_after.adopt_insert('messages',
        '(SELECT m.*, n.id AS partition_id FROM queen_after.adopt_message m JOIN queen_after.adopt_name n USING (queue, partition)) s',
        ARRAY['id=id', 'transaction_id=transaction_id', 'trace_id=trace_id', 'partition_id=partition_id', 'payload=payload', 'created_at=created_at',
              'is_encrypted=is_encrypted']);

    IF to_regclass('queen.partition_consumers') IS NOT NULL THEN
        IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'queen.partition_consumers'::regclass AND attname = 'lease_expires_at' AND NOT attisdropped) THEN
            v_lease := ', lease_expires_at = NULL';
        END IF;
        EXECUTE format('UPDATE queen.partition_consumers c SET last_consumed_id = coalesce(s.last_id, %L)::%s, last_consumed_created_at = s.last_at%s
                          FROM queen_after.adopt_position s JOIN queen_after.adopt_name n USING (queue, partition)
                         WHERE c.partition_id = n.id AND coalesce(nullif(c.consumer_group, ''''), ''__QUEUE_MODE__'') = s.consumer_group
                           AND (s.last_at IS NOT NULL OR c.last_consumed_created_at IS NOT NULL)',
                       '00000000-0000-0000-0000-000000000000',
                       (SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = 'queen.messages'::regclass AND attname = 'id'), v_lease);
        GET DIAGNOSTICS v_moved = ROW_COUNT;
        v_made := queen_after.adopt_insert('partition_consumers',
            '(SELECT s.*, n.id FROM queen_after.adopt_position s JOIN queen_after.adopt_name n USING (queue, partition)
               WHERE s.last_at IS NOT NULL AND NOT EXISTS (SELECT FROM queen.partition_consumers c WHERE c.partition_id = n.id
                     AND coalesce(nullif(c.consumer_group, ''''), ''__QUEUE_MODE__'') = s.consumer_group)) s',
            ARRAY['partition_id=id', 'consumer_group=consumer_group', 'last_consumed_id=last_id', 'last_consumed_created_at=last_at',
                  'last_consumed_at=last_consumed_at']);
    END IF;
    IF to_regclass('queen.dead_letter_queue') IS NOT NULL THEN
        v_dead := queen_after.adopt_insert('dead_letter_queue',
            '(SELECT d.*, n.id FROM queen_after.adopt_dead d JOIN queen_after.adopt_name n USING (queue, partition)) s',
            ARRAY['message_id=message_id', 'partition_id=id', 'consumer_group=consumer_group', 'error_message=error_message', 'retry_count=retry_count',
                  'original_created_at=created_at', 'failed_at=failed_at']);
    END IF;
    UPDATE queen_after.system_state SET value = value || jsonb_build_object('carried_back', jsonb_build_object(
        'messages', v_messages, 'cursors', v_moved + v_made, 'dead_letters', v_dead)) WHERE key = 'adoption';
END
$$;
