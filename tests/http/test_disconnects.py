"""A client that leaves, at every moment of a pop, or reads slowly (correction W5): what it didn't get is given back without an attempt, and
autoAck moves the cursor only when the reply was written."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.http.wire import Plain, Wire, get, post, wire

from queenmq.testing.live import LiveServer

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

BIG, COUNT = 200_000, 60  # 12 MB: more than the kernel buffers of a connection hold
ROW = """SELECT c.cursor_seq, c.lease_id, c.attempts FROM queen.partition_consumers c JOIN queen.partitions p ON p.id = c.partition_id
          JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1"""


@pytest.fixture
async def sql(shared_url: str) -> Any:
    connection = await asyncpg.connect(shared_url)
    yield connection
    await connection.close()


async def comes_true(sql: Connection, queue: str, **expected: object) -> asyncpg.Record:
    """The consumer row, as soon as it is as expected (`leased` stands for a lease)."""
    deadline = asyncio.get_running_loop().time() + 15
    while True:
        row = await sql.fetchrow(ROW, queue)
        if row is not None:
            found = {**dict(row), "leased": row["lease_id"] is not None}
            if all(found[name] == value for name, value in expected.items()):
                return row
        assert asyncio.get_running_loop().time() < deadline, (row, expected)


def fill(plain: Plain, queue: str, count: int = COUNT) -> None:
    for start in range(0, count, 6):
        items = [{"queue": queue, "payload": "x" * BIG} for _ in range(start, min(start + 6, count))]
        assert plain.post("/api/v1/push", json={"items": items}).status_code == 201


def left(plain: Plain, queue: str) -> list[tuple[int, int]]:
    """Sequence numbers and attempts of what a pop finds at once."""
    reply = plain.get(f"/api/v1/pop/queue/{queue}", params={"batch": 100, "wait": "true", "timeout": 3000})
    return [(message["seq"], message["retryCount"]) for message in reply.json()["messages"]]


ALL = [(seq, 0) for seq in range(1, COUNT + 1)]


@pytest.mark.parametrize("how", ["closed", "reset", "half-closed"])
async def test_a_client_that_leaves_while_it_waits_leaves_no_waiter_and_takes_nothing(
    shared: LiveServer, plain: Plain, queue: str, how: str
) -> None:
    def waiting() -> float:
        figures: dict[str, float] = plain.get("/metrics").json()
        return figures["queen_waiting_pops"]

    deadline = asyncio.get_running_loop().time() + 10
    with wire(shared.url) as line:
        line.send(get(f"/api/v1/pop/queue/{queue}?wait=true&timeout=60000"))
        while waiting() != 1:
            assert asyncio.get_running_loop().time() < deadline
        if how == "reset":
            line.vanish()
        elif how == "half-closed":
            line.sock.shutdown(1)
        else:
            line.sock.close()
        while waiting() != 0:
            assert asyncio.get_running_loop().time() < deadline
    assert plain.post("/api/v1/push", json={"items": [{"queue": queue, "payload": 1}]}).status_code == 201
    assert left(plain, queue) == [(1, 0)]


async def test_clients_that_leave_just_when_something_comes_take_nothing_from_those_that_stay(
    shared: LiveServer, plain: Plain, queue: str
) -> None:
    for number in range(30):
        lines = []
        for _ in range(3):
            context = wire(shared.url)
            line = context.__enter__()
            line.send(get(f"/api/v1/pop/queue/{queue}?wait=true&timeout=60000&leaseTime=1"))
            lines.append((context, line))
        with wire(shared.url) as pusher:
            pusher.send(post("/api/v1/push", json.dumps({"items": [{"queue": queue, "payload": number}]}).encode()))
            for context, line in lines:
                line.vanish()
                context.__exit__(None, None, None)
            assert pusher.reply()[0] == 201
    seen: list[int] = []
    while len(seen) < 30:
        reply = plain.get(f"/api/v1/pop/queue/{queue}", params={"batch": 100, "wait": "true", "timeout": 10000}).json()
        assert reply["messages"]
        acks = [{name: message[name] for name in ("transactionId", "partitionId", "leaseId")} for message in reply["messages"]]
        assert all(answer["success"] for answer in plain.post("/api/v1/ack/batch", json={"acknowledgments": acks}).json())
        seen += [message["data"] for message in reply["messages"]]
    assert seen == list(range(30))


@pytest.mark.parametrize("how", ["closed", "reset"])
@pytest.mark.parametrize("auto", [False, True])
async def test_a_client_that_leaves_with_a_reply_half_written_gets_nothing_counted(
    shared: LiveServer, plain: Plain, sql: Connection, queue: str, how: str, auto: bool
) -> None:
    fill(plain, queue)
    with wire(shared.url, receive_buffer=4096) as line:
        line.send(get(f"/api/v1/pop/queue/{queue}?batch=100{'&autoAck=true' if auto else ''}"))
        await comes_true(sql, queue, leased=True, cursor_seq=0)
        line.until(b"\r\n\r\n")
        if how == "reset":
            line.vanish()
    row = await comes_true(sql, queue, leased=False)
    assert row["cursor_seq"] == 0 and row["attempts"] is None
    assert left(plain, queue) == ALL


def drink(line: Wire) -> list[int]:
    """Reads a whole reply."""
    status, _, body = line.reply()
    assert status == 200
    return [message["seq"] for message in json.loads(body)["messages"]]


@pytest.mark.parametrize("more", [(), ("Connection: close",)])
async def test_auto_ack_moves_the_cursor_when_a_slow_reader_has_got_all(
    shared: LiveServer, plain: Plain, sql: Connection, queue: str, more: tuple[str, ...]
) -> None:
    fill(plain, queue)
    with wire(shared.url, receive_buffer=4096) as line:
        line.send(get(f"/api/v1/pop/queue/{queue}?batch=100&autoAck=true", *more))
        await comes_true(sql, queue, leased=True)
        head = line.until(b"\r\n\r\n")
        assert (await comes_true(sql, queue, leased=True))["cursor_seq"] == 0
        line.got = head + line.got
        assert drink(line) == list(range(1, COUNT + 1))
    await comes_true(sql, queue, leased=False, cursor_seq=COUNT)
    assert plain.get(f"/api/v1/pop/queue/{queue}").status_code == 204


@pytest.mark.parametrize("more", [(), ("Connection: close",)])
async def test_a_slow_reader_keeps_its_lease(shared: LiveServer, plain: Plain, sql: Connection, queue: str, more: tuple[str, ...]) -> None:
    fill(plain, queue)
    with wire(shared.url, receive_buffer=4096) as line:
        line.send(get(f"/api/v1/pop/queue/{queue}?batch=100", *more))
        await comes_true(sql, queue, leased=True)
        assert drink(line) == list(range(1, COUNT + 1))
    assert plain.get(f"/api/v1/pop/queue/{queue}").status_code == 204
    await comes_true(sql, queue, leased=True)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_a_small_reply_on_a_closing_connection_counts_as_written(
    shared: LiveServer, plain: Plain, sql: Connection, queue: str, version: str
) -> None:
    fill(plain, queue, 2)
    with wire(shared.url) as line:
        request = get(f"/api/v1/pop/queue/{queue}?batch=1&autoAck=true", "Connection: close")
        line.send(request.replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
        assert drink(line) == [1] and line.ended()
    await comes_true(sql, queue, leased=False, cursor_seq=1)


async def test_pipelined_pops_with_auto_ack_are_all_settled(shared: LiveServer, plain: Plain, sql: Connection, queue: str) -> None:
    fill(plain, queue)
    with wire(shared.url, receive_buffer=4096) as line:
        line.send(get(f"/api/v1/pop/queue/{queue}?batch=20&autoAck=true&wait=true&timeout=20000") * 3)
        seqs = [seq for _ in range(3) for seq in drink(line)]
    assert seqs == list(range(1, COUNT + 1))
    await comes_true(sql, queue, leased=False, cursor_seq=COUNT)


async def test_a_push_whose_client_left_before_the_reply_is_stored_once(shared: LiveServer, plain: Plain, queue: str) -> None:
    plain.post("/api/v1/push", json={"items": [{"queue": queue, "payload": "first"}]})
    for number in range(20):
        with wire(shared.url) as line:
            line.send(
                post("/api/v1/push", json.dumps({"items": [{"queue": queue, "payload": number, "transactionId": str(number)}]}).encode())
            )
            if number % 2:
                line.vanish()
    again = [{"queue": queue, "payload": number, "transactionId": str(number)} for number in range(20)]
    assert plain.post("/api/v1/push", json={"items": again}).status_code == 201
    reply = plain.get(f"/api/v1/pop/queue/{queue}", params={"batch": 100}).json()
    assert sorted(message["transactionId"] for message in reply["messages"][1:]) == sorted(map(str, range(20)))
