"""Checks every partition's counter and consumer rows against its messages and mends what is wrong.

Safe beside running servers: one partition, one short transaction; a locked one is tried again and at last left out, and said so.
Never changes a message or moves a cursor. Invariant: a second run finds nothing, and a broken-off one did no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

PAGE = 1000
TRIES = 20
_SQL = Path(__file__).parent / "sql" / "resync"


@dataclass
class Resynced:
    """What a run found and mended. `stale_lookups` is what metrics count: it should be 0."""

    partitions: int = 0
    stale_lookups: int = 0
    missing_rows: int = 0
    stranded: int = 0
    busy: int = 0

    @property
    def mended(self) -> int:
        return self.stale_lookups + self.missing_rows + self.stranded


def _statement(name: str) -> str:
    return (_SQL / f"{name}.sql").read_text(encoding="utf-8")


async def resync(connection: Connection, step: Callable[[], None] = lambda: None) -> Resynced:
    """Goes through all partitions; `step` is called after each. The connection isn't in a transaction."""
    found = Resynced()
    last = 0
    after = _statement("partitions_after")
    while page := await connection.fetch(after, last, PAGE):
        for row in page:
            await _mend(connection, row["id"], found)
            step()
        last = page[-1]["id"]
    await connection.execute(_statement("record"), found.partitions, found.stale_lookups, found.missing_rows, found.stranded, found.busy)
    return found


async def partitions(connection: Connection) -> int:
    """How many there are to go through."""
    return int(await connection.fetchval(_statement("partition_count")))


async def _mend(connection: Connection, partition: int, found: Resynced) -> None:
    found.partitions += 1
    one = _statement("resync_partition")
    for _ in range(TRIES):
        try:
            row = await connection.fetchrow(one, partition)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            continue
        assert row is not None
        found.stale_lookups += row["stale"] or 0
        found.missing_rows += row["rows"] or 0
        found.stranded += row["stranded"] or 0
        return
    found.busy += 1
