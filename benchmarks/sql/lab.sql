-- name: tidy
VACUUM (ANALYZE);

-- name: checkpoint
CHECKPOINT;

-- name: version
SHOW server_version;

-- name: hold_snapshot
BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class;

-- name: let_go
ROLLBACK;
