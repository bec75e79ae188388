-- Dead letters keep their payload, and their message is settled for the group that gave it up. What is no longer stored keeps its
-- row, without a payload and with seq 0, as long as its partition is known.
CREATE UNLOGGED TABLE queen.adopt_dead AS
SELECT d.message_id, coalesce(p.partition_id, a.partition_id) AS partition_id, a.seq, a.created_at AS stored_at,
       coalesce(nullif(d.consumer_group, ''), '__QUEUE_MODE__') COLLATE "C" AS consumer_group,
       coalesce(a.transaction_id, nullif(d.transaction_id, ''), d.message_id::text, '') AS transaction_id,
       d.error_message, greatest(coalesce(d.retry_count, 0), 0) AS retry_count, d.payload, d.original_created_at,
       coalesce(d.failed_at, queen.now()) AS failed_at
  FROM queen.adopt_old_dead_letter_queue d
  LEFT JOIN queen.adopt_message a ON a.id = d.message_id
  LEFT JOIN queen.adopt_partition p ON p.old_id = d.partition_id;
ANALYZE queen.adopt_dead, queen.partition_consumers;

INSERT INTO queen.dead_letter_queue (queue_id, partition_id, seq, transaction_id, trace_id, consumer_group, error_message, retry_count,
                                     is_encrypted, payload, created_at, failed_at)
SELECT p.queue_id, d.partition_id, coalesce(d.seq, 0), d.transaction_id, m.trace_id, d.consumer_group, d.error_message, d.retry_count,
       m.is_encrypted, coalesce(m.payload, d.payload), coalesce(d.stored_at, d.original_created_at, d.failed_at), d.failed_at
  FROM queen.adopt_dead d
  JOIN queen.partitions p ON p.id = d.partition_id
  LEFT JOIN queen.messages m ON m.partition_id = d.partition_id AND m.seq = d.seq
 ORDER BY d.failed_at, d.partition_id, d.seq;

UPDATE queen.partition_consumers c
   SET cursor_seq = s.cursor_seq, acked = s.acked, ready_at = CASE WHEN s.cursor_seq + 1 < s.next_seq THEN c.ready_at END
  FROM (SELECT t.partition_id, t.group_id, t.next_seq, (t.settled).cursor_seq, (t.settled).acked
          FROM (SELECT c.partition_id, c.group_id, l.next_seq, queen.settle(c, range_agg(int8range(d.seq, d.seq, '[]'))) AS settled
                  FROM queen.adopt_dead d
                  JOIN queen.partitions p ON p.id = d.partition_id
                  JOIN queen.consumer_groups_metadata g ON g.queue_id = p.queue_id AND g.consumer_group = d.consumer_group
                  JOIN queen.partition_consumers c ON c.partition_id = d.partition_id AND c.group_id = g.id AND d.seq > c.cursor_seq
                  JOIN queen.partition_lookup l ON l.partition_id = d.partition_id
                 GROUP BY c.partition_id, c.group_id, c.*, l.next_seq) t) s
 WHERE c.partition_id = s.partition_id AND c.group_id = s.group_id;
