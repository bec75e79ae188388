-- The largest backlog of any group of the queue, summed over its partitions; without groups what is stored. Against maxSize.
CREATE OR REPLACE FUNCTION queen.backlog(p_queue int) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT coalesce(
        (SELECT max(b.backlog) FROM (
            SELECT sum(greatest(l.next_seq - greatest(c.cursor_seq + 1, l.first_seq), 0)
                       - coalesce((SELECT sum(upper(r) - lower(r)) FROM unnest(c.acked) r), 0)) AS backlog
              FROM queen.partitions p JOIN queen.partition_lookup l ON l.partition_id = p.id JOIN queen.partition_consumers c ON c.partition_id = p.id
             WHERE p.queue_id = p_queue GROUP BY c.group_id) b),
        (SELECT sum(l.next_seq - l.first_seq) FROM queen.partitions p JOIN queen.partition_lookup l ON l.partition_id = p.id WHERE p.queue_id = p_queue),
        0)::bigint
$$;
