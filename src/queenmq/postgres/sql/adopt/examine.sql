-- What lies in the schema queen: ours (or nothing), the tables of the older system, or something else.
-- kind: 'ours' | 'older' | 'later' (a later generation of it, which keeps messages in segments or has tenants) | 'foreign'; lacking: what an older system must have and this one hasn't; tables: what there is.
WITH had AS (
    SELECT c.relname AS tab, a.attname AS col
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
     WHERE n.nspname = 'queen' AND c.relkind IN ('r', 'p')
), facts AS (
    SELECT EXISTS (SELECT FROM had WHERE tab = 'schema_files') AS ours,
           EXISTS (SELECT FROM had WHERE tab = 'messages' AND col = 'id')
           AND NOT EXISTS (SELECT FROM had WHERE tab = 'messages' AND col = 'seq') AS older,
           EXISTS (SELECT FROM had WHERE tab = 'log_segments' OR (tab, col) IN (('queues', 'tenant_id'), ('queues', 'storage'))) AS later,
           EXISTS (SELECT FROM had WHERE tab IN ('queues', 'partitions', 'messages', 'partition_lookup', 'partition_consumers',
                                                 'consumer_groups_metadata', 'dead_letter_queue', 'system_state', 'servers')) AS taken
)
SELECT CASE WHEN f.ours THEN 'ours' WHEN f.later THEN 'later' WHEN f.older THEN 'older' WHEN f.taken THEN 'foreign' ELSE 'ours' END AS kind,
       (SELECT array_agg(n.tab || '.' || n.col ORDER BY n.tab, n.col)
          FROM (VALUES ('queues', 'id'), ('queues', 'name'), ('partitions', 'id'), ('partitions', 'queue_id'), ('partitions', 'name'),
                       ('messages', 'id'), ('messages', 'partition_id'), ('messages', 'payload'), ('messages', 'created_at')) n(tab, col)
         WHERE NOT EXISTS (SELECT FROM had h WHERE h.tab = n.tab AND h.col = n.col)) AS lacking,
       (SELECT array_agg(DISTINCT tab) FROM had) AS tables,
       to_regnamespace('queen_before') IS NOT NULL AS before_exists,
       quote_ident(current_user) AS role, quote_ident(current_database()) AS database
  FROM facts f
