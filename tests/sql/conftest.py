"""Sessions on the test's own database: as many as a test interleaves by hand, and one as superuser for what only that may read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg
import pytest

from queenmq.postgres.embedded import SUPERUSER, EmbeddedPostgres
from queenmq.testing.clock import install_clock, stop_clock

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
    Connect = Callable[[], Awaitable[Connection]]


@pytest.fixture
async def connect(database_url: str) -> AsyncIterator[Connect]:
    """Opens one more session; all are closed at the end, whatever they hold."""
    opened: list[Connection] = []

    async def open_one() -> Connection:
        connection = await asyncpg.connect(database_url)
        opened.append(connection)
        return connection

    yield open_one
    for connection in opened:
        connection.terminate()
    await asyncio.sleep(0)


@pytest.fixture
async def clock(pg: Connection) -> Connection:
    """The database's clock stands still; move it with `move_clock`."""
    await install_clock(pg)
    await stop_clock(pg)
    return pg


@pytest.fixture
async def superuser(postgres: EmbeddedPostgres, database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(postgres.dsn(urlsplit(database_url).path.lstrip("/"), SUPERUSER))
    yield connection
    await connection.close()
