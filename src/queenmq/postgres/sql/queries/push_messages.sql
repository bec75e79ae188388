SELECT bases, seqs, duplicates
  FROM queen.push_messages($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, p_notify => false)
