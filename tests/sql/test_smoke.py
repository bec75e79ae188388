"""The plain way of a message through the SQL core."""

from __future__ import annotations

from tests.sql.support import Ack, Connection, Item, ack, ack_all, consumer, drain, group, named, numbered, partitions, pop, push


async def test_push_pop_ack(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    assert (await push(pg, *numbered(p, 1, 5))).seqs == [1, 2, 3, 4, 5]
    got = await pop(pg, g, batch=3)
    assert got.seqs == [1, 2, 3]
    assert [row["attempts"] for row in got.rows] == [0, 0, 0]
    assert (await pop(pg, g)).rows == []
    assert all(a.success and a.released for a in await ack_all(pg, got))
    assert await drain(pg, g) == [(p, "m4"), (p, "m5")]
    row = await consumer(pg, p, g)
    assert (row["cursor_seq"], row["ready_at"], row["acked"]) == (5, None, None)
    assert (await push(pg, *named(p, "m5", "n", "n"))).duplicates == [True, False, True]
    assert await drain(pg, g) == [(p, "n")]
    assert (await ack(pg, Ack(p, "n", group="g")))[0].success
    assert (await push(pg, Item(p, "x"), Item(p, "m1"))).seqs == [7, 1]
