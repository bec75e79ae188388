-- The sessions of QueenMQ servers in this database, other than this one.
SELECT format('pid %s%s', a.pid, ' from ' || host(a.client_addr)) AS session
  FROM pg_stat_activity a
 WHERE a.datname = current_database() AND a.application_name = 'queenmq' AND a.pid <> pg_backend_pid()
 ORDER BY a.pid
 LIMIT 20
