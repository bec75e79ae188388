-- name: pgmq_create
SELECT pgmq.create($1);

-- name: pgmq_send
SELECT * FROM pgmq.send($1, $2::jsonb);

-- name: pgmq_send_batch
SELECT * FROM pgmq.send_batch($1, $2::jsonb[]);

-- name: pgmq_read
SELECT * FROM pgmq.read($1, 30, $2);

-- name: pgmq_delete
SELECT * FROM pgmq.delete($1, $2::bigint[]);

-- name: pgmq_length
SELECT queue_length FROM pgmq.metrics($1);
