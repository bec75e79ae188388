SELECT current_setting('fsync') = 'on' AS fsync, current_setting('server_version') AS version
