SELECT request, partition_id, seq, transaction_id, trace_id, created_at, is_encrypted, producer, headers, payload, attempts
  FROM queen.pop_messages($1, $2, $3, $4, $5, $6, $7, $8, $9)
