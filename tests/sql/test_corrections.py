"""The corrections of the design documents that concern the SQL core: each test plants the flaw's trigger and shows that ours holds."""

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
    ack,
    ack_all,
    consumer,
    drain,
    group,
    named,
    numbered,
    outbox,
    partitions,
    pop,
    push,
    until_blocked,
)

from queenmq.testing.clock import move_clock

if TYPE_CHECKING:
    from tests.sql.conftest import Connect


async def configure(pg: Connection, options: str) -> int:
    version = await pg.fetchval("SELECT queen.configure_queue('q', NULL, NULL, $1::jsonb) ->> 'version'", options)
    return int(version)


@pytest.mark.parametrize("way", ["push", "outbox", "insert"])
async def test_p1_p2_a_transaction_that_began_earlier_and_committed_later_is_not_skipped(
    pg: Connection, connect: Connect, way: str
) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    early = await connect()
    await early.execute("BEGIN")
    began = await early.fetchval("SELECT now()")
    await push(pg, *named(p, "second"))
    assert await drain(pg, g) == [(p, "second")]
    if way == "push":
        await push(early, *named(p, "first"))
    elif way == "outbox":
        await outbox(early, "q", "p", "first")
    else:
        await early.execute(
            "INSERT INTO queen.messages (partition_id, transaction_id, payload, created_at) VALUES ($1, 'first', '1', $2)", p, began
        )
    await early.execute("COMMIT")
    row = await pg.fetchrow("SELECT next_seq, last_message_created_at FROM queen.partition_lookup")
    assert row is not None
    assert row["next_seq"] == 3
    assert (
        row["last_message_created_at"] == await pg.fetchval("SELECT created_at FROM queen.messages WHERE transaction_id = 'first'") > began
    )
    assert await drain(pg, g) == [(p, "first")]


async def test_p1_commit_order_is_offset_order(pg: Connection, connect: Connect) -> None:
    """What is visible of a partition has no gap, whatever is under way."""
    [p] = await partitions(pg, "q/p")
    pushers = [await connect() for _ in range(4)]
    seen: list[list[int]] = []

    async def work(number: int) -> None:
        for turn in range(15):
            async with pushers[number].transaction():
                await push(pushers[number], *named(p, f"{number}-{turn}-a", f"{number}-{turn}-b"))
                await pushers[number].fetchval("SELECT 1")

    working = asyncio.gather(*(work(number) for number in range(4)))
    while not working.done():
        seen.append([row["seq"] for row in await pg.fetch("SELECT seq FROM queen.messages ORDER BY seq")])
    await working
    assert all(seqs == list(range(1, len(seqs) + 1)) for seqs in seen)
    assert await pg.fetchval("SELECT next_seq FROM queen.partition_lookup") == 121


async def test_p3_pushes_in_two_statements_over_two_partitions_take_one_lock_each(pg: Connection, connect: Connect) -> None:
    """One call locks both in order: the other way round it waits instead of deadlocking."""
    a, b = await partitions(pg, "q/a", "q/b")
    first, second = await connect(), await connect()
    await first.execute("BEGIN")
    await push(first, Item(b, "1"), Item(a, "1"))
    pushing = asyncio.ensure_future(push(second, Item(a, "2"), Item(b, "2")))
    await until_blocked(pg, second, pushing)
    await push(first, Item(a, "3"), Item(b, "3"))
    await first.execute("COMMIT")
    assert (await pushing).seqs == [3, 3]


async def test_p4_the_counter_has_no_index_but_its_key_and_its_updates_are_hot(pg: Connection) -> None:
    assert await pg.fetchval("SELECT count(*) FROM pg_index WHERE indrelid = 'queen.partition_lookup'::regclass") == 1
    updates = "SELECT n_tup_upd AS all, n_tup_hot_upd AS hot FROM pg_stat_user_tables WHERE relid = 'queen.partition_lookup'::regclass"
    [p] = await partitions(pg, "q/p")
    await pg.fetchval("SELECT pg_stat_force_next_flush()")
    before = await pg.fetchrow(updates)
    for number in range(40):
        await push(pg, *named(p, str(number)))
    await pg.fetchval("SELECT pg_stat_force_next_flush()")
    after = await pg.fetchrow(updates)
    assert before is not None
    assert after is not None
    assert after["all"] - before["all"] == 40
    assert after["hot"] - before["hot"] >= 36


async def test_p5_consumers_at_the_same_moment_get_a_partition_each(pg: Connection, connect: Connect) -> None:
    ids = await partitions(pg, *(f"q/{number}" for number in range(14)))
    g = await group(pg, "q", "g")
    await push(pg, *(Item(p, "x") for p in ids))
    consumers = [await connect() for _ in range(7)]
    for one in consumers:
        await one.execute("BEGIN")
    got = await asyncio.gather(*(pop(one, g, spread=2) for one in consumers))
    assert sorted(row["partition_id"] for each in got for row in each.rows) == sorted(ids)


async def test_p6_a_partition_that_is_fed_faster_than_its_window_is_served(clock: Connection) -> None:
    [p] = await partitions(clock, "q/p")
    g = await group(clock, "q", "g")
    await configure(clock, '{"windowBuffer": 3}')
    waited = 0
    while True:
        await push(clock, *named(p, str(waited)))
        if (await pop(clock, g)).rows:
            break
        await move_clock(clock, 1)
        waited += 1
        assert waited <= 31
    assert waited == 30
    await configure(clock, '{"windowMaxWait": 5}')
    [p] = await partitions(clock, "q/quiet")
    await push(clock, *named(p, "x"))
    assert (await pop(clock, g, partition=p)).rows == []
    await move_clock(clock, 3)
    assert (await pop(clock, g, partition=p)).ids == ["x"]


async def test_p7_time_goes_on_inside_a_transaction(pg: Connection) -> None:
    async with pg.transaction():
        first = await pg.fetchval("SELECT queen.now()")
        assert first > await pg.fetchval("SELECT now()")
        assert await pg.fetchval("SELECT queen.now()") > first


async def test_p8_resync_mends_what_came_in_unseen_and_then_has_nothing_to_do(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    assert await drain(pg, g) == []
    async with pg.transaction():
        await pg.execute("SET LOCAL queen.lookup_maintained = 'on'")
        await pg.execute(
            "INSERT INTO queen.messages (partition_id, seq, transaction_id, payload) VALUES ($1, 1, 'x', '1'), ($1, 2, 'y', '1')", p
        )
        await pg.execute("DELETE FROM queen.partition_consumers WHERE group_id <> $1", g)
    h = await group(pg, "q", "h")
    await pg.execute("DELETE FROM queen.partition_consumers WHERE group_id = $1", h)
    row = await pg.fetchrow("SELECT stale, rows, stranded FROM queen.resync_partition($1)", p)
    assert tuple(row or ()) == (1, 1, 1)
    row = await pg.fetchrow("SELECT stale, rows, stranded FROM queen.resync_partition($1)", p)
    assert tuple(row or ()) == (0, 0, 0)
    assert len(await drain(pg, g)) == len(await drain(pg, h)) == 2


async def test_p9_a_partition_that_looks_empty_does_not_fall_asleep_on_a_message(pg: Connection, connect: Connect) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    pusher, retention = await connect(), await connect()
    await pusher.execute("BEGIN")
    await push(pusher, *named(p, "x"))
    sleeping = asyncio.ensure_future(retention.fetchval("SELECT queen.sleep_partition($1)", p))
    await until_blocked(pg, retention, sleeping)
    await pusher.execute("COMMIT")
    assert await sleeping is False
    assert await drain(pg, g) == [(p, "x")]


async def test_p9_a_sleeper_keeps_its_id_and_its_count(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await push(pg, *numbered(p, 1, 3))
    await drain(pg, g)
    await pg.fetchval("SELECT queen.remove_messages($1, 1, 3, 'retention')", p)
    assert await pg.fetchval("SELECT queen.sleep_partition($1)", p)
    assert await pg.fetchval("SELECT asleep_next_seq FROM queen.partitions") == 4
    assert await partitions(pg, "q/p") == [p]
    assert (await push(pg, *named(p, "x"))).seqs == [4]
    assert await drain(pg, g) == [(p, "x")]


async def test_p10_a_partition_whose_last_message_was_removed_is_drained(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await push(pg, *numbered(p, 1, 3))
    assert await pg.fetchval("SELECT queen.backlog(queue_id) FROM queen.partitions") == 3
    await pg.fetchval("SELECT queen.remove_messages($1, 1, 3, 'retention')", p)
    assert (await pop(pg, g)).rows == []
    assert (await consumer(pg, p, g))["ready_at"] is None
    assert await pg.fetchval("SELECT queen.backlog(queue_id) FROM queen.partitions") == 0


async def test_p11_an_ack_of_the_last_message_moves_the_cursor_over_nothing_else(clock: Connection) -> None:
    [p] = await partitions(clock, "q/p")
    g = await group(clock, "q", "g")
    await push(clock, *numbered(p, 1, 5))
    got = await pop(clock, g)
    await ack(clock, Ack(p, "m5", lease=got.lease), Ack(p, "m2", lease=got.lease))
    row = await consumer(clock, p, g)
    assert row["cursor_seq"] == 0
    assert [(r.lower, r.upper) for r in row["acked"]] == [(2, 3), (5, 6)]
    await move_clock(clock, 301)
    assert (await pop(clock, g)).ids == ["m1", "m3", "m4"]
    [stale] = await ack(clock, Ack(p, "m1", lease=uuid.uuid4(), group="g"))
    assert not stale.success


async def test_p12_a_message_may_go_before_it_was_settled(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await push(pg, *numbered(p, 1, 6))
    got = await pop(pg, g, batch=3)
    await pg.fetchval("SELECT queen.remove_messages($1, 2, 4, 'ttl')", p)
    done = await ack_all(pg, got)
    assert [(one.success, one.error) for one in done] == [(True, None), (True, "removed: ttl"), (True, "removed: ttl")]
    assert await drain(pg, g) == [(p, "m5"), (p, "m6")]
    await push(pg, *numbered(p, 7, 9))
    await pg.fetchval("SELECT queen.remove_messages($1, 7, 9, 'ttl')", p)
    assert (await pop(pg, g)).rows == []
    row = await consumer(pg, p, g)
    assert (row["cursor_seq"], row["ready_at"]) == (9, None)


async def test_p12_any_other_missing_seq_is_data_loss_and_says_so(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await push(pg, *numbered(p, 1, 5))
    async with pg.transaction():
        await pg.execute("SET LOCAL queen.lookup_maintained = 'on'")
        await pg.execute("DELETE FROM queen.messages WHERE seq IN (2, 3)")
    said: list[str] = []
    pg.add_log_listener(lambda _, message: said.append(message.message))
    assert [one for _, one in await drain(pg, g)] == ["m1", "m4", "m5"]
    assert said == [f"queen: data loss: partition {p} lacks seq 2 to 3"]
    row = await pg.fetchrow("SELECT from_seq, to_seq, reason FROM queen.removed_messages")
    assert tuple(row or ()) == (2, 3, "lost")


async def test_p13_a_namespace_group_is_given_queues_and_partitions_that_appear_later(pg: Connection) -> None:
    [p] = await partitions(pg, "a.b.old/p")
    await push(pg, *named(p, "before"))
    assert await pg.fetchval("SELECT queen.make_subscription('a', 'b', 'g', 'new', NULL)")
    [q1] = await partitions(pg, "a.b.new/p")
    [other] = await partitions(pg, "a.c.new/p")
    [q2] = await partitions(pg, "a.b.old/later")
    await outbox(pg, "a.b.third", "p", "t")
    await push(pg, Item(p, "1"), Item(q1, "2"), Item(q2, "3"), Item(other, "4"))
    groups = [row["id"] for row in await pg.fetch("SELECT id FROM queen.consumer_groups_metadata WHERE queue_id IS NOT NULL ORDER BY id")]
    found = [one for g in groups for _, one in await drain(pg, g)]
    assert sorted(found) == ["1", "2", "3"]
    await pg.fetchrow("SELECT * FROM queen.take_wakes()")
    groups = [row["id"] for row in await pg.fetch("SELECT id FROM queen.consumer_groups_metadata WHERE queue_id IS NOT NULL ORDER BY id")]
    assert [one for g in groups for _, one in await drain(pg, g)] == ["t"]
    assert not await pg.fetchval("SELECT queen.make_subscription('a', 'b', 'g', 'all', NULL)")


async def test_p13_a_subscription_of_a_queue_that_does_not_exist_yet(pg: Connection) -> None:
    assert await pg.fetchval("SELECT queen.make_group('later', 'g', 'new', NULL)") is None
    assert await pg.fetchval("SELECT queen.make_group('later', 'g', 'all', NULL)") is None
    [p] = await partitions(pg, "later/p")
    await push(pg, *named(p, "x"))
    g = await group(pg, "later", "g")
    assert await drain(pg, g) == [(p, "x")]
    assert await pg.fetchval("SELECT count(*) FROM queen.consumer_groups_metadata") == 1


async def test_p14_lowering_a_retry_delay_leaves_no_old_moment(clock: Connection) -> None:
    [p] = await partitions(clock, "q/p")
    g = await group(clock, "q", "g")
    await configure(clock, '{"retryDelay": 86400000}')
    await push(clock, *named(p, "x"))
    await ack_all(clock, await pop(clock, g), "failed")
    assert (await pop(clock, g)).rows == []
    await configure(clock, '{"retryDelay": 2000}')
    assert (await pop(clock, g)).rows == []
    assert (await consumer(clock, p, g))["ready_at"] == await clock.fetchval("SELECT queen.now()") + timedelta(seconds=2)
    await move_clock(clock, 2)
    assert (await pop(clock, g)).ids == ["x"]


async def test_u7_a_push_under_old_options_has_no_effect(pg: Connection) -> None:
    await partitions(pg, "q/p")
    row = await pg.fetchrow("SELECT * FROM queen.make_partitions('{q}', '{p}')")
    assert row is not None
    assert await configure(pg, '{"encryptionEnabled": true}') == row["versions"][0] + 1
    statement = "SELECT * FROM queen.push_messages($1, '{1}', '{1}', '{0}', '{x}', '{1}', p_queues => $2, p_versions => $3)"
    with pytest.raises(asyncpg.PostgresError) as caught:
        await pg.fetchrow(statement, row["partition_ids"], row["queue_ids"], row["versions"])
    assert caught.value.sqlstate == "QM003"
    assert await pg.fetchval("SELECT count(*) FROM queen.messages") == 0
    again = await pg.fetchrow("SELECT * FROM queen.make_partitions('{q}', '{p}')")
    assert again is not None
    assert await pg.fetchrow(statement, again["partition_ids"], again["queue_ids"], again["versions"])


async def test_u11_fencing_by_lease_and_idempotent_pushes(clock: Connection) -> None:
    [p] = await partitions(clock, "q/p")
    g = await group(clock, "q", "g")
    assert (await push(clock, *named(p, "x"))).seqs == (await push(clock, *named(p, "x"))).seqs == [1]
    slow = await pop(clock, g)
    assert (await pop(clock, g)).rows == []
    await move_clock(clock, 301)
    fast = await pop(clock, g)
    assert fast.ids == ["x"]
    for status in ("completed", "failed", "dlq", "retry"):
        [late] = await ack(clock, Ack(p, "x", status, slow.lease, "g"))
        assert (late.success, late.error) == (False, "Invalid or expired lease")
    assert (await ack_all(clock, fast))[0].success
    # The slow one never answered: what another settled doesn't make its ack a repetition.
    [late] = await ack(clock, Ack(p, "x", "completed", slow.lease, "g"))
    assert not late.success


async def test_w5_what_was_claimed_for_a_client_that_left_is_free_at_once(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await push(pg, *named(p, "x"))
    got = await pop(pg, g)
    row = await pg.fetchrow("SELECT * FROM queen.release_leases(ARRAY[$1::uuid], ARRAY[false])", got.lease)
    assert row is not None
    assert row["ended"] == [got.lease]
    assert row["queues"] == [await pg.fetchval("SELECT id FROM queen.queues")]
    again = await pop(pg, g)
    assert [(row["transaction_id"], row["attempts"]) for row in again.rows] == [("x", 0)]


async def test_w5_auto_ack_settles_only_after_the_reply_was_written(clock: Connection) -> None:
    [p] = await partitions(clock, "q/p")
    g = await group(clock, "q", "g")
    await push(clock, *numbered(p, 1, 2))
    got = await pop(clock, g, batch=1)
    assert (await consumer(clock, p, g))["cursor_seq"] == 0
    await clock.fetchrow("SELECT * FROM queen.release_leases(ARRAY[$1::uuid], ARRAY[true])", got.lease)
    assert (await consumer(clock, p, g))["cursor_seq"] == 1
    # A reply that took longer than the lease settles nothing.
    got = await pop(clock, g)
    await move_clock(clock, 301)
    row = await clock.fetchrow("SELECT * FROM queen.release_leases(ARRAY[$1::uuid], ARRAY[true])", got.lease)
    assert row is not None
    assert row["ended"] is None
    assert (await pop(clock, g)).ids == ["m2"]
