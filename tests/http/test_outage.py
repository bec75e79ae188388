"""PostgreSQL is killed while everything is under way: what was acknowledged is there once, what is said to be undone is undone, and the
server goes on by itself when the database is back."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import pytest
from tests.queen.support import SESSIONS, item, messages, push, take, until

from queenmq.clock import Clock
from queenmq.metrics import Metrics
from queenmq.postgres.embedded import EmbeddedPostgres
from queenmq.postgres.pool import Database
from queenmq.queen.encryption import Sealer
from queenmq.queen.manager import Limits, Manager
from queenmq.queen.popping import PopRequest
from queenmq.testing.live import LiveServer

DEADLINE = 40.0
BREAK = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name LIKE 'queenmq%'"""


@pytest.fixture
async def watched(durable_postgres: EmbeddedPostgres) -> AsyncIterator[EmbeddedPostgres]:
    """A PostgreSQL that is started again whenever it ends."""
    watching = asyncio.create_task(durable_postgres.watch())
    yield durable_postgres
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


def kill(postgres: EmbeddedPostgres) -> None:
    assert postgres.pid is not None
    os.kill(postgres.pid, signal.SIGKILL)


class Load:
    """Clients that never repeat anything, so that every answer can be held against what is stored."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.numbers = itertools.count()
        self.said: dict[int, str] = {}
        self.kinds: dict[int, str] = {}
        self.stopped = False
        self.strange: list[str] = []

    async def one(self, kind: str) -> None:
        number = next(self.numbers)
        self.kinds[number] = kind
        item = {"queue": kind, "partition": f"p{number % 5}", "payload": number}
        if kind == "push":
            reply = await self.client.post("/api/v1/push", json={"items": [item]})
        else:
            reply = await self.client.post("/api/v1/transaction", json={"operations": [{"type": "push", "items": [item]}]})
        told: Any = reply.json()
        if reply.status_code in (200, 201):
            self.said[number] = "done"
        elif reply.status_code == 503 and reply.headers["retry-after"] and told["error"]:
            self.said[number] = "undone" if told.get("nothingDone") else "unknown"
        else:
            self.strange.append(reply.text)

    async def run(self, kind: str) -> None:
        while not self.stopped:
            await self.one(kind)

    def refused(self) -> int:
        return sum(said != "done" for said in self.said.values())

    async def check(self, url: str) -> None:
        """Holds every answer against what is stored."""
        assert not self.strange
        connection = await asyncpg.connect(url)
        rows = await connection.fetch("SELECT payload::text FROM queen.messages m JOIN queen.partitions p ON p.id = m.partition_id "
                                      "JOIN queen.queues q ON q.id = p.queue_id WHERE q.name <> 'after'")  # fmt: skip
        await connection.close()
        stored = Counter(int(row[0]) for row in rows)
        assert "done" in self.said.values()
        for number, said in self.said.items():
            assert stored[number] in {"done": (1,), "undone": (0,), "unknown": (0, 1)}[said], (number, said, self.kinds[number])

    async def consume(self) -> None:
        while not self.stopped:
            reply = await self.client.get("/api/v1/pop/queue/push", params={"group": "g", "batch": 20, "wait": "true", "timeout": 500})
            if reply.status_code == 200 and (found := reply.json()["messages"]):
                acks = [{k: m[k] for k in ("transactionId", "partitionId", "leaseId")} for m in found]
                reply = await self.client.post("/api/v1/ack/batch", json={"acknowledgments": acks, "consumerGroup": "g"})
            if reply.status_code not in (200, 503):
                self.strange.append(reply.text)


async def healthy(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(DEADLINE):
        while True:
            if (await client.get("/health")).status_code == 200:
                return


async def test_every_answer_is_true_when_postgresql_is_killed_under_load(watched: EmbeddedPostgres) -> None:
    with LiveServer(watched.dsn()) as live:
        async with httpx.AsyncClient(base_url=live.url, timeout=DEADLINE) as client:
            load = Load(client)
            work = [asyncio.create_task(load.run(kind)) for kind in ("push", "transaction") for _ in range(6)]
            work += [asyncio.create_task(load.consume()) for _ in range(2)]
            for _ in range(2):
                seen = len(load.said)
                await until(lambda seen=seen: len(load.said) > seen + 100 or bool(load.strange), DEADLINE)  # type: ignore[misc]
                refused = load.refused()
                kill(watched)
                await until(lambda refused=refused: load.refused() > refused, DEADLINE)  # type: ignore[misc]
                await healthy(client)
            load.stopped = True
            await asyncio.gather(*work)
            assert (await client.get("/livez")).status_code == 200
            assert (await client.post("/api/v1/push", json={"items": [{"queue": "after", "payload": 1}]})).status_code == 201
        await load.check(watched.dsn())


async def test_every_answer_is_true_when_connections_break_and_pushes_don_t_even_fail(database_url: str) -> None:
    with LiveServer(database_url) as live:
        async with httpx.AsyncClient(base_url=live.url, timeout=DEADLINE) as client:
            load = Load(client)
            await load.one("push")
            work = [asyncio.create_task(load.run(kind)) for kind in ("push", "transaction") for _ in range(6)]
            work += [asyncio.create_task(load.consume()) for _ in range(2)]
            connection = await asyncpg.connect(database_url)
            for _ in range(5):
                seen = len(load.said)
                await until(lambda seen=seen: len(load.said) > seen + 30 or bool(load.strange), DEADLINE)  # type: ignore[misc]
                await connection.execute(BREAK)
            await connection.close()
            load.stopped = True
            await asyncio.gather(*work)
            assert {said for number, said in load.said.items() if load.kinds[number] == "push"} == {"done"}
        await load.check(database_url)


async def test_while_the_database_is_away_requests_are_refused_and_probes_tell(durable_postgres: EmbeddedPostgres) -> None:
    with LiveServer(durable_postgres.dsn()) as live:
        async with httpx.AsyncClient(base_url=live.url, timeout=DEADLINE) as client:
            body = {"items": [{"queue": "orders", "payload": 1, "transactionId": "t"}]}
            assert (await client.post("/api/v1/push", json=body)).status_code == 201
            waiting = asyncio.create_task(client.get("/api/v1/pop/queue/none", params={"wait": "true", "timeout": 30000}))
            await durable_postgres.stop()
            refused = [
                await client.post("/api/v1/push", json=body),
                await client.post("/api/v1/push", json={"items": [{"queue": "new", "payload": 1}]}),
                await client.get("/api/v1/pop/queue/orders"),
                await client.get("/api/v1/pop", params={"namespace": "n"}),
                await client.post("/api/v1/ack", json={"transactionId": "t", "partitionId": "1"}),
                await client.post("/api/v1/transaction", json={"operations": [{"type": "push", "items": body["items"]}]}),
                await client.post("/api/v1/lease/00000000-0000-4000-8000-000000000000/extend"),
                await client.post("/api/v1/configure", json={"queue": "orders"}),
                await client.get("/health"),
                await client.get("/readyz"),
                await client.get("/api/v1/resources/queues"),
                await waiting,
            ]
            assert [reply.status_code for reply in refused] == [503] * len(refused)
            assert all(reply.headers["retry-after"] and reply.json()["error"] for reply in refused)
            assert (await client.get("/livez")).status_code == 200 and (await client.get("/metrics")).status_code == 200
            await durable_postgres.start()
            await healthy(client)
            assert (await client.post("/api/v1/push", json=body)).json()[0]["status"] == "duplicate"
            waiting = asyncio.create_task(client.get("/api/v1/pop/queue/outbox", params={"wait": "true", "timeout": 30000}))
            connection = await asyncpg.connect(durable_postgres.dsn())
            await connection.execute("SELECT queen.push('outbox', 'p', '1')")
            await connection.close()
            assert [message["data"] for message in (await waiting).json()["messages"]] == [1]


async def test_what_was_delivered_or_claimed_for_nobody_is_settled_when_the_database_is_back(durable_postgres: EmbeddedPostgres) -> None:
    database = Database(durable_postgres.dsn(), 8)
    await database.open()
    manager = Manager(database, Clock(), Metrics(), sealer=Sealer(()), salt=1, session=next(SESSIONS), limits=Limits())
    try:
        await push(manager, *(item("orders", n, f"p{n}") for n in range(2)))
        delivered = await manager.pop(PopRequest("orders", "p0", auto_ack=True))
        lost = await manager.pop(PopRequest("orders", "p1"))
        assert delivered is not None and lost is not None and [m["data"] for m in messages(lost)] == [1]
        await durable_postgres.stop()
        manager.delivered(delivered)
        manager.undelivered(lost)
        await asyncio.gather(push(manager, item("orders", 9)), return_exceptions=True)
        await durable_postgres.start()
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(DEADLINE):
            while not found:
                found = await take(manager, "orders", wait=True, timeout=1.0)
        assert [(m["data"], m["retryCount"]) for m in found] == [(1, 0)]
        await push(manager, item("orders", 2, "p0"))
        found = []
        async with asyncio.timeout(DEADLINE):
            while not found:
                found = await take(manager, "orders", wait=True, timeout=1.0)
        assert [m["data"] for m in found] == [2]
    finally:
        await manager.close()
        await database.close()


async def test_a_server_ends_in_time_though_its_database_hangs(durable_postgres: EmbeddedPostgres) -> None:
    """PostgreSQL stands still with everything under way: nothing that waits for it holds up the end."""
    live = LiveServer(durable_postgres.dsn()).start()
    try:
        async with httpx.AsyncClient(base_url=live.url, timeout=DEADLINE) as client:
            await client.post("/api/v1/push", json={"items": [{"queue": "orders", "payload": 1}]})
            message = (await client.get("/api/v1/pop/queue/orders")).json()["messages"][0]
            await client.post("/api/v1/ack", json={k: message[k] for k in ("transactionId", "partitionId", "leaseId")})
            connection = await asyncpg.connect(durable_postgres.dsn())
            pids = [row[0] for row in await connection.fetch("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'queenmq%'")]
            assert durable_postgres.pid is not None
            pids.append(durable_postgres.pid)
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            try:
                work = [
                    asyncio.create_task(client.post("/api/v1/push", json={"items": [{"queue": "orders", "payload": 2}]})),
                    asyncio.create_task(client.post("/api/v1/push", json={"items": [{"queue": "new", "payload": 2}]})),
                    asyncio.create_task(client.get("/api/v1/pop/queue/orders", params={"wait": "true"})),
                    asyncio.create_task(client.post("/api/v1/ack", json={"transactionId": "t", "partitionId": message["partitionId"]})),
                ]
                await asyncio.wait(work, timeout=0.1)
                started = asyncio.get_running_loop().time()
                await asyncio.to_thread(live.stop)
                assert asyncio.get_running_loop().time() - started < 6
                replies = await asyncio.gather(*work)
                assert {reply.status_code for reply in replies} == {503}
                assert not any(reply.json().get("nothingDone") for reply in (replies[0], replies[3]))
            finally:
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
            await connection.close()
    finally:
        live.stop()
