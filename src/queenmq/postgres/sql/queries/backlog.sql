SELECT queen.backlog($1)
