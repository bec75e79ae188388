-- Asked first: CREATE SCHEMA IF NOT EXISTS wants the right to create one even where it is there.
DO $$
BEGIN
    IF to_regnamespace('queen') IS NULL THEN
        CREATE SCHEMA queen;
    END IF;
END
$$;
CREATE TABLE IF NOT EXISTS queen.schema_files (
    name       text COLLATE "C" PRIMARY KEY,
    kind       text NOT NULL,
    digest     text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
