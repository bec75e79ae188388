"""pgmq's own SQL, from its package on the index, called directly over asyncpg connections.

It never changes that SQL. Its invariant: statements are prepared once per connection and payloads are prepared outside the clock, so
what is measured is pgmq and the same driver that our direct calls use.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import asyncpg
from benchmarks.common import Sample
from benchmarks.lab import Postgres, queries

VERSION = "1.1.4"
STATEMENTS = queries("peers")


def cache() -> Path:
    """Where peers are kept between runs."""
    home = os.environ.get("QUEENMQ_BENCH_CACHE")
    path = Path(home) if home else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "queenmq-bench"
    path.mkdir(parents=True, exist_ok=True)
    return path


def sql() -> str:
    """The text of pgmq.sql out of the wheel that pip downloads."""
    folder = cache() / f"pgmq-{VERSION}"
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), f"pgmq=={VERSION}"]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        wheels = list(folder.glob("*.whl"))
    with zipfile.ZipFile(wheels[0]) as wheel:
        return wheel.read("pgmq/sql/pgmq.sql").decode()


async def install(postgres: Postgres, database: str) -> str:
    """pgmq in a database of its own."""
    postgres.create(database)
    connection = await postgres.connect(database)
    try:
        await connection.execute(sql())
    finally:
        await connection.close()
    return database


class Pgmq:
    """As many connections as a case has, kept open over its rounds."""

    def __init__(self, postgres: Postgres, database: str, queue: str) -> None:
        self._postgres, self._database, self._queue = postgres, database, queue
        self._connections: list[asyncpg.Connection[Any]] = []

    async def open(self, connections: int) -> None:
        self._connections = [await self._postgres.connect(self._database) for _ in range(connections)]
        await self._connections[0].execute(STATEMENTS["pgmq_create"].replace("$1", f"'{self._queue}'"))

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()

    async def length(self) -> int:
        return int(await self._connections[0].fetchval(STATEMENTS["pgmq_length"], self._queue))

    async def send(self, payloads: list[str], batch: int, seconds: float) -> Sample:
        """Every connection sends `batch` messages a call until the time is up; what is answered counts."""
        latencies: list[float] = []
        statements = [
            await connection.prepare(STATEMENTS["pgmq_send" if batch == 1 else "pgmq_send_batch"]) for connection in self._connections
        ]
        turn = itertools.cycle(payloads)
        messages = [list(itertools.islice(turn, batch)) for _ in range(16)]
        clock = time.perf_counter
        before, database = os.times(), self._postgres.cpu()
        start = clock()
        until = start + seconds

        async def sender(number: int) -> int:
            fetch, queue, sent = statements[number].fetch, self._queue, 0
            mine = itertools.cycle(messages[number % 16 :] + messages[: number % 16])
            while (began := clock()) < until:
                what = next(mine)
                sent += len(await fetch(queue, what[0] if batch == 1 else what))
                latencies.append(clock() - began)
            return sent

        sent = sum(await asyncio.gather(*(sender(number) for number in range(len(statements)))))
        taken = clock() - start
        after = os.times()
        cpu = {"client": after.user + after.system - before.user - before.system, "postgres": self._postgres.cpu() - database}
        return Sample(sent, taken, latencies, cpu)

    async def cycle(self, payloads: list[str], batch: int, seconds: float) -> Sample:
        """Every connection sends a batch, reads a batch and deletes what it read, until the time is up; what was deleted counts."""
        latencies: list[float] = []
        names = ("pgmq_send" if batch == 1 else "pgmq_send_batch", "pgmq_read", "pgmq_delete")
        statements = [[await connection.prepare(STATEMENTS[name]) for name in names] for connection in self._connections]
        what: Any = payloads[0] if batch == 1 else payloads[:batch]
        clock = time.perf_counter
        before, database = os.times(), self._postgres.cpu()
        start = clock()
        until = start + seconds

        async def worker(number: int) -> int:
            send, read, delete = (statement.fetch for statement in statements[number])
            queue, deleted = self._queue, 0
            while (began := clock()) < until:
                await send(queue, what)
                found = [row[0] for row in await read(queue, batch)]
                deleted += len(await delete(queue, found)) if found else 0
                latencies.append(clock() - began)
            return deleted

        deleted = sum(await asyncio.gather(*(worker(number) for number in range(len(statements)))))
        taken = clock() - start
        after = os.times()
        cpu = {"client": after.user + after.system - before.user - before.system, "postgres": self._postgres.cpu() - database}
        return Sample(deleted, taken, latencies, cpu)
