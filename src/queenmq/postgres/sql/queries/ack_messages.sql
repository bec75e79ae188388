SELECT states, details, successes, errors, released, dead FROM queen.ack_messages($1, $2, $3, $4, $5, $6, $7, $8)
