"""Rules 4 (one order of locks) and 5 (one stuck lock stops one partition)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING

import asyncpg
import pytest
from tests.sql.support import (
    Ack,
    Connection,
    Item,
    ack,
    ack_all,
    drain,
    group,
    named,
    outbox,
    partitions,
    pop,
    push,
    stays_free,
    until_blocked,
)
from tests.sql.transactions import Transaction, execute

if TYPE_CHECKING:
    from tests.sql.conftest import Connect

IMPATIENT = "SET lock_timeout = '20ms'"


async def stuck(connect: Connect, partition: str = "p") -> Connection:
    """A user's transaction left idle after a push to q/p."""
    user = await connect()
    await user.execute("BEGIN")
    await outbox(user, "q", partition, "stuck")
    return user


async def test_calls_over_the_same_partitions_in_opposite_orders_never_deadlock(pg: Connection, connect: Connect) -> None:
    """Pushes, acks, transactions, extends, releases, removals, seeks and configures, over and over, each in an order of its own."""
    ids = await partitions(pg, *(f"q/p{number}" for number in range(6)))
    groups = dict(zip("gh", [await group(pg, "q", "g"), await group(pg, "q", "h")], strict=True))
    end = time.monotonic() + 2.0

    async def work(number: int) -> None:
        connection, draw = await connect(), random.Random(number)
        turn = 0
        while time.monotonic() < end:
            turn += 1
            some = draw.sample(ids, 3)
            match draw.randrange(6):
                case 0 | 1:
                    await push(connection, *(Item(one, f"{number}-{turn}") for one in some))
                case 2:
                    await execute(connection, *(Transaction(items=[Item(one, f"t{number}-{turn}")]) for one in some))
                case 3:
                    await ack(connection, *(Ack(one, "1-1", group=draw.choice("gh")) for one in some))
                case 4:
                    await connection.fetchval("SELECT queen.remove_messages($1, 1, 3, 'test')", some[0])
                case _:
                    name = draw.choice("gh")
                    got = await pop(connection, groups[name], spread=4, batch=8)
                    await connection.fetchrow("SELECT * FROM queen.extend_leases(ARRAY[$1::uuid], ARRAY[60])", got.lease)
                    if not got.rows:
                        continue
                    rows = draw.sample(got.rows, len(got.rows))
                    await ack(connection, *(Ack(row["partition_id"], row["transaction_id"], lease=got.lease, group=name) for row in rows))
                    await connection.fetchrow("SELECT * FROM queen.release_leases(ARRAY[$1::uuid], ARRAY[false])", got.lease)
            if turn % 10 == 0:
                await connection.fetchval("SELECT queen.seek('q', 'g', NULL, 1, p_force => true)")
                await connection.fetchval("SELECT queen.configure_queue('q', NULL, NULL, $1)", f'{{"delayedProcessing": {turn % 2}}}')

    await asyncio.gather(*(work(number) for number in range(5)))


async def test_a_call_that_times_out_has_had_no_effect(pg: Connection, connect: Connect) -> None:
    a, b = await partitions(pg, "q/a", "q/p")
    user = await stuck(connect)
    await pg.execute(IMPATIENT)
    with pytest.raises(asyncpg.LockNotAvailableError):
        await push(pg, Item(a, "x"), Item(b, "x"))
    await user.execute("ROLLBACK")
    assert (await push(pg, Item(a, "x"), Item(b, "x"))).seqs == [1, 1]


async def test_a_push_sets_aside_what_is_held_and_stores_the_rest(pg: Connection, connect: Connect) -> None:
    a, b, c = await partitions(pg, "q/a", "q/p", "q/z")
    user = await stuck(connect)
    items = [Item(c, "1"), Item(b, "1"), Item(a, "1"), Item(b, "2"), Item(a, "1")]
    done = await stays_free(asyncio.ensure_future(push(pg, *items, skip=True)))
    assert done.seqs == [1, None, 1, None, 1]
    await user.execute("COMMIT")
    done = await push(pg, *items, skip=True)
    assert done.seqs == [1, 2, 1, 3, 1]
    assert [bool(one) for one in done.duplicates] == [True, False, True, False, True]


async def test_a_push_sets_aside_a_partition_whose_drained_row_is_held(pg: Connection, connect: Connect) -> None:
    a, b = await partitions(pg, "q/a", "q/b")
    g = await group(pg, "q", "g")
    assert await drain(pg, g) == []
    other = await connect()
    await other.execute("BEGIN")
    await other.execute("SELECT FROM queen.partition_consumers WHERE partition_id = $1 FOR UPDATE", b)
    assert (await push(pg, Item(a, "1"), Item(b, "1"), skip=True)).seqs == [1, None]
    await other.execute("ROLLBACK")
    assert (await push(pg, Item(b, "1"), skip=True)).seqs == [1]
    assert sorted(await drain(pg, g)) == [(a, "1"), (b, "1")]


async def test_an_ack_sets_aside_what_is_held(pg: Connection, connect: Connect) -> None:
    a, b = await partitions(pg, "q/a", "q/b")
    g = await group(pg, "q", "g")
    await push(pg, *named(a, "x"), *named(b, "y"))
    got = await pop(pg, g, spread=2)
    other = await connect()
    await other.execute("BEGIN")
    await other.execute("SELECT FROM queen.partition_consumers WHERE partition_id = $1 FOR UPDATE", a)
    acks = [Ack(a, "x", lease=got.lease, group="g"), Ack(b, "y", lease=got.lease, group="g")]
    first, second = await stays_free(asyncio.ensure_future(ack(pg, *acks, skip=True)))
    assert (first.held, second.success) == (True, True)
    row = await pg.fetchrow("SELECT * FROM queen.extend_leases(ARRAY[$1::uuid], ARRAY[600], true)", got.lease)
    assert row is not None
    assert (row["expires_at"], row["held"]) == ([None], [True])
    row = await pg.fetchrow("SELECT * FROM queen.release_leases(ARRAY[$1::uuid], ARRAY[false], true)", got.lease)
    assert row is not None
    assert (row["ended"], row["held"]) == (None, [got.lease])
    await other.execute("ROLLBACK")
    assert all(one.success for one in await ack(pg, *acks, skip=True))


async def test_a_transaction_over_something_held_is_set_aside_and_the_others_are_done(pg: Connection, connect: Connect) -> None:
    a, b = await partitions(pg, "q/a", "q/p")
    g = await group(pg, "q", "g")
    await push(pg, *named(a, "x"))
    got = await pop(pg, g, partition=a)
    user = await stuck(connect)
    other = await connect()
    await other.execute("BEGIN")
    await other.execute("SELECT FROM queen.partition_consumers WHERE partition_id = $1 FOR UPDATE", a)
    [c] = await partitions(pg, "r/p")
    done = await stays_free(
        asyncio.ensure_future(
            execute(
                pg,
                Transaction(items=[Item(c, "1"), Item(b, "1")]),
                Transaction(items=[Item(c, "2")]),
                Transaction(items=[Item(c, "3")], acks=[Ack(a, "x", lease=got.lease)]),
                Transaction(items=[Item(c, "4")], leases=[got.lease]),
                skip=True,
            )
        )
    )
    assert done.outcomes == [0, 1, 0, 0]
    assert done.seqs == [None, None, 1, None, None]
    await user.execute("ROLLBACK")
    await other.execute("ROLLBACK")


async def test_an_idle_transaction_stops_neither_claims_nor_pushes_elsewhere(pg: Connection, connect: Connect) -> None:
    a, _ = await partitions(pg, "q/a", "q/p")
    g = await group(pg, "q", "g")
    await stuck(connect)
    await pg.execute(IMPATIENT)
    await push(pg, *named(a, "x"))
    assert await drain_free(pg, g) == ["x"]
    assert await group(pg, "q", "h") != g
    await partitions(pg, "q/new")


async def drain_free(pg: Connection, g: int) -> list[str]:
    got = await stays_free(asyncio.ensure_future(pop(pg, g, spread=9)))
    await ack_all(pg, got)
    return list(got.ids)


async def test_names_that_somebody_makes_are_set_aside(pg: Connection, connect: Connect) -> None:
    await partitions(pg, "q/old")
    other, user = await connect(), await connect()
    await other.execute("BEGIN")
    await partitions(other, "q/new", "fresh/a")
    row = await stays_free(
        asyncio.ensure_future(pg.fetchrow("SELECT * FROM queen.make_partitions('{q,q,q,fresh,free}', '{new,newer,old,b,a}')"))
    )
    new, newer, old, beside, free = row["partition_ids"]
    assert (new, beside) == (None, None)
    assert None not in (newer, old, free)
    pushing = asyncio.ensure_future(outbox(user, "q", "new", "x"))
    await until_blocked(pg, user, pushing)
    await other.execute("COMMIT")
    await pushing
    row = await pg.fetchrow("SELECT * FROM queen.make_partitions('{q,fresh}', '{new,b}')")
    assert row is not None
    assert None not in row["partition_ids"]


async def test_a_queue_that_is_being_deleted_or_configured_is_set_aside(pg: Connection, connect: Connect) -> None:
    await partitions(pg, "q/old", "r/old", "s/old")
    deleter, other = await connect(), await connect()
    await deleter.execute("BEGIN")
    await deleter.execute("DELETE FROM queen.queues WHERE name = 'q'")
    await other.execute("BEGIN")
    await other.fetchval("""SELECT queen.configure_queue('r', NULL, NULL, '{"priority": 2}')""")
    row = await stays_free(asyncio.ensure_future(pg.fetchrow("SELECT * FROM queen.make_partitions('{q,r,s}', '{new,new,new}')")))
    assert [one is None for one in row["partition_ids"]] == [True, True, False]


async def test_a_call_makes_at_most_500_names(pg: Connection) -> None:
    assert None not in await partitions(pg, *(f"q/{number}" for number in range(500)))
    with pytest.raises(asyncpg.PostgresError, match="at most 500"):
        await partitions(pg, *(f"q/{number}" for number in range(501)))


@pytest.mark.parametrize("way", ["outbox", "insert"])
async def test_a_user_waits_half_a_second_unless_told_otherwise(pg: Connection, connect: Connect, way: str) -> None:
    [p] = await partitions(pg, "q/p")
    await stuck(connect)
    work = (
        "SELECT queen.push('q', 'p', '1')" if way == "outbox" else f"INSERT INTO queen.messages (partition_id, payload) VALUES ({p}, '1')"
    )
    for setting, least, most in (("0", 0.4, 4.0), ("30ms", 0.0, 0.45)):
        await pg.execute(f"SET lock_timeout = '{setting}'")
        start = time.monotonic()
        with pytest.raises(asyncpg.LockNotAvailableError):
            await pg.execute(work)
        assert least < time.monotonic() - start < most
        assert await pg.fetchval("SHOW lock_timeout") == setting


async def settings(pg: Connection) -> tuple[str, str]:
    row = await pg.fetchrow("SELECT current_setting('lock_timeout'), coalesce(current_setting('queen.lookup_maintained', true), '')")
    assert row is not None
    return row[0], row[1]


async def test_every_function_puts_back_the_settings_it_changes(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    await group(pg, "q", "g")
    good = [
        f"SELECT queen.push_messages('{{{p}}}', '{{1}}', '{{1}}', '{{0}}', '{{a}}', '{{1}}')",
        f"SELECT queen.push_messages('{{{p}}}', '{{1}}', '{{1}}', '{{0}}', '{{a}}', '{{1}}')",
        "SELECT queen.push('q', 'p', '1')",
        f"INSERT INTO queen.messages (partition_id, payload) VALUES ({p}, '1')",
        f"SELECT queen.remove_messages({p}, 1, 2, 'x')",
        """SELECT queen.configure_queue('q', NULL, NULL, '{"priority": 1}')""",
        "SELECT queen.seek('q', 'g', p_to_end => true)",
        f"SELECT queen.resync_partition({p})",
        f"DELETE FROM queen.messages WHERE partition_id = {p}",
        f"SELECT queen.sleep_partition({p})",
        f"SELECT queen.sleep_partition({p})",
        "DELETE FROM queen.queues WHERE name = 'q'",
    ]
    bad = [
        "SELECT queen.push('', 'p', '1')",
        "SELECT queen.push_messages('{99}', '{1}', '{1}', '{0}', '{a}', '{1}')",
        f"INSERT INTO queen.messages (partition_id, payload) VALUES ({p}, '1'), (99, '2')",
        "SELECT queen.remove_messages(99, 1, 2, 'x')",
        "SELECT queen.seek('q', 'nobody', p_to_end => true)",
        """SELECT queen.configure_queue('q', NULL, NULL, '{"priority": "x"}')""",
    ]
    for chosen in ("0", "7s"):
        async with pg.transaction():
            await pg.execute(f"SET LOCAL lock_timeout = '{chosen}'")
            for statement in bad:
                with pytest.raises(asyncpg.PostgresError):
                    async with pg.transaction():
                        await pg.execute(statement)
                assert await settings(pg) == (chosen, ""), statement
            for statement in good if chosen == "7s" else []:
                await pg.execute(statement)
                assert await settings(pg) == (chosen, ""), statement


async def test_what_changes_a_whole_queue_gives_up_after_a_second(pg: Connection, connect: Connect) -> None:
    await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    other = await connect()
    await other.execute("BEGIN")
    await other.execute("SELECT FROM queen.partition_consumers WHERE group_id = $1 FOR UPDATE", g)
    start = time.monotonic()
    with pytest.raises(asyncpg.LockNotAvailableError):
        await pg.fetchval("SELECT queen.seek('q', 'g', p_to_end => true)")
    assert 0.8 < time.monotonic() - start < 6


async def test_many_makers_of_the_same_names_get_them_all(pg: Connection, connect: Connect) -> None:
    """Servers that make, users that make by pushing, partitions that fall asleep at once, a group that comes in between."""
    names = [f"n{number}" for number in range(12)]
    end = time.monotonic() + 1.5

    async def make(number: int) -> None:
        connection, draw = await connect(), random.Random(number)
        await connection.execute(IMPATIENT)
        while time.monotonic() < end:
            some = draw.sample(names, 5)
            row = await connection.fetchrow("SELECT * FROM queen.make_partitions($1, $2)", [draw.choice("qr") for _ in some], some)
            assert row is not None
            for one in row["partition_ids"]:
                if one is not None and draw.random() < 0.5:
                    with contextlib.suppress(asyncpg.LockNotAvailableError):
                        await connection.fetchval("SELECT queen.sleep_partition($1)", one)

    async def use(number: int) -> None:
        connection, draw, turn = await connect(), random.Random(number), 0
        while time.monotonic() < end:
            turn += 1
            with contextlib.suppress(asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
                async with connection.transaction():
                    for name in sorted(draw.sample(names, 2)):
                        await outbox(connection, "q", name, f"{number}-{turn}")
            await pg_wakes(connection)

    async def pg_wakes(connection: Connection) -> None:
        await connection.fetchrow("SELECT * FROM queen.take_wakes()")

    makers = asyncio.gather(*(make(number) for number in range(3)), *(use(number) for number in range(3, 6)))
    g = None
    while g is None:
        g = await pg.fetchval("SELECT queen.make_group('q', 'g', 'all', NULL)")
    await makers
    await pg_wakes(pg)
    assert await pg.fetchval("SELECT count(*) FROM queen.wakes") == 0
    missing = (
        "SELECT count(*) FROM queen.partitions p JOIN queen.queues q ON q.id = queue_id"
        " JOIN queen.partition_lookup l ON l.partition_id = p.id"
        " WHERE q.name = 'q' AND p.id NOT IN (SELECT partition_id FROM queen.partition_consumers)"
    )
    assert await pg.fetchval(missing) == 0
    stored = await pg.fetchval(
        "SELECT count(*) FROM queen.messages m JOIN queen.partitions p ON p.id = partition_id JOIN queen.queues q ON q.id = queue_id"
    )
    assert len(await drain(pg, g)) == stored > 0
