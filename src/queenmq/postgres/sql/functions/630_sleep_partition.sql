-- Puts an idle partition to sleep: its counter and consumer rows go; its name, id and next seq stay, and a push wakes it. Decided
-- under the row that every push locks, in a later statement. Answers whether it sleeps now.
CREATE OR REPLACE FUNCTION queen.sleep_partition(p_partition int) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_wait  text := current_setting('lock_timeout');
    v_next  bigint;
    v_last  timestamptz;
BEGIN
    PERFORM set_config('lock_timeout', '1s', true);
    PERFORM queen.lock_queue(queue_id, false) FROM queen.partitions WHERE id = p_partition;
    SELECT next_seq, last_message_created_at INTO v_next, v_last FROM queen.partition_lookup WHERE partition_id = p_partition FOR UPDATE;
    IF v_next IS NOT NULL THEN
        PERFORM 1 FROM queen.partition_consumers WHERE partition_id = p_partition ORDER BY group_id FOR UPDATE;
        IF EXISTS (SELECT FROM queen.messages WHERE partition_id = p_partition) THEN
            v_next := NULL;
        ELSE
            UPDATE queen.partitions SET asleep_next_seq = v_next, asleep_last_created_at = v_last WHERE id = p_partition;
            DELETE FROM queen.partition_consumers WHERE partition_id = p_partition;
            DELETE FROM queen.partition_lookup WHERE partition_id = p_partition;
        END IF;
    END IF;
    PERFORM set_config('lock_timeout', v_wait, true);
    RETURN v_next IS NOT NULL;
END
$$;
