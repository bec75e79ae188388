-- DELETE FROM queen.queues takes all that hangs on the queue with it: under the counter rows that every push locks, in order.
-- A push that waited for one of them finds it gone and makes the queue anew.
CREATE OR REPLACE FUNCTION queen.delete_queue() RETURNS trigger
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_maintained text := current_setting('queen.lookup_maintained', true);
    v_parts      int[];
BEGIN
    SELECT array_agg(id ORDER BY id) INTO v_parts FROM queen.partitions WHERE queue_id = OLD.id;
    PERFORM 1 FROM queen.partition_lookup WHERE partition_id = ANY (v_parts) ORDER BY partition_id FOR UPDATE;
    PERFORM 1 FROM queen.partition_consumers WHERE partition_id = ANY (v_parts) ORDER BY partition_id, group_id FOR UPDATE;
    DELETE FROM queen.partition_consumers WHERE partition_id = ANY (v_parts);
    DELETE FROM queen.partition_lookup WHERE partition_id = ANY (v_parts);
    PERFORM set_config('queen.lookup_maintained', 'on', true);
    DELETE FROM queen.messages WHERE partition_id = ANY (v_parts);
    PERFORM set_config('queen.lookup_maintained', coalesce(v_maintained, ''), true);
    DELETE FROM queen.removed_messages WHERE partition_id = ANY (v_parts);
    DELETE FROM queen.message_audience WHERE partition_id = ANY (v_parts);
    DELETE FROM queen.wakes WHERE partition_id = ANY (v_parts);
    DELETE FROM queen.dead_letter_queue WHERE queue_id = OLD.id;
    DELETE FROM queen.messages_consumed WHERE queue_id = OLD.id;
    PERFORM pg_notify('queen_gone', OLD.id::text);
    RETURN OLD;
END
$$;

CREATE OR REPLACE TRIGGER delete_queue BEFORE DELETE ON queen.queues FOR EACH ROW EXECUTE FUNCTION queen.delete_queue();
