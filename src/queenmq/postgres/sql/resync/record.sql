-- The last run's findings, for whoever exports metrics.
INSERT INTO queen.system_state (key, value, updated_at)
VALUES ('resync', jsonb_build_object('at', queen.now(), 'partitions', $1::int, 'stale_lookups', $2::int, 'missing_rows', $3::int,
                                     'stranded', $4::int, 'busy', $5::int), queen.now())
ON CONFLICT (key) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at
