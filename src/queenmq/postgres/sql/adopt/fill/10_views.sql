-- The older system's tables, each seen through a view that has every column we know, in our types: what a database lacks is null,
-- a table that isn't there is empty. So everything after this is plain SQL, whatever the older version was. The views, and all else
-- named adopt_…, live in our schema only inside this transaction: the older schema itself is not touched.
SET LOCAL work_mem = '64MB';
SET LOCAL maintenance_work_mem = '256MB';

DO $$
DECLARE
    v_id   text := (SELECT format_type(atttypid, atttypmod) FROM pg_attribute
                     WHERE attrelid = 'queen_before.messages'::regclass AND attname = 'id');
    v_part text := (SELECT format_type(atttypid, atttypmod) FROM pg_attribute
                     WHERE attrelid = 'queen_before.partitions'::regclass AND attname = 'id');
    v      record;
BEGIN
    FOR v IN
        WITH known(tab, cols) AS (VALUES
            ('queues', 'id: name:text namespace:text task:text lease_time:int retry_limit:int retry_delay:bigint max_size:bigint max_queue_size:bigint '
                       'ttl:int priority:int delayed_processing:int window_buffer:int window_max_wait:int dead_letter_queue:boolean '
                       'dlq_after_max_retries:boolean encryption_enabled:boolean retention_enabled:boolean retention_seconds:int '
                       'completed_retention_seconds:int max_wait_time_seconds:int created_at:timestamptz'),
            ('partitions', 'id: queue_id: name:text'),
            ('messages', 'id: transaction_id:text trace_id:uuid partition_id: payload:json created_at:timestamptz is_encrypted:boolean'),
            ('partition_consumers', 'partition_id:PART consumer_group:text last_consumed_id:ID last_consumed_created_at:timestamptz '
                                    'last_consumed_at:timestamptz lease_expires_at:timestamptz'),
            ('consumer_groups_metadata', 'consumer_group:text queue_name:text partition_name:text namespace:text task:text '
                                         'subscription_mode:text subscription_timestamp:timestamptz created_at:timestamptz'),
            ('dead_letter_queue', 'message_id:ID partition_id:PART consumer_group:text error_message:text retry_count:int '
                                  'transaction_id:text payload:json original_created_at:timestamptz failed_at:timestamptz')
        ), column_(tab, ord, col, want) AS (
            SELECT k.tab, c.ord, split_part(c.spec, ':', 1), CASE split_part(c.spec, ':', 2) WHEN 'ID' THEN v_id WHEN 'PART' THEN v_part
                   WHEN 'timestamptz' THEN 'timestamp with time zone' ELSE split_part(c.spec, ':', 2) END
              FROM known k, regexp_split_to_table(k.cols, ' +') WITH ORDINALITY c(spec, ord)
        ), found AS (
            SELECT c.*, format_type(a.atttypid, a.atttypmod) AS has, t.oid AS tab_oid
              FROM column_ c
              LEFT JOIN pg_class t ON t.relnamespace = 'queen_before'::regnamespace AND t.relname = c.tab AND t.relkind IN ('r', 'p')
              LEFT JOIN pg_attribute a ON a.attrelid = t.oid AND a.attname = c.col AND a.attnum > 0 AND NOT a.attisdropped
        )
        SELECT f.tab,
               string_agg(CASE WHEN f.has IS NULL THEN format('NULL::%s', coalesce(nullif(f.want, ''), 'uuid'))
                               WHEN f.want IN ('', f.has) THEN format('t.%I', f.col)
                               WHEN f.want = 'uuid' THEN format('CASE WHEN t.%1$I::text ~* ''^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'' '
                                                                'THEN t.%1$I::text::uuid END', f.col)
                               ELSE format('t.%I::%s', f.col, f.want) END || format(' AS %I', f.col), ', ' ORDER BY f.ord) AS list,
               CASE WHEN bool_or(f.tab_oid IS NOT NULL) THEN format('FROM queen_before.%I t', f.tab) ELSE 'WHERE false' END AS source
          FROM found f GROUP BY f.tab
    LOOP
        EXECUTE format('CREATE VIEW queen.adopt_old_%s AS SELECT %s %s', v.tab, v.list, v.source);
        -- tables that were never analysed make plans that never end
        IF v.source LIKE 'FROM %' THEN
            EXECUTE format('ANALYZE queen_before.%I', v.tab);
        END IF;
    END LOOP;
END
$$;
