"""Rule 7: a claim walks on over what turns out to be drained or held, 1,000 rows at a time, and says where to go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.sql.support import Connection, ack_all, consumer, drain, group, named, partitions, pop, push, stays_free

from queenmq.testing.clock import move_clock

if TYPE_CHECKING:
    from tests.sql.conftest import Connect

MANY = 2_100


async def many(pg: Connection, queue: str = "q") -> list[int]:
    """More partitions than a walk examines, all of them ready for the groups that follow."""
    ids = []
    for start in range(0, MANY, 500):
        ids += await partitions(pg, *(f"{queue}/{number:05}" for number in range(start, min(start + 500, MANY))))
    return ids


async def walk(pg: Connection, g: int) -> tuple[list[str], int, bool]:
    """Claims until the walk ends: what was found, how many calls it took, whether something was held."""
    found: list[str] = []
    after, calls, held = (0, 0), 0, False
    while True:
        got = await stays_free(asyncio.ensure_future(pop(pg, g, after=after)))
        calls += 1
        held = held or got.told["held"]
        found += got.ids
        if got.rows or got.told["more"] is None:
            return found, calls, held
        assert got.told["group"] == g
        assert tuple(got.told["more"]) > after
        after = (got.told["more"][0], got.told["more"][1])


async def test_a_walk_goes_on_over_drained_and_over_held_partitions(pg: Connection, connect: Connect) -> None:
    ids = await many(pg)
    g = await group(pg, "q", "g")
    h = await group(pg, "q", "h")
    await push(pg, *named(ids[-1], "last"))
    # Over drained ones: each is written off once, and the message behind 2,099 of them is found.
    assert await walk(pg, g) == (["last"], 3, False)
    assert await pg.fetchval("SELECT count(*) FROM queen.partition_consumers WHERE group_id = $1 AND ready_at IS NULL", g) == MANY - 1
    # Over held ones: they are examined and left as they are.
    other = await connect()
    await other.execute("BEGIN")
    await other.execute("SELECT FROM queen.partition_lookup WHERE partition_id = ANY ($1) FOR NO KEY UPDATE", ids[:-1])
    assert await walk(pg, h) == (["last"], 3, True)
    assert await pg.fetchval("SELECT count(*) FROM queen.partition_consumers WHERE group_id = $1 AND ready_at IS NULL", h) == 0
    await other.execute("ROLLBACK")


async def test_only_examined_rows_are_locked(pg: Connection, connect: Connect) -> None:
    a, b = await partitions(pg, "q/a", "q/b")
    g = await group(pg, "q", "g")
    await push(pg, *named(a, "x"), *named(b, "y"))
    first = await connect()
    await first.execute("BEGIN")
    assert len((await pop(first, g)).rows) == 1
    second = await pop(pg, g)
    assert len(second.rows) == 1


async def test_the_walk_is_fair(clock: Connection) -> None:
    """What was served queues up behind the rest."""
    a, b, c = await partitions(clock, "q/a", "q/b", "q/c")
    g = await group(clock, "q", "g")
    await push(clock, *(one for p in (a, b, c) for one in named(p, *(f"{p}-{number}" for number in range(4)))))
    served = []
    for _ in range(6):
        await move_clock(clock, 1)
        got = await pop(clock, g, batch=1)
        served.append(got.rows[0]["partition_id"])
        await ack_all(clock, got)
    assert served == [a, b, c, a, b, c]


async def test_many_consumers_of_one_group_share_the_partitions(pg: Connection, connect: Connect) -> None:
    """No false empty while partitions wait, none given twice."""
    ids = await partitions(pg, *(f"q/{number}" for number in range(24)))
    g = await group(pg, "q", "g")
    await push(pg, *(one for p in ids for one in named(p, str(p))))
    consumers = [await connect() for _ in range(4)]

    async def consume(connection: Connection) -> list[str]:
        return [one for _ in range(6) for one in (await pop(connection, g)).ids]

    given = [one for each in await asyncio.gather(*(consume(one) for one in consumers)) for one in each]
    assert sorted(given) == sorted(map(str, ids))


async def test_one_claim_over_several_partitions_and_groups(pg: Connection) -> None:
    a, b, c = await partitions(pg, "q/a", "q/b", "r/c")
    g, h = await group(pg, "q", "g"), await group(pg, "r", "g")
    await push(pg, *(one for p in (a, b, c) for one in named(p, "1", "2", "3")))
    got = await pop(pg, g, h, batch=7, spread=3)
    assert [(row["partition_id"], row["seq"]) for row in got.rows] == [(a, 1), (a, 2), (a, 3), (b, 1), (b, 2), (b, 3), (c, 1)]
    assert {(await consumer(pg, p, at))["lease_id"] for p, at in ((a, g), (b, g), (c, h))} == {got.lease}
    assert (await pop(pg, g, h, spread=3)).rows == []


async def test_many_requests_in_one_call_answer_by_position(pg: Connection) -> None:
    a, b = await partitions(pg, "q/a", "q/b")
    g = await group(pg, "q", "g")
    await push(pg, *named(a, "1", "2"), *named(b, "3"))
    rows = await pg.fetch(
        "SELECT * FROM queen.pop_messages('{9,9,9}', '{1,1,1}', ARRAY[NULL, $2, NULL]::int[], ARRAY(SELECT gen_random_uuid() FROM"
        " generate_series(1, 3)), '{NULL,NULL,NULL}', '{1,2,3}', ARRAY[$1, $1, $1]::int[], '{0,0,0}', '{0,0,0}')",
        g,
        b,
    )
    assert [(row["request"], row["seq"]) for row in rows] == [(1, 1), (1, 2), (1, None), (2, 1), (2, None), (3, None)]


async def test_an_empty_claim_says_when_the_next_partition_is_ready(clock: Connection) -> None:
    [p] = await partitions(clock, "q/p")
    g = await group(clock, "q", "g")
    await push(clock, *named(p, "x"))
    got = await pop(clock, g, seconds=30)
    empty = await pop(clock, g)
    assert empty.told["next"] == await clock.fetchval("SELECT queen.micros(lease_until) FROM queen.partition_consumers")
    assert not empty.told["gone"]
    await ack_all(clock, got)
    assert await drain(clock, g) == []
    assert (await pop(clock, g)).told["next"] is None
    assert (await pop(clock, 999_999)).told["gone"]


@pytest.mark.parametrize("batch", [1, 3])
async def test_a_long_run_of_others_copies_is_walked_over_without_loss(pg: Connection, batch: int) -> None:
    """More than a claim scans at once, with some of ours right at the end of its budget."""
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await push(pg, *named(p, *(f"m{number}" for number in range(1, 2101))))
    ours = {1, 1001, 1002, 1500, 2100}
    await pg.execute(
        "INSERT INTO queen.message_audience SELECT $1, s, 'other' FROM generate_series(1, 2100) s WHERE NOT s = ANY ($2)", p, list(ours)
    )
    assert [int(one[1:]) for _, one in await drain(pg, g, batch=batch)] == sorted(ours)
    assert await pg.fetchval("SELECT count(*) FROM queen.removed_messages") == 0
