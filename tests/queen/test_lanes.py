"""Many callers in one call to the database: replies by position, a bad unit alone, callers that leave, too much that waits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec
import pytest
from tests.queen.support import ack, item, push, take, transact, until

from queenmq.errors import BadRequest, QueenError, Unavailable
from queenmq.queen.manager import Manager
from queenmq.queen.push_lane import PushUnit, Ticket

if TYPE_CHECKING:
    from tests.queen.conftest import MakeManager

    Connection = asyncpg.Connection[asyncpg.Record]


async def test_concurrent_pushes_share_calls_and_each_hears_of_its_own(manager: Manager, queue: str) -> None:
    await push(manager, item(queue, "first", "p0"))
    calls = manager.metrics.lane("push").calls
    replies = await asyncio.gather(*(push(manager, *(item(queue, [n, k], f"p{n % 5}", transactionId=f"{n}-{k}") for k in range(n % 4 + 1)))
                                     for n in range(200)))  # fmt: skip
    assert manager.metrics.lane("push").calls - calls < 50
    for n, reply in enumerate(replies):
        assert [entry["transaction_id"] for entry in reply] == [f"{n}-{k}" for k in range(n % 4 + 1)]
        assert [entry["index"] for entry in reply] == list(range(n % 4 + 1))
    stored = [message for message in await take(manager, queue, batch=10_000, partitions=10) if message["data"] != "first"]
    where = {(entry["partition_id"], entry["seq"]): entry["transaction_id"] for reply in replies for entry in reply}
    assert len(stored) == len(where) == sum(map(len, replies))
    assert all(where[message["partitionId"], message["seq"]] == message["transactionId"] for message in stored)
    assert {entry["message_id"] for reply in replies for entry in reply} == {message["id"] for message in stored}


async def test_duplicates_in_one_shared_call_are_answered_with_the_first(manager: Manager, queue: str) -> None:
    await push(manager, item(queue, 0))
    replies = await asyncio.gather(*(push(manager, item(queue, n, transactionId="same"), item(queue, n)) for n in range(20)))
    statuses = [reply[0]["status"] for reply in replies]
    assert sorted(statuses) == ["duplicate"] * 19 + ["queued"] and len({reply[0]["message_id"] for reply in replies}) == 1
    assert [m["seq"] for m in await take(manager, queue, batch=100)] == list(range(1, 23))


async def test_the_order_of_one_callers_pushes_is_kept_in_a_partition(manager: Manager, queue: str) -> None:
    await push(manager, item(queue, -1))
    await asyncio.gather(*(push(manager, item(queue, n)) for n in range(300)))
    assert [m["data"] for m in await take(manager, queue, batch=1000)] == list(range(-1, 300))


async def test_what_the_database_refuses_fails_alone_in_a_shared_call(manager: Manager, queue: str) -> None:
    """A payload that only PostgreSQL can refuse: it is put in where the checks are over."""
    await push(manager, item(queue, 0, "bad"), item(queue, 0, "good"))
    bad, good = manager.directory.partitions.get(queue, "bad"), manager.directory.partitions.get(queue, "good")
    config = manager.directory.queues.peek(queue)
    assert bad and good and config
    waits = [Ticket.awaited(1) for _ in range(7)]
    units = [
        PushUnit(bad if at == 3 else good, config, [f"t{at}"], ["[" * 50_000 + "]" * 50_000 if at == 3 else f"{at}"], None, ticket)
        for at, (ticket, _) in enumerate(waits)
    ]
    manager.sidecar.push.submit(units)
    await asyncio.gather(*(done for _, done in waits))
    assert [type(unit.error) for unit in units] == [BadRequest if at == 3 else type(None) for at in range(7)]
    assert [m["data"] for m in await take(manager, queue, partition="good")] == [0, 0, 1, 2, 4, 5, 6]
    assert [m["data"] for m in await take(manager, queue, partition="bad")] == [0]


async def test_a_caller_that_leaves_disturbs_none_of_the_others(manager: Manager, queue: str) -> None:
    await push(manager, item(queue, 0))
    tasks = [asyncio.create_task(push(manager, item(queue, n, transactionId=f"t{n}"))) for n in range(60)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in found[::3])
    assert all(each[0]["transaction_id"] == f"t{n}" for n, each in enumerate(found) if n % 3 and isinstance(each, list))
    stored = [m["transactionId"] for m in await take(manager, queue, batch=100)]
    assert len(set(stored)) == len(stored) and {f"t{n}" for n in range(60) if n % 3} <= set(stored)


async def test_acks_of_many_callers_are_merged_and_answered_one_by_one(manager: Manager, queue: str) -> None:
    await push(manager, *(item(queue, n, f"p{n % 3}") for n in range(30)))
    found = await take(manager, queue, batch=30, partitions=3)
    calls = manager.metrics.lane("ack").calls
    wrong = {**found[0], "transactionId": "nobody's"}
    answers = await asyncio.gather(*(ack(manager, each) for each in [*found, wrong]))
    assert manager.metrics.lane("ack").calls - calls < 10
    assert [answer[0]["success"] for answer in answers] == [True] * 30 + [False]
    assert [answer[0]["transactionId"] for answer in answers] == [each["transactionId"] for each in [*found, wrong]]
    assert await take(manager, queue) == []


async def test_pops_of_many_callers_share_calls_and_never_a_message(manager: Manager, queue: str) -> None:
    await push(manager, *(item(queue, n, f"p{n % 40}") for n in range(80)))
    await take(manager, queue, batch=1, group="warm")
    calls = manager.metrics.lane("pop").calls
    found = await asyncio.gather(*(take(manager, queue, batch=2) for _ in range(50)))
    assert manager.metrics.lane("pop").calls - calls < 25
    assert sorted(message["data"] for part in found for message in part) == list(range(80))
    assert all(len({message["leaseId"] for message in part}) <= 1 for part in found)


async def test_transactions_in_one_call_stand_and_fall_each_for_itself(manager: Manager, queue: str) -> None:
    await push(manager, item(queue, 0))
    (message,) = await take(manager, queue)
    bodies: list[dict[str, Any]] = []
    for n in range(10):
        pushed = {"queue": f"{queue}.out", "payload": msgspec.Raw(b"%d" % n), "transactionId": f"t{n}"}
        lease = "no lease" if n % 2 else message["leaseId"]
        bodies.append({"operations": [{"type": "push", "items": [pushed]}], "requiredLeases": [lease]})
    found = await asyncio.gather(*(transact(manager, body) for body in bodies))
    assert [each["success"] for each in found] == [n % 2 == 0 for n in range(10)]
    assert sorted(m["data"] for m in await take(manager, f"{queue}.out")) == [0, 2, 4, 6, 8]


async def test_too_much_that_waits_is_refused_and_what_was_taken_is_still_stored(manager: Manager, queue: str, other: Connection) -> None:
    await push(manager, item(queue, 0))
    lane = manager.sidecar.push
    lane.most_waiting = 20
    async with other.transaction():
        await other.execute("SELECT FROM queen.partition_lookup FOR UPDATE")
        first = asyncio.create_task(push(manager, item(queue, "held")))
        await until(lambda: lane.metrics.set_aside > 0)
        waiting = [asyncio.create_task(push(manager, *(item(queue, n) for _ in range(5)))) for n in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="too much is waiting") as refused:
            await push(manager, *(item(queue, "refused") for _ in range(6)))
        assert refused.value.status == 503 and refused.value.retry_after == 1 and lane.metrics.refused == 1
    await asyncio.gather(first, *waiting)
    assert [m["data"] for m in await take(manager, queue, batch=100)] == [0, "held", *[0] * 5, *[1] * 5, *[2] * 5]


async def test_too_many_bytes_that_wait_are_refused(manager: Manager, queue: str) -> None:
    await push(manager, item(queue, 0))
    manager.sidecar.push.most_waiting_bytes = 1000
    with pytest.raises(Unavailable):
        await push(manager, item(queue, "x" * 2000))
    assert len(await push(manager, item(queue, "x" * 500))) == 1


async def test_a_caller_that_leaves_after_its_claim_leaves_no_lease_and_no_attempt(manager: Manager, queue: str, sql: Connection) -> None:
    await push(manager, *(item(queue, n, f"p{n}") for n in range(20)))
    for turns in range(40):
        task = asyncio.create_task(take(manager, queue, batch=3, partitions=3))
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns >= 20:
            await until(lambda task=task: manager.sidecar.pop.flying > 0 or task.done())  # type: ignore[misc]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled():
            await ack(manager, *task.result(), status="retry")
    left: dict[str, int] = {}
    while len(left) < 20 and (found := await take(manager, queue, batch=100, partitions=100, wait=True, timeout=5.0)):
        left.update({m["partition"]: m["retryCount"] for m in found})
    assert left == {f"p{n}": 0 for n in range(20)}


async def test_an_unexpected_failure_after_a_transaction_is_not_answered_by_doing_it_twice(manager: Manager, queue: str) -> None:
    await push(manager, item(queue, 0))
    committed = manager.waits.notify

    def broken(queue: str | None) -> None:
        manager.waits.notify = committed  # type: ignore[method-assign]
        raise RuntimeError("after the commit")

    manager.waits.notify = broken  # type: ignore[method-assign]
    bodies = [{"operations": [{"type": "push", "items": [{"queue": queue, "payload": msgspec.Raw(b"%d" % n)}]}]} for n in range(3)]
    await asyncio.gather(*(transact(manager, body) for body in bodies), return_exceptions=True)
    assert sorted(m["data"] for m in await take(manager, queue)) == [0, 0, 1, 2]


async def test_the_end_refuses_what_waits_and_gives_leases_back(
    make_manager: MakeManager, manager: Manager, queue: str, other: Connection
) -> None:
    await push(manager, item(queue, 0), item(queue, 0, "free"))
    ending = await make_manager()
    async with other.transaction():
        await other.execute(
            "SELECT FROM queen.partition_lookup l JOIN queen.partitions p ON p.id = l.partition_id WHERE p.name = 'Default' FOR UPDATE OF l"
        )
        stuck = [asyncio.create_task(push(ending, item(queue, n))) for n in range(5)]
        waiting = asyncio.create_task(take(ending, f"{queue}.empty", wait=True, timeout=60.0))
        await until(lambda: ending.sidecar.push.metrics.set_aside > 0 and ending.waits.waiting > 0)
        started = asyncio.get_running_loop().time()
        await ending.close()
        assert asyncio.get_running_loop().time() - started < 5
        found = await asyncio.gather(*stuck, return_exceptions=True)
        assert all(isinstance(each, QueenError) and each.status == 503 for each in found)
        assert await waiting == []
    for call in (push(ending, item(queue, 1)), take(ending, queue), ack(ending, {"transactionId": "t", "partitionId": "1", "leaseId": "x",
                                                                                  "consumerGroup": "g"})):  # fmt: skip
        with pytest.raises(Unavailable):
            await call


async def test_nothing_is_left_running_when_a_manager_was_closed(make_manager: MakeManager, queue: str) -> None:
    before = asyncio.all_tasks()
    ending = await make_manager()
    await push(ending, *(item(queue, n, f"p{n}") for n in range(50)))
    popping = [asyncio.create_task(take(ending, queue, batch=5, partitions=2)) for _ in range(10)]
    await asyncio.sleep(0)
    await ending.close()
    await asyncio.gather(*popping, return_exceptions=True)
    assert asyncio.all_tasks() == before


async def test_making_partitions_costs_the_same_however_many_there_are(manager: Manager, queue: str) -> None:
    loop = asyncio.get_running_loop()
    times: list[float] = []
    for start in range(0, 6000, 500):
        before = loop.time()
        await push(manager, *(item(queue, n, f"p{n}") for n in range(start, start + 500)))
        times.append(loop.time() - before)
    # Reading all names of the queue once for each new one took 13 times as long at the end as in the beginning.
    assert min(times[-3:]) < 5 * min(times[1:4]), times


async def test_a_request_over_many_partitions_costs_no_more_an_item_than_one_over_few(manager: Manager, queue: str) -> None:
    await push(manager, *(item(queue, 0, f"p{n}") for n in range(4000)))
    loop = asyncio.get_running_loop()

    async def cost(count: int, again: bool) -> float:
        """Seconds an item: a transaction, then pushes that are new, then the same as duplicates."""
        pushed = [{"queue": queue, "partition": f"p{n}", "payload": msgspec.Raw(b"1")} for n in range(count)]
        before = loop.time()
        assert (await transact(manager, {"operations": [{"type": "push", "items": pushed}]}))["success"]
        for _ in range(2):
            await push(manager, *(item(queue, 1, f"p{n}", transactionId=f"{count} {again}") for n in range(count)))
        return (loop.time() - before) / count

    few, many = [min([await cost(count, again) for again in (False, True)]) for count in (500, 4000)]
    assert many < 4 * few, (few, many)
