"""The way back to the older system, and forgetting it."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import asyncpg
import pytest
from tests.adopt.older import BOTH, QUEUE_MODE, Older, delivered
from tests.adopt.test_adopt_safety import picture

from queenmq.errors import SetupError
from queenmq.postgres.migrate import migrate_connection
from queenmq.postgres.way_back import back, forget

if TYPE_CHECKING:
    from tests.adopt.older import Connection


async def older_pop(pg: Connection, queue: str, group: str = QUEUE_MODE) -> dict[str, list[uuid.UUID]]:
    """What the older server would deliver: everything after the cursor, by (created_at, id)."""
    rows = await pg.fetch(
        "SELECT p.name, m.payload ->> 'id' FROM queen.messages m JOIN queen.partitions p ON p.id = m.partition_id"
        " JOIN queen.queues q ON q.id = p.queue_id"
        " LEFT JOIN queen.partition_consumers c ON c.partition_id = p.id AND c.consumer_group = $2"
        " WHERE q.name = $1 AND (c.last_consumed_created_at IS NULL"
        " OR (m.created_at, m.id) > (c.last_consumed_created_at, c.last_consumed_id))"
        " ORDER BY m.created_at, m.id",
        queue,
        group,
    )
    found: dict[str, list[uuid.UUID]] = {}
    for partition, made in rows:
        found.setdefault(partition, []).append(uuid.UUID(made))
    return found


async def push(pg: Connection, queue: str, partition: str, count: int = 1) -> list[uuid.UUID]:
    made = [uuid.uuid4() for _ in range(count)]
    for each in made:
        await pg.execute("SELECT queen.push($1, $2, $3::json)", queue, partition, json.dumps({"id": str(each)}))
    await pg.execute("SELECT queen.take_wakes(1000)")
    return made


@BOTH
async def test_back_puts_the_older_schema_in_place_as_it_was(older: Older) -> None:
    (p,) = await older.queue("q")
    rows = await older.messages(p, 4)
    await older.cursor(p, "g", 1, rows[1])
    before = await picture(older.pg)
    await migrate_connection(older.pg)
    await push(older.pg, "q", "Default", 3)

    done = await back(older.pg, carry=False)

    assert (done.pushed, done.carried) == (3, 0)
    assert await picture(older.pg) == before
    assert await older.pg.fetchval("SELECT count(*) FROM queen_after.messages") == 7
    assert not await older.pg.fetchval("SELECT count(*) FROM pg_class WHERE relname LIKE 'adopt%'")


@BOTH
async def test_back_carries_new_messages_and_what_was_consumed_since(older: Older) -> None:
    a, _ = await older.queue("q", "a", "b")
    rows = await older.messages(a, 4)
    await older.cursor(a, "g", 0, rows[0])
    await migrate_connection(older.pg)
    in_a, in_b, in_c = await push(older.pg, "q", "a", 3), await push(older.pg, "q", "b", 2), await push(older.pg, "q", "c", 2)
    elsewhere = await push(older.pg, "new.queue", "x")
    assert await delivered(older.pg, "q", "g") == {"a": [*rows[1:], *in_a], "b": in_b, "c": in_c}
    await older.pg.execute("SELECT queen.seek('q', 'g', 'a', 6, NULL, false, true), queen.seek('q', 'g', 'c', 2, NULL, false, true)")

    done = await back(older.pg)

    assert (done.pushed, done.carried) == (8, 8)
    assert await older_pop(older.pg, "q", "g") == {"a": in_a[1:], "b": in_b, "c": in_c[1:]}
    assert await older_pop(older.pg, "q") == {"a": [*rows, *in_a], "b": in_b, "c": in_c}
    assert await older_pop(older.pg, "new.queue") == {"x": elsewhere}
    if await older.pg.fetchval("SELECT to_regclass('queen.partition_lookup') IS NOT NULL"):
        stale = (
            "SELECT count(*) FROM queen.messages m WHERE NOT EXISTS ("
            " SELECT FROM queen.partition_lookup l WHERE l.partition_id = m.partition_id"
            " AND (l.last_message_created_at, l.last_message_id) >= (m.created_at, m.id))"
        )
        assert await older.pg.fetchval(stale) == 0


async def test_back_and_forward_again_loses_nothing(older: Older) -> None:
    (p,) = await older.queue("q")
    rows = await older.messages(p, 3)
    await older.cursor(p, "g", 0, rows[0])
    await migrate_connection(older.pg)
    new = await push(older.pg, "q", "Default", 2)
    await back(older.pg)
    with pytest.raises(SetupError, match="queen_after"):
        await _there_and_back(older.pg)
    assert await delivered(older.pg, "q", "g") == {"Default": [*rows[1:], *new]}


async def _there_and_back(pg: Connection) -> None:
    await migrate_connection(pg)
    await back(pg)


async def test_a_queue_that_was_made_again_and_freed_transaction_ids_are_carried(older: Older) -> None:
    (p,) = await older.queue("q")
    await older.message(p, 0, "t")
    rows = await older.messages(p, 3, 1)
    await migrate_connection(older.pg)
    await older.pg.execute("DELETE FROM queen.queues")
    made = uuid.uuid4()
    await older.pg.execute("SELECT queen.push('q', 'Default', $1::json, 't')", json.dumps({"id": str(made)}))
    assert (await back(older.pg)).carried == 1
    assert (await older_pop(older.pg, "q"))["Default"][1:] == [*rows, made]


async def test_dead_letters_since_the_adoption_are_carried(older: Older) -> None:
    (p,) = await older.queue("q", retry_limit=0)
    (first,) = await older.messages(p, 1)
    await migrate_connection(older.pg)
    await push(older.pg, "q", "Default")
    await older.pg.execute(
        "INSERT INTO queen.dead_letter_queue (queue_id, partition_id, seq, transaction_id, consumer_group,"
        " error_message, retry_count, created_at, failed_at)"
        " SELECT p.queue_id, m.partition_id, m.seq, m.transaction_id, 'g', 'broken', 4, m.created_at, now()"
        " FROM queen.messages m JOIN queen.partitions p ON p.id = m.partition_id"
    )
    assert (await back(older.pg)).dead_letters == 2
    rows = await older.pg.fetch(
        "SELECT d.error_message, d.retry_count, m.id FROM queen.dead_letter_queue d"
        " JOIN queen.messages m ON m.id = d.message_id ORDER BY m.created_at"
    )
    assert [(row[0], row[1]) for row in rows] == [("broken", 4), ("broken", 4)]
    assert rows[0]["id"] == first


async def test_what_cant_be_carried_is_said_and_nothing_is_changed(before: Connection) -> None:
    older = await Older(before).create()
    await older.queue("q")
    await migrate_connection(before)
    await before.execute("""SELECT queen.push('q', 'Default', '{"id": "\\u0000"}')""")
    with pytest.raises(SetupError, match="--leave"):
        await back(before)
    assert await before.fetchval("SELECT to_regclass('queen.schema_files') IS NOT NULL AND to_regnamespace('queen_after') IS NULL")
    assert (await back(before, carry=False)).pushed == 1


async def test_back_is_refused_while_a_server_is_connected(older: Older, empty_database_url: str) -> None:
    await older.queue("q")
    await migrate_connection(older.pg)
    server = await asyncpg.connect(empty_database_url, server_settings={"application_name": "queenmq"})
    try:
        with pytest.raises(SetupError, match="stop them first"):
            await back(older.pg)
    finally:
        await server.close()


async def test_back_without_an_adoption_and_after_forgetting_says_so(pg: Connection, older: Older) -> None:
    for connection in (pg, older.pg):
        with pytest.raises(SetupError, match="nothing to go back to"):
            await back(connection)
    assert await forget(pg) is None
    assert await forget(older.pg) is None
    await migrate_connection(older.pg)
    assert await forget(older.pg) == "queen_before"
    assert await forget(older.pg) is None
    with pytest.raises(SetupError, match="nothing to go back to"):
        await back(older.pg)


@BOTH
async def test_forget_drops_only_what_nothing_hangs_on_and_never_the_schema_in_use(older: Older) -> None:
    (p,) = await older.queue("q")
    rows = await older.messages(p, 2)
    await older.pg.execute("CREATE VIEW public.report AS SELECT count(*) FROM queen.messages")
    await migrate_connection(older.pg)
    with pytest.raises(SetupError, match=r"view report"):
        await forget(older.pg)
    await older.pg.execute("DROP VIEW public.report")
    assert await forget(older.pg) == "queen_before"
    assert await delivered(older.pg, "q") == {"Default": rows}


async def test_forget_after_back_drops_ours(older: Older) -> None:
    (p,) = await older.queue("q")
    rows = await older.messages(p, 2)
    await migrate_connection(older.pg)
    await back(older.pg)
    assert await forget(older.pg) == "queen_after"
    assert await older_pop(older.pg, "q") == {"Default": rows}
