-- The last run's findings, and how many stale counters all runs have found: what a server exports as metrics.
INSERT INTO queen.system_state AS s (key, value, updated_at)
VALUES ('resync', jsonb_build_object('at', queen.now(), 'partitions', $1::int, 'stale_lookups', $2::int, 'missing_rows', $3::int,
                                     'stranded', $4::int, 'busy', $5::int, 'stale_lookups_total', $2::int), queen.now())
ON CONFLICT (key) DO UPDATE SET updated_at = excluded.updated_at, value = excluded.value
    || jsonb_build_object('stale_lookups_total', coalesce((s.value ->> 'stale_lookups_total')::bigint, 0) + $2::int)
