"""Pushing: our server over HTTP, and `queen.push_messages` called directly, against pgmq's SQL called directly and pg-boss.

Same PostgreSQL, a fresh database for each side of each case, VACUUM ANALYZE and a checkpoint between the rounds, sides in turns.
It never counts what wasn't acknowledged. Its promise: afterwards the rows stored equal the messages acknowledged, without a gap.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import random
import sys
from collections.abc import Iterator, Sequence
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
MOST_BYTES = 32 << 20  # of prepared requests
PROFILE_SECONDS = 4.0
OURS = lab.queries("ours")
PAYLOADS = [
    json.dumps({"order": 100_000 + at, "customer": f"customer-{at % 64:02}", "amount": at * 7.5, "note": "x" * 36}) for at in range(1_000)
]


@dataclass(frozen=True, slots=True)
class Case:
    """One way to push; the bars hold for `partitions`. `spread`: a request's items go round the partitions; else it names one."""

    name: str
    connections: int
    batch: int
    least: float | None
    goal: float | None
    partitions: int
    http: bool = True
    spread: bool = False


SINGLE = Case("single_c64", 64, 1, 1.5, 2.0, 64)
CASES = (
    SINGLE,
    Case("batch_100_c64", 64, 100, 1.0, 1.5, 64),
    Case("batch_100_c64_spread", 64, 100, None, None, 64, spread=True),
    Case("bulk_1000", 4, 1_000, 0.6, 1.0, 1),
    Case("bulk_1000_spread", 4, 1_000, None, None, 64, spread=True),
    Case("bulk_1000_sql", 2, 1_000, 0.8, 1.0, 1, http=False, spread=True),
)
BOSS_BAR = 5.0


def names(count: int) -> list[str]:
    """Partition names in an order that has nothing to do with the index."""
    made = [f"customer-{at}" for at in range(count)]
    random.Random(7).shuffle(made)
    return made


def requests(case: Case, partitions: list[str]) -> list[tuple[bytes, int]]:
    """Different push requests that go round the partitions and the payloads."""
    each = case.batch if case.spread else 1  # partitions of one request
    different = min(len(partitions), MOST_BYTES // (case.batch * 160)) if each == 1 else len(partitions) // each
    turn, payloads = itertools.cycle(partitions), itertools.cycle(PAYLOADS)
    made = []
    for _ in range(max(different, 8)):
        body = load.push_body(QUEUE, list(itertools.islice(turn, each)), list(itertools.islice(payloads, case.batch)))
        made.append((load.request("POST", "/api/v1/push", body), case.batch))
    return made


def feeds(case: Case, partitions: list[str]) -> list[Iterator[tuple[bytes, int]]]:
    """A connection begins where the ones before it don't."""
    prepared = requests(case, partitions)
    return [load.cycle(prepared, at * len(prepared) // case.connections) for at in range(case.connections)]


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


@dataclass(slots=True)
class Stage:
    """What the cases need around them: the peers, and over HTTP a server whose partitions are there."""

    postgres: lab.Postgres
    report: Report
    modules: Path | None
    partitions: list[str]
    running: server.Server | None = None
    acknowledged: int = 0

    async def peer(self, case: Case) -> tuple[pgmq.Pgmq, common.Side]:
        """pgmq with a fresh queue."""
        peer = pgmq.Pgmq(self.postgres, "pgmq", f"{case.name}_{len(self.partitions)}")
        await peer.open(case.connections)

        async def turn() -> Sample:
            await self.postgres.tidy("pgmq")
            return await peer.send(PAYLOADS, case.batch, self.report.options.seconds)

        return peer, turn


async def over_http(stage: Stage, case: Case) -> None:
    """Ours through HTTP against pgmq (and pg-boss for single pushes)."""
    report, options, running = stage.report, stage.report.options, stage.running
    assert running is not None
    peer, their_turn = await stage.peer(case)
    http = load.HttpLoad(running.host, running.port)
    await http.open(feeds(case, stage.partitions))

    async def our_turn() -> Sample:
        await stage.postgres.tidy("ours")
        return await http.turn(options.seconds, running.cpu)

    sides: dict[str, common.Side] = {"ours": our_turn, "pgmq": their_turn}
    boss = None
    if stage.modules is not None and case is SINGLE:
        boss = pgboss.PgBoss(stage.postgres, stage.postgres.create("boss"), stage.modules, PAYLOADS[:64])
        await boss.open(case.connections)
        sides["pg-boss"] = functools.partial(boss.send, options.seconds)
    stage.acknowledged += (await http.turn(0.3, running.cpu)).acknowledged  # caches and prepared statements
    taken = await common.interleave(sides, options.rounds)
    stage.acknowledged += sum(sample.acknowledged for sample in taken["ours"])
    note(report, case, len(stage.partitions), taken)
    if http.refused():
        report.say(f"  refused by us: {http.refused()}")
    if not options.no_profile and len(stage.partitions) == case.partitions:
        turn = asyncio.ensure_future(http.turn(PROFILE_SECONDS, running.cpu))
        heading = [f"{case.name}, {len(stage.partitions)} partitions, through HTTP", *common.machine_lines(stage.postgres.version)]
        await server.profile(running, f"queue_push.{case.name}", PROFILE_SECONDS, heading, turn)
        stage.acknowledged += turn.result().acknowledged
    http.close()
    report.promise(await peer.length() == sum(sample.acknowledged for sample in taken["pgmq"]), f"{case.name}: pgmq's count")
    await peer.close()
    if boss is not None:
        await boss.close()


async def over_sql(stage: Stage, case: Case) -> None:
    """`queen.push_messages` called as pgmq's send_batch is."""
    options = stage.report.options
    await stage.postgres.migrated("ours")
    peer, their_turn = await stage.peer(case)
    pusher = direct.Pusher(stage.postgres, "ours", QUEUE)
    await pusher.open(case.connections, stage.partitions, PAYLOADS)

    async def our_turn() -> Sample:
        await stage.postgres.tidy("ours")
        return await pusher.push(case.batch, options.seconds)

    taken = await common.interleave({"ours": our_turn, "pgmq": their_turn}, options.rounds)
    stage.acknowledged += sum(sample.acknowledged for sample in taken["ours"])
    note(stage.report, case, len(stage.partitions), taken)
    await pusher.close()
    await peer.close()


async def perform(postgres: lab.Postgres, report: Report, modules: Path | None, cases: Sequence[Case], count: int) -> None:
    """Cases of one kind with so many partitions, on one fresh database."""
    await pgmq.install(postgres, "pgmq")
    stage = Stage(postgres, report, modules, names(count))
    if cases[0].http:
        async with server.serving(postgres, postgres.create("ours")) as stage.running:
            stage.acknowledged = warm_up(stage.running, stage.partitions)
            for case in cases:
                await over_http(stage, case)
    else:
        for case in cases:
            await over_sql(stage, case)
    await stored(postgres, "ours", report, stage.acknowledged, f"{', '.join(case.name for case in cases)}, {count} partitions")


def note(report: Report, case: Case, count: int, taken: dict[str, list[Sample]]) -> None:
    """Says what the sides did and keeps the figures."""
    report.say(f"{case.name}, {count:,} partitions: {case.connections} connections, {case.batch:,} a {'request' if case.http else 'call'}")
    for side, samples in taken.items():
        report.say(common.describe(side, samples))
    for peer, bar, goal in (("pgmq", case.least, case.goal), ("pg-boss", BOSS_BAR, None)):
        if peer not in taken:
            continue
        name = f"{case.name}_vs_{peer.replace('-', '')}"
        value = common.ratio(taken["ours"], taken[peer])
        report.figure(f"{name}_p{count}", value)
        if count == case.partitions:
            report.figure(name, value)
            report.bar(name, bar, goal)


def worthwhile(case: Case, count: int, quick: bool) -> bool:
    """With one partition there is nothing to spread over; the quick run leaves out what has no bar."""
    return case.least is not None or not (quick or count == 1)


def options() -> argparse.Namespace:
    parser = common.arguments(__doc__.splitlines()[0], rounds=5, seconds=4.0)
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="only this case (repeatable)")
    parser.add_argument("--partitions", action="append", type=int, help="only this number of partitions (repeatable)")
    return common.parsed(parser, quick_rounds=2, quick_seconds=0.4)


async def run() -> int:
    chosen = options()
    report = Report(chosen)
    modules = pgboss.install()
    peers = [f"pgmq {pgmq.VERSION} (its SQL)", f"pg-boss {pgboss.VERSION}" if modules else "pg-boss: no node here, left out"]
    async with lab.postgres() as postgres:
        for line in common.machine_lines(postgres.version, peers):
            report.say(line)
        for count in chosen.partitions or PARTITIONS:
            wanted = [case for case in CASES if (case.name in chosen.case if chosen.case else worthwhile(case, count, chosen.quick))]
            http, sql = [case for case in wanted if case.http], [case for case in wanted if not case.http]
            # The quick run lets the cases share a database; the full one gives each its own.
            for cases in [http, sql] if chosen.quick else [[case] for case in wanted]:
                if cases:
                    await perform(postgres, report, modules, cases, count)
    return report.finish()


if __name__ == "__main__":
    common.main(run)
