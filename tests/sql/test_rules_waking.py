"""Nobody is left waiting for a message that is there: rules 1 (decide after the lock), 2 (drained), 3 (rows are born ready).

Sessions are interleaved by hand. Two planted bugs show that the checks can fail.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.sql.support import (
    Connection,
    ack_all,
    consumer,
    drain,
    group,
    named,
    outbox,
    partitions,
    plant,
    pop,
    push,
    stays_free,
    stranded,
    take_wakes,
    until_blocked,
)

if TYPE_CHECKING:
    from tests.sql.conftest import Connect


async def consumed(pg: Connection) -> tuple[int, int]:
    """A partition whose one message was acked: its row is still ready, the next claim finds it drained."""
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await push(pg, *named(p, "first"))
    await ack_all(pg, await pop(pg, g))
    return p, g


async def push_beside_a_draining_claim(pg: Connection, claim: Connection, pusher: Connection) -> int:
    p, g = await consumed(pg)
    await claim.execute("BEGIN")
    assert (await pop(claim, g)).rows == []
    pushing = asyncio.ensure_future(push(pusher, *named(p, "second")))
    await until_blocked(pg, pusher, pushing)
    await claim.execute("COMMIT")
    await stays_free(pushing)
    return await stranded(pg)


async def test_a_push_that_waited_for_a_claim_sees_the_null_it_set(pg: Connection, connect: Connect) -> None:
    assert await push_beside_a_draining_claim(pg, await connect(), await connect()) == 0


async def test_a_push_that_decides_before_its_lock_strands_the_message(pg: Connection, connect: Connect) -> None:
    """Planted: the drained rows are read in the same snapshot as the lock, or before it."""
    await plant(
        pg,
        "130_push_messages",
        "    SELECT * INTO bases, v_created FROM queen.lock_partitions(p_partitions, p_skip);",
        "    SELECT array_agg(c.partition_id), array_agg(c.group_id) INTO v_wake, v_groups FROM queen.partition_consumers c\n"
        "     WHERE c.partition_id = ANY (p_partitions) AND c.ready_at IS NULL;\n"
        "    SELECT * INTO bases, v_created FROM queen.lock_partitions(p_partitions, p_skip);",
        "    IF v_own THEN\n",
        "    IF false THEN\n",
    )
    assert await push_beside_a_draining_claim(pg, await connect(), await connect()) == 1


async def claim_beside_a_push(pg: Connection, pusher: Connection) -> tuple[int, int]:
    p, g = await consumed(pg)
    await pusher.execute("BEGIN")
    await push(pusher, *named(p, "second"))
    got = await pop(pg, g)
    assert got.rows == []
    held = bool(got.told["held"])
    await pusher.execute("COMMIT")
    return int(held), await stranded(pg)


async def test_a_claim_beside_a_pusher_writes_nothing_and_says_held(pg: Connection, connect: Connect) -> None:
    assert await claim_beside_a_push(pg, await connect()) == (1, 0)
    g = await group(pg, "q", "g")
    assert [one for _, one in await drain(pg, g)] == ["second"]


async def test_a_claim_that_drains_without_the_counters_lock_strands_the_message(pg: Connection, connect: Connect) -> None:
    """Planted: the claim believes its snapshot."""
    await plant(pg, "310_claim_carefully", "greatest(p_cursor + 1, first_seq) FOR SHARE SKIP LOCKED", "greatest(p_cursor + 1, first_seq)")
    assert await claim_beside_a_push(pg, await connect()) == (0, 1)


async def test_a_pusher_that_rolls_back_leaves_a_partition_that_drains(pg: Connection, connect: Connect) -> None:
    p, g = await consumed(pg)
    pusher = await connect()
    await pusher.execute("BEGIN")
    await push(pusher, *named(p, "second"))
    assert (await pop(pg, g)).told["held"]
    await pusher.execute("ROLLBACK")
    assert not (await pop(pg, g)).told["held"]
    assert (await consumer(pg, p, g))["ready_at"] is None


async def test_a_push_wakes_every_drained_group(pg: Connection) -> None:
    p, g = await consumed(pg)
    h = await group(pg, "q", "h")
    assert await drain(pg, h) == [(p, "first")]
    assert await drain(pg, g) == []
    await push(pg, *named(p, "second"))
    assert await drain(pg, g) == await drain(pg, h) == [(p, "second")]


async def test_a_pop_of_one_partition_locks_nothing_that_is_not_ready(pg: Connection, connect: Connect) -> None:
    p, g = await consumed(pg)
    await push(pg, *named(p, "second"))
    assert (await pop(pg, g)).rows
    other = await connect()
    await other.execute("BEGIN")
    assert (await pop(other, g, partition=p)).rows == []
    await pg.execute("SELECT FROM queen.partition_consumers FOR UPDATE NOWAIT")


async def test_a_claim_never_waits(pg: Connection, connect: Connect) -> None:
    a, b = await partitions(pg, "q/a", "q/b")
    g = await group(pg, "q", "g")
    await push(pg, *named(a, "x"), *named(b, "y"))
    other = await connect()
    await other.execute("BEGIN")
    await other.execute("SELECT FROM queen.partition_consumers WHERE partition_id = $1 FOR UPDATE", a)
    await other.execute("SELECT FROM queen.partition_lookup FOR UPDATE")
    assert (await stays_free(asyncio.ensure_future(pop(pg, g, spread=2)))).ids == ["y"]


# -- rule 3


async def test_a_group_made_beside_a_partition_waits_and_sees_it(pg: Connection, connect: Connect) -> None:
    await partitions(pg, "q/old")
    maker, grouper = await connect(), await connect()
    await maker.execute("BEGIN")
    [p] = await partitions(maker, "q/new")
    await push(maker, *named(p, "x"))
    making = asyncio.ensure_future(group(grouper, "q", "g"))
    await until_blocked(pg, grouper, making)
    await maker.execute("COMMIT")
    assert await drain(pg, await stays_free(making)) == [(p, "x")]


async def test_a_partition_beside_a_group_in_the_making_is_set_aside(pg: Connection, connect: Connect) -> None:
    await partitions(pg, "q/old", "other/p")
    grouper = await connect()
    await grouper.execute("BEGIN")
    g = await group(grouper, "q", "g", "new")
    row = await pg.fetchrow("SELECT * FROM queen.make_partitions('{q,other}', '{new,new}')")
    assert row is not None
    assert row["partition_ids"][0] is None
    assert row["partition_ids"][1] is not None
    await grouper.execute("COMMIT")
    [p] = await partitions(pg, "q/new")
    await push(pg, *named(p, "x"))
    assert await drain(pg, g) == [(p, "x")]


async def test_a_group_beside_a_partition_that_falls_asleep(pg: Connection, connect: Connect) -> None:
    [p] = await partitions(pg, "q/p")
    sleeper, grouper = await connect(), await connect()
    await sleeper.execute("BEGIN")
    assert await sleeper.fetchval("SELECT queen.sleep_partition($1)", p)
    making = asyncio.ensure_future(group(grouper, "q", "g"))
    await until_blocked(pg, grouper, making)
    await sleeper.execute("COMMIT")
    g = await stays_free(making)
    assert await pg.fetchval("SELECT count(*) FROM queen.partition_consumers") == 0
    await partitions(pg, "q/p")
    await push(pg, *named(p, "x"))
    assert await drain(pg, g) == [(p, "x")]


async def test_key_share_locks_on_the_queue_starve_nobody(pg: Connection, connect: Connect) -> None:
    await partitions(pg, "q/p")
    reader = await connect()
    await reader.execute("BEGIN")
    await reader.execute("SELECT FROM queen.queues FOR KEY SHARE")
    await stays_free(asyncio.ensure_future(group(pg, "q", "g")))
    await partitions(pg, "q/p2")


async def test_a_subscription_beside_a_new_queue_waits_and_sees_it(pg: Connection, connect: Connect) -> None:
    maker, subscriber = await connect(), await connect()
    await maker.execute("BEGIN")
    [p] = await partitions(maker, "a.b.c/p")
    await push(maker, *named(p, "x"))
    subscribing = asyncio.ensure_future(subscriber.fetchval("SELECT queen.make_subscription('a', NULL, 'g', 'all', NULL)"))
    await until_blocked(pg, subscriber, subscribing)
    await maker.execute("COMMIT")
    assert await stays_free(subscribing)
    g = await pg.fetchval("SELECT id FROM queen.consumer_groups_metadata WHERE queue_id IS NOT NULL")
    assert await drain(pg, g) == [(p, "x")]


async def test_a_new_queue_beside_a_subscription_in_the_making_is_set_aside(pg: Connection, connect: Connect) -> None:
    subscriber = await connect()
    await subscriber.execute("BEGIN")
    await subscriber.fetchval("SELECT queen.make_subscription('a', NULL, 'g', 'new', NULL)")
    row = await pg.fetchrow("SELECT * FROM queen.make_partitions('{a.b.c}', '{p}')")
    assert row is not None
    assert row["partition_ids"] == [None]
    await subscriber.execute("COMMIT")
    [p] = await partitions(pg, "a.b.c/p")
    await push(pg, *named(p, "x"))
    g = await pg.fetchval("SELECT id FROM queen.consumer_groups_metadata WHERE queue_id IS NOT NULL")
    assert await drain(pg, g) == [(p, "x")]


async def test_an_outbox_and_a_group_that_dont_see_each_other_meet_in_a_wake(pg: Connection, connect: Connect) -> None:
    await partitions(pg, "q/old")
    user, grouper = await connect(), await connect()
    await user.execute("BEGIN")
    await grouper.execute("BEGIN")
    await outbox(user, "q", "new", "x")
    g = await group(grouper, "q", "g", "new")
    await grouper.execute("COMMIT")
    await user.execute("COMMIT")
    assert await drain(pg, g) == []
    assert await take_wakes(pg) == 1
    assert [one for _, one in await drain(pg, g)] == ["x"]


async def test_an_outbox_and_a_subscription_that_dont_see_each_other_meet_in_a_wake(pg: Connection, connect: Connect) -> None:
    user, subscriber = await connect(), await connect()
    await user.execute("BEGIN")
    await outbox(user, "a.b.c", "p", "x")
    await subscriber.fetchval("SELECT queen.make_subscription('a', 'b', 'g', 'new', NULL)")
    await user.execute("COMMIT")
    # A partition that a server makes before it takes the wake.
    [later] = await partitions(pg, "a.b.c/later")
    await push(pg, *named(later, "y"))
    await take_wakes(pg)
    g = await pg.fetchval("SELECT id FROM queen.consumer_groups_metadata WHERE queue_id IS NOT NULL")
    assert sorted(one for _, one in await drain(pg, g)) == ["x", "y"]


async def test_an_outbox_and_a_first_pop_of_its_queue_meet(pg: Connection, connect: Connect) -> None:
    user = await connect()
    await user.execute("BEGIN")
    await outbox(user, "q", "p", "x")
    assert await pg.fetchval("SELECT queen.make_group('q', 'g', 'new', NULL)") is None
    assert await pg.fetchval("SELECT queen.make_group('q', 'h', 'all', NULL)") is None
    await user.execute("COMMIT")
    h = await group(pg, "q", "h")
    assert [one for _, one in await drain(pg, h)] == ["x"]
    await take_wakes(pg)
    g = await group(pg, "q", "g")
    assert [one for _, one in await drain(pg, g)] == ["x"]


async def test_a_group_whose_wake_is_pending_is_not_placed_at_the_end_by_a_configure(pg: Connection, connect: Connect) -> None:
    await partitions(pg, "q/old")
    user = await connect()
    await user.execute("BEGIN")
    await outbox(user, "q", "new", "x")
    g = await group(pg, "q", "g", "new")
    await user.execute("COMMIT")
    await pg.fetchval("SELECT queen.configure_queue('q', 'space', NULL, '{}')")
    await take_wakes(pg)
    assert [one for _, one in await drain(pg, g)] == ["x"]


async def test_a_partition_that_wakes_later_starts_before_the_message_that_woke_it(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g", "new")
    await push(pg, *named(p, "gone"))
    await pg.fetchval("SELECT queen.remove_messages($1, 1, 1, 'ttl')", p)
    assert await pg.fetchval("SELECT queen.sleep_partition($1)", p)
    assert await partitions(pg, "q/p") == [p]
    assert (await push(pg, *named(p, "x"))).seqs == [2]
    assert await drain(pg, g) == [(p, "x")]
