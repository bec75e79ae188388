SELECT value::text FROM queen.system_state WHERE key = 'adoption'
