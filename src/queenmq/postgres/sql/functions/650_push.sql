-- The transactional outbox: a message is pushed inside the user's own transaction, and is there when that commits. Right at every
-- isolation level: above READ COMMITTED a push to a partition that changed since the transaction's snapshot fails with 40001.
-- Waits at most 500 ms for a partition that somebody holds (then 55P03) unless the user set lock_timeout. Answers the message's id.
CREATE OR REPLACE FUNCTION queen.push(p_queue text, p_partition text, p_payload json, p_transaction_id text DEFAULT NULL,
    p_headers json DEFAULT NULL, p_delay_seconds float8 DEFAULT NULL, p_trace_id uuid DEFAULT NULL, p_encrypted boolean DEFAULT false) RETURNS uuid
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_wait text := current_setting('lock_timeout');
    v_id   int;
    r      record;
BEGIN
    PERFORM queen.check_outbox(p_queue, p_partition, p_payload, p_transaction_id, p_delay_seconds);
    IF v_wait = '0' THEN
        PERFORM set_config('lock_timeout', '500ms', true);
    END IF;
    -- It may fall asleep or be deleted while we wait for it: then once more.
    LOOP
        v_id := queen.outbox_partition(p_queue, p_partition);
        PERFORM 1 FROM queen.partition_lookup WHERE partition_id = v_id FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
    END LOOP;
    IF NOT p_encrypted AND EXISTS (SELECT FROM queen.queues WHERE name = p_queue AND encryption_enabled) THEN
        RAISE EXCEPTION 'queue % demands encryption and the database has no key: push through the API', p_queue USING ERRCODE = 'QM006';
    END IF;
    SELECT * INTO r FROM queen.push_messages(ARRAY[v_id], ARRAY[1], ARRAY[1], ARRAY[0], ARRAY[coalesce(p_transaction_id, gen_random_uuid()::text)], ARRAY[p_payload],
        p_traces => CASE WHEN p_trace_id IS NOT NULL THEN ARRAY[p_trace_id] END,
        p_encrypted => CASE WHEN p_encrypted THEN ARRAY[true] END,
        p_headers => CASE WHEN p_headers IS NOT NULL THEN ARRAY[p_headers] END,
        p_delays => CASE WHEN p_delay_seconds IS NOT NULL THEN ARRAY[p_delay_seconds] END);
    PERFORM set_config('lock_timeout', v_wait, true);
    RETURN queen.message_id(v_id, coalesce(r.seqs[1], r.bases[1]));
END
$$;

CREATE OR REPLACE FUNCTION queen.check_outbox(p_queue text, p_partition text, p_payload json, p_transaction_id text, p_delay float8) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(p_queue, '') = '' OR length(p_queue) > 255 THEN
        RAISE EXCEPTION 'queen.push: queue must have 1 to 255 characters' USING ERRCODE = 'QM010';
    ELSIF coalesce(p_partition, '') = '' OR length(p_partition) > 255 THEN
        RAISE EXCEPTION 'queen.push: partition must have 1 to 255 characters' USING ERRCODE = 'QM010';
    ELSIF p_payload IS NULL THEN
        RAISE EXCEPTION 'queen.push: payload must not be null (use ''null''::json for a JSON null)' USING ERRCODE = 'QM010';
    ELSIF p_transaction_id = '' OR length(p_transaction_id) > 255 THEN
        RAISE EXCEPTION 'queen.push: transaction_id must have 1 to 255 characters' USING ERRCODE = 'QM010';
    ELSIF p_delay < 0 OR p_delay > 315360000 THEN
        RAISE EXCEPTION 'queen.push: delay_seconds must lie between 0 and 315360000' USING ERRCODE = 'QM010';
    END IF;
END
$$;

-- The id of an awake partition, made or woken when need be. Takes no queue lock: what it makes or wakes leaves a row in queen.wakes,
-- and a server makes the missing consumer rows after the commit.
CREATE OR REPLACE FUNCTION queen.outbox_partition(p_queue text, p_partition text) RETURNS int
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_new boolean;
    r     record;
BEGIN
    SELECT * INTO r FROM queen.find_partitions(ARRAY[p_queue], ARRAY[p_partition]);
    IF NOT r.missing THEN
        RETURN r.partition_ids[1];
    END IF;
    v_new := r.queue_ids[1] IS NULL;
    IF v_new THEN
        PERFORM pg_advisory_xact_lock(queen.name_key(p_queue, NULL));
        PERFORM queen.make_queue(p_queue);
    END IF;
    PERFORM pg_advisory_xact_lock(queen.name_key(p_queue, p_partition));
    PERFORM queen.wake_partitions(ARRAY[p_queue], ARRAY[p_partition], ARRAY[true]);
    SELECT * INTO r FROM queen.find_partitions(ARRAY[p_queue], ARRAY[p_partition]);
    IF r.missing THEN
        RAISE EXCEPTION 'queue % or its partition % has changed since this transaction began: repeat it', p_queue, p_partition USING ERRCODE = '40001';
    END IF;
    INSERT INTO queen.wakes (partition_id, new_queue) VALUES (r.partition_ids[1], v_new);
    RETURN r.partition_ids[1];
END
$$;
