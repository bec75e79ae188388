-- The safety net of seed 3 for every insert that isn't push_messages: INSERT INTO queen.messages (partition_id, payload, …) gets its
-- seq, keeps the lookup true and wakes consumers. The row trigger locks the counter once a statement and partition and counts on in
-- the session; the statement trigger writes it back once.

CREATE OR REPLACE FUNCTION queen.plain_insert_row() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    v_state text := current_setting('queen.counter_' || NEW.partition_id, true);
    v_seq   bigint;
    v_at    timestamptz;
BEGIN
    IF NEW.seq IS NOT NULL THEN
        RAISE EXCEPTION 'seq is given by the queue: leave it out of the INSERT' USING ERRCODE = 'QM005';
    END IF;
    IF v_state IS NULL OR v_state = '' THEN
        SELECT * INTO v_seq, v_at FROM queen.open_counter(NEW.partition_id, coalesce(NEW.is_encrypted, false));
        PERFORM set_config('queen.counted', coalesce(current_setting('queen.counted', true), '') || ' ' || NEW.partition_id || ':' || v_seq, true);
    ELSE
        v_seq := split_part(v_state, ' ', 1)::bigint;
        v_at := 'epoch'::timestamptz + split_part(v_state, ' ', 2)::bigint * interval '1 microsecond';
    END IF;
    NEW.seq := v_seq;
    NEW.created_at := v_at;
    NEW.transaction_id := coalesce(NEW.transaction_id, gen_random_uuid()::text);
    PERFORM set_config('queen.counter_' || NEW.partition_id, (v_seq + 1) || ' ' || queen.micros(v_at), true);
    RETURN NEW;
END
$$;

-- Locks a partition's counter for a plain insert and wakes it when need be; under the lock it locks the drained consumer rows.
CREATE OR REPLACE FUNCTION queen.open_counter(p_partition int, p_encrypted boolean, OUT seq bigint, OUT created timestamptz)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_wait  text := current_setting('lock_timeout');
    v_queue record;
BEGIN
    IF v_wait = '0' THEN
        PERFORM set_config('lock_timeout', '500ms', true);
    END IF;
    LOOP
        SELECT q.name AS queue, p.name AS partition, q.encryption_enabled INTO v_queue
          FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE p.id = p_partition;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'no partition % in queen.partitions', p_partition USING ERRCODE = '23503';
        END IF;
        SELECT next_seq, last_message_created_at INTO seq, created FROM queen.partition_lookup WHERE partition_id = p_partition FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        PERFORM queen.outbox_partition(v_queue.queue, v_queue.partition);
    END LOOP;
    IF v_queue.encryption_enabled AND NOT p_encrypted THEN
        RAISE EXCEPTION 'queue % demands encryption and the database has no key: push through the API', v_queue.queue USING ERRCODE = 'QM006';
    END IF;
    created := greatest(queen.now(), created);
    IF current_setting('transaction_isolation') LIKE 'read %' THEN
        PERFORM 1 FROM queen.partition_consumers WHERE partition_id = p_partition AND ready_at IS NULL ORDER BY group_id FOR NO KEY UPDATE;
    END IF;
    PERFORM set_config('lock_timeout', v_wait, true);
END
$$;

-- Writes the counters back, records seqs that ON CONFLICT burnt, wakes consumers.
CREATE OR REPLACE FUNCTION queen.plain_insert_statement() RETURNS trigger
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_now   timestamptz := queen.now();
    v_part  int;
    v_from  bigint;
    v_next  bigint;
    v_entry text;
    v_burnt int8range;
    v_state text;
    v_count bigint;
BEGIN
    FOREACH v_entry IN ARRAY string_to_array(trim(coalesce(current_setting('queen.counted', true), '')), ' ') LOOP
        v_part := split_part(v_entry, ':', 1)::int;
        v_from := split_part(v_entry, ':', 2)::bigint;
        v_state := current_setting('queen.counter_' || v_part);
        v_next := split_part(v_state, ' ', 1)::bigint;
        PERFORM set_config('queen.counter_' || v_part, '', true);
        SELECT count(*) INTO v_count FROM queen.messages WHERE partition_id = v_part AND seq >= v_from AND seq < v_next;
        UPDATE queen.partition_lookup SET next_seq = v_next, updated_at = v_now,
               last_message_created_at = CASE WHEN v_count > 0 THEN 'epoch'::timestamptz + split_part(v_state, ' ', 2)::bigint * interval '1 microsecond'
                                              ELSE last_message_created_at END
         WHERE partition_id = v_part;
        IF v_count < v_next - v_from THEN
            FOR v_burnt IN SELECT unnest(int8multirange(int8range(v_from, v_next)) - coalesce(range_agg(int8range(seq, seq, '[]')), '{}'))
                             FROM queen.messages WHERE partition_id = v_part AND seq >= v_from AND seq < v_next LOOP
                INSERT INTO queen.removed_messages (partition_id, from_seq, to_seq, reason, removed_at)
                VALUES (v_part, lower(v_burnt), upper(v_burnt) - 1, 'never stored', v_now);
            END LOOP;
        END IF;
        IF current_setting('transaction_isolation') LIKE 'read %' THEN
            UPDATE queen.partition_consumers SET ready_at = v_now WHERE partition_id = v_part AND ready_at IS NULL;
        ELSE
            INSERT INTO queen.wakes (partition_id) VALUES (v_part);
        END IF;
        PERFORM pg_notify('queen_wake', queue_id::text) FROM queen.partitions WHERE id = v_part;
    END LOOP;
    PERFORM set_config('queen.counted', '', true);
    RETURN NULL;
END
$$;

-- Messages that somebody deletes by hand are recorded like every other removal.
CREATE OR REPLACE FUNCTION queen.plain_delete_statement() RETURNS trigger
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    g record;
BEGIN
    FOR g IN SELECT d.partition_id, range_agg(int8range(d.seq, d.seq, '[]')) AS ranges FROM deleted d GROUP BY d.partition_id ORDER BY d.partition_id LOOP
        PERFORM 1 FROM queen.partition_lookup WHERE partition_id = g.partition_id FOR UPDATE;
        IF FOUND THEN
            PERFORM 1 FROM queen.partition_consumers WHERE partition_id = g.partition_id ORDER BY group_id FOR NO KEY UPDATE;
            PERFORM queen.note_removed(g.partition_id, g.ranges, 'deleted');
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER plain_insert_row BEFORE INSERT ON queen.messages FOR EACH ROW
    WHEN (current_setting('queen.lookup_maintained', true) IS DISTINCT FROM 'on') EXECUTE FUNCTION queen.plain_insert_row();
CREATE OR REPLACE TRIGGER plain_insert_statement AFTER INSERT ON queen.messages FOR EACH STATEMENT
    WHEN (current_setting('queen.lookup_maintained', true) IS DISTINCT FROM 'on') EXECUTE FUNCTION queen.plain_insert_statement();
CREATE OR REPLACE TRIGGER plain_delete_statement AFTER DELETE ON queen.messages REFERENCING OLD TABLE AS deleted FOR EACH STATEMENT
    WHEN (current_setting('queen.lookup_maintained', true) IS DISTINCT FROM 'on') EXECUTE FUNCTION queen.plain_delete_statement();
