SELECT queen.make_subscription($1, $2, $3, $4, $5)
