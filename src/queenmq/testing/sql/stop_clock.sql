UPDATE queen_test.clock SET stopped = date_trunc('second', clock_timestamp()), ahead = '0'
