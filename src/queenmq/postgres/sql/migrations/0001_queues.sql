-- The tables of the queue. Names as in the contract; every rule about locks stands in ARCHITECTURE.md, "The SQL core".
-- Messages have no foreign key (it costs half of the push rate): the lookup row, which every push locks, is the gate.

CREATE TABLE queen.system_state (
    key        text COLLATE "C" PRIMARY KEY,
    value      jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- 26 random bits that make the message ids of this database its own.
INSERT INTO queen.system_state (key, value) VALUES ('salt', to_jsonb((random() * 67108863)::int));

CREATE TABLE queen.servers (
    server_id    text COLLATE "C" PRIMARY KEY,
    session      bigint NOT NULL,
    url          text,
    version      text NOT NULL,
    started_at   timestamptz NOT NULL,
    heartbeat_at timestamptz NOT NULL
);

CREATE SEQUENCE queen.server_sessions;

CREATE TABLE queen.queues (
    id                          int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name                        text COLLATE "C" NOT NULL UNIQUE CHECK (name <> ''),
    namespace                   text COLLATE "C",
    task                        text COLLATE "C",
    lease_time                  int NOT NULL DEFAULT 300,
    retry_limit                 int NOT NULL DEFAULT 3,
    retry_delay                 bigint NOT NULL DEFAULT 1000,
    max_size                    bigint NOT NULL DEFAULT 0,
    ttl                         int,
    priority                    int NOT NULL DEFAULT 0,
    delayed_processing          int NOT NULL DEFAULT 0,
    window_buffer               int NOT NULL DEFAULT 0,
    window_max_wait             int,
    dead_letter_queue           boolean NOT NULL DEFAULT false,
    dlq_after_max_retries       boolean NOT NULL DEFAULT false,
    encryption_enabled          boolean NOT NULL DEFAULT false,
    retention_enabled           boolean NOT NULL DEFAULT false,
    retention_seconds           int NOT NULL DEFAULT 0,
    completed_retention_seconds int NOT NULL DEFAULT 0,
    max_wait_time_seconds       int NOT NULL DEFAULT 0,
    retention_waits_for_archive boolean NOT NULL DEFAULT false,
    config_version              bigint NOT NULL DEFAULT 1,
    created_at                  timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON COLUMN queen.queues.ttl IS 'null = not configured: the default is echoed and expires nothing';

CREATE INDEX queues_namespace_task ON queen.queues (namespace, task);

CREATE TABLE queen.partitions (
    id                     int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id               int NOT NULL REFERENCES queen.queues ON DELETE CASCADE,
    name                   text COLLATE "C" NOT NULL CHECK (name <> ''),
    asleep_next_seq        bigint,
    asleep_last_created_at timestamptz,
    UNIQUE (queue_id, name)
);

COMMENT ON COLUMN queen.partitions.asleep_next_seq IS 'null while awake; while asleep the seq that the next push gets';

-- The counter row of an awake partition: every push locks it, so commit order is offset order.
-- No index but the key: it is updated with every push and must stay HOT.
CREATE TABLE queen.partition_lookup (
    partition_id            int PRIMARY KEY,
    next_seq                bigint NOT NULL DEFAULT 1,
    first_seq               bigint NOT NULL DEFAULT 1,
    last_message_created_at timestamptz,
    updated_at              timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);

CREATE TABLE queen.messages (
    partition_id   int NOT NULL,
    seq            bigint NOT NULL,
    transaction_id text COLLATE "C" NOT NULL DEFAULT gen_random_uuid()::text,
    trace_id       uuid,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    is_encrypted   boolean,
    producer       text,
    headers        json,
    not_before     timestamptz,
    payload        json NOT NULL,
    PRIMARY KEY (partition_id, seq),
    CONSTRAINT messages_transaction UNIQUE (partition_id, transaction_id)
);

-- What went before it was settled, and seqs that were given and never stored: claims step over these ranges.
CREATE TABLE queen.removed_messages (
    partition_id int NOT NULL,
    from_seq     bigint NOT NULL,
    to_seq       bigint NOT NULL,
    reason       text NOT NULL,
    removed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (from_seq <= to_seq)
);

CREATE INDEX removed_messages_range ON queen.removed_messages (partition_id, to_seq, from_seq);

CREATE TABLE queen.message_audience (
    partition_id   int NOT NULL,
    seq            bigint NOT NULL,
    consumer_group text COLLATE "C" NOT NULL,
    PRIMARY KEY (partition_id, seq, consumer_group)
);

-- A consumer group of a queue (queue_id set), a subscription to a queue that is not there yet (queue_name only), or a
-- subscription to a namespace and task (neither): the latter two become rows of the first kind when a queue matches.
CREATE TABLE queen.consumer_groups_metadata (
    id                     int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer_group         text COLLATE "C" NOT NULL,
    queue_id               int REFERENCES queen.queues ON DELETE CASCADE,
    queue_name             text COLLATE "C",
    namespace              text COLLATE "C",
    task                   text COLLATE "C",
    subscription_mode      text NOT NULL DEFAULT 'all',
    subscription_timestamp timestamptz,
    created_at             timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE UNIQUE INDEX consumer_groups_queue ON queen.consumer_groups_metadata (queue_name, consumer_group) WHERE queue_name IS NOT NULL;
CREATE UNIQUE INDEX consumer_groups_wildcard ON queen.consumer_groups_metadata (namespace, task, consumer_group)
    NULLS NOT DISTINCT WHERE queue_name IS NULL;
CREATE INDEX consumer_groups_queue_id ON queen.consumer_groups_metadata (queue_id);

CREATE TABLE queen.partition_consumers (
    partition_id     int NOT NULL,
    group_id         int NOT NULL,
    cursor_seq       bigint NOT NULL DEFAULT 0,
    acked            int8multirange,
    answered         jsonb,
    attempts         jsonb,
    lease_id         uuid,
    lease_from       bigint,
    lease_to         bigint,
    lease_count      int,
    lease_until      timestamptz,
    last_lease_id    uuid,
    last_lease_from  bigint,
    last_lease_to    bigint,
    last_answered    jsonb,
    last_open        int8multirange,
    ready_at         timestamptz,
    last_consumed_at timestamptz,
    PRIMARY KEY (partition_id, group_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);

COMMENT ON COLUMN queen.partition_consumers.cursor_seq IS 'the last seq settled without a gap';
COMMENT ON COLUMN queen.partition_consumers.acked IS 'what is settled above the cursor; null = nothing';
COMMENT ON COLUMN queen.partition_consumers.answered IS 'seq -> status other than completed, under the live lease';
COMMENT ON COLUMN queen.partition_consumers.attempts IS 'seq -> [count, retry moment in ms, last error]; only messages that failed';
COMMENT ON COLUMN queen.partition_consumers.last_open IS 'what was not settled when the last lease ended; null = nothing';
COMMENT ON COLUMN queen.partition_consumers.ready_at IS 'null = drained; else the moment from which it may be claimed';

-- Fair order, lease expiry, next-visible timer and the skipping of drained partitions in one.
CREATE INDEX partition_consumers_ready ON queen.partition_consumers (group_id, ready_at, partition_id) WHERE ready_at IS NOT NULL;
CREATE INDEX partition_consumers_lease ON queen.partition_consumers (lease_id) WHERE lease_id IS NOT NULL;

-- What a transaction that isn't the server's own made or woke: a server makes the missing rows after the commit.
CREATE TABLE queen.wakes (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    partition_id int NOT NULL,
    new_queue    boolean NOT NULL DEFAULT false,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE queen.dead_letter_queue (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id       int NOT NULL,
    partition_id   int NOT NULL,
    seq            bigint NOT NULL,
    transaction_id text COLLATE "C" NOT NULL,
    trace_id       uuid,
    consumer_group text COLLATE "C" NOT NULL,
    error_message  text,
    retry_count    int NOT NULL,
    is_encrypted   boolean,
    producer       text,
    headers        json,
    payload        json,
    created_at     timestamptz NOT NULL,
    failed_at      timestamptz NOT NULL
);

CREATE INDEX dead_letter_queue_newest ON queen.dead_letter_queue (queue_id, failed_at);
CREATE INDEX dead_letter_queue_message ON queen.dead_letter_queue (partition_id, seq);

-- What consumers settled, added up per minute by each server.
CREATE TABLE queen.messages_consumed (
    queue_id       int NOT NULL,
    consumer_group text COLLATE "C" NOT NULL,
    server_id      text COLLATE "C" NOT NULL,
    minute         timestamptz NOT NULL,
    completed      bigint NOT NULL DEFAULT 0,
    failed         bigint NOT NULL DEFAULT 0,
    dead_lettered  bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (queue_id, consumer_group, server_id, minute)
);
