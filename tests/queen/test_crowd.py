"""Everything at once on two servers: callers that leave, sessions that hold rows, connections that break. What was stored is settled
exactly once, in order, and nothing stays leased or waiting."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.queen.support import ack, item, push, take, until

from queenmq.errors import QueenError
from queenmq.queen.manager import Manager

if TYPE_CHECKING:
    from tests.queen.conftest import MakeManager

    Connection = asyncpg.Connection[asyncpg.Record]

PARTITIONS, PUSHES = 6, 40
BREAK = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = 'queenmq' AND random() < 0.3"""


class Crowd:
    """Producers and consumers of one queue, with what they were told."""

    def __init__(self, queue: str, servers: list[Manager], seed: int) -> None:
        self.queue = queue
        self.servers = servers
        self.random = random.Random(seed)
        self.stored: dict[tuple[str, int], str] = {}
        self.maybe: set[str] = set()
        self.settled: dict[tuple[str, int], int] = {}
        self.doubtful: set[tuple[str, int]] = set()
        self.disorder: list[Any] = []
        self.over = False

    def server(self) -> Manager:
        return self.random.choice(self.servers)

    async def leaving(self, work: Any) -> Any:
        """The work's result; None when its caller left or it was refused."""
        task = asyncio.create_task(work)
        if self.random.random() < 0.2:
            for _ in range(self.random.randrange(30)):
                await asyncio.sleep(0)
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return None
        except QueenError as error:
            if error.status != 503:
                raise
            return None

    async def produce(self, number: int) -> None:
        for k in range(PUSHES):
            names = [f"{number}-{k}-{n}" for n in range(self.random.choice((1, 1, 3)))]
            items = [item(self.queue, name, f"p{self.random.randrange(PARTITIONS)}", transactionId=name) for name in names]
            self.maybe.update(names)
            entries = await self.leaving(push(self.server(), *items))
            for entry, each in zip(entries or (), items, strict=bool(entries)):
                if entry["status"] != "failed":
                    self.stored[str(each.partition), entry["seq"]] = entry["transaction_id"]

    async def consume(self) -> None:
        while not self.over:
            found = await self.leaving(take(self.server(), self.queue, batch=5, partitions=2, group="g"))
            if not found:
                await asyncio.sleep(0)
                continue
            addresses = [(m["partition"], m["seq"]) for m in found]
            for partition in {partition for partition, _ in addresses}:
                seqs = [seq for name, seq in addresses if name == partition]
                if seqs != sorted(seqs):
                    self.disorder.append(addresses)
            status = self.random.choice(("completed", "completed", "completed", "retry"))
            answers = await self.leaving(ack(self.server(), *found, status=status))
            while answers is None and not self.over:
                # The first one may have been done, and the lease may be another's by now.
                self.doubtful.update(addresses)
                answers = await self.leaving(ack(self.server(), *found, status=status))
            for address, answer in zip(addresses, answers or (), strict=bool(answers)):
                if status == "completed" and answer["success"]:
                    self.settled[address] = self.settled.get(address, 0) + 1


async def hold(crowd: Crowd, session: Connection) -> None:
    """Rows of some partition, for a moment, again and again."""
    while not crowd.over:
        table = crowd.random.choice(("partition_lookup", "partition_consumers"))
        async with session.transaction():
            await session.execute(
                f"SELECT FROM queen.{table} x JOIN queen.partitions p ON p.id = x.partition_id JOIN queen.queues q ON q.id = p.queue_id "
                "WHERE q.name = $1 AND p.name = $2 FOR UPDATE OF x", crowd.queue, f"p{crowd.random.randrange(PARTITIONS)}")  # fmt: skip
            await session.execute("SELECT pg_sleep($1)", crowd.random.random() * 0.08)


async def disturb(crowd: Crowd, session: Connection) -> None:
    for _ in range(3):
        await session.execute("SELECT pg_sleep(0.15)")
        await session.execute(BREAK)


@pytest.mark.parametrize("seed", range(3))
async def test_a_crowd_with_every_disturbance_loses_and_doubles_nothing(
    make_manager: MakeManager, queue: str, sql: Connection, other: Connection, seed: int
) -> None:
    crowd = Crowd(queue, [await make_manager(), await make_manager()], seed)
    await push(crowd.server(), *(item(queue, "first", f"p{n}", transactionId=f"first {n}") for n in range(PARTITIONS)))
    consuming = [asyncio.create_task(crowd.consume()) for _ in range(4)]
    disturbing = [asyncio.create_task(hold(crowd, other))]
    await asyncio.gather(disturb(crowd, sql), *(crowd.produce(number) for number in range(8)))
    await until(lambda: set(crowd.stored) <= set(crowd.settled) | crowd.doubtful)
    crowd.over = True
    await asyncio.gather(*consuming, *disturbing)
    assert not crowd.disorder and set(crowd.settled.values()) == {1}
    rows = await sql.fetch("SELECT p.name, m.seq, m.transaction_id FROM queen.messages m JOIN queen.partitions p ON p.id = m.partition_id "
                           "JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1 ORDER BY 1, 2", queue)  # fmt: skip
    there = {(row["name"], row["seq"]): row["transaction_id"] for row in rows}
    assert all(there[address] == name for address, name in crowd.stored.items())
    assert len(set(there.values())) == len(there) and {name for name in there.values() if not name.startswith("first")} <= crowd.maybe
    for n in range(PARTITIONS):
        seqs = [seq for partition, seq in sorted(there) if partition == f"p{n}"]
        assert seqs == list(range(1, len(seqs) + 1))
    left = await take(crowd.servers[0], queue, batch=1000, partitions=100, group="g")
    assert {(m["partition"], m["seq"]) for m in left} <= set(there) - set(crowd.settled)
    assert all(
        lane.waiting_units == 0 and not lane.flying for server in crowd.servers for lane in (server.sidecar.push, server.sidecar.ack)
    )
