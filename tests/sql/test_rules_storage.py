"""Rules 8 (duplicates), 9 (created_at), 10 (no foreign key), 11 (plain INSERT), 12 (NOTIFY), 15 (no superuser)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.sql.support import (
    Connection,
    Item,
    ack_all,
    drain,
    group,
    named,
    numbered,
    outbox,
    partitions,
    plant,
    pop,
    push,
    push_packed,
    stranded,
    until_blocked,
)

from queenmq.testing.clock import move_clock, set_clock

if TYPE_CHECKING:
    from tests.sql.conftest import Connect

HANGS_ON_A_QUEUE = (
    *("queues", "partitions", "partition_lookup", "partition_consumers", "messages", "removed_messages", "message_audience", "wakes"),
    *("dead_letter_queue", "consumer_groups_metadata", "messages_consumed"),
)


async def counter(pg: Connection, partition: int) -> tuple[int, int]:
    row = await pg.fetchrow("SELECT first_seq, next_seq FROM queen.partition_lookup WHERE partition_id = $1", partition)
    assert row is not None
    return row[0], row[1]


async def insert(pg: Connection, partition: int, *ids: str) -> None:
    await pg.execute(
        "INSERT INTO queen.messages (partition_id, transaction_id, payload) SELECT $1, t, '{}' FROM unnest($2::text[]) t", partition, ids
    )


# -- rule 8


async def test_duplicates_inside_a_call_and_against_what_is_stored(pg: Connection) -> None:
    a, b = await partitions(pg, "q/a", "q/b")
    assert (await push(pg, *named(a, "x"))).seqs == [1]
    done = await push(pg, Item(a, "x"), Item(b, "x"), Item(a, "y"), Item(b, "x"), Item(a, "y"), Item(a, "z"))
    assert done.seqs == [1, 1, 2, 1, 2, 3]
    assert done.duplicates == [True, False, False, True, True, False]
    assert await counter(pg, a) == (1, 4)
    assert await counter(pg, b) == (1, 2)
    assert await pg.fetchval("SELECT count(*) FROM queen.removed_messages") == 0


@pytest.mark.parametrize(
    "rest", ["", ", p_skip => true", ", p_headers => ARRAY[NULL, '{}', NULL]::json[]", ", p_delays => '{NULL,1,NULL}'"]
)
async def test_one_partition_needs_no_positions(pg: Connection, rest: str) -> None:
    [p] = await partitions(pg, "q/p")
    call = f"SELECT bases, seqs, duplicates FROM queen.push_messages($1, '{{3}}', NULL, NULL, $2, '{{1,2,3}}'{rest})"
    row = await pg.fetchrow(call, [p], ["a", "b", "c"])
    assert row is not None
    assert (row["bases"], row["seqs"]) == ([1], None)
    row = await pg.fetchrow(call, [p], ["d", "b", "d"])
    assert row is not None
    assert (row["seqs"], row["duplicates"]) == ([4, 2, 4], [False, True, True])
    stored = await pg.fetch("SELECT seq, transaction_id, payload, headers FROM queen.messages ORDER BY seq")
    assert [(row["seq"], row["transaction_id"], row["payload"]) for row in stored] == [
        (1, "a", "1"),
        (2, "b", "2"),
        (3, "c", "3"),
        (4, "d", "1"),
    ]
    assert await counter(pg, p) == (1, 5)


async def test_packed_items_are_stored_like_others(pg: Connection) -> None:
    a, b = await partitions(pg, "q/a", "q/b")
    assert (await push_packed(pg, Item(b, "1"), Item(a, "1", '{"x": [1, 2]}'), Item(b, "2"))).seqs == [1, 1, 2]
    done = await push_packed(pg, Item(a, "2"), Item(b, "2"), Item(a, "2"), Item(b, "3", '"three"'))
    assert (done.seqs, done.duplicates) == ([2, 2, 2, 3], [False, True, True, False])
    stored = await pg.fetch("SELECT partition_id, seq, transaction_id, payload FROM queen.messages ORDER BY 1, 2")
    assert [tuple(row) for row in stored] == [
        (a, 1, "1", '{"x": [1, 2]}'), (a, 2, "2", "{}"), (b, 1, "1", "{}"), (b, 2, "2", "{}"), (b, 3, "3", '"three"'),
    ]  # fmt: skip
    assert [await counter(pg, p) for p in (a, b)] == [(1, 3), (1, 4)]
    for counts in ([2, 1], [1, 1]):
        with pytest.raises(asyncpg.PostgresError) as caught:
            await pg.fetchrow(
                "SELECT * FROM queen.push_messages($1, $2, NULL, NULL, NULL, NULL, p_packed_transactions => $3, p_packed_payloads => $4)",
                [a, b], counts, ["9", "8\x1e9"], ["1", "2\x1e3"],
            )  # fmt: skip
        assert caught.value.sqlstate == "QM002"
    assert [await counter(pg, p) for p in (a, b)] == [(1, 3), (1, 4)]


async def test_two_pushes_of_the_same_message_at_once_store_one(pg: Connection, connect: Connect) -> None:
    [p] = await partitions(pg, "q/p")
    first, second = await connect(), await connect()
    await first.execute("BEGIN")
    assert (await push(first, *named(p, "x"))).seqs == [1]
    pushing = asyncio.ensure_future(push(second, *named(p, "x")))
    await until_blocked(pg, second, pushing)
    await first.execute("COMMIT")
    done = await pushing
    assert (done.seqs, done.duplicates) == ([1], [True])


async def test_a_push_of_duplicates_only_changes_nothing(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await push(pg, *named(p, "x"))
    assert await drain(pg, g) == [(p, "x")]
    before = await pg.fetchrow("SELECT l.ctid, l.*, c.ctid, c.* FROM queen.partition_lookup l, queen.partition_consumers c")
    assert (await push(pg, *named(p, "x", "x"))).duplicates == [True, True]
    assert await pg.fetchrow("SELECT l.ctid, l.*, c.ctid, c.* FROM queen.partition_lookup l, queen.partition_consumers c") == before
    async with pg.transaction(isolation="repeatable_read"):
        await outbox(pg, "q", "p", "x")
    assert await pg.fetchval("SELECT count(*) FROM queen.wakes") == 0


async def multixacts(superuser: Connection, pg: Connection, p: int, g: int) -> int:
    """How many MultiXacts twenty pushes to a drained partition make."""
    await superuser.execute("CHECKPOINT")
    before = int(await superuser.fetchval("SELECT next_multixact_id::text FROM pg_control_checkpoint()"))
    for number in range(20):
        await push(pg, *named(p, f"{number}"))
        await pg.execute("UPDATE queen.partition_consumers SET cursor_seq = $1, ready_at = NULL", number + 1)
    await superuser.execute("CHECKPOINT")
    return int(await superuser.fetchval("SELECT next_multixact_id::text FROM pg_control_checkpoint()")) - before


async def test_a_push_makes_no_multixact(pg: Connection, superuser: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    assert await multixacts(superuser, pg, p, g) == 0


async def test_a_push_that_moves_its_counter_inside_the_block_makes_multixacts(pg: Connection, superuser: Connection) -> None:
    """Planted: the counter advances inside the EXCEPTION block."""
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await plant(
        pg,
        "130_push_messages",
        "    BEGIN\n",
        "    BEGIN\n        UPDATE queen.partition_lookup SET updated_at = v_now WHERE partition_id = v_partition;\n",
    )
    assert await multixacts(superuser, pg, p, g) >= 20


async def test_a_push_over_a_counter_that_fell_behind_fails_loudly(pg: Connection) -> None:
    """Never two messages under one seq."""
    [p] = await partitions(pg, "q/p")
    await push(pg, *numbered(p, 1, 3))
    await pg.execute("UPDATE queen.partition_lookup SET next_seq = 2")
    with pytest.raises(asyncpg.UniqueViolationError):
        await push(pg, *named(p, "x"))
    await pg.fetchrow("SELECT * FROM queen.resync_partition($1)", p)
    assert (await push(pg, *named(p, "x"))).seqs == [4]


# -- rule 9


async def test_created_at_never_falls_when_the_clock_does(clock: Connection) -> None:
    [p] = await partitions(clock, "q/p")
    start = datetime(2030, 1, 1, tzinfo=UTC)
    await set_clock(clock, start)
    await push(clock, *named(p, "1"))
    await set_clock(clock, start - timedelta(hours=1))
    await push(clock, *named(p, "2"), Item(p, "3", headers="{}"))
    await insert(clock, p, "4")
    await clock.execute("INSERT INTO queen.messages (partition_id, transaction_id, payload, created_at) VALUES ($1, '5', '{}', 'epoch')", p)
    await move_clock(clock, 7200)
    await push(clock, *named(p, "6"))
    times = [row["created_at"] for row in await clock.fetch("SELECT created_at FROM queen.messages ORDER BY seq")]
    assert times == [start] * 5 + [start + timedelta(hours=1)]
    g = await group(clock, "q", "g", "from", start + timedelta(seconds=1))
    assert await drain(clock, g) == [(p, "6")]


# -- rule 10


async def test_messages_have_no_foreign_key_and_two_indexes(pg: Connection) -> None:
    assert await pg.fetchval("SELECT count(*) FROM pg_constraint WHERE conrelid = 'queen.messages'::regclass AND contype = 'f'") == 0
    assert await pg.fetchval("SELECT count(*) FROM pg_index WHERE indrelid = 'queen.messages'::regclass") == 2


async def test_deleting_a_queue_takes_everything_with_it(pg: Connection) -> None:
    a, b = await partitions(pg, "q/a", "q/b")
    [kept] = await partitions(pg, "r/p")
    g = await group(pg, "q", "g")
    await push(pg, *numbered(a, 1, 4), *numbered(b, 1, 4), *numbered(kept, 1, 2))
    await pg.execute("INSERT INTO queen.message_audience VALUES ($1, 4, 'h')", a)
    await pg.fetchval("SELECT queen.remove_messages($1, 2, 3, 'test')", a)
    got = await pop(pg, g, batch=1)
    await ack_all(pg, got, "dlq")
    await pg.execute("INSERT INTO queen.wakes (partition_id) VALUES ($1)", b)
    await pg.fetchval(
        "SELECT queen.add_consumed('s', $1, '{g}', '{1}', '{0}', '{0}')",
        [await pg.fetchval("SELECT id FROM queen.queues WHERE name = 'q'")],
    )
    heard = await listen(pg, "queen_gone")
    await pg.execute("DELETE FROM queen.queues WHERE name = 'q'")
    assert await heard(1)
    left = {table: await pg.fetchval(f"SELECT count(*) FROM queen.{table}") for table in HANGS_ON_A_QUEUE}
    assert left == dict.fromkeys(HANGS_ON_A_QUEUE, 0) | {"queues": 1, "partitions": 1, "partition_lookup": 1, "messages": 2}


async def test_a_push_that_waited_for_a_deletion_or_a_sleep_has_no_effect(pg: Connection, connect: Connect) -> None:
    a, b = await partitions(pg, "kept/a", "q/b")
    other, pusher = await connect(), await connect()
    for work in (f"SELECT queen.sleep_partition({b})", "DELETE FROM queen.queues WHERE name = 'q'"):
        [b] = await partitions(pg, "q/b")
        await other.execute("BEGIN")
        await other.execute(work)
        pushing = asyncio.ensure_future(push(pusher, Item(a, "x"), Item(b, "x")))
        await until_blocked(pg, pusher, pushing)
        await other.execute("COMMIT")
        with pytest.raises(asyncpg.PostgresError) as caught:
            await pushing
        assert caught.value.sqlstate == "QM001"
        assert await pg.fetchval("SELECT count(*) FROM queen.messages") == 0
    assert await counter(pg, a) == (1, 1)
    with pytest.raises(asyncpg.PostgresError) as caught:
        await push(pg, Item(a, "x"), Item(b, "x"), skip=True)
    assert caught.value.sqlstate == "QM001"


async def test_a_deletion_waits_for_a_push_and_takes_its_message_too(pg: Connection, connect: Connect) -> None:
    [p] = await partitions(pg, "q/p")
    pusher, deleter = await connect(), await connect()
    await pusher.execute("BEGIN")
    await push(pusher, *named(p, "x"))
    deleting = asyncio.ensure_future(deleter.execute("DELETE FROM queen.queues"))
    await until_blocked(pg, deleter, deleting)
    await pusher.execute("COMMIT")
    await deleting
    assert await pg.fetchval("SELECT count(*) FROM queen.messages") == 0


@pytest.mark.parametrize("ids", ["{2,1}", "{1,1}", "{NULL,1}"])
async def test_partition_ids_are_distinct_and_ascending(pg: Connection, ids: str) -> None:
    await partitions(pg, "q/a", "q/b")
    for skip in (False, True):
        with pytest.raises(asyncpg.PostgresError) as caught:
            await pg.fetchrow(
                "SELECT * FROM queen.push_messages($1::text::int[], '{1,1}', '{1,2}', '{0,0}', '{a,b}', '{1,1}', p_skip => $2)", ids, skip
            )
        assert caught.value.sqlstate == "QM002"


# -- rule 12


async def listen(pg: Connection, channel: str) -> Any:
    heard: list[str] = []
    await pg.add_listener(channel, lambda *arguments: heard.append(str(arguments[3])))

    async def count(expected: int) -> bool:
        """What was sent has arrived once a later statement on this connection is answered."""
        await pg.fetchval("SELECT 1")
        found = len(heard) == expected
        heard.clear()
        return found

    return count


async def test_who_notifies(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    heard = await listen(pg, "queen_wake")
    await push(pg, *named(p, "1"), notify=False)
    assert await heard(0)
    await push(pg, *named(p, "2", "3"), notify=True)
    assert await heard(1)
    await outbox(pg, "q", "p")
    assert await heard(1)
    await insert(pg, p, "4", "5")
    assert await heard(1)
    await pg.fetchval("SELECT queen.seek('q', 'g', p_to_end => true)")
    assert await heard(1)
    await pg.fetchval("SELECT queen.remove_messages($1, 1, 1, 'x')", p)
    assert await heard(1)
    await pg.execute("DELETE FROM queen.messages WHERE seq = 2")
    assert await heard(1)
    assert await drain(pg, g) == []
    await pg.fetchval("""SELECT queen.configure_queue('q', NULL, NULL, '{"delayedProcessing": 1}')""")
    assert await heard(1)


# -- rule 15


async def test_everything_is_installed_by_a_role_that_is_no_superuser(pg: Connection) -> None:
    assert await pg.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False
    owners = await pg.fetchval(
        "SELECT count(DISTINCT proowner) FROM pg_proc WHERE pronamespace = 'queen'::regnamespace AND proowner <> current_user::regrole"
    )
    assert owners == 0


async def test_nothing_is_stranded_after_all_of_it(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await insert(pg, p, "a", "b")
    await outbox(pg, "q", "p", "c")
    assert [one for _, one in await drain(pg, g)] == ["a", "b", "c"]
    await insert(pg, p, "d")
    assert await stranded(pg) == 0
