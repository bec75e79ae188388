SELECT p.id, p.name AS partition, q.name AS queue, q.id AS queue_id, q.priority
  FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE p.id = ANY ($1::int[])
