"""What tests of and with QueenMQ may use: a movable clock for the SQL core."""
