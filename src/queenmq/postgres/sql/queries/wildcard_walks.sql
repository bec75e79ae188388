-- The groups of a namespace/task subscription in the order in which a pop serves them: by priority, then the longest ready.
SELECT g.id, q.id AS queue_id
  FROM queen.queues q
  JOIN queen.consumer_groups_metadata g ON g.queue_id = q.id AND g.consumer_group = $3
  LEFT JOIN LATERAL (SELECT c.ready_at FROM queen.partition_consumers c
                      WHERE c.group_id = g.id AND c.ready_at IS NOT NULL ORDER BY c.ready_at LIMIT 1) head ON true
 WHERE ($1::text IS NULL OR q.namespace = $1) AND ($2::text IS NULL OR q.task = $2)
 ORDER BY q.priority DESC, head.ready_at NULLS LAST, q.id
