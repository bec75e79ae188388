-- What the drill adds to its own database and asks of it.

-- name: install
CREATE SCHEMA drill;
-- An SQL user's own data: his message must be there if and only if this row is.
CREATE TABLE drill.orders (id bigint PRIMARY KEY);
-- Every claim, with what it found on the row.
CREATE TABLE drill.grants (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, partition_id int, group_id int, lease_id uuid, granted timestamptz, until timestamptz,
    over_live boolean);
CREATE FUNCTION drill.granted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO drill.grants (partition_id, group_id, lease_id, granted, until, over_live)
    VALUES (NEW.partition_id, NEW.group_id, NEW.lease_id, NEW.last_consumed_at, NEW.lease_until,
            OLD.lease_id IS NOT NULL AND OLD.lease_until > NEW.last_consumed_at);
    RETURN NULL;
END
$$;
CREATE TRIGGER drill_granted AFTER UPDATE ON queen.partition_consumers FOR EACH ROW
    WHEN (NEW.lease_id IS NOT NULL AND NEW.lease_id IS DISTINCT FROM OLD.lease_id) EXECUTE FUNCTION drill.granted();

-- name: push
SELECT queen.push($1, $2, $3::json)

-- name: order
INSERT INTO drill.orders SELECT unnest($1::bigint[])

-- name: orders
SELECT id FROM drill.orders

-- name: grants
SELECT m.consumer_group, g.partition_id, g.lease_id::text AS lease, g.id, extract(epoch FROM g.granted)::float8 AS granted,
       extract(epoch FROM g.until)::float8 AS until, g.over_live
  FROM drill.grants g JOIN queen.consumer_groups_metadata m ON m.id = g.group_id

-- name: pending
-- Partitions times groups that have something left to settle, or no row yet.
SELECT count(*) FROM queen.partition_lookup l CROSS JOIN queen.consumer_groups_metadata g
  LEFT JOIN queen.partition_consumers c ON c.partition_id = l.partition_id AND c.group_id = g.id
 WHERE c.cursor_seq IS NULL OR l.next_seq > greatest(c.cursor_seq + 1, l.first_seq)

-- name: gaps
-- Seqs of 1 … next_seq − 1 that are neither stored nor recorded as removed, and stored ones beyond.
SELECT (SELECT coalesce(sum((SELECT count(*) FROM generate_series(1, l.next_seq - 1) s(seq)
                              WHERE NOT EXISTS (SELECT FROM queen.messages m WHERE m.partition_id = l.partition_id AND m.seq = s.seq)
                                AND NOT EXISTS (SELECT FROM queen.removed_messages r
                                                 WHERE r.partition_id = l.partition_id AND s.seq BETWEEN r.from_seq AND r.to_seq))), 0)
          FROM queen.partition_lookup l)
     + (SELECT count(*) FROM queen.messages m
         WHERE NOT EXISTS (SELECT FROM queen.partition_lookup l WHERE l.partition_id = m.partition_id AND m.seq < l.next_seq))

-- name: dead
SELECT count(*) FROM queen.dead_letter_queue

-- name: version
SHOW server_version
