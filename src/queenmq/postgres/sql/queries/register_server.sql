SELECT queen.register_server($1, $2, $3)
