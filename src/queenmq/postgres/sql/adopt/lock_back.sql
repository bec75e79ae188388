-- Nobody uses either system from here to the commit.
DO $$
DECLARE
    v_table text;
BEGIN
    -- a role's own limit is for its everyday statements
    SET LOCAL statement_timeout = 0;
    IF current_setting('lock_timeout') = '0' THEN
        SET LOCAL lock_timeout = '5s';
    END IF;
    FOR v_table IN SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                    WHERE n.nspname IN ('queen', 'queen_before') AND c.relkind IN ('r', 'p')
                      AND c.relname IN ('queues', 'partitions', 'messages', 'partition_consumers', 'consumer_groups_metadata',
                                        'dead_letter_queue', 'partition_lookup', 'wakes', 'servers')
                    ORDER BY n.nspname, c.relname = 'messages' DESC, c.relname LOOP
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', v_table);
    END LOOP;
END
$$
