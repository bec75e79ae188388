"""Rule 11: INSERT INTO queen.messages by anybody gets its seq, keeps the counter true and wakes consumers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest
from tests.sql.support import Connection, ack_all, drain, group, named, numbered, outbox, partitions, pop, push, stranded, until_blocked

if TYPE_CHECKING:
    from tests.sql.conftest import Connect

SOME = (
    "INSERT INTO queen.messages (partition_id, transaction_id, payload) SELECT $1, 'i' || n, '{}' FROM generate_series($2::int, $3::int) n"
)

CAUGHT = """
DO $$ BEGIN
    INSERT INTO queen.messages (partition_id, transaction_id, payload) VALUES (PARTITION, 'x', '1'), (PARTITION, 'i2', '1');
EXCEPTION WHEN unique_violation THEN
    INSERT INTO queen.messages (partition_id, transaction_id, payload) VALUES (PARTITION, 'y', '1');
END $$
"""


async def seqs(pg: Connection, partition: int) -> list[int]:
    return [row["seq"] for row in await pg.fetch("SELECT seq FROM queen.messages WHERE partition_id = $1 ORDER BY seq", partition)]


async def next_seq(pg: Connection, partition: int) -> int:
    return int(await pg.fetchval("SELECT next_seq FROM queen.partition_lookup WHERE partition_id = $1", partition))


async def test_it_counts_on_where_pushes_stopped(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await push(pg, *numbered(p, 1, 3))
    assert len(await drain(pg, g)) == 3
    await pg.execute(SOME, p, 1, 4)
    assert (await push(pg, *named(p, "last"))).seqs == [8]
    assert [one for _, one in await drain(pg, g)] == ["i1", "i2", "i3", "i4", "last"]


async def test_naming_a_seq_is_refused(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    for statement in (
        "INSERT INTO queen.messages (partition_id, seq, payload) VALUES ($1, 1, '{}')",
        "INSERT INTO queen.messages (partition_id, seq, payload) VALUES ($1, 9, '{}')",
    ):
        with pytest.raises(asyncpg.PostgresError) as caught:
            await pg.execute(statement, p)
        assert caught.value.sqlstate == "QM005"


async def test_a_partition_that_is_not_there_is_refused(pg: Connection) -> None:
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await pg.execute(SOME, 77, 1, 1)


async def test_several_partitions_interleaved_in_one_statement(pg: Connection) -> None:
    a, b, c = await partitions(pg, "q/a", "q/b", "q/c")
    g = await group(pg, "q", "g")
    await pg.execute(
        "INSERT INTO queen.messages (partition_id, payload) SELECT ($1::int[])[1 + n % 3], '{}' FROM generate_series(0, 29) n", [a, b, c]
    )
    for p in (a, b, c):
        assert await seqs(pg, p) == list(range(1, 11))
        assert await next_seq(pg, p) == 11
    assert len(await drain(pg, g)) == 30


async def test_seqs_that_on_conflict_burnt_are_recorded_and_stepped_over(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await push(pg, *named(p, "i2", "i3", "i7"))
    await pg.execute(SOME + " ON CONFLICT DO NOTHING", p, 1, 8)
    assert await seqs(pg, p) == [1, 2, 3, 4, 7, 8, 9, 11]
    rows = await pg.fetch("SELECT from_seq, to_seq, reason FROM queen.removed_messages ORDER BY from_seq")
    assert [tuple(row) for row in rows] == [(5, 6, "never stored"), (10, 10, "never stored")]
    assert [one for _, one in await drain(pg, g)] == ["i2", "i3", "i7", "i1", "i4", "i5", "i6", "i8"]
    await pg.execute(SOME + " ON CONFLICT (partition_id, transaction_id) DO UPDATE SET payload = '1'", p, 1, 2)
    await push(pg, *named(p, "after"))
    assert [one for _, one in await drain(pg, g)] == ["after"]
    assert await pg.fetchval("SELECT count(*) FROM queen.removed_messages WHERE reason = 'lost'") == 0


async def test_errors_and_savepoints_leave_the_count_right(pg: Connection) -> None:
    """In one transaction: a statement that fails half-way, one rolled back to a savepoint, one caught in plpgsql."""
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    async with pg.transaction():
        await pg.execute(SOME, p, 1, 2)
        with pytest.raises(asyncpg.UniqueViolationError):
            async with pg.transaction():
                await pg.execute(
                    "INSERT INTO queen.messages (partition_id, transaction_id, payload) VALUES ($1, 'n', '1'), ($1, 'i1', '2')", p
                )
        savepoint = pg.transaction()
        await savepoint.start()
        await pg.execute(SOME, p, 3, 5)
        await savepoint.rollback()
        await pg.execute(CAUGHT.replace("PARTITION", str(p)))
        await pg.execute(SOME, p, 6, 7)
    assert await seqs(pg, p) == [1, 2, 3, 4, 5]
    assert await next_seq(pg, p) == 6
    assert [one for _, one in await drain(pg, g)] == ["i1", "i2", "y", "i6", "i7"]


async def test_a_rolled_back_insert_leaves_nothing(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    await pg.execute("BEGIN")
    await pg.execute(SOME, p, 1, 5)
    await pg.execute("ROLLBACK")
    await pg.execute(SOME, p, 1, 1)
    assert await seqs(pg, p) == [1]


async def test_two_inserts_in_one_query(pg: Connection) -> None:
    a, b = await partitions(pg, "q/a", "q/b")
    await pg.execute(
        "WITH one AS (INSERT INTO queen.messages (partition_id, payload) VALUES ($1, '1'), ($2, '1') RETURNING seq),"
        " two AS (INSERT INTO queen.messages (partition_id, payload) VALUES ($1, '2'), ($1, '3') RETURNING seq) SELECT * FROM one, two",
        a, b,
    )  # fmt: skip
    assert await seqs(pg, a) == [1, 2, 3]
    assert (await next_seq(pg, a), await next_seq(pg, b)) == (4, 2)


async def test_copy_counts_like_an_insert(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await pg.copy_records_to_table(
        "messages", schema_name="queen", columns=["partition_id", "payload", "transaction_id"], records=[(p, "1", "a"), (p, "2", "b")]
    )
    assert [one for _, one in await drain(pg, g)] == ["a", "b"]
    with pytest.raises(asyncpg.PostgresError) as caught:
        await pg.copy_records_to_table("messages", schema_name="queen", columns=["partition_id", "seq", "payload"], records=[(p, 9, "1")])
    assert caught.value.sqlstate == "QM005"


async def test_a_push_in_the_same_transaction_does_not_silence_the_trigger(pg: Connection) -> None:
    """P3: lookup_maintained is set back at the push's end."""
    [p] = await partitions(pg, "q/p")
    async with pg.transaction():
        await push(pg, *named(p, "a"))
        await pg.execute(SOME, p, 1, 1)
        await outbox(pg, "q", "p", "b")
        await push(pg, *named(p, "a", "c"))
        await pg.execute(SOME, p, 2, 2)
    assert await seqs(pg, p) == [1, 2, 3, 4, 5]
    assert await next_seq(pg, p) == 6


async def test_an_insert_wakes_a_drained_group_and_a_sleeping_partition(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    assert await drain(pg, g) == []
    await pg.execute(SOME, p, 1, 1)
    assert await stranded(pg) == 0
    assert len(await drain(pg, g)) == 1
    await pg.fetchval("SELECT queen.remove_messages($1, 1, 1, 'ttl')", p)
    assert await pg.fetchval("SELECT queen.sleep_partition($1)", p)
    await pg.execute(SOME, p, 2, 2)
    await pg.fetchrow("SELECT * FROM queen.take_wakes()")
    assert await seqs(pg, p) == [2]
    assert await drain(pg, g) == [(p, "i2")]


async def test_inserts_and_pushes_on_one_partition_queue_up(pg: Connection, connect: Connect) -> None:
    [p] = await partitions(pg, "q/p")
    user, pusher = await connect(), await connect()
    await user.execute("BEGIN")
    await user.execute(SOME, p, 1, 3)
    pushing = asyncio.ensure_future(push(pusher, *named(p, "x")))
    await until_blocked(pg, pusher, pushing)
    await user.execute("COMMIT")
    assert (await pushing).seqs == [4]


async def test_an_insert_that_pushes_to_its_own_partition_fails_and_does_no_harm(pg: Connection) -> None:
    """Documented: no rule can prevent it."""
    [p] = await partitions(pg, "q/p")
    with pytest.raises(asyncpg.UniqueViolationError):
        await pg.execute(
            "INSERT INTO queen.messages (partition_id, payload) SELECT $1, to_json(queen.push('q', 'p', '1')) FROM generate_series(1, 2)", p
        )
    await pg.execute(SOME, p, 1, 1)
    assert await seqs(pg, p) == [1]


async def test_a_queue_that_demands_encryption_refuses_what_is_not_sealed(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    await pg.fetchval("""SELECT queen.configure_queue('q', NULL, NULL, '{"encryptionEnabled": true}')""")
    for statement in ("SELECT queen.push('q', 'p', '1')", f"INSERT INTO queen.messages (partition_id, payload) VALUES ({p}, '1')"):
        with pytest.raises(asyncpg.PostgresError, match="through the API") as caught:
            await pg.execute(statement)
        assert caught.value.sqlstate == "QM006"
    await pg.execute("SELECT queen.push('q', 'p', '1', p_encrypted => true)")
    await pg.execute("INSERT INTO queen.messages (partition_id, payload, is_encrypted) VALUES ($1, '1', true)", p)
    assert await seqs(pg, p) == [1, 2]


async def test_messages_deleted_by_hand_are_stepped_over(pg: Connection) -> None:
    [p] = await partitions(pg, "q/p")
    g = await group(pg, "q", "g")
    await push(pg, *numbered(p, 1, 9))
    await pg.execute("DELETE FROM queen.messages WHERE seq IN (1, 2, 4, 7, 9)")
    rows = await pg.fetch("SELECT from_seq, to_seq, reason FROM queen.removed_messages ORDER BY from_seq")
    assert [tuple(row) for row in rows] == [(1, 2, "deleted"), (4, 4, "deleted"), (7, 7, "deleted"), (9, 9, "deleted")]
    assert await pg.fetchval("SELECT first_seq FROM queen.partition_lookup") == 3
    got = await pop(pg, g)
    assert got.seqs == [3, 5, 6, 8]
    assert all(one.released for one in await ack_all(pg, got))
    assert await drain(pg, g) == []
    assert await pg.fetchval("SELECT cursor_seq FROM queen.partition_consumers") == 9


async def test_opposite_orders_end_for_one_of_them_and_do_no_harm(pg: Connection, connect: Connect) -> None:
    """Documented: order by partition. The one that fails is repeated, whatever told it so."""
    a, b = await partitions(pg, "q/a", "q/b")
    g = await group(pg, "q", "g")
    first, second = await connect(), await connect()
    for one in (first, second):
        await one.execute("BEGIN")
    await first.execute(SOME, a, 1, 2)
    await second.execute(SOME, b, 3, 4)
    crossing = asyncio.gather(first.execute(SOME, b, 5, 6), second.execute(SOME, a, 7, 8), return_exceptions=True)
    failed = [one for one in await crossing if isinstance(one, BaseException)]
    assert failed
    assert all(isinstance(one, asyncpg.DeadlockDetectedError | asyncpg.LockNotAvailableError) for one in failed)
    for one in (first, second):
        await one.execute("COMMIT")
    await pg.execute(SOME, a, 10, 10)
    await pg.execute(SOME, b, 11, 11)
    for p in (a, b):
        assert await seqs(pg, p) == list(range(1, await next_seq(pg, p)))
    assert len(await drain(pg, g)) == await pg.fetchval("SELECT count(*) FROM queen.messages")
