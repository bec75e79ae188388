SELECT outcomes, failures, item_seqs, item_duplicates, ack_successes, ack_errors, ack_released, ack_dead
  FROM queen.execute_transaction($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23)
