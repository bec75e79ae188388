ALTER SCHEMA queen RENAME TO queen_before
