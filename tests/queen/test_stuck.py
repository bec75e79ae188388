"""One stuck lock stops one partition: somebody holds something and does not commit, and what goes on beside it (design §5, rule 5)."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec
import pytest
from tests.queen.support import ack, item, push, take, transact, until

import queenmq.queen.directory
import queenmq.queen.lane
from queenmq.errors import Busy, QueenError
from queenmq.queen.manager import Manager

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

P50_SECONDS = 0.1
OF_STUCK = (
    "JOIN queen.partitions p ON p.id = x.partition_id JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1 AND p.name = 'stuck'"
)
LOOKUP = f"SELECT FROM queen.partition_lookup x {OF_STUCK} FOR NO KEY UPDATE OF x"
CONSUMER = f"SELECT FROM queen.partition_consumers x {OF_STUCK} FOR UPDATE OF x"
PARTITION = "SELECT p.id FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1 AND p.name = 'stuck'"


@asynccontextmanager
async def holding(session: Connection, statement: str, *args: object) -> AsyncIterator[None]:
    """What the statement locks or makes, uncommitted."""
    transaction = session.transaction()
    await transaction.start()
    await session.execute(statement, *args)
    try:
        yield
    finally:
        await transaction.commit()


def storing(queue: str, partition: str, payload: str = "1") -> dict[str, Any]:
    """A transaction that pushes."""
    return {"operations": [{"type": "push", "items": [{"queue": queue, "partition": partition, "payload": msgspec.Raw(payload.encode())}]}]}


async def cycle(manager: Manager, queue: str, number: int) -> float:
    """A push, a pop and an ack in a partition of its own, and a transaction: how long the slowest of them took."""
    loop = asyncio.get_running_loop()
    partition = f"free {number % 8}"
    marks = [loop.time()]
    await push(manager, item(queue, number, partition))
    marks.append(loop.time())
    found: list[dict[str, Any]] = []
    while not found:
        found = await take(manager, queue, partition=partition, batch=1)
    marks.append(loop.time())
    assert (await ack(manager, *found))[0]["success"]
    marks.append(loop.time())
    assert (await transact(manager, storing(queue, f"beside {number % 8}")))["success"]
    marks.append(loop.time())
    return max(after - before for before, after in itertools.pairwise(marks))


async def goes_on(manager: Manager, queue: str) -> None:
    """Everything elsewhere, while something is stuck."""
    times: list[float] = []
    for number in range(24):
        times.append(await cycle(manager, queue, number))
    assert statistics.median(times) < P50_SECONDS, times


async def prepared(manager: Manager, queue: str) -> list[dict[str, Any]]:
    """A queue with partitions that everybody knows; messages of `stuck` under a lease."""
    await push(manager, item(queue, 0, "stuck"), item(queue, 1, "stuck"), *(item(queue, 0, f"free {n}") for n in range(8)))
    found = await take(manager, queue, partition="stuck", batch=1)
    assert len(found) == 1
    for n in range(8):
        await ack(manager, *await take(manager, queue, partition=f"free {n}"))
    return found


async def test_a_held_counter_row_stops_only_its_partition_and_what_waited_is_stored(
    manager: Manager, queue: str, other: Connection
) -> None:
    await prepared(manager, queue)
    async with holding(other, LOOKUP, queue):
        stuck = [asyncio.create_task(push(manager, item(queue, f"late {n}", "stuck"))) for n in range(5)]
        both = asyncio.create_task(push(manager, item(queue, "both", "stuck"), item(queue, "both", "free 0")))
        body = {
            "operations": [{"type": "push", "items": [{"queue": queue, "partition": "stuck", "payload": msgspec.Raw(b'"in transaction"')}]}]
        }
        transacted = asyncio.create_task(transact(manager, body))
        await until(lambda: manager.sidecar.push.metrics.set_aside > 0 and manager.sidecar.transaction.metrics.set_aside > 0)
        await goes_on(manager, queue)
        assert not any(task.done() for task in [*stuck, both, transacted])
    replies = await asyncio.wait_for(asyncio.gather(*stuck), 5)
    assert [reply[0]["status"] for reply in replies] == ["queued"] * 5
    assert sorted(reply[0]["seq"] for reply in replies) == [reply[0]["seq"] for reply in replies]
    assert [entry["status"] for entry in await both] == ["queued", "queued"] and (await transacted)["success"]


async def test_a_held_consumer_row_stops_only_acks_of_its_partition(manager: Manager, queue: str, other: Connection) -> None:
    leased = await prepared(manager, queue)
    async with holding(other, CONSUMER, queue):
        acked = asyncio.create_task(ack(manager, *leased))
        await until(lambda: manager.sidecar.ack.metrics.set_aside > 0)
        released = manager.sidecar.release(uuid.UUID(leased[0]["leaseId"]))
        assert (await push(manager, item(queue, 2, "stuck")))[0]["status"] == "queued"
        assert await take(manager, queue, partition="stuck") == []
        await goes_on(manager, queue)
        assert not acked.done() and not released.done()
    answers = await asyncio.wait_for(acked, 5)
    assert answers[0]["success"] or answers[0]["error"] == "Invalid or expired lease"
    await asyncio.wait_for(released, 5)


async def test_a_held_drained_consumer_row_stops_only_pushes_to_its_partition(manager: Manager, queue: str, other: Connection) -> None:
    await prepared(manager, queue)
    await push(manager, item(queue, 0, "stuck"))
    assert await take(manager, queue, partition="stuck", group="g")
    async with holding(other, f"UPDATE queen.partition_consumers SET ready_at = NULL WHERE partition_id = ({PARTITION})", queue):
        await goes_on(manager, queue)
    async with holding(other, CONSUMER, queue):
        stuck = asyncio.create_task(push(manager, item(queue, 3, "stuck")))
        await until(lambda: manager.sidecar.push.metrics.set_aside > 0)
        await goes_on(manager, queue)
        assert not stuck.done()
    assert (await asyncio.wait_for(stuck, 5))[0]["status"] == "queued"


async def test_a_name_that_an_outbox_is_making_stops_only_itself(manager: Manager, queue: str, other: Connection) -> None:
    await prepared(manager, queue)
    async with holding(other, "SELECT queen.push($1, 'new', '1')", queue):
        stuck = asyncio.create_task(push(manager, item(queue, 2, "new")))
        body = storing(queue, "new", "3")
        transacted = asyncio.create_task(transact(manager, body))
        await goes_on(manager, queue)
        fresh = [asyncio.create_task(push(manager, item(queue, n, f"fresh {n}"))) for n in range(20)]
        await asyncio.wait_for(asyncio.gather(*fresh), 2)
        assert not stuck.done() and not transacted.done()
    assert (await asyncio.wait_for(stuck, 5))[0]["seq"] in (2, 3) and (await asyncio.wait_for(transacted, 5))["success"]
    await other.execute("SELECT queen.take_wakes()")
    assert sorted(m["data"] for m in await take(manager, queue, partition="new")) == [1, 2, 3]


async def test_a_queue_that_an_outbox_is_making_stops_only_itself(manager: Manager, queue: str, other: Connection) -> None:
    await prepared(manager, queue)
    async with holding(other, "SELECT queen.push($1, 'p', '1')", f"{queue}.new"):
        stuck = asyncio.create_task(push(manager, item(f"{queue}.new", 2, "other"), item(f"{queue}.new", 3, "p")))
        popping = asyncio.create_task(take(manager, f"{queue}.new", wait=True))
        await goes_on(manager, queue)
        assert (await asyncio.wait_for(push(manager, item(f"{queue}.third", 1)), 2))[0]["status"] == "queued"
        assert not stuck.done()
    assert [entry["status"] for entry in await asyncio.wait_for(stuck, 5)] == ["queued"] * 2
    assert await asyncio.wait_for(popping, 5)


async def test_a_queue_being_deleted_stops_only_its_own_pushes_which_are_stored_in_the_new_one(
    manager: Manager, queue: str, other: Connection
) -> None:
    await prepared(manager, queue)
    await push(manager, item(f"{queue}.gone", "before"))
    async with holding(other, "DELETE FROM queen.queues WHERE name = $1", f"{queue}.gone"):
        stuck = [asyncio.create_task(push(manager, item(f"{queue}.gone", n))) for n in range(3)]
        await until(lambda: manager.sidecar.push.metrics.set_aside > 0)
        await goes_on(manager, queue)
    assert [reply[0]["seq"] for reply in await asyncio.wait_for(asyncio.gather(*stuck), 5)] == [1, 2, 3]
    assert [m["data"] for m in await take(manager, f"{queue}.gone")] == [0, 1, 2]


async def test_a_deleted_queue_that_somebody_is_making_anew_holds_up_nobody_elses_push(
    manager: Manager, queue: str, other: Connection, sql: Connection
) -> None:
    """The ids are cached, so that the shared call itself finds them gone and its name in the making."""
    await prepared(manager, queue)
    await push(manager, item(f"{queue}.gone", "before"))
    await sql.execute("DELETE FROM queen.queues WHERE name = $1", f"{queue}.gone")
    async with holding(other, "SELECT queen.push($1, 'Default', '\"outbox\"')", f"{queue}.gone"):
        stuck = asyncio.create_task(push(manager, item(f"{queue}.gone", "late")))
        await asyncio.sleep(0)
        assert (await asyncio.wait_for(push(manager, item(queue, 1, "free 1")), 2))[0]["status"] == "queued"
        await ack(manager, *await take(manager, queue, partition="free 1"))
        await goes_on(manager, queue)
        assert not stuck.done()
    await asyncio.wait_for(stuck, 5)
    assert [m["data"] for m in await take(manager, f"{queue}.gone")] == ["outbox", "late"]


@pytest.fixture
def impatient() -> Iterator[None]:
    """Deadlines of a moment instead of ten seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queenmq.queen.lane, "DEADLINE_SECONDS", 0.3)
        patch.setattr(queenmq.queen.directory, "MAKE_SECONDS", 0.3)
        yield


async def test_past_the_deadline_a_push_says_busy_and_one_over_several_partitions_says_which_failed(
    manager: Manager, queue: str, other: Connection, impatient: None
) -> None:
    leased = await prepared(manager, queue)
    async with holding(other, LOOKUP, queue):
        with pytest.raises(Busy) as refused:
            await push(manager, item(queue, "alone", "stuck", transactionId="again"))
        assert refused.value.status == 503 and refused.value.retry_after
        entries = await push(manager, item(queue, "a", "stuck"), item(queue, "b", "free 0"), item(queue, "c", "stuck"))
        assert [entry["status"] for entry in entries] == ["failed", "queued", "failed"]
        assert entries[0]["message_id"] is None and entries[0]["seq"] is None and entries[0]["error"]
        with pytest.raises(Busy):
            await transact(manager, storing(queue, "stuck", "1"))
    async with holding(other, CONSUMER, queue):
        with pytest.raises(Busy):
            await ack(manager, *leased)
    assert (await push(manager, item(queue, "alone", "stuck", transactionId="again")))[0]["status"] == "queued"
    assert (await ack(manager, *leased))[0]["success"]
    assert [m["data"] for m in await take(manager, queue, partition="stuck")] == [1, "alone"]


async def test_past_the_deadline_a_name_in_the_making_is_busy_even_while_others_are_made(
    manager: Manager, queue: str, other: Connection, impatient: None
) -> None:
    await prepared(manager, queue)
    async with holding(other, "SELECT queen.push($1, 'new', '1')", queue):
        stuck = asyncio.create_task(push(manager, item(queue, 2, "new")))
        number = 0
        while not stuck.done() and number < 1000:
            number += 1
            await push(manager, item(queue, 0, f"fresh {number}"))
        with pytest.raises(QueenError, match="somebody is making this partition"):
            await stuck


async def test_a_push_over_a_name_in_the_making_and_others_says_which_failed(
    manager: Manager, queue: str, other: Connection, impatient: None
) -> None:
    await prepared(manager, queue)
    async with holding(other, "SELECT queen.push($1, 'new', '1')", queue):
        entries = await push(manager, item(queue, "a", "new"), item(queue, "b", "free 0"), item(queue, "c", "quite new"))
        assert [entry["status"] for entry in entries] == ["failed", "queued", "queued"]
        assert entries[0]["partition_id"] is None and entries[0]["message_id"] is None and "making" in entries[0]["error"]
        operations = [storing(queue, name)["operations"][0] for name in ("new", "free 0")]
        with pytest.raises(Busy):
            await transact(manager, {"operations": operations})
    assert (await push(manager, item(queue, "a", "new")))[0]["status"] == "queued"
    assert [m["data"] for m in await take(manager, queue, partition="free 0")] == ["b"]


async def test_what_waited_behind_a_stuck_push_is_answered_in_time_too(
    manager: Manager, queue: str, other: Connection, impatient: None
) -> None:
    await prepared(manager, queue)
    async with holding(other, LOOKUP, queue):
        first = asyncio.create_task(push(manager, item(queue, 1, "stuck")))
        await until(lambda: manager.sidecar.push.metrics.set_aside > 0)
        started = asyncio.get_running_loop().time()
        found = await asyncio.gather(first, *(push(manager, item(queue, n, "stuck")) for n in range(10)), return_exceptions=True)
        assert all(isinstance(each, Busy) for each in found) and asyncio.get_running_loop().time() - started < 2


async def test_a_caller_that_leaves_while_its_ack_is_stuck_leaves_nothing_waiting(manager: Manager, queue: str, other: Connection) -> None:
    await prepared(manager, queue)
    partition = str(await other.fetchval(PARTITION, queue))
    async with holding(other, CONSUMER, queue):
        nothing = {"transactionId": "t", "partitionId": partition, "leaseId": None, "consumerGroup": "__QUEUE_MODE__"}
        task = asyncio.create_task(ack(manager, nothing))
        await until(lambda: manager.sidecar.ack.metrics.set_aside > 0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not vars(manager.sidecar.ack)["_aside"] and vars(manager.sidecar.ack)["_aside_task"] is None)
