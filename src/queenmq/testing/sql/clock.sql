-- A clock that tests can move, for a database of theirs: queen.now() reads a row instead of the machine's time.
CREATE SCHEMA IF NOT EXISTS queen_test;

CREATE TABLE IF NOT EXISTS queen_test.clock (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    ahead   interval NOT NULL DEFAULT '0',
    stopped timestamptz
);

INSERT INTO queen_test.clock (one) VALUES (true) ON CONFLICT DO NOTHING;

CREATE OR REPLACE FUNCTION queen.now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$ SELECT coalesce(c.stopped, clock_timestamp()) + c.ahead FROM queen_test.clock c $$;
