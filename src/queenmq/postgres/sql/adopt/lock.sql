-- Nobody may write to, or read from, the older system's tables from here to the commit: what was committed before is taken along,
-- what comes later waits and then finds no such columns. A lock that isn't to be had in time ends the attempt.
DO $$
DECLARE
    v_table text;
BEGIN
    -- a role's own limit is for its everyday statements
    SET LOCAL statement_timeout = 0;
    IF current_setting('lock_timeout') = '0' THEN
        SET LOCAL lock_timeout = '5s';
    END IF;
    FOR v_table IN SELECT c.relname FROM pg_class c
                    WHERE c.relnamespace = 'queen'::regnamespace AND c.relkind IN ('r', 'p')
                      AND c.relname IN ('queues', 'partitions', 'messages', 'partition_consumers', 'consumer_groups_metadata',
                                        'dead_letter_queue', 'partition_lookup')
                    ORDER BY c.relname = 'messages' DESC, c.relname LOOP
        EXECUTE format('LOCK TABLE queen.%I IN ACCESS EXCLUSIVE MODE', v_table);
    END LOOP;
END
$$
