"""A real server for a test: `server` over a database of the test's own, `serve_with` for other settings, `http` to talk to it; and
`shared_url`, a database that all tests of a module share."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator

import asyncpg
import httpx
import pytest

from queenmq.postgres.embedded import ROLE, SUPERUSER, EmbeddedPostgres
from queenmq.testing.live import LiveServer


@pytest.fixture
def serve_with(database_url: str) -> Iterator[Callable[..., LiveServer]]:
    """Starts servers with more settings, by environment name; all are stopped at the end."""
    started: list[LiveServer] = []

    def start(**environment: str) -> LiveServer:
        live = LiveServer(database_url, {"QUEEN_SERVER_ID": f"test-{len(started)}", **environment})
        started.append(live)
        return live.start()

    yield start
    for live in reversed(started):
        live.stop()


@pytest.fixture
def server(serve_with: Callable[..., LiveServer]) -> LiveServer:
    """A server with default settings."""
    return serve_with()


@pytest.fixture
async def http(server: LiveServer) -> AsyncIterator[httpx.AsyncClient]:
    """A client of `server`."""
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        yield client


_numbers = itertools.count(1)


def _run(dsn: str, *statements: str) -> None:
    async def work() -> None:
        connection = await asyncpg.connect(dsn)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    with asyncio.Runner() as runner:
        runner.run(work())


@pytest.fixture(scope="module")
def shared_url(postgres: EmbeddedPostgres, template: str) -> Iterator[str]:
    """A migrated database for a module's tests together."""
    name = f"shared_{next(_numbers)}"
    _run(postgres.dsn("postgres", SUPERUSER), f"CREATE DATABASE {name} OWNER {ROLE} TEMPLATE {template} STRATEGY FILE_COPY")
    yield postgres.dsn(name)
    _run(postgres.dsn("postgres", SUPERUSER), f"DROP DATABASE {name} WITH (FORCE)")
