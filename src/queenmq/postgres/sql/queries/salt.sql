SELECT (value #>> '{}')::int FROM queen.system_state WHERE key = 'salt'
