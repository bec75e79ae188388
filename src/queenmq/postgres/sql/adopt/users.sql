-- The sessions that hold a lock on one of the schema's tables or wait for one, in words.
SELECT format('pid %s (%s%s%s, %s)', a.pid, coalesce(nullif(a.application_name, ''), 'no application name'), ', user ' || a.usename,
              ', from ' || host(a.client_addr), coalesce(a.state, a.backend_type)) AS session
  FROM pg_stat_activity a
 WHERE a.pid <> pg_backend_pid()
   AND a.pid IN (SELECT l.pid FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
                  WHERE l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                    AND c.relnamespace = to_regnamespace($1) AND c.relkind IN ('r', 'p'))
 ORDER BY a.pid
 LIMIT 20
