-- A queue's options as clients see them: all of them, as they are in force.
CREATE OR REPLACE FUNCTION queen.queue_options(q queen.queues) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'leaseTime', q.lease_time, 'retryLimit', q.retry_limit, 'retryDelay', q.retry_delay, 'maxSize', q.max_size, 'ttl', coalesce(q.ttl, 3600),
        'priority', q.priority, 'delayedProcessing', q.delayed_processing, 'windowBuffer', q.window_buffer,
        'windowMaxWait', coalesce(q.window_max_wait, 10 * q.window_buffer),
        'deadLetterQueue', q.dead_letter_queue, 'dlqAfterMaxRetries', q.dlq_after_max_retries, 'encryptionEnabled', q.encryption_enabled,
        'retentionEnabled', q.retention_enabled, 'retentionSeconds', q.retention_seconds, 'completedRetentionSeconds', q.completed_retention_seconds,
        'maxWaitTimeSeconds', q.max_wait_time_seconds, 'retentionWaitsForArchive', q.retention_waits_for_archive)
$$;

-- Makes the queue or merges options into it. Whoever changes when messages may be delivered sets the unleased rows that wait for a
-- moment to now: the next claim computes the true one (else what waits behind an old three-day delay waits three days).
CREATE OR REPLACE FUNCTION queen.configure_queue(p_queue text, p_namespace text, p_task text, p_options jsonb) RETURNS json
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_wait text := current_setting('lock_timeout');
    v_old  queen.queues;
    q      queen.queues;
    v_now  timestamptz;
    v_had  int[];
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    PERFORM pg_advisory_xact_lock(queen.name_key(p_queue, NULL));
    PERFORM queen.lock_subscriptions(false);
    PERFORM queen.lock_queue(queen.make_queue(p_queue), true);
    SELECT * INTO v_old FROM queen.queues WHERE name = p_queue FOR NO KEY UPDATE;
    UPDATE queen.queues SET
        namespace = coalesce(p_namespace, namespace), task = coalesce(p_task, task),
        lease_time = coalesce((p_options ->> 'leaseTime')::int, lease_time),
        retry_limit = coalesce((p_options ->> 'retryLimit')::int, retry_limit),
        retry_delay = coalesce((p_options ->> 'retryDelay')::bigint, retry_delay),
        max_size = coalesce((p_options ->> 'maxSize')::bigint, max_size),
        ttl = CASE WHEN p_options ? 'ttl' THEN nullif((p_options ->> 'ttl')::int, 0) ELSE ttl END,
        priority = coalesce((p_options ->> 'priority')::int, priority),
        delayed_processing = coalesce((p_options ->> 'delayedProcessing')::int, delayed_processing),
        window_buffer = coalesce((p_options ->> 'windowBuffer')::int, window_buffer),
        window_max_wait = coalesce((p_options ->> 'windowMaxWait')::int, window_max_wait),
        dead_letter_queue = coalesce((p_options ->> 'deadLetterQueue')::boolean, dead_letter_queue),
        dlq_after_max_retries = coalesce((p_options ->> 'dlqAfterMaxRetries')::boolean, dlq_after_max_retries),
        encryption_enabled = coalesce((p_options ->> 'encryptionEnabled')::boolean, encryption_enabled),
        retention_enabled = coalesce((p_options ->> 'retentionEnabled')::boolean, retention_enabled),
        retention_seconds = coalesce((p_options ->> 'retentionSeconds')::int, retention_seconds),
        completed_retention_seconds = coalesce((p_options ->> 'completedRetentionSeconds')::int, completed_retention_seconds),
        max_wait_time_seconds = coalesce((p_options ->> 'maxWaitTimeSeconds')::int, max_wait_time_seconds),
        retention_waits_for_archive = coalesce((p_options ->> 'retentionWaitsForArchive')::boolean, retention_waits_for_archive),
        config_version = config_version + 1
     WHERE id = v_old.id RETURNING * INTO q;
    IF (q.namespace, q.task) IS DISTINCT FROM (v_old.namespace, v_old.task) THEN
        SELECT coalesce(array_agg(g.id), '{}') INTO v_had FROM queen.consumer_groups_metadata g WHERE g.queue_id = q.id;
        PERFORM queen.match_subscriptions(q.id);
        PERFORM queen.place_group(g.id) FROM queen.consumer_groups_metadata g WHERE g.queue_id = q.id AND NOT g.id = ANY (v_had);
    END IF;
    IF (q.delayed_processing, q.window_buffer, q.window_max_wait, q.retry_delay, q.ttl)
       IS DISTINCT FROM (v_old.delayed_processing, v_old.window_buffer, v_old.window_max_wait, v_old.retry_delay, v_old.ttl) THEN
        PERFORM 1 FROM queen.partition_consumers c JOIN queen.partitions p ON p.id = c.partition_id
          WHERE p.queue_id = q.id ORDER BY c.partition_id, c.group_id FOR NO KEY UPDATE OF c;
        v_now := queen.now();
        UPDATE queen.partition_consumers c SET ready_at = v_now FROM queen.partitions p
         WHERE p.queue_id = q.id AND c.partition_id = p.id AND c.ready_at > v_now AND (c.lease_id IS NULL OR c.lease_until <= v_now);
        IF q.retry_delay < v_old.retry_delay THEN
            PERFORM queen.shorten_retries(q.id, v_now, q.retry_delay);
        END IF;
    END IF;
    PERFORM pg_notify('queen_config', q.id::text);
    PERFORM pg_notify('queen_wake', q.id::text);
    PERFORM set_config('lock_timeout', v_wait, true);
    RETURN json_build_object('configured', true, 'queue', q.name, 'namespace', q.namespace, 'task', q.task, 'queueId', q.id::text,
                             'options', queen.queue_options(q), 'version', q.config_version);
END
$$;

-- A shorter retry delay brings the retry moments of what has failed already forward.
CREATE OR REPLACE FUNCTION queen.shorten_retries(p_queue int, p_now timestamptz, p_delay_ms bigint) RETURNS void
LANGUAGE sql VOLATILE AS $$
    UPDATE queen.partition_consumers c
       SET attempts = (SELECT jsonb_object_agg(a.key, jsonb_set(a.value, '{1}', to_jsonb(least((a.value ->> 1)::bigint,
                                floor(extract(epoch FROM p_now) * 1000)::bigint + p_delay_ms)))) FROM jsonb_each(c.attempts) a)
      FROM queen.partitions p WHERE p.queue_id = p_queue AND c.partition_id = p.id AND c.attempts IS NOT NULL
$$;
