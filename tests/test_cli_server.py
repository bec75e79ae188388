"""`queenmq up` and the commands that talk to it, as processes of their own: start, stop, kill, two at once; push, pop, tail, demo."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.cli_tools import environment, queenmq

from queenmq.cli.supervisor import free_port
from queenmq.postgres.embedded import EmbeddedPostgres


@dataclass(frozen=True)
class Up:
    """A running `queenmq up`."""

    process: asyncio.subprocess.Process
    info: dict[str, Any]
    postmaster: int

    @property
    def url(self) -> str:
        return str(self.info["url"])


@asynccontextmanager
async def up(home: Path, **variables: str) -> AsyncIterator[Up]:
    """Starts it with an embedded PostgreSQL and waits until it serves."""
    port = str(free_port())
    with (home / "up.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "queenmq", "up", "--json", "--data", str(home), "--port", port,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment(**variables), cwd="/",
        )  # fmt: skip
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        assert line, (home / "up.log").read_text()
        postmaster = int((home / "postgres" / "postmaster.pid").read_text().splitlines()[0])
        yield Up(process, json.loads(line), postmaster)
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 10)
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_up_says_where_it_serves_and_how_to_begin(home_dir: Path) -> None:
    port = str(free_port())
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "queenmq", "--data", str(home_dir), "--port", port,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment(), cwd="/",
    )  # fmt: skip
    assert process.stdout is not None
    said = (await asyncio.wait_for(process.stdout.readuntil(b"stops it.\n"), 60)).decode()
    assert f"serves http://127.0.0.1:{port}" in said
    assert str(home_dir) in said
    command = next(line.strip() for line in said.splitlines() if "api/v1/push" in line)
    done = await asyncio.create_subprocess_shell(command, stdout=subprocess.PIPE)
    answer, _ = await done.communicate()
    assert json.loads(answer)[0]["status"] == "queued"
    process.send_signal(signal.SIGINT)
    rest, _ = await asyncio.wait_for(process.communicate(), 10)
    assert (process.returncode, rest.decode()) == (0, "stopped\n")


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_stops_everything_within_five_seconds_also_under_long_polls(made_home: Path, sign: signal.Signals) -> None:
    async with up(made_home) as server:
        waiting = asyncio.create_task(queenmq("pop", "nothing", "--wait", "30", "--url", server.url))
        connection = await asyncpg.connect(EmbeddedPostgres.running_dsn(made_home))
        loop = asyncio.get_running_loop()
        began = loop.time()
        server.process.send_signal(sign)
        assert await asyncio.wait_for(server.process.wait(), 10) == 0
        assert loop.time() - began < 5
        assert not alive(server.postmaster)
        connection.terminate()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert not [log for log in (made_home / "up.log").read_text().splitlines() if "Traceback" in log]


async def test_after_kill_nine_the_next_start_has_every_message(made_home: Path) -> None:
    for round_ in range(3):
        async with up(made_home) as server:
            said = await queenmq("push", "orders", f'{{"round":{round_}}}', "--json", "--url", server.url)
            assert said.json["status"] == "queued"
            server.process.kill()
            await server.process.wait()
    async with up(made_home) as server:
        said = await queenmq("pop", "orders", "--batch", "10", "--json", "--url", server.url)
        assert [message["data"] for message in said.lines] == [{"round": 0}, {"round": 1}, {"round": 2}]


async def test_a_killed_postgres_comes_back_below_a_running_server(made_home: Path) -> None:
    async with up(made_home) as server:
        await queenmq("push", "orders", "1", "--url", server.url)
        os.kill(server.postmaster, signal.SIGKILL)
        await until(lambda: not alive(server.postmaster))
        answers: list[Any] = []
        async with asyncio.timeout(30):
            while not answers:
                said = await queenmq("pop", "orders", "--json", "--url", server.url)
                answers = said.lines if said.code == 0 else []
        assert answers[0]["data"] == 1
        assert server.process.returncode is None


async def test_a_second_start_on_the_same_directory_is_told_so(made_home: Path) -> None:
    async with up(made_home) as server:
        said = await queenmq("up", "--data", str(made_home), "--port", str(free_port()))
        assert said.code == 1
        assert f"another QueenMQ server (process {server.process.pid}) already serves from {made_home}" in said.err
        assert alive(server.postmaster)


async def test_push_pop_and_tail_pass_payloads_on_as_they_are(made_home: Path) -> None:
    async with up(made_home) as server:
        url = {"QUEENMQ_URL": server.url}
        words = ['{"b": 1,  "a": 1.0}', '"é"', "null"]
        pushed = await queenmq("push", "orders", *words, "--partition", "p", "--json", **url)
        assert [(answer["status"], answer["seq"]) for answer in pushed.lines] == [("queued", 1), ("queued", 2), ("queued", 3)]
        again = await queenmq("push", "orders", "1", "--transaction-id", pushed.lines[0]["transaction_id"], "--partition", "p", **url)
        assert again.out.startswith("duplicate")
        tailed = await queenmq("tail", "orders", "--all", "--count", "3", **url)
        assert [line.split("  ", 2)[1:] for line in tailed.out.splitlines()] == [["p", word] for word in words]
        kept = await queenmq("pop", "orders", "--batch", "2", "--no-ack", **url)
        assert [line.split("\t")[-1] for line in kept.out.splitlines()] == ["payload", *words[:2]]
        assert kept.err.startswith("lease ")
        nothing = await queenmq("pop", "orders", **url)
        assert (nothing.code, nothing.out, nothing.err) == (3, "", "nothing to pop in orders\n")


async def test_pushed_lines_come_out_in_order_and_are_acknowledged(made_home: Path) -> None:
    async with up(made_home) as server:
        url = {"QUEENMQ_URL": server.url}
        lines = "".join(f"{number}\n" for number in range(1200))
        assert "… 1200 messages" in (await queenmq("push", "orders", stdin=lines, **url)).out
        popped = await queenmq("pop", "orders", "--batch", "2000", "--json", **url)
        assert [message["data"] for message in popped.lines] == list(range(1200))
        assert (await queenmq("pop", "orders", **url)).code == 3
        (row,) = (await queenmq("queues", "--json", "--data", str(made_home))).json
        assert (row["name"], row["waiting"], row["stored"]) == ("orders", 0, 1200)
        assert (await queenmq("resync", "--json", "--data", str(made_home))).json["stale_lookups"] == 0
        doctor = await queenmq("doctor", "--json", QUEENMQ_HOME=str(made_home), PORT=server.url.rpartition(":")[2])
        assert doctor.json["healthy"], doctor.out
        assert {finding["check"] for finding in doctor.json["findings"]} >= {"durable", "schema"}


async def test_demo_starts_a_server_shows_the_queue_and_stops_all(made_home: Path) -> None:
    port = {"PORT": str(free_port())}
    for _ in range(2):
        said = await queenmq("demo", "--data", str(made_home), "--json", **port)
        assert said.code == 0, said.err
        assert said.json == {"pushed": 12, "repeated": "duplicate", "popped": 12, "in_order": True, "left": 0}
        assert EmbeddedPostgres.running_dsn(made_home) is None
    plain = await queenmq("demo", "--data", str(made_home), **port)
    assert "12 delivered, in order within each partition: yes" in plain.out
    assert "\x1b" not in plain.out


async def test_demo_uses_the_server_that_runs_and_leaves_it_running(made_home: Path) -> None:
    async with up(made_home) as server:
        said = await queenmq("demo", "--json", "--url", server.url)
        assert said.json["popped"] == 12
        assert server.process.returncode is None


async def test_bench_measures_push_and_pop(made_home: Path) -> None:
    async with up(made_home) as server:
        said = await queenmq("bench", "--messages", "500", "--batch", "50", "--connections", "4", "--json", "--url", server.url)
        assert [(phase["phase"], phase["messages"]) for phase in said.json["phases"]] == [("push", 500), ("pop+ack", 500)]
