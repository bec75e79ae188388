-- A server registers: its session is greater than any before.
CREATE OR REPLACE FUNCTION queen.register_server(p_server text, p_url text, p_version text) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    INSERT INTO queen.servers (server_id, session, url, version, started_at, heartbeat_at)
    VALUES (p_server, nextval('queen.server_sessions'), p_url, p_version, queen.now(), queen.now())
    ON CONFLICT (server_id) DO UPDATE SET session = excluded.session, url = excluded.url, version = excluded.version,
        started_at = excluded.started_at, heartbeat_at = excluded.heartbeat_at
    RETURNING session
$$;

-- Adds up what was settled here since the last time.
CREATE OR REPLACE FUNCTION queen.add_consumed(p_server text, p_queues int[], p_groups text[], p_completed bigint[], p_failed bigint[], p_dead bigint[]) RETURNS void
LANGUAGE sql VOLATILE AS $$
    INSERT INTO queen.messages_consumed AS c (queue_id, consumer_group, server_id, minute, completed, failed, dead_lettered)
    SELECT u.q, u.g, p_server, date_trunc('minute', queen.now()), u.completed, u.failed, u.dead
      FROM unnest(p_queues, p_groups, p_completed, p_failed, p_dead) u(q, g, completed, failed, dead)
     WHERE EXISTS (SELECT FROM queen.queues WHERE id = u.q)
    ON CONFLICT (queue_id, consumer_group, server_id, minute) DO UPDATE SET completed = c.completed + excluded.completed,
        failed = c.failed + excluded.failed, dead_lettered = c.dead_lettered + excluded.dead_lettered
$$;
