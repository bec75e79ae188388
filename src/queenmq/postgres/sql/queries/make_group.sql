SELECT queen.make_group($1, $2, $3, $4)
