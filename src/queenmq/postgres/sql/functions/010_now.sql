-- The one clock of the SQL core: everything that asks for the time asks here. Never frozen at the start of a transaction.
-- Tests replace it by one that can be moved (queenmq.testing).
CREATE OR REPLACE FUNCTION queen.now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$ SELECT clock_timestamp() $$;

-- A moment as whole microseconds since 1970, the form in which positions of a walk travel.
CREATE OR REPLACE FUNCTION queen.micros(p_moment timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT (extract(epoch FROM p_moment) * 1000000)::bigint $$;
