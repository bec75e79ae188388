-- Subscriptions, and the groups of each queue: those that consumed from it, and those whose subscription names or matches it.
CREATE UNLOGGED TABLE queen.adopt_subscription AS
SELECT coalesce(nullif(s.consumer_group, ''), '__QUEUE_MODE__') COLLATE "C" AS consumer_group,
       nullif(s.queue_name, '') COLLATE "C" AS queue_name, nullif(s.partition_name, '') COLLATE "C" AS partition_name,
       nullif(s.namespace, '') COLLATE "C" AS namespace, nullif(s.task, '') COLLATE "C" AS task,
       CASE WHEN lower(s.subscription_mode) IN ('new', 'new-only', 'now') THEN 'new'
            WHEN lower(s.subscription_mode) IN ('timestamp', 'from') THEN 'from'
            ELSE 'all' END AS mode,
       s.subscription_timestamp AS moment
  FROM queen.adopt_old_consumer_groups_metadata s;
ANALYZE queen.adopt_subscription;

-- Subscriptions to a namespace and task: they go on to find queues that appear later.
INSERT INTO queen.consumer_groups_metadata (consumer_group, namespace, task, subscription_mode, subscription_timestamp)
SELECT DISTINCT ON (s.namespace, s.task, s.consumer_group) s.consumer_group, s.namespace, s.task, s.mode, coalesce(s.moment, queen.now())
  FROM queen.adopt_subscription s
 WHERE s.queue_name IS NULL AND s.partition_name IS NULL
 ORDER BY s.namespace, s.task, s.consumer_group, s.moment;

-- Groups of queues. A subscription to the queue goes before one to a namespace and task; one to a single partition places the
-- group in that partition only (50_cursors).
INSERT INTO queen.consumer_groups_metadata (consumer_group, queue_id, queue_name, subscription_mode, subscription_timestamp)
SELECT DISTINCT ON (g.queue_id, g.consumer_group) g.consumer_group, g.queue_id, q.name, g.mode, coalesce(g.moment, queen.now())
  FROM (SELECT s.consumer_group, q.id AS queue_id, s.mode, s.moment, 1 AS rank
          FROM queen.adopt_subscription s JOIN queen.queues q ON q.name = s.queue_name WHERE s.partition_name IS NULL
        UNION ALL
        SELECT s.consumer_group, q.id, s.mode, s.moment, 2
          FROM queen.adopt_subscription s JOIN queen.queues q
            ON (s.namespace IS NULL OR s.namespace = q.namespace) AND (s.task IS NULL OR s.task = q.task)
         WHERE s.queue_name IS NULL AND s.partition_name IS NULL
        UNION ALL
        SELECT s.consumer_group, q.id, 'all', s.moment, 3
          FROM queen.adopt_subscription s JOIN queen.queues q ON q.name = s.queue_name WHERE s.partition_name IS NOT NULL
        UNION ALL
        SELECT coalesce(nullif(c.consumer_group, ''), '__QUEUE_MODE__'), p.queue_id, 'all', NULL, 4
          FROM queen.adopt_old_partition_consumers c JOIN queen.adopt_partition p ON p.old_id = c.partition_id) g
  JOIN queen.queues q ON q.id = g.queue_id
 ORDER BY g.queue_id, g.consumer_group, g.rank, g.moment;

-- Subscriptions to queues that are not there yet wait for them.
INSERT INTO queen.consumer_groups_metadata (consumer_group, queue_name, subscription_mode, subscription_timestamp)
SELECT DISTINCT ON (s.queue_name, s.consumer_group) s.consumer_group, s.queue_name, s.mode, coalesce(s.moment, queen.now())
  FROM queen.adopt_subscription s
 WHERE s.queue_name IS NOT NULL AND NOT EXISTS (SELECT FROM queen.queues q WHERE q.name = s.queue_name)
 ORDER BY s.queue_name, s.consumer_group, s.partition_name NULLS FIRST, s.moment;
ANALYZE queen.consumer_groups_metadata, queen.queues;
