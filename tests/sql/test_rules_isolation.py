"""The outbox and plain inserts in users' own transactions, at every isolation level (rule 6): wakes, and 40001 for what has changed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

import asyncpg
import pytest
from tests.sql.support import Connection, ack_all, drain, group, named, outbox, partitions, pop, push, stranded, take_wakes, until_blocked

if TYPE_CHECKING:
    from tests.sql.conftest import Connect

Level = Literal["read_committed", "repeatable_read", "serializable"]
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
ABOVE = LEVELS[1:]


async def begin(connection: Connection, level: str) -> None:
    """The snapshot is taken here."""
    await connection.execute(f"BEGIN ISOLATION LEVEL {level}")
    await connection.execute("SELECT FROM queen.queues")


async def insert(connection: Connection, partition: int, transaction_id: str) -> None:
    await connection.execute(
        "INSERT INTO queen.messages (partition_id, transaction_id, payload) VALUES ($1, $2, '{}')", partition, transaction_id
    )


async def repeated(connection: Connection, level: Level, work: str, *arguments: object) -> None:
    """What the documentation tells users to do: 40001 and 40P01 repeat the transaction."""
    for _ in range(50):
        try:
            async with connection.transaction(isolation=level):
                await connection.execute(work, *arguments)
        except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError):
            continue
        return
    raise AssertionError("fifty tries were not enough")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("way", ["outbox", "insert"])
async def test_a_null_that_the_snapshot_cannot_see_strands_nothing(pg: Connection, connect: Connect, level: str, way: str) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await push(pg, *named(p, "first"))
    await ack_all(pg, await pop(pg, g))
    user = await connect()
    await begin(user, level)
    assert (await pop(pg, g)).rows == []
    if way == "outbox":
        await outbox(user, "q", "p", "x")
    else:
        await insert(user, p, "x")
    await user.execute("COMMIT")
    assert await take_wakes(pg) == (0 if level == "READ COMMITTED" else 1)
    assert await stranded(pg) == 0
    assert await drain(pg, g) == [(p, "x")]


@pytest.mark.parametrize("level", LEVELS)
async def test_a_group_that_the_snapshot_cannot_see_is_given_the_message(pg: Connection, connect: Connect, level: str) -> None:
    [p] = await partitions(pg, "q/p")
    user = await connect()
    await begin(user, level)
    g = await group(pg, "q", "g", "new")
    assert await drain(pg, g) == []
    await outbox(user, "q", "p", "x")
    await user.execute("COMMIT")
    await take_wakes(pg)
    assert await drain(pg, g) == [(p, "x")]


@pytest.mark.parametrize("level", ABOVE)
@pytest.mark.parametrize("way", ["outbox", "insert"])
@pytest.mark.parametrize("change", ["pushed", "made", "slept", "woken", "made its queue"])
async def test_a_partition_that_changed_since_the_snapshot_fails_with_40001(
    pg: Connection, connect: Connect, level: str, way: str, change: str
) -> None:
    if change == "made its queue":
        way = "outbox"
    else:
        await partitions(pg, "q/other")
    p = 0
    if change in ("pushed", "slept", "woken"):
        [p] = await partitions(pg, "q/p")
    if change == "woken":
        await pg.fetchval("SELECT queen.sleep_partition($1)", p)
    user = await connect()
    await begin(user, level)
    if change == "slept":
        await pg.fetchval("SELECT queen.sleep_partition($1)", p)
    else:
        [p] = await partitions(pg, "q/p")
        if change == "pushed":
            await push(pg, *named(p, "theirs"))
    error = asyncpg.SerializationError if way == "outbox" or change != "made" else asyncpg.ForeignKeyViolationError
    with pytest.raises(error):
        await (outbox(user, "q", "p", "x") if way == "outbox" else insert(user, p, "x"))
    await user.execute("ROLLBACK")
    await outbox(user, "q", "p", "x")
    await take_wakes(pg)
    assert "x" in [one for _, one in await drain(pg, await group(pg, "q", "g"))]


@pytest.mark.parametrize("level", ["read_committed", "repeatable_read", "serializable"])
async def test_many_outboxes_lose_nothing_beside_a_server(pg: Connection, connect: Connect, level: Level) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    consumer, server = await connect(), await connect()
    users = [await connect() for _ in range(3)]

    async def use(number: int) -> None:
        for turn in range(12):
            await repeated(users[number], level, "SELECT queen.push('q', $1, '{}', $2)", f"p{turn % 2 or ''}", f"u{number}-{turn}")

    async def serve() -> None:
        for turn in range(12):
            await push(server, *named(p, f"s-{turn}"))
            await take_wakes(server)

    using = asyncio.gather(serve(), *(use(number) for number in range(3)))
    given = []
    while not using.done():
        given += await drain(consumer, g, batch=3)
        await asyncio.sleep(0)
    await using
    await take_wakes(pg)
    given += await drain(consumer, g)
    expected = {f"u{number}-{turn}" for number in range(3) for turn in range(12)} | {f"s-{turn}" for turn in range(12)}
    assert sorted(one for _, one in given) == sorted(expected)
    assert await stranded(pg) == 0


async def test_a_wake_is_kept_while_somebody_holds_its_counter(pg: Connection, connect: Connect) -> None:
    await outbox(pg, "q", "p", "x")
    other = await connect()
    await other.execute("BEGIN")
    await other.execute("SELECT FROM queen.partition_lookup FOR UPDATE")
    assert await take_wakes(pg) == 0
    await other.execute("ROLLBACK")
    assert await take_wakes(pg) == 1
    assert await pg.fetchval("SELECT count(*) FROM queen.wakes") == 0


async def test_a_wake_passes_pushers_and_keeps_what_it_cannot_set(pg: Connection, connect: Connect) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    assert await drain(pg, g) == []
    user, other = await connect(), await connect()
    await begin(user, "REPEATABLE READ")
    await outbox(user, "q", "p", "x")
    await user.execute("COMMIT")
    await other.execute("BEGIN")
    await other.execute("SELECT FROM queen.partition_consumers FOR UPDATE")
    await user.execute("BEGIN")
    await user.execute("SELECT FROM queen.partition_lookup FOR NO KEY UPDATE")
    assert await take_wakes(pg) == 0
    await other.execute("ROLLBACK")
    assert await take_wakes(pg) == 1
    await user.execute("ROLLBACK")
    assert await drain(pg, g) == [(p, "x")]


async def test_a_wake_of_a_deleted_or_sleeping_partition_goes(pg: Connection) -> None:
    await outbox(pg, "q", "p", "x")
    await outbox(pg, "r", "p", "x")
    await pg.execute("DELETE FROM queen.queues WHERE name = 'q'")
    p = await pg.fetchval("SELECT id FROM queen.partitions")
    await pg.fetchval("SELECT queen.remove_messages($1, 1, 1, 'ttl')", p)
    await pg.fetchval("SELECT queen.sleep_partition($1)", p)
    await take_wakes(pg)
    assert await pg.fetchval("SELECT count(*) FROM queen.wakes") == 0


async def test_the_outbox_repeats_by_itself_when_the_partition_falls_asleep(pg: Connection, connect: Connect) -> None:
    [p] = await partitions(pg, "q/p")
    sleeper, user = await connect(), await connect()
    await sleeper.execute("BEGIN")
    assert await sleeper.fetchval("SELECT queen.sleep_partition($1)", p)
    pushing = asyncio.ensure_future(outbox(user, "q", "p", "x"))
    await until_blocked(pg, user, pushing)
    await sleeper.execute("COMMIT")
    await pushing
    assert await pg.fetchval("SELECT next_seq FROM queen.partition_lookup WHERE partition_id = $1", p) == 2


async def test_a_plain_insert_wakes_a_partition_that_falls_asleep_meanwhile(pg: Connection, connect: Connect) -> None:
    [p] = await partitions(pg, "q/p")
    sleeper, user = await connect(), await connect()
    await sleeper.execute("BEGIN")
    assert await sleeper.fetchval("SELECT queen.sleep_partition($1)", p)
    inserting = asyncio.ensure_future(insert(user, p, "x"))
    await until_blocked(pg, user, inserting)
    await sleeper.execute("COMMIT")
    await inserting
    await take_wakes(pg)
    assert await drain(pg, await group(pg, "q", "g")) == [(p, "x")]


async def test_a_queue_that_somebody_holds_does_not_keep_the_wakes_of_others(pg: Connection, connect: Connect) -> None:
    """Nor do many wakes of one partition."""
    for number in range(30):
        await outbox(pg, "q", f"p{number % 2}", f"{number}")
    await pg.execute("INSERT INTO queen.wakes (partition_id) SELECT (SELECT min(id) FROM queen.partitions) FROM generate_series(1, 2000)")
    g = await group(pg, "q", "g")
    other = await connect()
    await other.execute("BEGIN")
    await other.fetchval("""SELECT queen.configure_queue('q', NULL, NULL, '{"priority": 1}')""")
    await outbox(pg, "r", "p", "x")
    await pg.execute("SET lock_timeout = '20ms'")
    assert await take_wakes(pg) == 1
    assert [one for _, one in await drain(pg, await group(pg, "r", "g"))] == ["x"]
    await other.execute("COMMIT")
    assert await take_wakes(pg) == 2002
    assert len(await drain(pg, g)) == 30
