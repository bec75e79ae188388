UPDATE queen_test.clock SET stopped = clock_timestamp(), ahead = '0'
