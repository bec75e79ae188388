"""Sessions on the test's own database: as many as a test interleaves by hand, and one as superuser for what only that may read.

A database is emptied and used again while its functions are what they were: cheaper than a copy of the template for each test.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg
import pytest

from queenmq.postgres.embedded import ROLE, SUPERUSER, EmbeddedPostgres
from queenmq.postgres.migrate import scripts
from queenmq.testing.clock import install_clock, stop_clock

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
    Connect = Callable[[], Awaitable[Connection]]

FUNCTIONS = """
SELECT md5(string_agg(pg_get_functiondef(oid), '' ORDER BY oid::regprocedure::text)) FROM pg_proc WHERE pronamespace = 'queen'::regnamespace
"""
TABLES = """
SELECT string_agg(oid::regclass::text, ', ') FROM pg_class
 WHERE relnamespace = 'queen'::regnamespace AND relkind = 'r' AND relname NOT IN ('system_state', 'schema_files')
"""
OTHERS = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


class Databases:
    """Copies of the template, used one after the other."""

    def __init__(self, postgres: EmbeddedPostgres, template: str) -> None:
        self._postgres = postgres
        self._template = template
        self._numbers = itertools.count(1)
        self._free: list[str] = []
        self._functions: str | None = None

    async def take(self) -> str:
        if self._free:
            return self._free.pop()
        name = f"sql_{next(self._numbers)}"
        connection = await asyncpg.connect(self._postgres.dsn("postgres", SUPERUSER))
        await connection.execute(f"CREATE DATABASE {name} OWNER {ROLE} TEMPLATE {self._template} STRATEGY FILE_COPY")
        await connection.close()
        if self._functions is None:
            self._functions = await self._on(name, self._digest)
        return name

    async def give_back(self, name: str) -> None:
        """Emptied; forgotten when a test has planted a bug in it."""
        if await self._on(name, self._empty) == self._functions:
            self._free.append(name)

    async def _on(self, name: str, work: Callable[[Connection], Awaitable[str]]) -> str:
        connection = await asyncpg.connect(self._postgres.dsn(name, SUPERUSER))
        try:
            return await work(connection)
        finally:
            await connection.close()

    @staticmethod
    async def _digest(connection: Connection) -> str:
        return str(await connection.fetchval(FUNCTIONS))

    async def _empty(self, connection: Connection) -> str:
        await connection.execute(OTHERS)
        if await connection.fetchval("SELECT to_regclass('queen_test.clock') IS NOT NULL"):
            [now] = [script for script in scripts("functions") if script.name == "010_now.sql"]
            await connection.execute(now.text)
            await connection.execute("DROP SCHEMA queen_test CASCADE")
        await connection.execute(f"TRUNCATE {await connection.fetchval(TABLES)} RESTART IDENTITY")
        return await self._digest(connection)


@pytest.fixture(scope="session")
def databases(postgres: EmbeddedPostgres, template: str) -> Databases:
    return Databases(postgres, template)


@pytest.fixture
async def database_url(postgres: EmbeddedPostgres, databases: Databases) -> AsyncIterator[str]:
    """A migrated database of the test's own."""
    name = await databases.take()
    yield postgres.dsn(name)
    await databases.give_back(name)


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
