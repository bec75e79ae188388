-- What happened since the adoption, in the older system's terms: the older messages by their seq, the new ones under the ids that
-- clients know. Runs while the schema queen is still ours; 10_views of the adoption has made the views.
CREATE UNLOGGED TABLE queen.adopt_partition AS
SELECT p.id AS old_id, n.id AS partition_id
  FROM queen.adopt_old_partitions p
  JOIN queen.adopt_old_queues o ON o.id = p.queue_id
  JOIN queen.queues q ON q.name = coalesce(nullif(o.name, ''), 'unnamed')
  JOIN queen.partitions n ON n.queue_id = q.id AND n.name = coalesce(nullif(p.name, ''), 'Default')
 -- a queue that was deleted and made again has partitions of its own
 WHERE n.id <= (SELECT (value ->> 'last_partition')::int FROM queen.system_state WHERE key = 'adoption');

ANALYZE queen.adopt_partition;

CREATE UNLOGGED TABLE queen.adopt_place AS
SELECT m.id::text AS id, p.partition_id, row_number() OVER (PARTITION BY p.partition_id ORDER BY m.created_at, m.id) AS seq,
       m.created_at, false AS is_new
  FROM queen.adopt_old_messages m
  JOIN queen.adopt_partition p ON p.old_id = m.partition_id;
CREATE INDEX ON queen.adopt_place (partition_id, seq);
ANALYZE queen.adopt_place, queen.messages, queen.partitions, queen.partition_consumers;
INSERT INTO queen.adopt_place
SELECT queen.message_id(m.partition_id, m.seq)::text, m.partition_id, m.seq, m.created_at, true
  FROM queen.partitions p
  LEFT JOIN (SELECT a.partition_id, max(a.seq) AS seq FROM queen.adopt_place a GROUP BY 1) last ON last.partition_id = p.id
  JOIN queen.messages m ON m.partition_id = p.id AND m.seq > coalesce(last.seq, 0);
ANALYZE queen.adopt_place;

CREATE UNLOGGED TABLE queen.adopt_message AS
SELECT a.id, q.name AS queue, p.name AS partition,
       -- retention may have freed a transaction id here that the older table still holds
       CASE WHEN o.transaction_id IS NULL THEN m.transaction_id ELSE left(m.transaction_id, 200) || '#' || a.id END AS transaction_id,
       m.trace_id, m.created_at, coalesce(m.is_encrypted, false) AS is_encrypted, m.payload
  FROM queen.adopt_place a
  JOIN queen.messages m ON m.partition_id = a.partition_id AND m.seq = a.seq
  JOIN queen.partitions p ON p.id = a.partition_id
  JOIN queen.queues q ON q.id = p.queue_id
  LEFT JOIN (SELECT DISTINCT k.partition_id, o.transaction_id COLLATE "C" AS transaction_id
               FROM queen.adopt_old_messages o JOIN queen.adopt_partition k ON k.old_id = o.partition_id) o
    ON o.partition_id = a.partition_id AND o.transaction_id = m.transaction_id
 WHERE a.is_new;

-- A group stands behind the last message that is still known at or before its cursor.
CREATE UNLOGGED TABLE queen.adopt_position AS
SELECT q.name AS queue, p.name AS partition, g.consumer_group, a.id AS last_id, a.created_at AS last_at, c.last_consumed_at
  FROM queen.partition_consumers c
  JOIN queen.consumer_groups_metadata g ON g.id = c.group_id
  JOIN queen.partitions p ON p.id = c.partition_id
  JOIN queen.queues q ON q.id = p.queue_id
  LEFT JOIN LATERAL (SELECT a.id, a.created_at FROM queen.adopt_place a
                      WHERE a.partition_id = c.partition_id AND a.seq <= c.cursor_seq ORDER BY a.seq DESC LIMIT 1) a ON true;

CREATE UNLOGGED TABLE queen.adopt_dead AS
SELECT q.name AS queue, p.name AS partition, a.id AS message_id, d.consumer_group, d.error_message, d.retry_count, d.created_at, d.failed_at
  FROM queen.dead_letter_queue d
  JOIN queen.partitions p ON p.id = d.partition_id
  JOIN queen.queues q ON q.id = p.queue_id
  JOIN queen.adopt_place a ON a.partition_id = d.partition_id AND a.seq = d.seq
 WHERE d.failed_at > (SELECT (value ->> 'at')::timestamptz FROM queen.system_state WHERE key = 'adoption');

CREATE UNLOGGED TABLE queen.adopt_queue AS
SELECT DISTINCT q.name, q.namespace, q.task, p.name AS partition
  FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id;
ANALYZE queen.adopt_message, queen.adopt_position, queen.adopt_dead, queen.adopt_queue;
