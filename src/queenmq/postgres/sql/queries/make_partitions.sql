SELECT queue_ids, partition_ids, versions FROM queen.make_partitions($1, $2)
