"""A movable clock for the SQL core, in a database that belongs to a test.

`queen.now()` is replaced by one that reads a row: it runs ahead of the machine's clock by as much as it was moved, or stands still.
Never installed in a database that serves anybody. Invariant: the clock only goes forward, unless it is set on purpose.
"""

from __future__ import annotations

from datetime import datetime
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]


def _text(name: str) -> str:
    return (resources.files("queenmq.testing") / "sql" / f"{name}.sql").read_text(encoding="utf-8")


async def install_clock(connection: Connection) -> None:
    """Replaces `queen.now()` in this database."""
    await connection.execute(_text("clock"))


async def move_clock(connection: Connection, seconds: float) -> None:
    """Time passes at once, for every session that looks from now on."""
    if seconds < 0:
        raise ValueError("a clock moves forward")
    await connection.execute(_text("move_clock"), seconds)


async def stop_clock(connection: Connection) -> None:
    """Time stands still at this moment; `move_clock` moves it on."""
    await connection.execute(_text("stop_clock"))


async def set_clock(connection: Connection, moment: datetime) -> None:
    """Time stands still at that moment."""
    await connection.execute(_text("set_clock"), moment)
