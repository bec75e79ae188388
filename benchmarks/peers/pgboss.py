"""pg-boss from npm, driven by a small node script: single sends on as many connections as the case says.

It never installs into the checkout. Its invariant: node and its pool are up before the clock starts, and its own clock times each turn.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

from benchmarks.common import HERE, Sample
from benchmarks.lab import Postgres
from benchmarks.peers.pgmq import cache

VERSION = "10.4.2"  # the newest that runs on node 20
LINE_LIMIT = 64 * 2**20


def install() -> Path | None:
    """The folder of node modules with pg-boss in it; none without node and npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    folder = cache() / f"pg-boss-{VERSION}"
    modules = folder / "node_modules"
    if not (modules / "pg-boss" / "package.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), f"pg-boss@{VERSION}"]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
    return modules


class PgBoss:
    """The node process of one case, kept running over its rounds."""

    def __init__(self, postgres: Postgres, database: str, modules: Path, payloads: list[str]) -> None:
        self._postgres, self._database, self._modules = postgres, database, modules
        self._payloads = [json.loads(payload) for payload in payloads]
        self._process: asyncio.subprocess.Process | None = None

    async def open(self, connections: int) -> None:
        where = [str(self._modules), str(self._postgres.directory), str(self._postgres.port), self._postgres.user, self._database]
        self._process = await asyncio.create_subprocess_exec(
            "node",
            str(HERE / "peers" / "pgboss.mjs"),
            *where,
            str(connections),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_LIMIT,
        )
        await self._line()

    async def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await self._process.wait()

    async def send(self, seconds: float) -> Sample:
        assert self._process is not None
        assert self._process.stdin is not None
        before = self._postgres.cpu()
        self._process.stdin.write(json.dumps({"seconds": seconds, "payloads": self._payloads}).encode() + b"\n")
        answer = json.loads(await self._line())
        cpu = {"client": float(answer["cpu"]), "postgres": self._postgres.cpu() - before}
        return Sample(int(answer["sent"]), float(answer["seconds"]), [value / 1000 for value in answer["latencies"]], cpu)

    async def _line(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the pg-boss driver ended early; what it said is above")
        return line
