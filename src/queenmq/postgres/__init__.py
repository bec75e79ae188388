"""PostgreSQL: pool and calls, migrations, the embedded server. Knows nothing of queues, HTTP or the command line."""
