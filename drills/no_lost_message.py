"""The drill: a million messages through a server, a PostgreSQL and consumers that are killed with SIGKILL again and again; none is lost.

80 producers over HTTP and SQL users with transactions of their own push, two consumer groups pop, answer, give back, are late, and push in
transactions; then every id is accounted for. `--planted` runs the same against a cursor on (created_at, id), and succeeds only when the
judge reports losses. It never touches a database or a server that it didn't start.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "src"))

import asyncpg
from benchmarks.common import Report, machine_lines, main
from benchmarks.lab import queries
from drills import journal
from drills.checker import FAULTS, Grant, Group, Ledger, Verdict, judge
from drills.consumer import Orders
from drills.line import Line
from drills.producers import GONE, SQL, HttpProducer, Level, Pace, SqlUser
from drills.stage import Stage, stage

QUEUE = "drill"
GROUPS = ("billing", "shipping")
HOT = "hot"
MANY = [f"p{at:03}" for at in range(200)]
FEW = [f"q{at:02}" for at in range(12)]  # few writers: for users above READ COMMITTED
IDLE = MANY[7]
LEASE_SECONDS = 2
OPTIONS = {"leaseTime": LEASE_SECONDS, "retryLimit": 1_000_000, "retryDelay": 50}
PLANTED = queries("planted", Path(__file__).resolve().parent / "sql")


@dataclass(frozen=True, slots=True)
class Plan:
    """How big the drill is."""

    messages: int
    servers: int
    postgres: int
    consumers: int
    breath: float  # seconds from one kill to the next, at most
    drain: float  # seconds without any delivery after which the rest counts as stranded
    drain_most: float  # and seconds altogether
    each: int  # consumers of each group


FULL = Plan(messages=1_000_000, servers=20, postgres=5, consumers=50, breath=5.0, drain=60.0, drain_most=300.0, each=3)
QUICK = Plan(messages=50_000, servers=3, postgres=1, consumers=10, breath=1.5, drain=10.0, drain_most=25.0, each=2)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="50,000 messages and few kills: at most 60 s")
    parser.add_argument("--json", action="store_true", help='the last line is {"figures": {name: number, …}}')
    parser.add_argument("--planted", action="store_true", help="the flawed cursor: succeeds only when losses are reported")
    parser.add_argument("--messages", type=int, default=None, help="so many acknowledged messages at least")
    parser.add_argument("--seed", type=int, default=None, help="of the dice (times differ all the same)")
    parser.add_argument("--keep", type=Path, default=None, help="a directory for the journals and logs of this run")
    return parser.parse_args()


class Drill:
    """One run."""

    def __init__(self, options: argparse.Namespace, plan: Plan, on: Stage, report: Report) -> None:
        self.options, self.plan, self.stage, self.report = options, plan, on, report
        self.dice = random.Random(options.seed)
        self.ledger = Ledger()
        self.pace = Pace(options.messages or plan.messages, plan.servers + plan.postgres, self.ledger)
        self.kills = {"server": 0, "postgres": 0, "consumers": 0}
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        self.report.say(f"  {time.monotonic() - self.began:6.1f} s  {text}")

    async def run(self) -> Verdict:
        await self.stage.begin(SQL["install"], *([PLANTED["install"]] if self.options.planted else []))
        self.stage.start_server()
        await self.stage.ready()
        await self._configure()
        for _ in range(self.plan.each):
            for group in GROUPS:
                self.stage.start_consumer(self._orders(group))
        self.say("PostgreSQL, server and consumers stand")
        producers = [asyncio.create_task(work) for work in self._producers()]
        killers = [asyncio.create_task(self._kill_servers()), asyncio.create_task(self._kill_consumers())]
        try:
            await self._play(producers, killers)
        finally:
            for task in (*producers, *killers):
                task.cancel()
            await asyncio.gather(*producers, *killers, return_exceptions=True)
        self.say(f"{len(self.ledger.acknowledged):,} messages acknowledged; the groups drain")
        left = await self._drained()
        self.report.promise(self.options.planted or left == 0, f"{left} partitions of a group were still not drained")
        self.stage.stop_consumers()
        self.say("every id is accounted for")
        return await self._judged()

    async def _play(self, producers: list[asyncio.Task[None]], killers: list[asyncio.Task[None]]) -> None:
        """Until all kills are done and enough is acknowledged; whatever fails, fails the drill."""
        working = asyncio.gather(*killers)
        while not (working.done() and len(self.ledger.acknowledged) >= self.pace.target):
            await asyncio.sleep(0.05)
            for task in (*producers, *killers):
                if task.done():
                    task.result()
        self.pace.finished = True
        await asyncio.gather(*producers)

    async def _configure(self) -> None:
        line = Line(self.stage.port)
        status, raw = await line.call("POST", "/api/v1/configure", {"queue": QUEUE, "options": OPTIONS})
        line.close()
        if status != 200:
            raise RuntimeError(f"configure: {status} {raw.decode()}")

    def _orders(self, group: str) -> Orders:
        planted = self.options.planted
        return Orders(
            port=self.stage.port,
            queue=QUEUE,
            group=group,
            journal="",
            stream=0,
            loops=3,
            # the flawed cursor loses what commits behind it: nobody may lag
            shapes=[(500, 100)] if planted else [(10, 1), (50, 5), (100, 20), (500, 1), (500, 40)],
            lease_seconds=LEASE_SECONDS,
            partitions=[*MANY, HOT],
            transactions=0.0 if planted else 0.15,
            returns=0.0 if planted else 0.05,
            overdue=0.005,
        )

    # who pushes

    def _producers(self) -> list[Any]:
        streams = itertools.count()
        made: list[HttpProducer | SqlUser] = []
        for _ in range(16):
            made.append(HttpProducer(next(streams), QUEUE, [HOT], self.stage.port, self.pace))
        for at in range(64):
            mine = [MANY[(3 * at + step) % len(MANY)] for step in range(12)]
            made.append(HttpProducer(next(streams), QUEUE, mine, self.stage.port, self.pace))

        def user(level: Level, partitions: list[str], slow: float = 0.0, rolled_back: float = 0.0, rest: float = 0.02) -> None:
            made.append(SqlUser(next(streams), QUEUE, partitions, level, self.stage.connect, self.pace, slow, rolled_back, rest))

        for _ in range(3):
            user("read_committed", [*MANY[:60], HOT], rolled_back=0.1)
        for at in range(8):
            user("read_committed", MANY[25 * at : 25 * at + 25], slow=0.3, rolled_back=0.3)
        user("read_committed", [IDLE], slow=3.0 if self.options.quick else 20.0, rest=1.0)
        levels: tuple[Level, ...] = ("repeatable_read", "serializable")
        for at, level in enumerate((*levels, *levels)):
            user(level, FEW[3 * at : 3 * at + 3], slow=0.02 if at < 2 else 0.0, rolled_back=0.1)
        user("read_committed", FEW[:6], rolled_back=0.1)
        user("read_committed", FEW[6:], slow=0.05, rolled_back=0.3)
        for producer in made:
            producer.dice.seed(self.dice.random())
        return [producer.run() for producer in made]

    # who kills

    async def _kill_servers(self) -> None:
        turns: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            *[("server", self.stage.kill_server)] * self.plan.servers,
            *[("postgres", self.stage.kill_postgres)] * self.plan.postgres,
        ]
        self.dice.shuffle(turns)
        for name, kill in turns:
            await asyncio.sleep(self.dice.uniform(0.3, self.plan.breath))
            await self.pace.reached(4 * self.plan.breath)
            at = time.monotonic()
            acknowledged = len(self.ledger.acknowledged)
            await kill()
            self.kills[name] += 1
            self.pace.done += 1
            self.say(f"kill -9 of {name} {self.kills[name]} at {acknowledged:,} acknowledged; back after {time.monotonic() - at:.1f} s")

    async def _kill_consumers(self) -> None:
        pause = self.plan.breath * (self.plan.servers + self.plan.postgres) / self.plan.consumers
        while self.kills["consumers"] < self.plan.consumers:
            await asyncio.sleep(self.dice.uniform(0.5, 1.5) * pause)
            self.stage.kill_consumer(self.dice.choice(list(self.stage.consumers)))
            self.kills["consumers"] += 1

    # the end

    async def _drained(self) -> int:
        """Waits while something is delivered; answers how many partitions of a group are left."""
        statement = (PLANTED if self.options.planted else SQL)["pending"]
        most, began = -1, time.monotonic()
        since = began
        connection = await self.stage.connect()
        try:
            while True:
                left = int(await connection.fetchval(statement))
                if left == 0:
                    return 0
                size, now = sum(file.stat().st_size for group in GROUPS for file in self.stage.journals(group)), time.monotonic()
                if size > most:
                    most, since = size, now
                if now - since > self.plan.drain or now - began > self.plan.drain_most:
                    return left
                await asyncio.sleep(0.1)
        finally:
            await connection.close()

    async def _judged(self) -> Verdict:
        """Reads what the database and the consumers know, and compares it with what the producers know."""
        groups = {name: Group() for name in GROUPS}
        connection = await self.stage.connect()
        try:
            for row in await connection.fetch(SQL["grants"]):
                grant = Grant(row["id"], row["granted"], row["until"], row["over_live"])
                groups[row["consumer_group"]].grants[row["partition_id"], row["lease"]] = grant
            self._settle_users({row["id"] for row in await connection.fetch(SQL["orders"])})
            self.report.figure("gaps", float(await connection.fetchval(SQL["gaps"])))
            dead = await connection.fetchval(SQL["dead"])
        finally:
            await connection.close()
        self.report.promise(dead == 0, f"{dead} messages were dead-lettered")
        for name, group in groups.items():
            for file in self.stage.journals(name):
                for trouble, count in journal.read(file, group, self.ledger).items():
                    self.pace.count(trouble, count)
        return judge(self.ledger, groups, self.stage.deaths)

    def _settle_users(self, orders: set[int]) -> None:
        """An SQL user's message was sent exactly if the row of his own table is there."""
        for whole in self.ledger.together:
            for message in whole:
                if message in orders:
                    self.ledger.acknowledged.add(message)
                elif message not in self.ledger.acknowledged:
                    self.ledger.refused.add(message)


def summed_up(drill: Drill, verdict: Verdict) -> None:
    """Figures and promises."""
    report = drill.report
    for name in ("acknowledged", *FAULTS, "deliveries", "redelivered"):
        report.figures[name] = getattr(verdict, name)  # exact, however many
    for name, count in drill.kills.items():
        report.figures[f"kills_{name}"] = count
    report.figure("seconds", time.monotonic() - drill.began)
    for example in verdict.examples:
        report.say(f"    {example}")
    report.say("  replies: " + ", ".join(f"{name} {count:,}" for name, count in sorted(drill.pace.counts.items())))
    if drill.options.planted:
        report.promise(verdict.lost > 0, "the planted cursor lost nothing that the judge saw: it can't be trusted")
        return
    errors = sum(count for name, count in drill.pace.counts.items() if name.endswith("_500"))
    report.promise(errors == 0, f"{errors} requests were answered with 500")
    for name in (*FAULTS, "gaps"):
        report.promise(report.figures[name] == 0, f"{name} is {report.figures[name]:,.0f}, not 0")
    report.promise(verdict.acknowledged >= drill.pace.target, "too few messages were acknowledged")


async def run() -> int:
    options = arguments()
    report = Report(options)
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # Ctrl-C does the same: nothing is left running
    plan = QUICK if options.quick else FULL
    async with stage(options.keep) as on:
        drill = Drill(options, plan, on, report)
        try:
            verdict = await drill.run()
            version = await _version(on)
        except (*GONE, RuntimeError, asyncpg.PostgresError) as error:
            report.promise(False, f"the drill broke off: {type(error).__name__}: {error}")
            report.say(on.log())
            return report.finish()
        for line in machine_lines(f"PostgreSQL {version}"):
            report.say(line)
        summed_up(drill, verdict)
    return report.finish()


async def _version(on: Stage) -> str:
    connection = await on.connect()
    try:
        return str(await connection.fetchval(SQL["version"]))
    finally:
        await connection.close()


if __name__ == "__main__":
    main(run)
