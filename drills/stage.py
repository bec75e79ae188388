"""The drill's own PostgreSQL, server and consumers, and their murder.

Never touches what it didn't start, never stops anything gently before the end. Invariant: everything lies in one temporary folder, and
when the block ends nothing of it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
from benchmarks.common import children
from benchmarks.server import free_port
from drills.consumer import Orders
from drills.line import Line, Lost

from queenmq.postgres.embedded import EmbeddedPostgres
from queenmq.postgres.migrate import migrate

HERE = Path(__file__).resolve().parent
READY_SECONDS = 60.0
OPTIONS = {"max_connections": "150"}  # all else, durability above all, as a user gets it


def kill(pids: list[int]) -> None:
    """SIGKILL, in this order."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Stage:
    """What the play happens on."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self.postgres = EmbeddedPostgres(home, options=OPTIONS)
        self.server: subprocess.Popen[bytes] | None = None
        self.consumers: dict[str, tuple[subprocess.Popen[bytes], Orders]] = {}
        self.deaths: dict[str, float] = {}
        self.started = 0  # consumers, ever

    @property
    def dsn(self) -> str:
        return self.postgres.dsn()

    async def connect(self) -> asyncpg.Connection[Any]:
        return await asyncpg.connect(self.dsn, timeout=30)

    async def begin(self, *statements: str) -> None:
        """PostgreSQL with our schema and what the drill adds to it."""
        await self.postgres.start()
        await migrate(self.dsn)
        connection = await self.connect()
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    # the server

    def start_server(self) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("QUEEN", "PG"))},
            "QUEEN_DATABASE_URL": self.dsn,
            "QUEENMQ_HOME": str(self.home / "server"),
            "PORT": str(self.port),
            "LOG_LEVEL": "warning",
            "PYTHONPATH": str(HERE.parent / "src"),
        }
        (self.home / "server").mkdir(exist_ok=True)
        with (self.home / "server.log").open("ab") as log:
            self.server = subprocess.Popen([sys.executable, "-m", "queenmq", "up"], env=environment, stdout=log, stderr=log, cwd=self.home)

    async def ready(self) -> None:
        """Until the server answers."""
        line = Line(self.port)
        until = time.monotonic() + READY_SECONDS
        while True:
            with contextlib.suppress(Lost):
                status, _ = await line.call("GET", "/readyz")
                if status == 200:
                    line.close()
                    return
            if self.server is not None and self.server.poll() is not None:
                raise RuntimeError(f"the server ended by itself:\n{self.log()}")
            if time.monotonic() > until:
                raise RuntimeError(f"the server did not get ready:\n{self.log()}")
            await asyncio.sleep(0.05)

    def log(self) -> str:
        file = self.home / "server.log"
        return file.read_text(errors="replace")[-3000:] if file.exists() else ""

    async def kill_server(self) -> None:
        """kill -9, and at once the next one."""
        assert self.server is not None
        if self.server.poll() is not None:
            raise RuntimeError(f"the server ended by itself:\n{self.log()}")
        kill(children(self.server.pid))
        self.server.wait()
        self.start_server()
        await self.ready()

    async def kill_postgres(self) -> None:
        """kill -9 of the postmaster and all its children at once: a crash, not a shutdown; then it recovers."""
        pid = self.postgres.pid
        assert pid is not None
        kill(children(pid))
        await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        await self.postgres.start()
        await self.ready()

    # the consumers

    def start_consumer(self, orders: Orders) -> None:
        """Each one has a name, a journal and ids of its own."""
        name = f"{orders.group}-{self.started}"
        orders = msgspec.structs.replace(orders, journal=str(self.home / f"{name}.journal"), stream=1_000 + self.started * orders.loops)
        self.started += 1
        with (self.home / "consumers.log").open("ab") as log:
            words = [sys.executable, str(HERE / "consumer.py"), msgspec.json.encode(orders).decode()]
            self.consumers[name] = subprocess.Popen(words, stdout=log, stderr=log, cwd=self.home), orders

    def kill_consumer(self, name: str) -> None:
        """kill -9, and at once another one of its group."""
        process, orders = self.consumers.pop(name)
        if process.poll() is not None:
            raise RuntimeError(f"consumer {name} ended by itself:\n{(self.home / 'consumers.log').read_text(errors='replace')[-3000:]}")
        self.deaths[name] = time.time()
        process.kill()
        process.wait()
        self.start_consumer(orders)

    def journals(self, group: str) -> list[Path]:
        return sorted(self.home.glob(f"{group}-*.journal"))

    def stop_consumers(self) -> None:
        for process, _ in self.consumers.values():
            process.kill()
        for process, _ in self.consumers.values():
            process.wait()
        self.consumers.clear()

    async def end(self) -> None:
        self.stop_consumers()
        if self.server is not None and self.server.poll() is None:
            kill(children(self.server.pid))
            self.server.wait()
        await self.postgres.stop()


@contextlib.asynccontextmanager
async def stage(keep: Path | None = None) -> AsyncIterator[Stage]:
    """A stage in a temporary folder. `keep`: where journals and logs are copied before it goes."""
    home = Path(tempfile.mkdtemp(prefix="qmd-"))
    home.chmod(0o755)
    made = Stage(home)
    try:
        yield made
    finally:
        await made.end()
        if keep is not None:
            shutil.copytree(home, keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("postgres", "pginstall*", "*.sock"))
        shutil.rmtree(home, ignore_errors=True)
