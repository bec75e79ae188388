UPDATE queen_test.clock SET stopped = $1::timestamptz, ahead = '0'
