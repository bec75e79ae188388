SELECT bases, seqs, duplicates
  FROM queen.push_packed($1, $2, $3, $4, $5, $6, $7, p_notify => false)
