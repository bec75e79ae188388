"""One server for all tests of the client (each names queues of its own with `own`), so that they don't wait for fifty starts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from queenmq.postgres.embedded import ROLE, SUPERUSER, EmbeddedPostgres
from queenmq.testing.live import LiveServer

DATABASE = "client"


@pytest.fixture(scope="package")
def server(postgres: EmbeddedPostgres, template: str) -> Iterator[LiveServer]:
    """A real server over a database of this package's own."""
    _as_superuser(postgres, f"CREATE DATABASE {DATABASE} OWNER {ROLE} TEMPLATE {template} STRATEGY FILE_COPY")
    with LiveServer(postgres.dsn(DATABASE)) as live:
        yield live
    _as_superuser(postgres, f"DROP DATABASE {DATABASE} WITH (FORCE)")


def _as_superuser(postgres: EmbeddedPostgres, statement: str) -> None:
    async def work() -> None:
        connection = await asyncpg.connect(postgres.dsn("postgres", SUPERUSER))
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    # a loop of its own: the one that pytest-asyncio keeps stays as it is
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(work())
    finally:
        loop.close()
