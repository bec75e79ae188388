-- The document's own way (seeds/3-partition-lookup.md), in a database of its own: its tables, its COUNT query, its lookup join.

-- name: schema
CREATE SCHEMA queen;
CREATE TABLE queen.queues (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name varchar(255) NOT NULL UNIQUE,
    namespace varchar(255),
    task varchar(255),
    created_at timestamptz DEFAULT now()
);
CREATE TABLE queen.partitions (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    queue_id uuid NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    name varchar(255) NOT NULL DEFAULT 'Default',
    created_at timestamptz DEFAULT now(),
    UNIQUE (queue_id, name)
);
CREATE TABLE queen.messages (
    id uuid PRIMARY KEY,
    transaction_id varchar(255) NOT NULL,
    trace_id uuid,
    partition_id uuid NOT NULL REFERENCES queen.partitions (id) ON DELETE CASCADE,
    payload jsonb NOT NULL,
    created_at timestamptz DEFAULT now(),
    is_encrypted boolean DEFAULT false
);
CREATE TABLE queen.partition_consumers (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    partition_id uuid NOT NULL REFERENCES queen.partitions (id) ON DELETE CASCADE,
    consumer_group varchar(255) NOT NULL DEFAULT '__QUEUE_MODE__',
    last_consumed_id uuid,
    last_consumed_created_at timestamptz,
    last_consumed_at timestamptz,
    lease_expires_at timestamptz,
    UNIQUE (partition_id, consumer_group)
);
CREATE TABLE queen.partition_lookup (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    queue_name varchar(255) NOT NULL REFERENCES queen.queues (name) ON DELETE CASCADE,
    partition_id uuid NOT NULL REFERENCES queen.partitions (id) ON DELETE CASCADE,
    last_message_id uuid NOT NULL,
    last_message_created_at timestamptz NOT NULL,
    updated_at timestamptz DEFAULT now(),
    UNIQUE (queue_name, partition_id)
);

-- name: fill
-- One queue; partitions and messages round them; ids in the order of time as the document's are.
INSERT INTO queen.queues (name) VALUES ('bench');
INSERT INTO queen.partitions (queue_id, name)
SELECT q.id, 'customer-' || n FROM queen.queues q, generate_series(0, :partitions - 1) AS n;
INSERT INTO queen.messages (id, transaction_id, partition_id, payload, created_at)
SELECT gen_random_uuid(), 't' || m, p.id,
       json_build_object('order', 100000 + m, 'customer', p.name, 'amount', m * 7.5, 'note', repeat('x', 36))::jsonb,
       timestamptz '2026-01-01 00:00:00+00' + m * interval '1 millisecond'
FROM generate_series(0, :messages - 1) AS m
JOIN (SELECT id, name, row_number() OVER () - 1 AS place FROM queen.partitions) p ON p.place = m % :partitions;

-- name: indexes
CREATE INDEX idx_messages_partition_created ON queen.messages (partition_id, created_at, id);
CREATE UNIQUE INDEX messages_partition_transaction_unique ON queen.messages (partition_id, transaction_id);
CREATE INDEX idx_partition_lookup_queue_name ON queen.partition_lookup (queue_name);
CREATE INDEX idx_partition_lookup_partition_id ON queen.partition_lookup (partition_id);
CREATE INDEX idx_partition_lookup_timestamp ON queen.partition_lookup (last_message_created_at DESC);
INSERT INTO queen.partition_lookup (queue_name, partition_id, last_message_id, last_message_created_at)
SELECT q.name, p.id, m.id, m.created_at
FROM queen.partitions p
JOIN queen.queues q ON p.queue_id = q.id
JOIN LATERAL (
    SELECT id, created_at FROM queen.messages WHERE partition_id = p.id ORDER BY created_at DESC, id DESC LIMIT 1
) m ON true;

-- name: drain
-- All partitions but this many are consumed to their last message.
INSERT INTO queen.partition_consumers (partition_id, consumer_group, last_consumed_id, last_consumed_created_at, last_consumed_at)
SELECT partition_id, '__QUEUE_MODE__', last_message_id, last_message_created_at, now()
FROM queen.partition_lookup ORDER BY partition_id OFFSET :left;

-- name: count_query
SELECT p.id, p.name, COUNT(m.id) AS message_count
FROM queen.partitions p
JOIN queen.queues q ON q.id = p.queue_id
LEFT JOIN queen.partition_consumers pc ON pc.partition_id = p.id AND pc.consumer_group = $2
LEFT JOIN queen.messages m ON m.partition_id = p.id
    AND (pc.last_consumed_created_at IS NULL
         OR m.created_at > pc.last_consumed_created_at
         OR (m.created_at = pc.last_consumed_created_at AND m.id > pc.last_consumed_id))
WHERE q.name = $1
  AND (pc.lease_expires_at IS NULL OR pc.lease_expires_at <= NOW())
GROUP BY p.id, p.name
HAVING COUNT(m.id) > 0
ORDER BY COUNT(m.id) DESC
LIMIT 10;

-- name: lookup_query
SELECT p.id, p.name
FROM queen.partition_lookup pl
JOIN queen.partitions p ON p.id = pl.partition_id
LEFT JOIN queen.partition_consumers pc ON pc.partition_id = pl.partition_id
    AND pc.consumer_group = $2
WHERE pl.queue_name = $1
  AND (pc.lease_expires_at IS NULL OR pc.lease_expires_at <= NOW())
  AND (pc.last_consumed_created_at IS NULL
       OR pl.last_message_created_at > pc.last_consumed_created_at
       OR (pl.last_message_created_at = pc.last_consumed_created_at
           AND pl.last_message_id > pc.last_consumed_id))
ORDER BY pc.last_consumed_at ASC NULLS FIRST, pl.last_message_created_at DESC
LIMIT 10;
