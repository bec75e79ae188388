"""Choosing a partition: our claim against the document's COUNT query and its lookup join, and what makes a claim slow.

10,000 partitions and 1,000,000 messages on both sides (--quick: 1,000 and 100,000), fresh and with 99.9 % of the partitions drained;
claims per second; growth with the number of partitions; growth while another session holds a snapshot open, pgmq's read beside it.
It never times our claim without its work: a claim leases the partition and returns the message, the document's queries only choose.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "src"))

from benchmarks import common, direct, lab, load, server
from benchmarks.common import Report, median, percentile
from benchmarks.peers import pgmq
from benchmarks.peers.document import Document
from benchmarks.queue_cycle import POPPED, acks

QUEUE = "bench"
PAYLOADS = [json.dumps({"order": 100_000 + at, "customer": f"customer-{at:02}", "amount": at * 7.5, "note": "x" * 36}) for at in range(100)]
CYCLERS = 4
CYCLE_PARTITIONS = 100
LAB = lab.queries("lab")
OURS = lab.queries("ours")


def milliseconds(seconds: list[float]) -> str:
    return f"p50 {1e3 * median(seconds):8.3f} ms  p99 {1e3 * percentile(seconds, 0.99):8.3f} ms"


async def claims(claimer: direct.Claimer, times: int) -> list[float]:
    """Seconds of each of `times` claims of one message; each is acked outside its clock."""
    taken = []
    for _ in range(times):
        claim = await claimer.claim(1)
        if not claim.messages:
            raise RuntimeError("a claim found nothing where messages wait")
        taken.append(claim.seconds)
        await claimer.ack(claim)
    return taken


async def ours_filled(postgres: lab.Postgres, queue: str, partitions: int, each: int) -> list[int]:
    """Our side's partitions with `each` messages in every one; the queue's group is made by the claimer."""
    connection = await postgres.connect("ours")
    try:
        ids = await direct.make_partitions(connection, queue, [f"customer-{at}" for at in range(partitions)])
        await direct.fill(connection, ids, each, PAYLOADS)
    finally:
        await connection.close()
    return ids


async def choose(report: Report, claimer: direct.Claimer, document: Document, figure: str, state: str) -> None:
    """Claim, COUNT query and lookup join in turns."""
    rounds, counts = report.options.rounds, 5 if report.options.quick else 8
    taken: dict[str, list[float]] = {"claim": [], "COUNT query": [], "lookup join": []}
    ratios = []
    await claims(claimer, 5)
    for number in range(rounds):
        steps: list[tuple[str, Callable[[], Awaitable[list[float]]]]] = [
            ("claim", lambda: claims(claimer, 90 // rounds)),
            ("COUNT query", lambda: document.timed("count_query", counts)),
            ("lookup join", lambda: document.timed("lookup_query", 5 * counts)),
        ]
        turn = {name: await step() for name, step in (steps if number % 2 == 0 else reversed(steps))}
        for name, seconds in turn.items():
            taken[name].extend(seconds)
        ratios.append(median(turn["COUNT query"]) / median(turn["claim"]))
    report.say(f"choosing a partition, {state}:")
    for name, seconds in taken.items():
        report.say(f"  {name:12} {milliseconds(seconds)}")
    report.figure(figure, median(ratios))
    report.bar(figure, 300, 1_000)


async def drain(claimer: direct.Claimer) -> int:
    """Claim and ack until nothing is left; answers how many messages that were."""
    done = 0
    while (claim := await claimer.claim(2_000, 100)).messages:
        await claimer.ack(claim)
        done += len(claim.messages)
    return done


async def claims_per_second(postgres: lab.Postgres, report: Report) -> int:
    """One and sixteen consumers, each claiming ten messages and acking them; answers how many messages they took."""
    consumers = []
    for _ in range(16):
        consumers.append(direct.Claimer(postgres, "ours", QUEUE))
        await consumers[-1].open()
    rates: dict[int, list[float]] = {1: [], 16: []}
    messages = 0
    for _ in range(report.options.rounds):
        for count in rates:
            start = time.perf_counter()
            until = start + report.options.seconds

            async def consume(consumer: direct.Claimer, until: float = until) -> list[int]:
                took = []
                while time.perf_counter() < until:
                    claim = await consumer.claim(10)
                    if not claim.messages:
                        continue
                    await consumer.ack(claim)
                    took.append(len(claim.messages))
                return took

            took = await asyncio.gather(*(consume(consumer) for consumer in consumers[:count]))
            messages += sum(map(sum, took))
            rates[count].append(sum(map(len, took)) / (time.perf_counter() - start))
    for consumer in consumers:
        await consumer.close()
    for count, values in rates.items():
        report.say(f"claims, each of ten messages and acked, {count} consumers: {common.thousands(median(values))}/s")
    report.figure("claims_per_s", median(rates[16]))
    report.figure("claims_per_s_c1", median(rates[1]))
    return messages


async def against_document(postgres: lab.Postgres, report: Report, partitions: int, each: int) -> None:
    document = Document(postgres, "document", QUEUE)
    await document.open(partitions, partitions * each)
    left = max(1, partitions // 1_000)
    ids = await ours_filled(postgres, QUEUE, partitions, each)
    claimer = direct.Claimer(postgres, "ours", QUEUE)
    await claimer.open()
    await postgres.tidy("ours", "document")
    await choose(
        report, claimer, document, "claim_vs_count", f"{partitions:,} partitions, {partitions * each:,} messages, nothing consumed"
    )
    taken = 95 + await claims_per_second(postgres, report)
    taken += await drain(claimer)
    report.promise(taken == partitions * each, f"{partitions * each} messages, {taken} delivered")
    empty = [(await claimer.claim(1)).seconds for _ in range(100)]
    report.say(f"  a claim where nothing waits {milliseconds(empty)}")
    connection = await postgres.connect("ours")
    await direct.fill(connection, ids[:left], 100, PAYLOADS)
    await connection.close()
    await document.drain(left)
    await postgres.tidy("ours", "document")
    await choose(report, claimer, document, "claim_vs_count_drained", f"all but {left} of {partitions:,} partitions drained")
    await claimer.close()
    await document.close()
    postgres.drop("document")


async def growth(postgres: lab.Postgres, report: Report, sizes: list[int]) -> None:
    """The claim with a hundred to a hundred thousand partitions, in turns."""
    claimers, taken = {}, {}
    for size in sizes:
        await ours_filled(postgres, f"growth-{size}", size, 10)
        claimers[size] = direct.Claimer(postgres, "ours", f"growth-{size}")
        await claimers[size].open()
        taken[size] = list[float]()
    await postgres.tidy("ours")
    for _ in range(report.options.rounds):
        for size in sizes:
            taken[size].extend(await claims(claimers[size], 400 // report.options.rounds))
    report.say("growth with the number of partitions, ten messages in each:")
    for size in sizes:
        report.say(f"  {size:>9,} partitions: claim {milliseconds(taken[size])}")
        report.figure(f"claim_p50_ms_p{size}", 1e3 * median(taken[size]))
        await claimers[size].close()
    report.figure("claim_growth", median(taken[sizes[-1]]) / median(taken[sizes[0]]))


async def our_cycles(running: server.Server, cycles: int) -> list[float]:
    """push → claim → ack over HTTP; answers the seconds of each claim in the order in which they ended."""
    taken: list[float] = []
    left = itertools.count()

    async def worker(number: int) -> None:
        caller = await load.Caller.connect(running.host, running.port)
        mine = [
            load.request("POST", "/api/v1/push", load.push_body(QUEUE, [f"customer-{at}"], PAYLOADS[:1]))
            for at in range(number, CYCLE_PARTITIONS, CYCLERS)
        ]
        pop = load.request("GET", f"/api/v1/pop/queue/{QUEUE}?batch=1")
        while next(left) < cycles:
            status, body = await caller.call(mine[len(taken) % len(mine)])
            if status != 201:
                raise load.LoadError(f"push answered {status}: {body[:300]!r}")
            began = time.perf_counter()
            status, body = await caller.call(pop)
            taken.append(time.perf_counter() - began)
            if status == 200:
                status, body = await caller.call(acks(POPPED.decode(body)))
                if status != 200:
                    raise load.LoadError(f"ack answered {status}: {body[:300]!r}")
        caller.close()

    await asyncio.gather(*(worker(number) for number in range(CYCLERS)))
    return taken


async def their_cycles(postgres: lab.Postgres, cycles: int) -> list[float]:
    """pgmq's send → read → delete, the same number of workers; seconds of each read."""
    taken: list[float] = []
    left = itertools.count()

    async def worker() -> None:
        connection = await postgres.connect("pgmq")
        send, read, delete = [await connection.prepare(pgmq.STATEMENTS[name]) for name in ("pgmq_send", "pgmq_read", "pgmq_delete")]
        while next(left) < cycles:
            await send.fetch(QUEUE, PAYLOADS[0])
            began = time.perf_counter()
            found = await read.fetch(QUEUE, 1)
            taken.append(time.perf_counter() - began)
            if found:
                await delete.fetch(QUEUE, [found[0][0]])
        await connection.close()

    await asyncio.gather(*(worker() for _ in range(CYCLERS)))
    return taken


async def held_snapshot(postgres: lab.Postgres, report: Report, cycles: int) -> None:
    """30,000 cycles while another session of each database holds a snapshot: a claim at the end by one at the beginning."""
    block = cycles // 10
    postgres.create("snapshot")
    await pgmq.install(postgres, "pgmq")
    peer = pgmq.Pgmq(postgres, "pgmq", QUEUE)
    await peer.open(1)
    await peer.close()
    holders = [await postgres.connect("snapshot"), await postgres.connect("pgmq")]
    async with server.serving(postgres, "snapshot") as running:
        await our_cycles(running, 200)
        await their_cycles(postgres, 200)
        await postgres.tidy("snapshot", "pgmq")
        for holder in holders:
            await holder.execute(LAB["hold_snapshot"])
        ours, theirs = list[float](), list[float]()
        for _ in range(10):
            ours.extend(await our_cycles(running, block))
            theirs.extend(await their_cycles(postgres, block))
        for holder in holders:
            await holder.execute(LAB["let_go"])
            await holder.close()
    report.say(f"{cycles:,} cycles while another session holds a snapshot, p50 of a claim (ours over HTTP, pgmq's read directly):")
    for name, seconds in (("ours", ours), ("pgmq", theirs)):
        parts = [1e3 * median(seconds[at * len(seconds) // 10 : (at + 1) * len(seconds) // 10]) for at in range(10)]
        report.say(f"  {name:5} per tenth, ms: {' '.join(f'{part:.2f}' for part in parts)}")
        report.figure("snapshot_growth" if name == "ours" else "snapshot_growth_pgmq", parts[-1] / parts[0])
    report.bar("snapshot_growth", 1.5, most=True)


def options() -> argparse.Namespace:
    parser = common.arguments(__doc__.splitlines()[0], rounds=5, seconds=1.5)
    parser.add_argument("--part", action="append", choices=["document", "growth", "snapshot"], help="only this part (repeatable)")
    return common.parsed(parser, quick_rounds=3, quick_seconds=0.4)


async def run() -> int:
    chosen = options()
    report, parts = Report(chosen), chosen.part or ["document", "growth", "snapshot"]
    async with lab.postgres() as postgres:
        for line in common.machine_lines(
            postgres.version, ["the document's COUNT query and lookup join", f"pgmq {pgmq.VERSION} (its SQL)"]
        ):
            report.say(line)
        await postgres.migrated("ours")
        if "document" in parts:
            await against_document(postgres, report, 1_000 if chosen.quick else 10_000, 100)
        if "growth" in parts:
            await growth(postgres, report, [100, 1_000, 10_000] if chosen.quick else [100, 1_000, 10_000, 100_000])
        if "snapshot" in parts:
            await held_snapshot(postgres, report, 3_000 if chosen.quick else 30_000)
    return report.finish()


if __name__ == "__main__":
    common.main(run)
