INSERT INTO queen.schema_files (kind, name, digest) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET digest = excluded.digest, applied_at = clock_timestamp()
