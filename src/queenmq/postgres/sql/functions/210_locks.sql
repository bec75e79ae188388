-- The advisory transaction locks of the SQL core, by name, so that no key is spelled twice.
-- A queue's lock: shared by whoever makes, wakes or puts to sleep one of its partitions, exclusive for whoever makes a group.
-- The subscriptions' lock: shared by whoever makes a queue, exclusive for whoever makes a namespace/task subscription.

CREATE OR REPLACE FUNCTION queen.lock_queue(p_queue int, p_exclusive boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_exclusive THEN
        PERFORM pg_advisory_xact_lock(1902667118, p_queue);
    ELSE
        PERFORM pg_advisory_xact_lock_shared(1902667118, p_queue);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION queen.lock_subscriptions(p_exclusive boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_exclusive THEN
        PERFORM pg_advisory_xact_lock(1902667119, 0);
    ELSE
        PERFORM pg_advisory_xact_lock_shared(1902667119, 0);
    END IF;
END
$$;

-- The server's shared calls don't wait for these: what they can't have is set aside.
CREATE OR REPLACE FUNCTION queen.try_lock_queue(p_queue int, p_exclusive boolean DEFAULT false) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF p_exclusive THEN
        RETURN pg_try_advisory_xact_lock(1902667118, p_queue);
    END IF;
    RETURN pg_try_advisory_xact_lock_shared(1902667118, p_queue);
END
$$;

CREATE OR REPLACE FUNCTION queen.try_lock_subscriptions() RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN pg_try_advisory_xact_lock_shared(1902667119, 0);
END
$$;

-- The key under which a name is claimed before it is made: a wait in a unique index can't be skipped, this one can.
CREATE OR REPLACE FUNCTION queen.name_key(p_queue text, p_partition text) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT hashtextextended(length(p_queue) || '/' || p_queue || '/' || coalesce(p_partition, ''), 7631) $$;

-- Namespace and task of a queue named `a.b.c`: a and b.
CREATE OR REPLACE FUNCTION queen.name_parts(p_queue text, OUT namespace text, OUT task text)
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_queue LIKE '%.%' THEN nullif(split_part(p_queue, '.', 1), '') END,
           CASE WHEN p_queue LIKE '%.%' THEN nullif(split_part(p_queue, '.', 2), '') END
$$;
