SELECT expires_at, was_expiring_at, held FROM queen.extend_leases($1, $2, $3)
