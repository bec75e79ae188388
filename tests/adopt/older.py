"""Databases of the older system, as its documents describe them, and what a consumer gets after the migration."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]

QUEUE_MODE = "__QUEUE_MODE__"
BOTH = pytest.mark.parametrize("older", [False, True], ids=["without the lookup", "with the lookup"], indirect=True)
T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

PLAIN = """
CREATE SCHEMA queen;
CREATE TABLE queen.queues (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), name varchar(255) UNIQUE NOT NULL, namespace varchar(255), task varchar(255),
    priority int DEFAULT 0, lease_time int DEFAULT 300, retry_limit int DEFAULT 3, retry_delay int DEFAULT 1000, ttl int DEFAULT 3600,
    dead_letter_queue boolean DEFAULT false, dlq_after_max_retries boolean DEFAULT false, delayed_processing int DEFAULT 0,
    window_buffer int DEFAULT 0, retention_seconds int DEFAULT 0, completed_retention_seconds int DEFAULT 0,
    retention_enabled boolean DEFAULT false, encryption_enabled boolean DEFAULT false, max_wait_time_seconds int DEFAULT 0,
    max_queue_size int DEFAULT 0, created_at timestamptz DEFAULT now());
CREATE TABLE queen.partitions (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), queue_id uuid REFERENCES queen.queues ON DELETE CASCADE,
    name varchar(255) NOT NULL DEFAULT 'Default', UNIQUE (queue_id, name));
CREATE TABLE queen.messages (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), transaction_id varchar(255), trace_id uuid DEFAULT gen_random_uuid(),
    partition_id uuid REFERENCES queen.partitions ON DELETE CASCADE, payload jsonb NOT NULL, created_at timestamptz DEFAULT now(),
    is_encrypted boolean DEFAULT false);
CREATE TABLE queen.partition_consumers (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), partition_id uuid REFERENCES queen.partitions ON DELETE CASCADE,
    consumer_group varchar(255) DEFAULT '__QUEUE_MODE__', last_consumed_id uuid DEFAULT '00000000-0000-0000-0000-000000000000',
    last_consumed_created_at timestamptz, last_consumed_at timestamptz, lease_expires_at timestamptz, worker_id varchar(255),
    UNIQUE (partition_id, consumer_group));
CREATE TABLE queen.consumer_groups_metadata (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), consumer_group text NOT NULL, queue_name text NOT NULL DEFAULT '',
    partition_name text NOT NULL DEFAULT '', namespace text NOT NULL DEFAULT '', task text NOT NULL DEFAULT '',
    subscription_mode text NOT NULL, subscription_timestamp timestamptz NOT NULL,
    UNIQUE (consumer_group, queue_name, partition_name, namespace, task));
CREATE TABLE queen.dead_letter_queue (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), message_id uuid, partition_id uuid REFERENCES queen.partitions ON DELETE CASCADE,
    consumer_group varchar(255), error_message text, retry_count int DEFAULT 0, failed_at timestamptz DEFAULT now());
"""

# the document's own lookup with its trigger, and what else a grown database has in that schema
LOOKUP = """
CREATE TABLE queen.partition_lookup (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), queue_name varchar(255) NOT NULL REFERENCES queen.queues (name) ON DELETE CASCADE,
    partition_id uuid NOT NULL REFERENCES queen.partitions ON DELETE CASCADE, last_message_id uuid NOT NULL,
    last_message_created_at timestamptz NOT NULL, updated_at timestamptz DEFAULT now(), UNIQUE (queue_name, partition_id));
CREATE INDEX idx_partition_lookup_timestamp ON queen.partition_lookup (last_message_created_at DESC);
CREATE FUNCTION queen.update_partition_lookup_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO queen.partition_lookup (queue_name, partition_id, last_message_id, last_message_created_at, updated_at)
    SELECT q.name, b.partition_id, b.id, b.created_at, now()
      FROM (SELECT DISTINCT ON (partition_id) partition_id, created_at, id FROM new_messages
             ORDER BY partition_id, created_at DESC, id DESC) b
      JOIN queen.partitions p ON p.id = b.partition_id JOIN queen.queues q ON q.id = p.queue_id
    ON CONFLICT (queue_name, partition_id) DO UPDATE SET last_message_id = excluded.last_message_id,
        last_message_created_at = excluded.last_message_created_at, updated_at = now()
     WHERE (excluded.last_message_created_at, excluded.last_message_id)
           > (queen.partition_lookup.last_message_created_at, queen.partition_lookup.last_message_id);
    RETURN NULL;
END
$$;
CREATE TRIGGER trg_update_partition_lookup AFTER INSERT ON queen.messages REFERENCING NEW TABLE AS new_messages
    FOR EACH STATEMENT EXECUTE FUNCTION queen.update_partition_lookup_trigger();
CREATE TABLE queen.system_state (key text PRIMARY KEY, value jsonb NOT NULL);
INSERT INTO queen.system_state VALUES ('maintenance', '{"on": true}');
CREATE TABLE queen.messages_consumed (id uuid DEFAULT gen_random_uuid(), partition_id uuid, consumer_group text, messages_completed int);
CREATE TYPE queen.colour AS ENUM ('red', 'green');
CREATE VIEW queen.busy AS SELECT partition_id, count(*) FROM queen.messages GROUP BY 1;
CREATE SEQUENCE queen.tickets;
CREATE FUNCTION queen.push(text, text, text) RETURNS text LANGUAGE sql AS 'SELECT $1';
"""


@dataclass
class Older:
    """Writes into the older tables; ids are the older system's uuids."""

    pg: Connection

    async def create(self, *, lookup: bool = False) -> Older:
        await self.pg.execute(PLAIN)
        if lookup:
            await self.pg.execute(LOOKUP)
        return self

    async def insert(self, table: str, **columns: Any) -> None:
        names = ", ".join(columns)
        places = ", ".join(f"${n}" for n in range(1, len(columns) + 1))
        await self.pg.execute(f"INSERT INTO queen.{table} ({names}) VALUES ({places})", *columns.values())

    async def queue(self, name: str, *partitions: str, **options: Any) -> list[uuid.UUID]:
        """Makes it with partitions (Default when none are named) and gives their ids."""
        queue = uuid.uuid4()
        await self.insert("queues", id=queue, name=name, **options)
        found = []
        for partition in partitions or ("Default",):
            found.append(uuid.uuid4())
            await self.insert("partitions", id=found[-1], queue_id=queue, name=partition)
        return found

    async def message(self, partition: uuid.UUID, second: float, tid: str | None = "", number: int | None = None, **more: Any) -> uuid.UUID:
        """One message `second` seconds after T0; its id sorts by `number` where two share a moment."""
        made = uuid.uuid4() if number is None else uuid.UUID(int=number)
        columns = {"payload": json.dumps({"id": str(made)}), **more}
        tid = str(made) if tid == "" else tid
        await self.insert("messages", id=made, transaction_id=tid, partition_id=partition, created_at=at(second), **columns)
        return made

    async def messages(self, partition: uuid.UUID, count: int, first: int = 0) -> list[uuid.UUID]:
        return [await self.message(partition, second) for second in range(first, first + count)]

    async def cursor(self, partition: uuid.UUID, group: str, second: float | None, last: uuid.UUID | None, **more: Any) -> None:
        moment = None if second is None else at(second)
        await self.insert(
            "partition_consumers",
            partition_id=partition,
            consumer_group=group,
            last_consumed_id=last,
            last_consumed_created_at=moment,
            **more,
        )

    async def subscribe(self, group: str, mode: str, second: float, **where: str) -> None:
        await self.insert(
            "consumer_groups_metadata", consumer_group=group, subscription_mode=mode, subscription_timestamp=at(second), **where
        )


def at(second: float) -> datetime:
    return T0 + timedelta(seconds=second)


async def delivered(pg: Connection, queue: str, group: str = QUEUE_MODE) -> dict[str, list[uuid.UUID]]:
    """All that a group is given now, as old message ids by partition; each partition is leased to the end of the test."""
    group_id = await pg.fetchval("SELECT queen.make_group($1, $2, 'all', NULL)", queue, group)
    found: dict[str, list[uuid.UUID]] = defaultdict(list)
    while True:
        rows = await pg.fetch(
            "SELECT p.name, m.payload FROM queen.pop_messages(ARRAY[100000], ARRAY[100000], ARRAY[NULL::int], ARRAY[gen_random_uuid()],"
            " ARRAY[600], ARRAY[1], ARRAY[$1::int], ARRAY[0::bigint], ARRAY[0]) WITH ORDINALITY"
            " m(request, partition_id, seq, transaction_id, trace_id, created_at, is_encrypted, producer, headers, payload, attempts, ord)"
            " JOIN queen.partitions p ON p.id = m.partition_id WHERE m.seq IS NOT NULL ORDER BY ord",
            group_id,
        )
        if not rows:
            return dict(found)
        for row in rows:
            found[row["name"]].append(uuid.UUID(json.loads(row["payload"])["id"]))
