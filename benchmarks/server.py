"""Our server as a process of its own, on a port of its own, and a profile of it while it works.

It never runs inside the benchmark's process. Its invariant: it is ready before a clock starts and gone when its block ends.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import HERE, children, cpu_seconds
from benchmarks.lab import Postgres
from benchmarks.peers.pgmq import cache

READY_SECONDS = 60.0
PROFILES = HERE / "profiles"
LINES = 40


@dataclass(slots=True)
class Server:
    host: str
    port: int
    pid: int
    postgres: Postgres

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU so far, by kind of process."""
        return {"server": cpu_seconds(children(self.pid)), "postgres": self.postgres.cpu()}

    def post(self, path: str, body: bytes) -> bytes:
        """One plain request, outside every clock."""
        asked = urllib.request.Request(f"http://{self.host}:{self.port}{path}", body, {"content-type": "application/json"})
        with urllib.request.urlopen(asked, timeout=60) as reply:
            return bytes(reply.read())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def serving(postgres: Postgres, database: str, **settings: str) -> AsyncIterator[Server]:
    """`queenmq up` on that database."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="qms-") as home:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("QUEEN", "PG"))},
            "QUEEN_DATABASE_URL": postgres.url(database),
            "QUEENMQ_HOME": home,
            "PORT": str(port),
            "LOG_LEVEL": "warning",
            "PYTHONPATH": str(HERE.parent / "src"),
            **settings,
        }
        log = Path(home) / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen([sys.executable, "-m", "queenmq", "up"], env=environment, stdout=output, stderr=output, cwd=home)
        try:
            await _ready(process, port, log)
            yield Server("127.0.0.1", port, process.pid, postgres)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def _ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + READY_SECONDS
    while True:
        if _answers(f"http://127.0.0.1:{port}/readyz"):
            return
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"the server did not get ready:\n{log.read_text(errors='replace')[-3000:]}")
        await asyncio.sleep(0.05)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def profiler() -> Path | None:
    """py-spy from the package index, kept with the other peers; none where it can't be had."""
    folder = cache() / "py-spy"
    program = folder / "bin" / "py-spy"
    if not program.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), "py-spy"]
        if subprocess.run(command, capture_output=True).returncode != 0 or not program.exists():
            return None
    return program


async def profile(server: Server, name: str, seconds: float, heading: list[str], load: asyncio.Task[object]) -> Path | None:
    """Sample the server's busiest process while `load` runs; keep what it says beside the figures."""
    program = profiler()
    if program is None:
        await load
        return None
    pid = max(children(server.pid), key=lambda each: cpu_seconds([each]))
    with tempfile.TemporaryDirectory(prefix="qmp-") as folder:
        raw = Path(folder) / "raw"
        words = ["record", "--pid", str(pid), "--duration", str(max(1, round(seconds - 1))), "--rate", "250", "--format", "raw"]
        sampler = await asyncio.create_subprocess_exec(
            str(program), *words, "--output", str(raw), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        await load
        if await sampler.wait() != 0 or not raw.exists():
            return None
        text = summary(raw.read_text())
    PROFILES.mkdir(exist_ok=True)
    path = PROFILES / f"{name}.txt"
    path.write_text("\n".join([*heading, "", text, ""]))
    return path


def summary(raw: str) -> str:
    """From py-spy's folded stacks: where the time is spent, by the function itself and with what it calls."""
    own: collections.Counter[str] = collections.Counter()
    inclusive: collections.Counter[str] = collections.Counter()
    total = 0
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [_short(frame) for frame in stack.split(";")]
        total += int(count)
        own[frames[-1]] += int(count)
        for frame in set(frames):
            inclusive[frame] += int(count)
    lines = [f"{total} samples of the server's busiest process while it was on a CPU (py-spy)", "", "   own  function (line)"]
    lines += [f"{100 * count / max(total, 1):5.1f}%  {frame}" for frame, count in own.most_common(LINES)]
    lines += ["", "  with what it calls"]
    lines += [f"{100 * count / max(total, 1):5.1f}%  {frame}" for frame, count in inclusive.most_common(LINES)]
    return "\n".join(lines)


def _short(frame: str) -> str:
    """No path of this machine stays in a kept file."""
    function, _, place = frame.partition(" (")
    for marker in ("site-packages/", "src/queenmq/", "lib/python"):
        if marker in place:
            place = place.partition(marker)[2] if marker != "src/queenmq/" else "queenmq/" + place.partition(marker)[2]
            break
    else:
        place = place.rpartition("/")[2]
    return f"{function} ({place}" if place else function
