SELECT bases, seqs, duplicates
  FROM queen.push_messages($1, $2, NULL, NULL, NULL, NULL, p_queues => $5, p_versions => $6, p_skip => $7, p_notify => false,
                           p_packed_transactions => $3, p_packed_payloads => $4)
