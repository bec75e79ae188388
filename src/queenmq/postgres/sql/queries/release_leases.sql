SELECT queues, held, ended FROM queen.release_leases($1, $2, $3)
