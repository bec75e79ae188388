-- What lies outside a schema and would be dropped or broken with it: views and foreign keys on its tables, columns of its types.
SELECT DISTINCT d.what FROM (
    SELECT format('view %s', v.oid::regclass) AS what
      FROM pg_depend d
      JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
      JOIN pg_class v ON v.oid = r.ev_class
      JOIN pg_class t ON d.refclassid = 'pg_class'::regclass AND t.oid = d.refobjid
     WHERE t.relnamespace = to_regnamespace($1) AND v.relnamespace <> t.relnamespace
    UNION ALL
    SELECT format('foreign key %s of %s', k.conname, k.conrelid::regclass)
      FROM pg_constraint k JOIN pg_class t ON t.oid = k.confrelid JOIN pg_class c ON c.oid = k.conrelid
     WHERE t.relnamespace = to_regnamespace($1) AND c.relnamespace <> t.relnamespace
    UNION ALL
    SELECT format('column %s of %s', a.attname, c.oid::regclass)
      FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_type t ON t.oid = a.atttypid
     WHERE t.typnamespace = to_regnamespace($1) AND c.relnamespace <> t.typnamespace AND c.relkind IN ('r', 'p', 'm') AND NOT a.attisdropped
) d
 ORDER BY 1
 LIMIT 20
