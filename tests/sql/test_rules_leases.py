"""Rules 13 (when a lease ends, when the partition may be claimed again) and 16 (the head moved)."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
import pytest
from tests.sql.support import (
    Ack,
    Connection,
    Item,
    Popped,
    ack,
    ack_all,
    consumer,
    drain,
    group,
    named,
    numbered,
    partitions,
    pop,
    push,
    until_blocked,
)

from queenmq.testing.clock import move_clock

if TYPE_CHECKING:
    from tests.sql.conftest import Connect

DAYS = 3 * 86400


async def leased(pg: Connection, count: int = 3) -> tuple[int, int, Popped]:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await push(pg, *numbered(p, 1, count))
    return p, g, await pop(pg, g)


async def configure(pg: Connection, options: str) -> None:
    await pg.fetchval("SELECT queen.configure_queue('q', NULL, NULL, $1::jsonb)", options)


async def test_a_lease_ends_with_the_answer_to_its_last_message(clock: Connection) -> None:
    p, g, got = await leased(clock)
    for number, status in ((2, "completed"), (1, "failed"), (3, "retry")):
        [done] = await ack(clock, Ack(p, f"m{number}", status, got.lease))
        assert (done.success, done.released) == (True, number == 3)
    row = await consumer(clock, p, g)
    assert row["lease_id"] is None
    # The failed one is at the head: its moment is the partition's.
    assert row["ready_at"] == await clock.fetchval("SELECT queen.now()") + timedelta(seconds=1)
    assert (await pop(clock, g)).rows == []
    await move_clock(clock, 1)
    again = await pop(clock, g)
    assert [(row["seq"], row["attempts"]) for row in again.rows] == [(1, 1), (3, 0)]


async def test_a_lease_ends_on_release_without_counting(clock: Connection) -> None:
    p, g, got = await leased(clock)
    await ack(clock, Ack(p, "m1", "completed", got.lease))
    await clock.fetchrow("SELECT * FROM queen.release_leases(ARRAY[$1::uuid], ARRAY[false])", got.lease)
    again = await pop(clock, g)
    assert [(row["seq"], row["attempts"]) for row in again.rows] == [(2, 0), (3, 0)]
    [late] = await ack(clock, Ack(p, "m2", "completed", got.lease))
    assert (late.success, late.error) == (False, "Invalid or expired lease")


async def test_a_lease_ends_at_its_end(clock: Connection) -> None:
    p, g, got = await leased(clock)
    await move_clock(clock, 299.9)
    assert (await pop(clock, g)).rows == []
    await move_clock(clock, 0.1)
    [late] = await ack(clock, Ack(p, "m1", "completed", got.lease))
    assert (late.success, late.error) == (False, "Invalid or expired lease")
    again = await pop(clock, g)
    assert [(row["seq"], row["attempts"]) for row in again.rows] == [(1, 1), (2, 0), (3, 0)]


async def test_an_expiry_counts_only_the_first_message_without_an_answer(clock: Connection) -> None:
    p, g, got = await leased(clock)
    await ack(clock, Ack(p, "m1", "completed", got.lease))
    await move_clock(clock, 301)
    again = await pop(clock, g)
    assert [(row["seq"], row["attempts"]) for row in again.rows] == [(2, 1), (3, 0)]
    await move_clock(clock, 301)
    assert [row["attempts"] for row in (await pop(clock, g)).rows] == [2, 0]


async def test_a_late_failure_without_lease_is_not_counted_twice(clock: Connection) -> None:
    p, g, _ = await leased(clock, 1)
    await move_clock(clock, 301)
    await ack(clock, Ack(p, "m1", "failed", group="g"))
    await move_clock(clock, 2)
    assert [row["attempts"] for row in (await pop(clock, g)).rows] == [1]


@pytest.mark.parametrize("way", ["remove", "delete"])
async def test_removing_the_last_open_message_ends_the_lease(pg: Connection, way: str) -> None:
    p, g, got = await leased(pg)
    await ack(pg, Ack(p, "m1", lease=got.lease), Ack(p, "m3", lease=got.lease))
    if way == "remove":
        await pg.fetchval("SELECT queen.remove_messages($1, 2, 2, 'ttl')", p)
    else:
        await pg.execute("DELETE FROM queen.messages WHERE seq = 2")
    row = await consumer(pg, p, g)
    assert (row["lease_id"], row["cursor_seq"]) == (None, 3)
    assert await drain(pg, g) == []


async def test_an_unknown_id_counts_as_removed_where_the_batch_meets_a_removal(pg: Connection) -> None:
    p, g, got = await leased(pg)
    await pg.fetchval("SELECT queen.remove_messages($1, 2, 2, 'ttl')", p)
    done = await ack(pg, *(Ack(p, f"m{number}", lease=got.lease) for number in (1, 2, 3)))
    assert [(one.success, one.error) for one in done] == [(True, None), (True, "removed: ttl"), (True, None)]
    assert all(one.released for one in done)
    await push(pg, *named(p, "m4"))
    got = await pop(pg, g)
    [unknown] = await ack(pg, Ack(p, "nobody", lease=got.lease))
    assert (unknown.success, unknown.error) == (False, "Message not found")


async def test_each_partition_of_a_lease_ends_by_itself(pg: Connection) -> None:
    a, b = await partitions(pg, "q/a", "q/b")
    g = await group(pg, "q", "g")
    await push(pg, *named(a, "x"), *named(b, "y"))
    got = await pop(pg, g, spread=2)
    [done] = await ack(pg, Ack(a, "x", lease=got.lease))
    assert done.released
    assert (await consumer(pg, b, g))["lease_id"] == got.lease
    await push(pg, *named(a, "z"))
    assert (await pop(pg, g)).ids == ["z"]
    row = await pg.fetchrow("SELECT * FROM queen.extend_leases(ARRAY[$1::uuid, $2::uuid], ARRAY[600, 600])", got.lease, uuid.uuid4())
    assert row is not None
    assert [one is None for one in row["expires_at"]] == [False, True]


async def test_extending_prolongs_and_never_shortens(clock: Connection) -> None:
    p, g, got = await leased(clock)
    now = await clock.fetchval("SELECT queen.now()")
    for seconds, expected in ((10, 300), (600, 600), (60, 600)):
        row = await clock.fetchrow("SELECT * FROM queen.extend_leases(ARRAY[$1::uuid], ARRAY[$2::int])", got.lease, seconds)
        assert row is not None
        assert row["expires_at"] == [now + timedelta(seconds=expected)]
        assert (await consumer(clock, p, g))["ready_at"] == now + timedelta(seconds=expected)
    await move_clock(clock, 600)
    row = await clock.fetchrow("SELECT * FROM queen.extend_leases(ARRAY[$1::uuid], ARRAY[60])", got.lease)
    assert row is not None
    assert row["expires_at"] == [None]


async def test_a_live_lease_is_exclusive_whatever_made_the_partition_ready(clock: Connection) -> None:
    """A wrong ready_at delivers nothing twice."""
    _, g, got = await leased(clock)
    await clock.execute("UPDATE queen.partition_consumers SET ready_at = queen.now()")
    assert (await pop(clock, g)).rows == []
    assert all(one.success for one in await ack_all(clock, got))


async def test_leases_are_found_by_a_partial_index(pg: Connection) -> None:
    definition = await pg.fetchval("SELECT pg_get_indexdef('queen.partition_consumers_lease'::regclass)")
    assert "(lease_id) WHERE (lease_id IS NOT NULL)" in definition


# -- rule 16: what waits behind a moment is looked at again when the head moves


@pytest.mark.parametrize("way", ["remove", "delete", "seek", "seek all", "configure", "settle"])
async def test_what_waited_behind_a_long_delay_is_delivered_once_the_head_moves(clock: Connection, way: str) -> None:
    [p] = await partitions(clock, "q/p")
    g = await group(clock, "q", "g")
    if way == "configure":
        await configure(clock, f'{{"delayedProcessing": {DAYS}}}')
        await push(clock, *named(p, "late", "next"))
    else:
        await push(clock, Item(p, "late", delay=DAYS), Item(p, "next"))
    assert (await pop(clock, g)).rows == []
    assert (await consumer(clock, p, g))["ready_at"] > await clock.fetchval("SELECT queen.now()") + timedelta(days=2)
    if way == "remove":
        await clock.fetchval("SELECT queen.remove_messages($1, 1, 1, 'test')", p)
    elif way == "delete":
        await clock.execute("DELETE FROM queen.messages WHERE seq = 1")
    elif way == "configure":
        await configure(clock, '{"delayedProcessing": 0}')
    elif way == "settle":
        await ack(clock, Ack(p, "late", group="g"))
    else:
        await clock.fetchval("SELECT queen.seek('q', 'g', $1, 2)", "p" if way == "seek" else None)
    assert [one for _, one in await drain(clock, g)] == (["late", "next"] if way == "configure" else ["next"])


@pytest.mark.parametrize("change", ['{"windowBuffer": 0}', '{"windowMaxWait": 1}', '{"retryDelay": 0}', '{"ttl": 1}'])
async def test_options_that_bring_a_moment_forward_act_at_once(clock: Connection, change: str) -> None:
    """P14."""
    [p] = await partitions(clock, "q/p")
    g = await group(clock, "q", "g")
    await push(clock, *named(p, "x", "y"))
    if "retry" in change:
        await configure(clock, f'{{"retryDelay": {DAYS * 1000}}}')
        await ack(clock, Ack(p, "x", "failed", (await pop(clock, g, batch=1)).lease))
    elif "window" in change:
        await configure(clock, f'{{"windowBuffer": {DAYS}}}')
    else:
        await clock.execute("UPDATE queen.messages SET not_before = queen.now() + interval '3 days' WHERE seq = 1")
    assert (await pop(clock, g)).rows == []
    assert (await pop(clock, g)).told["next"] is not None
    await configure(clock, change)
    await move_clock(clock, 2)
    if "ttl" in change:
        await push(clock, *named(p, "z"))
        assert (await pop(clock, g)).ids == ["z"]
    else:
        assert (await pop(clock, g)).ids == ["x", "y"]


async def test_a_change_of_moments_leaves_leased_partitions_alone(clock: Connection) -> None:
    p, g, got = await leased(clock)
    until = (await consumer(clock, p, g))["ready_at"]
    await configure(clock, '{"delayedProcessing": 5}')
    await clock.fetchval("SELECT queen.remove_messages($1, 1, 1, 'test')", p)
    row = await consumer(clock, p, g)
    assert (row["lease_id"], row["ready_at"]) == (got.lease, until)
    with pytest.raises(asyncpg.PostgresError) as caught:
        await clock.fetchval("SELECT queen.seek('q', 'g', p_to_end => true)")
    assert caught.value.sqlstate == "QM007"
    assert await clock.fetchval("SELECT queen.seek('q', 'g', p_seq => 1, p_force => true)") == 1
    late = await ack(clock, *(Ack(p, one, lease=got.lease, group="g") for one in got.ids))
    assert [one.error for one in late] == ["Invalid or expired lease"] * 3
    await move_clock(clock, 5)
    assert [(row["seq"], row["attempts"]) for row in (await pop(clock, g)).rows] == [(2, 0), (3, 0)]


async def test_a_configure_beside_a_claim_leaves_no_old_moment_behind(pg: Connection, connect: Connect) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await configure(pg, f'{{"delayedProcessing": {DAYS}}}')
    await push(pg, *named(p, "x"))
    claim, other = await connect(), await connect()
    await claim.execute("BEGIN")
    assert (await pop(claim, g)).rows == []
    configuring = asyncio.ensure_future(configure(other, '{"delayedProcessing": 0}'))
    await until_blocked(pg, other, configuring)
    await claim.execute("COMMIT")
    await configuring
    assert (await pop(pg, g)).ids == ["x"]


async def test_a_configure_beside_a_new_partition_leaves_no_old_moment_behind(pg: Connection, connect: Connect) -> None:
    await partitions(pg, "q/old")
    await configure(pg, f'{{"delayedProcessing": {DAYS}}}')
    g = await group(pg, "q", "g")
    maker, other = await connect(), await connect()
    await maker.execute("BEGIN")
    [p] = await partitions(maker, "q/p")
    await push(maker, *named(p, "x"))
    assert (await pop(maker, g, partition=p)).rows == []
    configuring = asyncio.ensure_future(configure(other, '{"delayedProcessing": 0}'))
    await until_blocked(pg, other, configuring)
    await maker.execute("COMMIT")
    await configuring
    assert await drain(pg, g) == [(p, "x")]
