"""Pops that wait: what wakes them, each by itself (the second look every 100 ms is put off so far that it can't help), when they end, and
what the server's end does to them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import asyncpg
import httpx
import pytest

import queenmq.queen.popping
from queenmq.testing.live import LiveServer

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

SOON = 8.0


@pytest.fixture
def no_second_look() -> Iterator[None]:
    """Only what wakes a waiter wakes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queenmq.queen.popping, "RECHECK_SECONDS", 60.0)
        yield


@pytest.fixture
async def sql(shared_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(shared_url)
    yield connection
    await connection.close()


async def push(web: httpx.AsyncClient, queue: str, payload: object, **more: Any) -> None:
    reply = await web.post("/api/v1/push", json={"items": [{"queue": queue, "payload": payload, **more}]})
    assert reply.status_code == 201, reply.text


async def pop(web: httpx.AsyncClient, path: str, **query: Any) -> list[dict[str, Any]]:
    reply = await web.get(f"/api/v1/pop{path}", params=query)
    assert reply.status_code in (200, 204), reply.text
    found: list[dict[str, Any]] = reply.json()["messages"] if reply.content else []
    return found


async def ack(web: httpx.AsyncClient, message: dict[str, Any], status: str = "completed") -> None:
    body = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
    reply = await web.post("/api/v1/ack", json={**body, "status": status, "consumerGroup": message["consumerGroup"]})
    assert reply.json()[0]["success"], reply.text


async def parked(web: httpx.AsyncClient, path: str, **query: Any) -> asyncio.Task[list[dict[str, Any]]]:
    """A pop that waits, once the server has counted it."""

    async def waiting() -> float:
        figures: dict[str, float] = (await web.get("/metrics")).json()
        return figures["queen_waiting_pops"]

    before = await waiting()
    task = asyncio.create_task(pop(web, path, wait="true", timeout=60_000, **query))
    while await waiting() <= before:
        assert not task.done()
    return task


async def woken(task: asyncio.Task[list[dict[str, Any]]]) -> list[Any]:
    return [message["data"] for message in await asyncio.wait_for(task, SOON)]


async def test_a_push_wakes_who_waits_for_its_queue_its_partition_and_its_namespace(
    web: httpx.AsyncClient, queue: str, no_second_look: None
) -> None:
    await push(web, f"{queue}.t.x", "before", partition="p")
    paths = {"queue": f"/queue/{queue}.t.x", "partition": f"/queue/{queue}.t.x/partition/p", "namespace": ""}
    for kind, path in paths.items():
        query = {"namespace": queue} if kind == "namespace" else {}
        (first,) = await pop(web, path, group=kind, **query)
        await ack(web, first)
    tasks = [await parked(web, path, group=kind, **({"namespace": queue} if kind == "namespace" else {})) for kind, path in paths.items()]
    await push(web, f"{queue}.t.x", "after", partition="p")
    assert [await woken(task) for task in tasks] == [["after"]] * 3


async def test_the_first_push_wakes_who_waits_for_a_queue_that_was_not_there(
    web: httpx.AsyncClient, queue: str, no_second_look: None
) -> None:
    tasks = [await parked(web, f"/queue/{queue}.t"), await parked(web, "", namespace=queue, task="t", group="g")]
    await push(web, f"{queue}.t", 1)
    assert [await woken(task) for task in tasks] == [[1], [1]]


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("how", ["outbox", "outbox, serializable", "plain INSERT"])
async def test_what_sql_users_store_wakes_too(
    web: httpx.AsyncClient, sql: Connection, queue: str, there: bool, how: str, no_second_look: None
) -> None:
    if there or how == "plain INSERT":
        await push(web, queue, "before", partition="p")
        await ack(web, (await pop(web, f"/queue/{queue}"))[0])
    task = await parked(web, f"/queue/{queue}")
    if how == "plain INSERT":
        await sql.execute(
            "INSERT INTO queen.messages (partition_id, transaction_id, payload) SELECT p.id, 'sql', '1' FROM queen.partitions p "
            "JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1", queue)  # fmt: skip
    else:
        async with sql.transaction(isolation="serializable" if "serial" in how else "read_committed"):
            await sql.execute("SELECT queen.push($1, 'p', '1')", queue)
            assert not task.done()
    assert await woken(task) == [1]


async def test_a_transaction_wakes_by_what_it_stores_and_by_what_it_acks(web: httpx.AsyncClient, queue: str, no_second_look: None) -> None:
    await push(web, queue, 1)
    await push(web, queue, 2)
    (first,) = await pop(web, f"/queue/{queue}")
    tasks = [await parked(web, f"/queue/{queue}"), await parked(web, f"/queue/{queue}.out")]
    acked = {"type": "ack", "transactionId": first["transactionId"], "partitionId": first["partitionId"], "leaseId": first["leaseId"]}
    stored = {"type": "push", "items": [{"queue": f"{queue}.out", "payload": "out"}]}
    assert (await web.post("/api/v1/transaction", json={"operations": [acked, stored]})).json()["success"]
    assert [await woken(task) for task in tasks] == [[2], ["out"]]


@pytest.mark.parametrize("status", ["completed", "retry", "dlq"])
async def test_an_answer_that_frees_a_partition_wakes(web: httpx.AsyncClient, queue: str, status: str, no_second_look: None) -> None:
    await push(web, queue, 1)
    await push(web, queue, 2)
    (first,) = await pop(web, f"/queue/{queue}")
    task = await parked(web, f"/queue/{queue}")
    await ack(web, first, status)
    assert await woken(task) == [1 if status == "retry" else 2]


async def test_moments_that_come_wake_without_being_told(web: httpx.AsyncClient, queue: str, no_second_look: None) -> None:
    """A message's delay, a retry's delay, a lease's end."""
    await push(web, f"{queue}.delayed", 1, delaySeconds=0.4)
    await web.post("/api/v1/configure", json={"queue": f"{queue}.failed", "options": {"retryDelay": 400}})
    await push(web, f"{queue}.failed", 2)
    (failed,) = await pop(web, f"/queue/{queue}.failed")
    await push(web, f"{queue}.leased", 3)
    assert await pop(web, f"/queue/{queue}.leased", leaseTime=1)
    tasks = [await parked(web, f"/queue/{queue}.{name}") for name in ("delayed", "leased")]
    await ack(web, failed, "failed")
    tasks.append(await parked(web, f"/queue/{queue}.failed"))
    assert [await woken(task) for task in tasks] == [[1], [3], [2]]


@pytest.mark.parametrize("how", ["configure", "SQL"])
async def test_an_option_that_makes_something_ready_wakes(
    web: httpx.AsyncClient, sql: Connection, queue: str, how: str, no_second_look: None
) -> None:
    body: dict[str, Any] = {"queue": queue, "options": {"delayedProcessing": 3600}}
    await web.post("/api/v1/configure", json=body)
    await push(web, queue, 1)
    task = await parked(web, f"/queue/{queue}")
    if how == "configure":
        await web.post("/api/v1/configure", json={**body, "options": {"delayedProcessing": 0}})
    else:
        await sql.execute("SELECT queen.configure_queue($1, NULL, NULL, '{\"delayedProcessing\":0}')", queue)
    assert await woken(task) == [1]


async def test_a_push_through_another_server_is_found_by_the_second_look(shared_url: str, web: httpx.AsyncClient, queue: str) -> None:
    with LiveServer(shared_url, {"QUEEN_SERVER_ID": "other"}) as second:
        async with httpx.AsyncClient(base_url=second.url, timeout=20) as there:
            for number in range(3):
                task = await parked(web, f"/queue/{queue}")
                await push(there, queue, number)
                assert await woken(task) == [number]
                message = (await pop(there, f"/queue/{queue}", group="other"))[0]
                assert message["data"] == number
                await ack(there, message)
                await ack(there, {**task.result()[0]})


async def test_one_message_goes_to_one_of_many_who_wait(web: httpx.AsyncClient, queue: str) -> None:
    tasks = [asyncio.create_task(pop(web, f"/queue/{queue}", wait="true", timeout=1500)) for _ in range(20)]
    await push(web, queue, 1)
    found = await asyncio.gather(*tasks)
    assert [message["data"] for part in found for message in part] == [1]


async def test_a_wait_ends_at_its_deadline(web: httpx.AsyncClient, queue: str) -> None:
    late: list[float] = []
    for milliseconds in (0, 150, 330, 330, 150):
        started = asyncio.get_running_loop().time()
        reply = await web.get(f"/api/v1/pop/queue/{queue}", params={"wait": "true", "timeout": milliseconds})
        late.append(asyncio.get_running_loop().time() - started - milliseconds / 1000)
        assert reply.status_code == 200 and reply.json() == {"success": True, "messages": []}
    assert min(late) > -0.005 and sorted(late)[1] < 0.05, late


@pytest.fixture
async def ending(shared_url: str) -> AsyncIterator[Callable[..., Awaitable[LiveServer]]]:
    """Servers of a test's own, to be stopped by it."""
    made: list[LiveServer] = []

    async def start(**environment: str) -> LiveServer:
        live = LiveServer(shared_url, {"QUEEN_SERVER_ID": f"ending {len(made)}", **environment})
        made.append(live)
        return await asyncio.to_thread(live.start)

    yield start
    for live in made:
        await asyncio.to_thread(live.stop)


async def test_the_end_answers_who_waits_at_once_and_leaves_no_lease(
    ending: Callable[..., Awaitable[LiveServer]], sql: Connection, queue: str
) -> None:
    live = await ending()
    async with httpx.AsyncClient(base_url=live.url, timeout=20) as client:
        tasks = [await parked(client, f"/queue/{queue}") for _ in range(3)]
        await push(client, f"{queue}.busy", 1)
        popping = [asyncio.create_task(client.get(f"/api/v1/pop/queue/{queue}.busy", params={"autoAck": "true"})) for _ in range(5)]
        started = asyncio.get_running_loop().time()
        stopping = asyncio.create_task(asyncio.to_thread(live.stop))
        assert [await asyncio.wait_for(task, SOON) for task in tasks] == [[], [], []]
        assert asyncio.get_running_loop().time() - started < 2
        await asyncio.wait(popping)
        await stopping
        assert asyncio.get_running_loop().time() - started < 5
    delivered = [task.result().json()["messages"] for task in popping if task.exception() is None and task.result().status_code == 200]
    row = await sql.fetchrow(
        "SELECT c.lease_id, c.cursor_seq FROM queen.partition_consumers c JOIN queen.partitions p ON p.id = c.partition_id "
        "JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1", f"{queue}.busy")  # fmt: skip
    assert row is None or (row["lease_id"] is None and row["cursor_seq"] == sum(map(len, delivered)))


async def test_no_thread_and_no_connection_is_left_by_a_server_that_ended_while_busy(
    ending: Callable[..., Awaitable[LiveServer]], sql: Connection, queue: str
) -> None:
    live = await ending()
    before = threading.active_count()
    async with httpx.AsyncClient(base_url=live.url, timeout=20) as client:
        await push(client, queue, 0)
        work = [asyncio.create_task(client.post("/api/v1/push", json={"items": [{"queue": queue, "payload": n}] * 50})) for n in range(40)]
        await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(live.stop)
        await asyncio.wait(work)
    assert threading.active_count() <= before
    replies = [task.result() for task in work if task.exception() is None]
    assert {reply.status_code for reply in replies} <= {201, 503}
    stored = await sql.fetchval("SELECT count(*) FROM queen.messages m JOIN queen.partitions p ON p.id = m.partition_id "
                                "JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1", queue)  # fmt: skip
    assert stored >= 1 + 50 * sum(reply.status_code == 201 for reply in replies)
    assert await sql.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") == 0
