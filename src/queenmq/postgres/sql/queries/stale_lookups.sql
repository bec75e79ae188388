SELECT coalesce((SELECT (value ->> 'stale_lookups_total')::bigint FROM queen.system_state WHERE key = 'resync'), 0)
