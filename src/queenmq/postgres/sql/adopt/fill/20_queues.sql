-- Queues with their options, partitions, and which old partition is which of ours. Names that were empty get one.
INSERT INTO queen.queues (name, namespace, task, created_at)
SELECT coalesce(nullif(o.name, ''), 'unnamed'), nullif(min(o.namespace), ''), nullif(min(o.task), ''), coalesce(min(o.created_at), queen.now())
  FROM queen.adopt_old_queues o
 GROUP BY 1
 ORDER BY 4, 1;

-- `ttl` acts here, and the older system only kept the number: its default is "not configured".
UPDATE queen.queues q SET
    lease_time = coalesce(CASE WHEN o.lease_time > 0 THEN o.lease_time END, q.lease_time),
    retry_limit = greatest(coalesce(o.retry_limit, q.retry_limit), 0),
    retry_delay = greatest(coalesce(o.retry_delay, q.retry_delay), 0),
    max_size = greatest(coalesce(o.max_size, o.max_queue_size, q.max_size), 0),
    ttl = CASE WHEN o.ttl > 0 AND o.ttl <> 3600 THEN o.ttl END,
    priority = coalesce(o.priority, q.priority),
    delayed_processing = greatest(coalesce(o.delayed_processing, q.delayed_processing), 0),
    window_buffer = greatest(coalesce(o.window_buffer, q.window_buffer), 0),
    window_max_wait = coalesce(o.window_max_wait, q.window_max_wait),
    dead_letter_queue = coalesce(o.dead_letter_queue, q.dead_letter_queue),
    dlq_after_max_retries = coalesce(o.dlq_after_max_retries, q.dlq_after_max_retries),
    encryption_enabled = coalesce(o.encryption_enabled, q.encryption_enabled),
    retention_enabled = coalesce(o.retention_enabled, q.retention_enabled),
    retention_seconds = greatest(coalesce(o.retention_seconds, q.retention_seconds), 0),
    completed_retention_seconds = greatest(coalesce(o.completed_retention_seconds, q.completed_retention_seconds), 0),
    max_wait_time_seconds = greatest(coalesce(o.max_wait_time_seconds, q.max_wait_time_seconds), 0)
  FROM queen.adopt_old_queues o
 WHERE q.name = coalesce(nullif(o.name, ''), 'unnamed');

INSERT INTO queen.partitions (queue_id, name)
SELECT q.id, coalesce(nullif(p.name, ''), 'Default')
  FROM queen.adopt_old_partitions p
  JOIN queen.adopt_old_queues o ON o.id = p.queue_id
  JOIN queen.queues q ON q.name = coalesce(nullif(o.name, ''), 'unnamed')
 GROUP BY 1, 2
 ORDER BY 1, 2;

CREATE UNLOGGED TABLE queen.adopt_partition AS
SELECT p.id AS old_id, n.id AS partition_id, n.queue_id, n.name
  FROM queen.adopt_old_partitions p
  JOIN queen.adopt_old_queues o ON o.id = p.queue_id
  JOIN queen.queues q ON q.name = coalesce(nullif(o.name, ''), 'unnamed')
  JOIN queen.partitions n ON n.queue_id = q.id AND n.name = coalesce(nullif(p.name, ''), 'Default');
ANALYZE queen.adopt_partition;
