-- Options changed by plain SQL have the same effect as a configure on what servers remember: the version moves on, so that a push
-- under the old one is refused and made again, and servers are told.
CREATE OR REPLACE FUNCTION queen.change_queue() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.config_version = OLD.config_version THEN
        NEW.config_version := OLD.config_version + 1;
        PERFORM pg_notify('queen_config', NEW.id::text);
        PERFORM pg_notify('queen_wake', NEW.id::text);
    END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER change_queue BEFORE UPDATE ON queen.queues
    FOR EACH ROW WHEN (OLD IS DISTINCT FROM NEW) EXECUTE FUNCTION queen.change_queue();
