SELECT q.name,
       coalesce(q.namespace, '') AS namespace,
       coalesce(q.task, '') AS task,
       count(p.id)::bigint AS partitions,
       coalesce(sum(l.next_seq - l.first_seq), 0)::bigint AS stored,
       queen.backlog(q.id)::bigint AS waiting,
       (SELECT count(*) FROM queen.consumer_groups_metadata g WHERE g.queue_id = q.id AND g.consumer_group <> '__QUEUE_MODE__')::bigint AS groups,
       (SELECT count(*) FROM queen.dead_letter_queue d JOIN queen.partitions dp ON dp.id = d.partition_id WHERE dp.queue_id = q.id)::bigint AS dead
  FROM queen.queues q
  LEFT JOIN queen.partitions p ON p.queue_id = q.id
  LEFT JOIN queen.partition_lookup l ON l.partition_id = p.id
 GROUP BY q.id
 ORDER BY q.name
