"""The drill of the SQL core: thousands of random histories against a naive model, then a crowd of sessions with killed backends.

Figures: acknowledged lost unexpected duplicates reordered, and what the crowd alone can show (stranded, gaps). `--planted` installs a
flawed ack first and succeeds only when losses are reported. It starts a PostgreSQL of its own and never touches another.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "src"))

import asyncpg
from benchmarks.common import Report, machine_lines, main
from tests.sql.crowd import Crowd
from tests.sql.history import Broken, options_from, random_steps, run
from tests.sql.support import partitions, plant

from queenmq.postgres.embedded import EmbeddedPostgres
from queenmq.postgres.migrate import migrate
from queenmq.testing.clock import install_clock, stop_clock

FAULTS = ("lost", "unexpected", "duplicates", "reordered", "stranded", "gaps")
# Correction P11: an ack that sets the cursor to its message.
FLAW = (
    "310_claim_carefully",
    "v_all  int8multirange := coalesce(c.acked, '{}') + p_seqs;",
    "v_all  int8multirange := int8multirange(int8range(c.cursor_seq + 1, greatest(upper(p_seqs), c.cursor_seq + 1)));",
)

INSERT = "INSERT INTO queen.messages (partition_id, transaction_id, payload) SELECT $1, 't' || n, '{}' FROM generate_series(1, $2::int) n"
PUSH = """
SELECT queen.push_messages(ARRAY[$1::int], ARRAY[$2::int], NULL, NULL, ARRAY(SELECT 't' || n FROM generate_series(1, $2::int) n),
                           array_fill('{}'::json, ARRAY[$2::int]))
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="500 histories and 15 s of crowd: at most 60 s")
    parser.add_argument("--json", action="store_true", help='the last line is {"figures": {name: number, …}}')
    parser.add_argument(
        "--planted", action="store_true", help="an ack that sets the cursor to its message: succeeds only when losses are reported"
    )
    parser.add_argument("--histories", type=int, default=None, help="how many (default 2,500, quick 500)")
    parser.add_argument("--seconds", type=float, default=None, help="of the crowd (default 90, quick 15)")
    parser.add_argument("--seed", type=int, default=None, help="of the dice; a failing history is found again by its own seed")
    return parser.parse_args()


@asynccontextmanager
async def database() -> AsyncIterator[str]:
    """A migrated database in a PostgreSQL that goes when the drill does."""
    home = Path(tempfile.mkdtemp(prefix="qmq-"))
    home.chmod(0o711)
    server = EmbeddedPostgres(home)
    try:
        await server.start()
        await migrate(server.dsn())
        yield server.dsn()
    finally:
        await server.stop()
        shutil.rmtree(home, ignore_errors=True)


async def histories(dsn: str, count: int, seed: int, report: Report, totals: Counter[str]) -> None:
    pg = await asyncpg.connect(dsn)
    await install_clock(pg)
    await stop_clock(pg)
    for number in range(count):
        draw = random.Random(seed + number)
        try:
            history = await run(pg, options_from(draw.randrange(10_000)), random_steps(draw, draw.randrange(10, 70)))
        except Broken as error:
            totals[error.kind] += 1
            report.say(f"    history with --seed {seed + number} --histories 1: {str(error)[:600]}")
            continue
        totals["acknowledged"] += history.messages
        totals["deliveries"] += history.deliveries
    await pg.close()


async def crowd(dsn: str, seconds: float, seed: int, totals: Counter[str]) -> None:
    async def connect() -> Any:
        return await asyncpg.connect(dsn)

    people = Crowd(connect, random.Random(seed))
    await people.run(seconds)
    totals.update(people.faults)
    totals["acknowledged"] += len(people.pushed)
    totals["deliveries"] += people.deliveries
    totals["kills"] += people.kills


async def plain_insert(dsn: str, rows: int, report: Report) -> None:
    """One INSERT of so many rows against push_messages of as many, in turns."""
    pg = await asyncpg.connect(dsn)
    shares = []
    for turn in range(3):
        one, other = await partitions(pg, f"rows/a{turn}", f"rows/b{turn}")
        start = time.perf_counter()
        await pg.execute(INSERT, one, rows)
        middle = time.perf_counter()
        await pg.execute(PUSH, other, rows)
        shares.append((middle - start) / (time.perf_counter() - middle))
    await pg.close()
    report.figure("plain_insert_vs_push", sorted(shares)[1])
    report.bar("plain_insert_vs_push", 3, most=True)


async def drill() -> int:
    options = arguments()
    report, totals = Report(options), Counter[str]()
    seed = options.seed if options.seed is not None else random.randrange(10**9)
    count = options.histories if options.histories is not None else 500 if options.quick else 2_500
    seconds = options.seconds if options.seconds is not None else 15 if options.quick else 90
    began = time.monotonic()
    async with database() as dsn:
        pg = await asyncpg.connect(dsn)
        for line in machine_lines(f"PostgreSQL {await pg.fetchval('SHOW server_version')}"):
            report.say(line)
        report.say(f"seed {seed}: {count:,} histories, then {seconds:g} s of crowd")
        if options.planted:
            await plant(pg, *FLAW)
        else:
            await histories(dsn, count, seed, report, totals)
            await plant(pg, "010_now")
            await pg.execute("DROP SCHEMA IF EXISTS queen_test CASCADE")
            await plain_insert(dsn, 20_000 if options.quick else 100_000, report)
        await pg.close()
        await crowd(dsn, seconds, seed, totals)
    report.figures["histories"] = 0 if options.planted else count
    for name in ("acknowledged", "deliveries", *FAULTS, "kills"):
        report.figures[name] = totals[name]
    report.figure("seconds", time.monotonic() - began)
    if options.planted:
        report.promise(totals["lost"] + totals["stranded"] > 0, "the planted ack lost nothing that the drill saw: it can't be trusted")
    else:
        for name in FAULTS:
            report.promise(totals[name] == 0, f"{name} is {totals[name]:,}, not 0")
    return report.finish()


if __name__ == "__main__":
    main(drill)
