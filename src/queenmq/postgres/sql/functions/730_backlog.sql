-- The largest backlog of any group of the queue, summed over its partitions; without groups what is stored. Against maxSize.
CREATE OR REPLACE FUNCTION queen.backlog(p_queue int) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT coalesce(
        (SELECT max(b.backlog) FROM (
            SELECT sum(greatest(l.next_seq - greatest(c.cursor_seq + 1, l.first_seq), 0)
                       - coalesce((SELECT sum(upper(r) - lower(r))
                                     FROM unnest((coalesce(c.acked, '{}') + coalesce((SELECT range_agg(int8range(m.from_seq, m.to_seq, '[]'))
                                                     FROM queen.removed_messages m
                                                    WHERE m.partition_id = c.partition_id AND m.to_seq > c.cursor_seq), '{}'))
                                                 * int8multirange(int8range(greatest(c.cursor_seq + 1, l.first_seq), NULL))) r), 0)) AS backlog
              FROM queen.partitions p JOIN queen.partition_lookup l ON l.partition_id = p.id JOIN queen.partition_consumers c ON c.partition_id = p.id
             WHERE p.queue_id = p_queue GROUP BY c.group_id) b),
        (SELECT sum(l.next_seq - l.first_seq) FROM queen.partitions p JOIN queen.partition_lookup l ON l.partition_id = p.id WHERE p.queue_id = p_queue),
        0)::bigint
$$;
