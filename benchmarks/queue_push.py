"""Pushing: our server over HTTP, and `queen.push_messages` called directly, against pgmq's SQL called directly and pg-boss.

Same PostgreSQL, a fresh database for each side of each case, VACUUM ANALYZE and a checkpoint between the rounds, sides in turns.
It never counts what wasn't acknowledged. Its promise: afterwards the rows stored equal the messages acknowledged, without a gap.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "src"))

from benchmarks import common, direct, lab, load, server
from benchmarks.common import Report, Sample
from benchmarks.peers import pgboss, pgmq

QUEUE = "bench"
PARTITIONS = (1, 64, 10_000)
WARM = 500  # items a request while partitions are made
OURS = lab.queries("ours")
PAYLOADS = [
    json.dumps({"order": 100_000 + at, "customer": f"customer-{at % 64:02}", "amount": at * 7.5, "note": "x" * 36}) for at in range(1_000)
]


@dataclass(frozen=True, slots=True)
class Case:
    """One way to push; the bars hold for `partitions`."""

    name: str
    connections: int
    batch: int
    least: float
    goal: float
    partitions: int
    http: bool = True


SINGLE = Case("single_c64", 64, 1, 1.5, 2.0, 64)
CASES = (
    SINGLE,
    Case("batch_100_c64", 64, 100, 1.0, 1.5, 64),
    Case("bulk_1000", 4, 1_000, 0.6, 1.0, 1),
    Case("bulk_1000_sql", 2, 1_000, 0.8, 1.0, 1, http=False),
)
BOSS_BAR = 5.0


def names(count: int) -> list[str]:
    """Partition names in an order that has nothing to do with the index."""
    made = [f"customer-{at}" for at in range(count)]
    random.Random(7).shuffle(made)
    return made


def requests(batch: int, partitions: list[str]) -> list[tuple[bytes, int]]:
    """Enough different push requests to go once through all partitions (or payloads); a request's items go round the partitions."""
    different = max(64 // batch, len(partitions) // batch, 1 if len(partitions) == 1 else 8)
    turn, payloads = itertools.cycle(partitions), itertools.cycle(PAYLOADS)
    made = []
    for _ in range(different):
        body = load.push_body(QUEUE, list(itertools.islice(turn, batch)), list(itertools.islice(payloads, batch)))
        made.append((load.request("POST", "/api/v1/push", body), batch))
    return made


def feeds(case: Case, partitions: list[str]) -> list[Iterator[tuple[bytes, int]]]:
    prepared = requests(case.batch, partitions)
    return [load.cycle(prepared, at * max(1, len(prepared) // case.connections)) for at in range(case.connections)]


def warm_up(running: server.Server, partitions: list[str]) -> int:
    """Make every partition with one message in it; what such a reply says is checked here, outside the clock."""
    for start in range(0, len(partitions), WARM):
        some = partitions[start : start + WARM]
        replies = json.loads(running.post("/api/v1/push", load.push_body(QUEUE, some, PAYLOADS[: len(some)])))
        good = [reply for at, reply in enumerate(replies) if reply["index"] == at and reply["status"] == "queued" and reply["seq"] == 1]
        if len(good) != len(some) or len({reply["message_id"] for reply in good}) != len(some):
            raise load.LoadError(f"a push of {len(some)} answered {replies[:2]} …")
    return len(partitions)


async def stored(postgres: lab.Postgres, database: str, report: Report, acknowledged: int, what: str) -> None:
    connection = await postgres.connect(database)
    try:
        row = await connection.fetchrow(OURS["stored"], QUEUE)
    finally:
        await connection.close()
    assert row is not None
    report.promise(row["rows"] == acknowledged, f"{what}: {acknowledged} acknowledged, {row['rows']} stored")
    report.promise(row["with_gap"] == 0 and row["disagreeing"] == 0, f"{what}: {row['with_gap']} gaps, {row['disagreeing']} counters off")


async def peer_turn(postgres: lab.Postgres, peer: pgmq.Pgmq, case: Case, seconds: float, tidy: list[str]) -> Sample:
    await postgres.tidy(*tidy)
    return await peer.send(PAYLOADS, case.batch, seconds)


async def over_http(postgres: lab.Postgres, case: Case, count: int, report: Report, modules: Path | None) -> None:
    """Ours through HTTP against pgmq (and pg-boss for single pushes)."""
    options, partitions = report.options, names(count)
    ours, theirs = postgres.create("ours"), await pgmq.install(postgres, "pgmq")
    peer = pgmq.Pgmq(postgres, theirs, QUEUE)
    await peer.open(case.connections)
    boss = pgboss.PgBoss(postgres, postgres.create("boss"), modules, PAYLOADS[:64]) if modules and case is SINGLE else None
    if boss is not None:
        await boss.open(case.connections)
    async with server.serving(postgres, ours) as running:
        acknowledged = warm_up(running, partitions)
        http = load.HttpLoad(running.host, running.port)
        await http.open(feeds(case, partitions))

        async def our_turn() -> Sample:
            await postgres.tidy(ours)
            return await http.turn(options.seconds, running.cpu)

        sides: dict[str, common.Side] = {"ours": our_turn, "pgmq": lambda: peer_turn(postgres, peer, case, options.seconds, [theirs])}
        if boss is not None:
            sides["pg-boss"] = lambda: boss.send(options.seconds)
        acknowledged += (await http.turn(0.5, running.cpu)).acknowledged  # caches and prepared statements
        taken = await common.interleave(sides, options.rounds)
        acknowledged += sum(sample.acknowledged for sample in taken["ours"])
        report.say(f"{case.name}, {count:,} partitions: {case.connections} connections, {case.batch:,} a request")
        for name, samples in taken.items():
            report.say(common.describe(name, samples))
        if http.refused():
            report.say(f"  refused by us: {http.refused()}")
        note(report, case, count, taken)
        if not options.no_profile and count == case.partitions:
            turn = asyncio.ensure_future(http.turn(options.seconds + 2, running.cpu))
            heading = [f"{case.name}, {count} partitions, through HTTP", *common.machine_lines(postgres.version)]
            await server.profile(running, f"queue_push.{case.name}", options.seconds + 2, heading, turn)
            acknowledged += turn.result().acknowledged
        http.close()
    await stored(postgres, ours, report, acknowledged, f"{case.name}, {count} partitions")
    report.promise(await peer.length() == sum(sample.acknowledged for sample in taken["pgmq"]), f"{case.name}: pgmq's count")
    await peer.close()
    if boss is not None:
        await boss.close()


async def over_sql(postgres: lab.Postgres, case: Case, count: int, report: Report) -> None:
    """`queen.push_messages` called as pgmq's send_batch is."""
    options = report.options
    ours, theirs = await postgres.migrated("ours"), await pgmq.install(postgres, "pgmq")
    peer = pgmq.Pgmq(postgres, theirs, QUEUE)
    await peer.open(case.connections)
    pusher = direct.Pusher(postgres, ours, QUEUE)
    await pusher.open(case.connections, names(count), PAYLOADS)
    acknowledged = 0

    async def our_turn() -> Sample:
        await postgres.tidy(ours)
        return await pusher.push(case.batch, options.seconds)

    sides: dict[str, common.Side] = {"ours": our_turn, "pgmq": lambda: peer_turn(postgres, peer, case, options.seconds, [theirs])}
    taken = await common.interleave(sides, options.rounds)
    acknowledged += sum(sample.acknowledged for sample in taken["ours"])
    report.say(f"{case.name}, {count:,} partitions: {case.connections} connections, {case.batch:,} a call")
    for name, samples in taken.items():
        report.say(common.describe(name, samples))
    note(report, case, count, taken)
    await pusher.close()
    await stored(postgres, ours, report, acknowledged, f"{case.name}, {count} partitions")
    await peer.close()


def note(report: Report, case: Case, count: int, taken: dict[str, list[Sample]]) -> None:
    against = {"pgmq": f"{case.name}_vs_pgmq", "pg-boss": f"{case.name}_vs_pgboss"}
    for peer, name in against.items():
        if peer not in taken:
            continue
        value = common.ratio(taken["ours"], taken[peer])
        report.figure(f"{name}_p{count}", value)
        if count == case.partitions:
            report.figure(name, value)
            report.bar(name, case.least if peer == "pgmq" else BOSS_BAR, case.goal if peer == "pgmq" else None)


def options() -> argparse.Namespace:
    parser = common.arguments(__doc__.splitlines()[0], rounds=5, seconds=4.0)
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="only this case (repeatable)")
    parser.add_argument("--partitions", action="append", type=int, help="only this number of partitions (repeatable)")
    return common.parsed(parser, quick_rounds=2, quick_seconds=0.8)


async def run() -> int:
    chosen = options()
    report = Report(chosen)
    modules = pgboss.install()
    peers = [f"pgmq {pgmq.VERSION} (its SQL)", f"pg-boss {pgboss.VERSION}" if modules else "pg-boss: no node here, left out"]
    async with lab.postgres() as postgres:
        for line in common.machine_lines(postgres.version, peers):
            report.say(line)
        for case in CASES:
            for count in PARTITIONS:
                if (chosen.case and case.name not in chosen.case) or (chosen.partitions and count not in chosen.partitions):
                    continue
                if case.http:
                    await over_http(postgres, case, count, report, modules)
                else:
                    await over_sql(postgres, case, count, report)
    return report.finish()


if __name__ == "__main__":
    common.main(run)
