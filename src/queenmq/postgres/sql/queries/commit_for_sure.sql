SELECT set_config('synchronous_commit', 'on', false)
