-- name: tidy
VACUUM (ANALYZE);

-- name: checkpoint
CHECKPOINT;

-- name: version
SHOW server_version;
