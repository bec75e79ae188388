UPDATE queen.servers SET heartbeat_at = queen.now() WHERE server_id = $1
