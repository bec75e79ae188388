-- Where each group stands in each partition, as the seq of the last message that it has behind it.
-- The older cursor is a position (last_consumed_created_at, last_consumed_id), whether or not that message still exists: everything
-- up to it is settled. Without the id, everything before the moment; without the moment, the id's own message tells it. Who has
-- no position (no row, or a row that only was leased) starts by its subscription. Two rows for one place: the earlier counts.
CREATE UNLOGGED TABLE queen.adopt_position AS
SELECT p.partition_id, coalesce(nullif(c.consumer_group, ''), '__QUEUE_MODE__') COLLATE "C" AS consumer_group,
       min(CASE WHEN c.last_consumed_created_at IS NOT NULL AND c.last_consumed_id IS NOT NULL THEN coalesce(
                (SELECT a.seq FROM queen.adopt_message a
                  WHERE a.partition_id = p.partition_id AND (a.created_at, a.id) <= (c.last_consumed_created_at, c.last_consumed_id)
                  ORDER BY a.created_at DESC, a.id DESC LIMIT 1), 0)
                WHEN c.last_consumed_created_at IS NOT NULL THEN coalesce(
                (SELECT a.seq FROM queen.adopt_message a
                  WHERE a.partition_id = p.partition_id AND a.created_at < c.last_consumed_created_at
                  ORDER BY a.created_at DESC, a.id DESC LIMIT 1), 0)
                ELSE known.seq END) AS cursor_seq,
       max(c.last_consumed_at) AS last_consumed_at,
       count(*) FILTER (WHERE c.lease_expires_at > queen.now()) AS leases
  FROM queen.adopt_old_partition_consumers c
  JOIN queen.adopt_partition p ON p.old_id = c.partition_id
  LEFT JOIN queen.adopt_message known ON c.last_consumed_created_at IS NULL AND known.id = c.last_consumed_id AND known.partition_id = p.partition_id
 GROUP BY p.partition_id, 2;
CREATE UNIQUE INDEX ON queen.adopt_position (partition_id, consumer_group);
ANALYZE queen.adopt_position;

-- Rows of every group in every partition that is awake, unleased. Nobody sees them before the commit, so "drained" may be written here.
INSERT INTO queen.partition_consumers (partition_id, group_id, cursor_seq, ready_at, last_consumed_at)
SELECT r.partition_id, r.group_id, r.cursor_seq, CASE WHEN r.cursor_seq + 1 < r.next_seq THEN queen.now() END, r.last_consumed_at
  FROM (SELECT l.partition_id, g.id AS group_id, l.next_seq, o.last_consumed_at,
               coalesce(o.cursor_seq,
                        CASE coalesce(s.mode, g.subscription_mode) WHEN 'all' THEN 0 ELSE coalesce(
                             (SELECT a.seq FROM queen.adopt_message a
                               WHERE a.partition_id = l.partition_id AND a.created_at < CASE WHEN s.mode IS NULL THEN g.subscription_timestamp ELSE s.moment END
                               ORDER BY a.created_at DESC, a.id DESC LIMIT 1), 0) END) AS cursor_seq
          FROM queen.partition_lookup l
          JOIN queen.partitions p ON p.id = l.partition_id
          JOIN queen.consumer_groups_metadata g ON g.queue_id = p.queue_id
          LEFT JOIN queen.adopt_position o ON o.partition_id = l.partition_id AND o.consumer_group = g.consumer_group
          LEFT JOIN LATERAL (SELECT s.mode, coalesce(s.moment, queen.now()) AS moment FROM queen.adopt_subscription s
                              WHERE s.consumer_group = g.consumer_group AND s.queue_name = g.queue_name AND s.partition_name = p.name
                              ORDER BY s.moment LIMIT 1) s ON true) r
 ORDER BY r.partition_id, r.group_id;
