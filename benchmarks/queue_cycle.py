"""The whole way of a message: push → pop → ack over HTTP, against pgmq's send → read → delete called directly, at batch 1, 10 and 100.

Each worker owns a connection and takes the three steps in turn, sides in turns on the same PostgreSQL. It never counts a message
before its ack was answered. Its promise: every message acknowledged is delivered once and acked, none is left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "src"))

from benchmarks import common, lab, load, server
from benchmarks.common import Report, Sample
from benchmarks.peers import pgmq

QUEUE = "bench"
BATCHES = (1, 10, 100)
WORKERS = 16
PARTITIONS = 64
PAYLOADS = [json.dumps({"order": 100_000 + at, "customer": f"customer-{at:02}", "amount": at * 7.5, "note": "x" * 36}) for at in range(100)]


class Message(msgspec.Struct):
    id: str
    transactionId: str


class Popped(msgspec.Struct):
    messages: list[Message]
    leaseId: str | None = None
    partitionId: str | None = None


class Acked(msgspec.Struct):
    success: bool


POPPED = msgspec.json.Decoder(Popped)
ACKED = msgspec.json.Decoder(list[Acked])


def acks(popped: Popped) -> bytes:
    """The request that completes everything the pop returned."""
    lease = {"partitionId": popped.partitionId, "leaseId": popped.leaseId, "status": "completed"}
    made = [{"transactionId": message.transactionId, **lease} for message in popped.messages]
    if len(made) == 1:
        return load.request("POST", "/api/v1/ack", msgspec.json.encode(made[0]))
    return load.request("POST", "/api/v1/ack/batch", msgspec.json.encode({"acknowledgments": made}))


@dataclass(slots=True)
class Ours:
    """The workers of one batch size, their connections kept open over the rounds."""

    running: server.Server
    batch: int
    callers: list[load.Caller] = field(default_factory=list)
    pushed: int = 0
    seen: list[str] = field(default_factory=list)  # ids as delivered
    refused: int = 0  # acks that were answered with success:false

    async def open(self) -> None:
        self.callers = [await load.Caller.connect(self.running.host, self.running.port) for _ in range(WORKERS)]

    def close(self) -> None:
        for caller in self.callers:
            caller.close()

    async def turn(self, seconds: float) -> Sample:
        latencies: list[float] = []
        clock = time.perf_counter
        before, own = self.running.cpu(), os.times()
        start = clock()
        until = start + seconds
        acked = sum(await asyncio.gather(*(self._worker(number, until, latencies) for number in range(WORKERS))))
        taken = clock() - start
        after, now = self.running.cpu(), os.times()
        spent = {"client": now.user + now.system - own.user - own.system, **{kind: after[kind] - before[kind] for kind in before}}
        return Sample(acked, taken, latencies, spent)

    async def drain(self) -> None:
        """What concurrent workers left for each other is popped and acked, outside the clock."""
        while await self._pop_and_ack(self.callers[0]) > 0:
            continue

    async def _worker(self, number: int, until: float, latencies: list[float]) -> int:
        caller, acked, clock = self.callers[number], 0, time.perf_counter
        mine = range(number, PARTITIONS, WORKERS)
        pushes = [load.request("POST", "/api/v1/push", load.push_body(QUEUE, [f"customer-{at}"], PAYLOADS[: self.batch])) for at in mine]
        turn = 0
        while (began := clock()) < until:
            status, body = await caller.call(pushes[turn % len(pushes)])
            if status != 201:
                raise load.LoadError(f"push answered {status}: {body[:300]!r}")
            self.pushed += self.batch
            turn += 1
            acked += await self._pop_and_ack(caller)
            latencies.append(clock() - began)
        return acked

    async def _pop_and_ack(self, caller: load.Caller) -> int:
        status, body = await caller.call(load.request("GET", f"/api/v1/pop/queue/{QUEUE}?batch={self.batch}"))
        if status == 204:
            return 0
        if status != 200:
            raise load.LoadError(f"pop answered {status}: {body[:300]!r}")
        popped = POPPED.decode(body)
        self.seen.extend(message.id for message in popped.messages)
        if not popped.messages:
            return 0
        status, body = await caller.call(acks(popped))
        if status != 200:
            raise load.LoadError(f"ack answered {status}: {body[:300]!r}")
        good = sum(reply.success for reply in ACKED.decode(body))
        self.refused += len(popped.messages) - good
        return good


async def case(postgres: lab.Postgres, batch: int, report: Report) -> None:
    options = report.options
    ours_database, theirs = postgres.create("ours"), await pgmq.install(postgres, "pgmq")
    peer = pgmq.Pgmq(postgres, theirs, QUEUE)
    await peer.open(WORKERS)
    async with server.serving(postgres, ours_database) as running:
        ours = Ours(running, batch)
        await ours.open()

        async def our_turn() -> Sample:
            await postgres.tidy(ours_database)
            return await ours.turn(options.seconds)

        async def their_turn() -> Sample:
            await postgres.tidy(theirs)
            return await peer.cycle(PAYLOADS, batch, options.seconds)

        await ours.turn(0.5)  # partitions, caches, prepared statements
        taken = await common.interleave({"ours": our_turn, "pgmq": their_turn}, options.rounds)
        report.say(f"batch {batch}: {WORKERS} workers, push → pop → ack, {PARTITIONS} partitions")
        for name, samples in taken.items():
            report.say(common.describe(name, samples))
        name = f"batch_{batch}_vs_pgmq"
        report.figure(name, common.ratio(taken["ours"], taken["pgmq"]))
        if not options.no_profile:
            heading = [f"queue_cycle, batch {batch}", *common.machine_lines(postgres.version)]
            turn = asyncio.ensure_future(ours.turn(options.seconds + 2))
            await server.profile(running, f"queue_cycle.batch_{batch}", options.seconds + 2, heading, turn)
        await ours.drain()
        ours.close()
        delivered = len(set(ours.seen))
        report.promise(delivered == len(ours.seen), f"batch {batch}: {len(ours.seen) - delivered} delivered twice")
        report.promise(delivered == ours.pushed, f"batch {batch}: {ours.pushed} pushed, {delivered} delivered")
        report.promise(ours.refused == 0, f"batch {batch}: {ours.refused} acks refused")
    await peer.close()


def options() -> argparse.Namespace:
    parser = common.arguments(__doc__.splitlines()[0], rounds=5, seconds=4.0)
    parser.add_argument("--batch", action="append", type=int, help="only this batch size (repeatable)")
    return common.parsed(parser, quick_rounds=2, quick_seconds=1.5)


async def run() -> int:
    chosen = options()
    report = Report(chosen)
    async with lab.postgres() as postgres:
        for line in common.machine_lines(postgres.version, [f"pgmq {pgmq.VERSION} (its SQL)"]):
            report.say(line)
        for batch in chosen.batch or BATCHES:
            await case(postgres, batch, report)
    return report.finish()


if __name__ == "__main__":
    common.main(run)
