ALTER SCHEMA queen RENAME TO queen_after;
ALTER SCHEMA queen_before RENAME TO queen;
