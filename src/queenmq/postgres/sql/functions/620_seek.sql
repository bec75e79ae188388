-- Moves a group's cursor: to a seq (the next to be delivered), a moment, or the end; in one partition or in all of the queue.
-- Refused under a live lease unless forced; forced, it ends the lease. What was acked, answered or had failed above the new cursor
-- is forgotten. Answers how many partitions moved.
CREATE OR REPLACE FUNCTION queen.seek(p_queue text, p_group text, p_partition text DEFAULT NULL, p_seq bigint DEFAULT NULL,
    p_timestamp timestamptz DEFAULT NULL, p_to_end boolean DEFAULT false, p_force boolean DEFAULT false) RETURNS int
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_wait   text := current_setting('lock_timeout');
    v_queue  int;
    v_group  int;
    v_rows   int[];
    v_leased int;
    v_now    timestamptz;
BEGIN
    IF (p_seq IS NOT NULL)::int + (p_timestamp IS NOT NULL)::int + p_to_end::int <> 1 THEN
        RAISE EXCEPTION 'seek: name exactly one of seq, timestamp, toEnd' USING ERRCODE = 'QM010';
    ELSIF p_seq < 1 THEN
        RAISE EXCEPTION 'seek: seq must be at least 1' USING ERRCODE = 'QM010';
    END IF;
    SELECT id INTO v_queue FROM queen.queues WHERE name = p_queue;
    SELECT id INTO v_group FROM queen.consumer_groups_metadata WHERE queue_id = v_queue AND consumer_group = p_group;
    IF v_group IS NULL THEN
        RAISE EXCEPTION 'no consumer group % on queue %', p_group, p_queue USING ERRCODE = 'QM008';
    END IF;
    PERFORM set_config('lock_timeout', '1s', true);
    PERFORM queen.lock_queue(v_queue, p_partition IS NULL);
    -- A partition whose rows a wake has yet to make is moved like the others.
    PERFORM queen.make_rows(array_agg(p.id)) FROM queen.partitions p JOIN queen.partition_lookup l ON l.partition_id = p.id
      WHERE p.queue_id = v_queue AND (p_partition IS NULL OR p.name = p_partition)
        AND NOT EXISTS (SELECT FROM queen.partition_consumers c WHERE c.partition_id = p.id AND c.group_id = v_group);
    PERFORM 1 FROM queen.partition_consumers c JOIN queen.partitions p ON p.id = c.partition_id
      WHERE p.queue_id = v_queue AND (p_partition IS NULL OR p.name = p_partition) ORDER BY c.partition_id, c.group_id FOR NO KEY UPDATE OF c;
    v_now := queen.now();
    SELECT array_agg(c.partition_id ORDER BY c.partition_id), count(*) FILTER (WHERE c.lease_until > v_now) INTO v_rows, v_leased
      FROM queen.partition_consumers c JOIN queen.partitions p ON p.id = c.partition_id
     WHERE p.queue_id = v_queue AND c.group_id = v_group AND (p_partition IS NULL OR p.name = p_partition);
    IF v_leased > 0 AND NOT p_force THEN
        RAISE EXCEPTION 'seek: % partition(s) are leased; wait for the leases to end or force', v_leased USING ERRCODE = 'QM007';
    END IF;
    UPDATE queen.partition_consumers c
       SET cursor_seq = greatest(l.first_seq, least(l.next_seq,
                        CASE WHEN p_to_end THEN l.next_seq WHEN p_seq IS NOT NULL THEN p_seq ELSE queen.seq_at(c.partition_id, p_timestamp) END)) - 1,
           acked = NULL, answered = NULL, attempts = NULL, lease_id = NULL, lease_from = NULL, lease_to = NULL, lease_count = NULL,
           lease_until = NULL, last_lease_id = NULL, last_lease_from = NULL, last_lease_to = NULL, last_answered = NULL, last_open = NULL, ready_at = v_now
      FROM queen.partition_lookup l
     WHERE c.partition_id = ANY (v_rows) AND c.group_id = v_group AND l.partition_id = c.partition_id;
    PERFORM pg_notify('queen_wake', v_queue::text);
    PERFORM set_config('lock_timeout', v_wait, true);
    RETURN coalesce(cardinality(v_rows), 0);
END
$$;
