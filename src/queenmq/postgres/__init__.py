"""The database: connections, named calls, migrations, the embedded server. Knows SQL files; knows nothing of queues' rules."""
