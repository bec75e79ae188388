SELECT count(*) FROM queen.partitions
