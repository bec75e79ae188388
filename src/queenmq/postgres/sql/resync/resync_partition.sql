SELECT stale, rows, stranded FROM queen.resync_partition($1)
