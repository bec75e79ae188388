SELECT id FROM queen.partitions WHERE id > $1 ORDER BY id LIMIT $2
