SELECT queen.add_consumed($1, $2, $3, $4, $5, $6)
