UPDATE queen_test.clock SET ahead = ahead + $1::float8 * interval '1 second'
