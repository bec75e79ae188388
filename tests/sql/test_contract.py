"""What the contract promises of deliveries: attempts, dead letters, retries, acks with and without lease, groups, delays, windows."""

from __future__ import annotations

import json
import time
import uuid
from datetime import datetime, timedelta

import asyncpg
import pytest
from tests.sql.support import Ack, Connection, Item, ack, ack_all, consumer, drain, group, named, numbered, partitions, pop, push

from queenmq.testing.clock import move_clock

NOTHING = "Invalid or expired lease"


async def configure(pg: Connection, options: str, queue: str = "q") -> dict[str, object]:
    answer: dict[str, object] = json.loads(await pg.fetchval("SELECT queen.configure_queue($1, NULL, NULL, $2::jsonb)", queue, options))
    return answer


async def deliveries(clock: Connection, g: int, status: str | None) -> list[int]:
    """Retry counts of all deliveries until none follows; without a status the leases run out."""
    counts = []
    while (got := await pop(clock, g)).rows:
        counts.append(got.rows[0]["attempts"])
        if status is not None:
            await ack_all(clock, got, status)
        await move_clock(clock, 301)
        assert len(counts) < 20
    return counts


@pytest.mark.parametrize("status", ["failed", None])
async def test_a_retry_limit_of_three_means_four_deliveries(clock: Connection, status: str | None) -> None:
    [p] = await partitions(clock, "q/p")
    g = await group(clock, "q", "g")
    await push(clock, Item(p, "x", '{"a": 1}', headers='{"h": "1"}'))
    assert await deliveries(clock, g, status) == [0, 1, 2, 3]
    row = await clock.fetchrow("SELECT * FROM queen.dead_letter_queue")
    assert row is not None
    assert (row["transaction_id"], row["payload"], row["headers"]) == ("x", '{"a": 1}', '{"h": "1"}')
    assert (row["consumer_group"], row["retry_count"], row["seq"]) == ("g", 4, 1)
    assert row["error_message"] == (None if status else "the lease expired")
    assert (await consumer(clock, p, g))["cursor_seq"] == 1


async def test_dlq_is_at_once_and_retry_counts_nothing(clock: Connection) -> None:
    [p] = await partitions(clock, "q/p")
    g = await group(clock, "q", "g")
    await push(clock, *named(p, "x", "y"))
    got = await pop(clock, g)
    done = await ack(clock, Ack(p, "x", "dlq", got.lease, error="bad"), Ack(p, "y", "retry", got.lease))
    assert [(one.success, one.dead) for one in done] == [(True, True), (True, False)]
    row = await clock.fetchrow("SELECT error_message, retry_count FROM queen.dead_letter_queue")
    assert tuple(row or ()) == ("bad", 0)
    again = await pop(clock, g)
    assert [(row["transaction_id"], row["attempts"]) for row in again.rows] == [("y", 0)]


async def test_a_failed_message_holds_back_its_partition_but_not_what_was_acked_beyond(clock: Connection) -> None:
    [p, other] = await partitions(clock, "q/p", "q/other")
    g = await group(clock, "q", "g")
    await push(clock, *numbered(p, 1, 4), *named(other, "free"))
    got = await pop(clock, g, partition=p)
    done = await ack(clock, *(Ack(p, f"m{n}", "failed" if n == 2 else "completed", got.lease) for n in (1, 2, 3, 4)))
    assert all(one.success and one.released for one in done)
    await push(clock, *named(p, "m5"))
    assert (await pop(clock, g)).ids == ["free"]
    assert (await pop(clock, g)).rows == []
    await move_clock(clock, 1)
    again = await pop(clock, g)
    assert [(row["transaction_id"], row["attempts"]) for row in again.rows] == [("m2", 1), ("m5", 0)]


async def test_a_failure_outside_the_redelivered_batch_is_remembered(clock: Connection) -> None:
    """Two fail together and come again one by one."""
    [p] = await partitions(clock, "q/p")
    g = await group(clock, "q", "g")
    await configure(clock, '{"retryLimit": 1}')
    await push(clock, *named(p, "x", "y"))
    await ack_all(clock, await pop(clock, g), "failed")
    await move_clock(clock, 1)
    first = await pop(clock, g, batch=1)
    assert (await ack_all(clock, first))[0].released
    second = await pop(clock, g, batch=1)
    assert second.rows[0]["attempts"] == 1
    assert (await ack_all(clock, second, "failed"))[0].dead


async def test_acks_without_lease(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await push(pg, *numbered(p, 1, 4))
    got = await pop(pg, g, batch=3)

    async def plain(transaction_id: str, status: str = "completed") -> tuple[bool, str | None, bool]:
        [one] = await ack(pg, Ack(p, transaction_id, status, group="g"))
        return one.success, one.error, one.released

    assert await plain("m1") == (True, None, False)
    assert await plain("m1") == (True, None, False)
    assert await plain("m1", "failed") == (False, "Already settled", False)
    assert await plain("m4") == (True, None, False)
    assert await plain("m2", "failed") == (True, None, False)
    assert await plain("m2", "failed") == (True, None, False)
    assert await plain("m2") == (False, "Already answered: failed", False)
    assert await plain("nobody") == (False, "Message not found", False)
    assert (await consumer(pg, p, g))["lease_id"] == got.lease
    assert await plain("m3") == (True, None, True)
    assert (await consumer(pg, p, g))["cursor_seq"] == 1


async def test_queue_mode_is_the_group_of_an_ack_that_names_none(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    await group(pg, "q", "g")
    mode = await group(pg, "q")
    await push(pg, *named(p, "x", "y"))
    assert (await ack(pg, Ack(p, "x")))[0].success
    assert (await pop(pg, mode)).ids == ["y"]
    assert not (await ack(pg, Ack(p, "x", group="nobody")))[0].success
    assert not (await ack(pg, Ack(99_999, "x")))[0].success


async def test_a_lease_names_its_group(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await group(pg, "q")
    await push(pg, *named(p, "x"))
    got = await pop(pg, g)
    [foreign] = await ack(pg, Ack(p, "x", lease=got.lease, group="__QUEUE_MODE__"))
    assert (foreign.success, foreign.error) == (False, NOTHING)
    assert (await ack(pg, Ack(p, "x", lease=got.lease)))[0].success
    assert (await ack(pg, Ack(p, "x", lease=got.lease)))[0].success


async def test_repeating_an_ack_answers_as_the_first_did(clock: Connection) -> None:
    [p] = await partitions(clock, "q/p")
    g = await group(clock, "q", "g")
    await configure(clock, '{"retryLimit": 0}')
    await push(clock, *numbered(p, 1, 4))
    got = await pop(clock, g)
    statuses = {"m1": "completed", "m2": "failed", "m3": "retry", "m4": "dlq"}
    acks = [Ack(p, one, status, got.lease, "g") for one, status in statuses.items()]
    first = await ack(clock, *acks)
    assert [(one.success, one.error, one.dead) for one in first] == [
        (True, None, False),
        (True, None, True),
        (True, None, False),
        (True, None, True),
    ]
    again = await ack(clock, *acks)
    assert [(one.success, one.error, one.dead) for one in again] == [(one.success, one.error, one.dead) for one in first]
    others = await ack(clock, *(Ack(p, one, "failed" if one != "m2" else "completed", got.lease, "g") for one in statuses))
    assert [(one.success, one.error) for one in others] == [(False, NOTHING)] * 4
    assert await clock.fetchval("SELECT count(*) FROM queen.dead_letter_queue") == 2
    assert (await pop(clock, g)).ids == ["m3"]
    assert [one.success for one in await ack(clock, *acks)] == [True] * 4


async def test_repeating_an_ack_after_the_lease_ran_out(clock: Connection) -> None:
    [p] = await partitions(clock, "q/p")
    g = await group(clock, "q", "g")
    await push(clock, *named(p, "x", "y"))
    got = await pop(clock, g)
    assert (await ack(clock, Ack(p, "x", lease=got.lease)))[0].success
    await move_clock(clock, 301)
    for _ in range(2):
        done = await ack(clock, Ack(p, "x", lease=got.lease, group="g"), Ack(p, "y", lease=got.lease, group="g"))
        assert [one.success for one in done] == [True, False]
        assert (await pop(clock, g)).ids in (["y"], [])


async def test_acking_what_retention_removed_after_all_had_settled_it(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await push(pg, *named(p, "x"))
    got = await pop(pg, g)
    await ack_all(pg, got)
    await pg.fetchval("SELECT queen.remove_messages($1, 1, 1, 'retention')", p)
    assert await pg.fetchval("SELECT count(*) FROM queen.removed_messages") == 0
    assert (await ack(pg, Ack(p, "x", lease=got.lease, group="g")))[0].success


async def test_a_copy_for_one_group_is_given_to_no_other(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g, h = await group(pg, "q", "g"), await group(pg, "q", "h")
    await push(pg, *named(p, "a", "copy", "b"))
    await pg.execute("INSERT INTO queen.message_audience VALUES ($1, 2, 'h')", p)
    got = await pop(pg, g)
    assert got.ids == ["a", "b"]
    assert all(one.released for one in await ack_all(pg, got))
    assert [one for _, one in await drain(pg, h)] == ["a", "copy", "b"]
    assert await drain(pg, g) == []


async def test_groups_do_not_notice_each_other(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g, h = await group(pg, "q", "g"), await group(pg, "q", "h")
    await push(pg, *named(p, "x"))
    assert (await pop(pg, g)).ids == (await pop(pg, h)).ids == ["x"]


@pytest.mark.parametrize(
    "payload", ['{ "b" : 1,\n\t"a":[1.0 , 2e5,"\\u00e9é"],"a":null }', '"x"', "null", "0.10000000000000000001", '{"":""}', " [ ] "]
)
async def test_payloads_come_back_byte_for_byte(pg: Connection, payload: str) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    trace = uuid.uuid4()
    await push(pg, Item(p, "plain", payload))
    await push(pg, Item(p, "rich", payload, trace=trace, headers='{ "k":"v" }'))
    plain, rich = (await pop(pg, g)).rows
    assert plain["payload"] == rich["payload"] == payload
    assert (rich["trace_id"], rich["headers"]) == (trace, '{ "k":"v" }')
    assert (plain["trace_id"], plain["headers"]) == (None, None)


async def test_a_message_id_is_the_messages_address(pg: Connection) -> None:
    for partition, seq in ((1, 1), (2**31 - 1, 2**63 - 1), (77, 2**48), (5, 2**48 - 1)):
        made = await pg.fetchval("SELECT queen.message_id($1, $2)", partition, seq)
        assert made.version == 8
        assert made.variant == uuid.RFC_4122
        assert tuple((await pg.fetch("SELECT * FROM queen.message_address($1)", made))[0]) == (partition, seq)
    assert await pg.fetch("SELECT * FROM queen.message_address($1)", uuid.uuid4()) == []
    given = await pg.fetchval("SELECT queen.push('q', 'p', '1', 'x')")
    assert await pg.fetchval("SELECT queen.push('q', 'p', '1', 'x')") == given
    assert (
        await pg.fetchval(
            "SELECT transaction_id FROM queen.messages m, queen.message_address($1) a WHERE (m.partition_id, m.seq) = a", given
        )
        == "x"
    )


@pytest.mark.parametrize(("mode", "expected"), [("all", "abc"), ("new", "c"), ("from", "bc")])
async def test_subscription_modes(clock: Connection, mode: str, expected: str) -> None:
    [p] = await partitions(clock, "q/p")
    await push(clock, *named(p, "a"))
    await move_clock(clock, 10)
    moment: datetime = await clock.fetchval("SELECT queen.now()")
    await push(clock, *named(p, "b"))
    g = await group(clock, "q", "g", mode, moment if mode == "from" else None)
    assert await group(clock, "q", "g", "all") == g
    await push(clock, *named(p, "c"))
    assert "".join(one for _, one in await drain(clock, g)) == expected


async def test_subscription_from_a_moment_in_a_partition_with_gaps(clock: Connection) -> None:
    [p] = await partitions(clock, "q/p")
    moments: list[datetime] = []
    for number in range(1, 31):
        await push(clock, *named(p, f"m{number}"))
        moments.append(await clock.fetchval("SELECT queen.now()"))
        await move_clock(clock, 1)
    await clock.execute("DELETE FROM queen.messages WHERE seq % 3 = 1")
    left = [number for number in range(1, 31) if number % 3 != 1]
    for at in (0, 1, 9, 12, 29):
        g = await group(clock, "q", f"g{at}", "from", moments[at])
        assert [int(one[1:]) for _, one in await drain(clock, g)] == [number for number in left if number > at]
    late = await group(clock, "q", "late", "from", moments[-1] + timedelta(seconds=5))
    assert await drain(clock, late) == []


async def test_a_delayed_message_holds_what_follows_in_its_partition(clock: Connection) -> None:
    p, other = await partitions(clock, "q/p", "q/other")
    g = await group(clock, "q", "g")
    await push(clock, Item(p, "a"), Item(p, "b", delay=30), Item(p, "c"), Item(other, "free"))
    assert sorted((await pop(clock, g, spread=2)).ids) == ["a", "free"]
    [done] = await ack(clock, Ack(p, "a", group="g"))
    assert done.released
    assert (await pop(clock, g)).told["next"] == await clock.fetchval("SELECT queen.micros(queen.now()) + 30000000")
    await move_clock(clock, 30)
    assert (await pop(clock, g)).ids == ["b", "c"]


async def test_a_queues_delay(clock: Connection) -> None:
    [p] = await partitions(clock, "q/p")
    g = await group(clock, "q", "g")
    await configure(clock, '{"delayedProcessing": 10}')
    await push(clock, *named(p, "a"))
    await move_clock(clock, 6)
    await push(clock, *named(p, "b"))
    await move_clock(clock, 4)
    got = await pop(clock, g)
    assert got.ids == ["a"]
    await ack_all(clock, got)
    assert (await pop(clock, g)).rows == []
    await move_clock(clock, 6)
    assert (await pop(clock, g)).ids == ["b"]


async def test_a_ttl_acts_only_where_it_was_configured(clock: Connection) -> None:
    p, other = await partitions(clock, "q/p", "other/p")
    g, h = await group(clock, "q", "g"), await group(clock, "other", "h")
    answer = await configure(clock, '{"ttl": 60}')
    options = answer["options"]
    assert isinstance(options, dict)
    assert options["ttl"] == 60
    await push(clock, *named(p, "old"), *named(other, "old"))
    await move_clock(clock, 3601)
    await push(clock, *named(p, "young"))
    assert [one for _, one in await drain(clock, g)] == ["young"]
    assert [one for _, one in await drain(clock, h)] == ["old"]


async def test_a_partial_configure_merges_and_echoes_every_option(pg: Connection) -> None:
    first = await configure(pg, '{"leaseTime": 5, "windowBuffer": 2}', "a.b.c")
    assert (first["namespace"], first["task"]) == ("a", "b")
    second = await configure(pg, '{"retryLimit": 9}', "a.b.c")
    off = ("deadLetterQueue", "dlqAfterMaxRetries", "encryptionEnabled", "retentionEnabled", "retentionWaitsForArchive")
    zero = ("maxSize", "priority", "delayedProcessing", "retentionSeconds", "completedRetentionSeconds", "maxWaitTimeSeconds")
    defaults = {"retryDelay": 1000, "ttl": 3600} | dict.fromkeys(off, False) | dict.fromkeys(zero, 0)
    assert second["options"] == defaults | {"leaseTime": 5, "windowBuffer": 2, "windowMaxWait": 20, "retryLimit": 9}


async def test_a_pops_own_lease_time(clock: Connection) -> None:
    [p] = await partitions(clock, "q/p")
    g = await group(clock, "q", "g")
    await configure(clock, '{"leaseTime": 50}')
    await push(clock, *named(p, "x"))
    now: datetime = await clock.fetchval("SELECT queen.now()")
    got = await pop(clock, g, seconds=7)
    assert (await consumer(clock, p, g))["lease_until"] == now + timedelta(seconds=7)
    await ack_all(clock, got, "retry")
    await pop(clock, g)
    assert (await consumer(clock, p, g))["lease_until"] == now + timedelta(seconds=50)


async def test_a_seek_forgets_what_lay_above_and_ends_the_lease(clock: Connection) -> None:
    [p, q2] = await partitions(clock, "q/p", "q/p2")
    g = await group(clock, "q", "g")
    await push(clock, *numbered(p, 1, 5), *numbered(q2, 1, 2))
    got = await pop(clock, g, partition=p)
    await ack(clock, Ack(p, "m2", "failed", got.lease), Ack(p, "m4", lease=got.lease))
    assert await clock.fetchval("SELECT queen.seek('q', 'g', 'p', 2, p_force => true)") == 1
    row = await consumer(clock, p, g)
    assert [row[name] for name in ("cursor_seq", "acked", "answered", "attempts", "lease_id", "last_lease_id")] == [1, *[None] * 5]
    again = await pop(clock, g, partition=p)
    assert [(row["seq"], row["attempts"]) for row in again.rows] == [(2, 0), (3, 0), (4, 0), (5, 0)]
    assert await clock.fetchval("SELECT queen.seek('q', 'g', p_to_end => true, p_force => true)") == 2
    assert await drain(clock, g) == []
    assert await clock.fetchval("SELECT queen.seek('q', 'g', p_seq => 1)") == 2
    assert len(await drain(clock, g)) == 7
    for arguments in ("", ", p_seq => 1, p_to_end => true", ", p_seq => 0"):
        with pytest.raises(asyncpg.PostgresError) as caught:
            await clock.fetchval(f"SELECT queen.seek('q', 'g'{arguments})")
        assert caught.value.sqlstate == "QM010"


async def test_a_seek_moves_partitions_whose_wake_is_pending(pg: Connection) -> None:
    await partitions(pg, "q/old")
    g = await group(pg, "q", "g")
    await pg.fetchval("SELECT queen.push('q', 'new', '1', 'x')")
    assert await pg.fetchval("SELECT queen.seek('q', 'g', p_to_end => true)") == 2
    await pg.fetchrow("SELECT * FROM queen.take_wakes()")
    assert await drain(pg, g) == []
    await pg.fetchval("SELECT queen.push('q', 'new', '1', 'y')")
    assert [one for _, one in await drain(pg, g)] == ["y"]


async def test_the_outbox_refuses_what_the_api_refuses(pg: Connection) -> None:
    for arguments in (
        "'', 'p', '1'",
        "'q', '', '1'",
        "'q', 'p', NULL",
        "'q', 'p', '1', ''",
        "repeat('q', 256), 'p', '1'",
        "'q', 'p', '1', p_delay_seconds => -1",
    ):
        with pytest.raises(asyncpg.PostgresError) as caught:
            await pg.fetchval(f"SELECT queen.push({arguments})")
        assert caught.value.sqlstate == "QM010"
    assert await pg.fetchval("SELECT count(*) FROM queen.queues") == 0


async def test_a_queues_backlog_is_that_of_the_group_that_is_furthest_behind(pg: Connection) -> None:
    p, other = await partitions(pg, "q/p", "q/other")
    queue = await pg.fetchval("SELECT id FROM queen.queues")
    await push(pg, *numbered(p, 1, 10), *numbered(other, 1, 5))
    assert await pg.fetchval("SELECT queen.backlog($1)", queue) == 15
    g, h = await group(pg, "q", "g"), await group(pg, "q", "h")
    await drain(pg, g)
    assert await pg.fetchval("SELECT queen.backlog($1)", queue) == 15
    await ack(pg, Ack(p, "m4", group="h"), Ack(p, "m6", group="h"))
    assert await pg.fetchval("SELECT queen.backlog($1)", queue) == 13
    await pg.execute("DELETE FROM queen.messages WHERE partition_id = $1 AND seq IN (1, 2, 4, 8)", p)
    assert await pg.fetchval("SELECT queen.backlog($1)", queue) == 10
    await drain(pg, h)
    assert await pg.fetchval("SELECT queen.backlog($1)", queue) == 0


async def test_deleting_every_other_message_by_hand_costs_what_it_should(pg: Connection) -> None:
    """Thousands of holes: neither the deletion nor the claims and acks after it grow with their square."""
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await push(pg, *numbered(p, 1, 6000))
    start = time.monotonic()
    await pg.execute("DELETE FROM queen.messages WHERE seq % 2 = 0")
    got = await pop(pg, g, batch=1000)
    await ack_all(pg, got)
    assert time.monotonic() - start < 5
    assert got.seqs == list(range(1, 2000, 2))
    assert (await consumer(pg, p, g))["cursor_seq"] >= 1999
