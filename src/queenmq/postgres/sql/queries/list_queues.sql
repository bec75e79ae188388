SELECT q.name, q.namespace, q.task, q.priority, count(p.id) AS partitions, coalesce(sum(l.next_seq - l.first_seq), 0)::bigint AS messages,
       queen.backlog(q.id) AS backlog
  FROM queen.queues q LEFT JOIN queen.partitions p ON p.queue_id = q.id LEFT JOIN queen.partition_lookup l ON l.partition_id = p.id
 GROUP BY q.id ORDER BY q.name
