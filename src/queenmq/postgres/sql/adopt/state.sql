-- Whether the schema queen is ours, and which schemas an adoption or a way back has left beside it.
SELECT to_regclass('queen.schema_files') IS NOT NULL AS ours,
       to_regnamespace('queen_before') IS NOT NULL AND to_regclass('queen_before.schema_files') IS NULL
           AND to_regclass('queen_before.messages') IS NOT NULL AS has_before,
       to_regclass('queen_after.schema_files') IS NOT NULL AS has_after,
       to_regnamespace('queen_after') IS NOT NULL AS after_exists
