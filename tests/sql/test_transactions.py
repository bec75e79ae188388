"""queen.execute_transaction: all or nothing, several in one call fail alone, required leases."""

from __future__ import annotations

import uuid

import asyncpg
import pytest
from tests.sql.support import Ack, Connection, Item, ack, ack_all, consumer, drain, group, named, numbered, partitions, pop, push, stranded
from tests.sql.transactions import Transaction, execute

from queenmq.testing.clock import move_clock


async def test_pushes_and_acks_together(pg: Connection) -> None:
    a, b, c = await partitions(pg, "q/a", "q/b", "r/c")
    g = await group(pg, "q", "g")
    h = await group(pg, "r", "h")
    await push(pg, *named(a, "x", "y"))
    got = await pop(pg, g)
    assert await drain(pg, h) == []
    done = await execute(
        pg, Transaction([Item(b, "1"), Item(c, "2"), Item(c, "3")], [Ack(a, "x", lease=got.lease), Ack(a, "y", lease=got.lease)])
    )
    assert (done.outcomes, done.seqs, done.successes) == ([1], [1, 1, 2], [True, True])
    assert await stranded(pg) == 0
    assert await drain(pg, g) == [(b, "1")]
    assert await drain(pg, h) == [(c, "2"), (c, "3")]


async def test_nothing_is_done_when_one_ack_fails(pg: Connection) -> None:
    a, b = await partitions(pg, "q/a", "q/b")
    g = await group(pg, "q", "g")
    await push(pg, *named(a, "x", "y"))
    got = await pop(pg, g)
    before = await consumer(pg, a, g)
    bad = [Ack(a, "x", lease=got.lease), Ack(a, "nobody", lease=got.lease)]
    done = await execute(pg, Transaction([Item(b, "1")], bad))
    assert (done.outcomes, done.failures) == ([2], ["Message not found: nobody"])
    assert await consumer(pg, a, g) == before
    assert await pg.fetchval("SELECT count(*) FROM queen.messages WHERE partition_id = $1", b) == 0
    assert await pg.fetchval("SELECT next_seq FROM queen.partition_lookup WHERE partition_id = $1", b) == 1


async def test_of_several_in_one_call_each_fails_alone(pg: Connection) -> None:
    a, b = await partitions(pg, "q/a", "q/b")
    g = await group(pg, "q", "g")
    await push(pg, *numbered(a, 1, 4))
    got = await pop(pg, g)
    done = await execute(
        pg,
        Transaction([Item(b, "1"), Item(b, "2")], [Ack(a, "m1", lease=got.lease)]),
        Transaction([Item(b, "3")], [Ack(a, "m2", lease=uuid.uuid4(), group="g")]),
        Transaction([Item(b, "4"), Item(b, "2")]),
        Transaction([Item(b, "3")], [Ack(a, "m2", "failed", got.lease)]),
        Transaction([], [Ack(a, "m3", "dlq", got.lease), Ack(a, "m4", lease=got.lease)]),
    )
    assert done.outcomes == [1, 2, 1, 1, 1]
    assert done.failures == [None, "Invalid or expired lease: m2", None, None, None]
    assert done.seqs == [1, 2, None, 3, 2, 4]
    assert done.duplicates[4] is True
    assert [
        row["transaction_id"] for row in await pg.fetch("SELECT transaction_id FROM queen.messages WHERE partition_id = $1 ORDER BY seq", b)
    ] == list("1243")
    row = await consumer(pg, a, g)
    assert (row["cursor_seq"], row["lease_id"]) == (1, None)
    assert [(r.lower, r.upper) for r in row["acked"]] == [(3, 5)]
    assert await pg.fetchval("SELECT count(*) FROM queen.dead_letter_queue") == 1


async def test_a_failed_transaction_leaves_no_hole_in_the_sequence(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    bad = [Ack(p, "nobody", group="g")]
    done = await execute(pg, Transaction([Item(p, "1")]), Transaction([Item(p, "2"), Item(p, "3")], bad), Transaction([Item(p, "4")]))
    assert done.outcomes == [1, 2, 1]
    assert [row["seq"] for row in await pg.fetch("SELECT seq FROM queen.messages ORDER BY seq")] == [1, 2]
    assert (await push(pg, *named(p, "5"))).seqs == [3]
    assert [one for _, one in await drain(pg, g)] == ["1", "4", "5"]


async def test_required_leases_must_be_live(clock: Connection) -> None:
    a, b = await partitions(clock, "q/a", "q/b")
    g = await group(clock, "q", "g")
    await push(clock, *named(a, "x"), *named(b, "y"))
    got = await pop(clock, g, spread=2)
    assert (await execute(clock, Transaction([Item(a, "1")], leases=[got.lease]))).outcomes == [1]
    assert (await execute(clock, Transaction([Item(a, "2")], leases=[got.lease, uuid.uuid4()]))).outcomes == [2]
    # Over several partitions: while one is still leased; and its own acks may end it.
    assert (await ack(clock, Ack(a, "x", lease=got.lease)))[0].released
    assert (await execute(clock, Transaction([Item(a, "3")], [Ack(b, "y", lease=got.lease)], [got.lease]))).outcomes == [1]
    done = await execute(clock, Transaction([Item(a, "4")], leases=[got.lease]))
    assert (done.outcomes, done.failures) == ([2], [f"Invalid or expired lease: {got.lease}"])
    late = await pop(clock, g)
    await move_clock(clock, 301)
    assert (await execute(clock, Transaction([Item(a, "5")], leases=[late.lease]))).outcomes == [2]


async def test_an_ack_without_lease_uses_the_required_one_and_its_group(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g, h = await group(pg, "q", "g"), await group(pg, "q", "h")
    mode = await group(pg, "q")
    await push(pg, *named(p, "x", "y"))
    got, other = await pop(pg, g), await pop(pg, h)
    done = await execute(pg, Transaction(acks=[Ack(p, "x")], leases=[got.lease]))
    assert done.outcomes == [1]
    assert [(await consumer(pg, p, each))["cursor_seq"] for each in (g, h, mode)] == [1, 0, 0]
    done = await execute(pg, Transaction(acks=[Ack(p, "x", group="h")], leases=[got.lease, other.lease]))
    assert done.outcomes == [1]
    assert [(await consumer(pg, p, each))["cursor_seq"] for each in (g, h, mode)] == [1, 1, 0]
    for wrong in ("h", "nobody"):
        done = await execute(pg, Transaction(acks=[Ack(p, "y", group=wrong)], leases=[got.lease]))
        assert done.outcomes == [2]
        done = await execute(pg, Transaction(acks=[Ack(p, "y", lease=got.lease, group=wrong)]))
        assert done.outcomes == [2]
    assert (await ack_all(pg, got))[1].success


async def test_acks_without_any_lease(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g, mode = await group(pg, "q", "g"), await group(pg, "q")
    await push(pg, *named(p, "x", "y"))
    assert (await execute(pg, Transaction(acks=[Ack(p, "x"), Ack(p, "x", group="g")]))).outcomes == [1]
    assert (await consumer(pg, p, g))["cursor_seq"] == (await consumer(pg, p, mode))["cursor_seq"] == 1
    assert (await execute(pg, Transaction(acks=[Ack(p, "y", group="nobody")]))).outcomes == [2]
    assert (await execute(pg, Transaction(acks=[Ack(99_999, "y")]))).outcomes == [2]


async def test_an_ack_in_a_transaction_is_no_repetition(pg: Connection) -> None:
    """Outside, the second would be answered as the first; here the work beside it must not be done twice."""
    p, out = await partitions(pg, "q/p", "q/out")
    g = await group(pg, "q", "g")
    await push(pg, *named(p, "x"))
    got = await pop(pg, g)
    assert (await execute(pg, Transaction([Item(out, "1")], [Ack(p, "x", lease=got.lease, group="g")]))).outcomes == [1]
    assert (await execute(pg, Transaction([Item(out, "2")], [Ack(p, "x", lease=got.lease, group="g")]))).outcomes == [2]
    assert (await ack(pg, Ack(p, "x", lease=got.lease, group="g")))[0].success
    assert await pg.fetchval("SELECT count(*) FROM queen.messages WHERE partition_id = $1", out) == 1


async def test_failing_and_dead_lettering_in_a_transaction_are_undone_with_it(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await push(pg, *named(p, "x", "y"))
    got = await pop(pg, g)
    done = await execute(pg, Transaction(acks=[Ack(p, "x", "dlq", got.lease), Ack(p, "nobody", lease=got.lease)]))
    assert done.outcomes == [2]
    assert await pg.fetchval("SELECT count(*) FROM queen.dead_letter_queue") == 0
    assert [one.success for one in await ack_all(pg, got)] == [True, True]


async def test_a_sleeping_partition_or_old_options_end_the_call_without_effect(pg: Connection) -> None:
    p, other = await partitions(pg, "q/p", "q/other")
    row = await pg.fetchrow("SELECT * FROM queen.make_partitions('{q}', '{p}')")
    assert row is not None
    call = (
        "SELECT * FROM queen.execute_transaction(1, $1, '{1}', '{1}', '{x}', '{1}', NULL, NULL, NULL, NULL, NULL,"
        " '{}', '{}', '{}', '{}', NULL, NULL, '{}', '{}', '{}', $2, $3)"
    )
    assert await pg.fetchrow(call, [p], row["queue_ids"], row["versions"])
    await pg.fetchval("""SELECT queen.configure_queue('q', NULL, NULL, '{"priority": 1}')""")
    with pytest.raises(asyncpg.PostgresError) as caught:
        await pg.fetchrow(call, [p], row["queue_ids"], row["versions"])
    assert caught.value.sqlstate == "QM003"
    await pg.fetchval("SELECT queen.sleep_partition($1)", other)
    with pytest.raises(asyncpg.PostgresError) as caught:
        await execute(pg, Transaction([Item(p, "y"), Item(other, "y")]))
    assert caught.value.sqlstate == "QM001"
    assert await pg.fetchval("SELECT count(*) FROM queen.messages") == 1
