-- Everything that makes up schema queen, one line each, in a stable order; read from the catalogs.
SELECT line FROM (
    SELECT 1 AS kind, c.relname || '.' || a.attname AS name,
           format('column %s.%s %s%s%s%s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
                  CASE WHEN l.collname = 'C' THEN ' COLLATE "C"' ELSE '' END,
                  CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END,
                  CASE WHEN a.attidentity <> '' THEN ' IDENTITY' WHEN d.adbin IS NOT NULL THEN ' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid) ELSE '' END) AS line
      FROM pg_class c
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
      LEFT JOIN pg_collation l ON l.oid = a.attcollation
     WHERE c.relnamespace = 'queen'::regnamespace AND c.relkind = 'r'
    UNION ALL
    SELECT 2, c.relname, format('table %s %s', c.relname, coalesce(array_to_string(c.reloptions, ', '), '-'))
      FROM pg_class c WHERE c.relnamespace = 'queen'::regnamespace AND c.relkind IN ('r', 'S')
    UNION ALL
    SELECT 3, i.relname, 'index ' || regexp_replace(pg_get_indexdef(i.oid), '^CREATE ', '')
      FROM pg_class i WHERE i.relnamespace = 'queen'::regnamespace AND i.relkind = 'i'
    UNION ALL
    SELECT 4, conrelid::regclass || conname, format('constraint %s %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
      FROM pg_constraint WHERE connamespace = 'queen'::regnamespace AND contype <> 'n'
    UNION ALL
    SELECT 5, tgrelid::regclass || tgname, regexp_replace(pg_get_triggerdef(oid), '^CREATE ', '')
      FROM pg_trigger WHERE NOT tgisinternal AND tgrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'queen'::regnamespace)
    UNION ALL
    SELECT 6, p.proname || p.oid::regprocedure, format('function %s(%s) %s %s %s', p.proname, pg_get_function_arguments(p.oid), coalesce(pg_get_function_result(p.oid), ''),
                  l.lanname, CASE p.provolatile WHEN 'v' THEN 'volatile' WHEN 's' THEN 'stable' ELSE 'immutable' END)
      FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang WHERE p.pronamespace = 'queen'::regnamespace
) s ORDER BY kind, name COLLATE "C", line COLLATE "C"
