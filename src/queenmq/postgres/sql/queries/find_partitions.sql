SELECT queue_ids, partition_ids, versions FROM queen.find_partitions($1, $2)
