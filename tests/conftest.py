"""What every test may ask for: one real PostgreSQL for the whole run, and a fresh, migrated database of its own for each test.

`database_url` is connected to as the plain role that owns the database, as the server does. `postgres` runs without fsync (a test run
loses nothing that matters); a test that kills PostgreSQL takes `durable_postgres`, which has every safety on.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import asyncpg
import pytest

from queenmq.postgres.embedded import ROLE, SUPERUSER, EmbeddedPostgres

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

T = TypeVar("T")

# the server fixture lies in a file of its own
if importlib.util.find_spec("tests.fixtures_server") is not None:
    pytest_plugins = ["tests.fixtures_server"]

FAST = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "128MB", "autovacuum_naptime": "60s"}
TEMPLATE = "queenmq_template"
_numbers = itertools.count(1)


def run_now(work: Coroutine[object, object, T]) -> T:
    """Runs to the end in a loop of its own, without touching the loop that pytest-asyncio keeps."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@pytest.fixture(scope="session", autouse=True)
def _plain_environment() -> None:
    """A developer's own settings don't reach the tests."""
    for name in list(os.environ):
        if name.startswith(("QUEEN_", "QUEENMQ_", "PG_", "POP_WAIT_", "FILE_BUFFER_")) or name in (
            "PORT",
            "HOST",
            "NUM_WORKERS",
            "LOG_LEVEL",
        ):
            del os.environ[name]


@pytest.fixture
def home_dir() -> Iterator[Path]:
    """An empty directory that the unprivileged user can enter (pytest's own tmp_path is closed), with a short name."""
    path = Path(tempfile.mkdtemp(prefix="qmq-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """The run's PostgreSQL."""
    home = Path(tempfile.mkdtemp(prefix="qmq-"))
    home.chmod(0o711)
    server = EmbeddedPostgres(home, options=FAST)
    try:
        run_now(server.start())
        yield server
    finally:
        run_now(server.stop())
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def stopped_home() -> Iterator[Path]:
    """A home whose database was made and migrated and stands still: copied in a tenth of the time that making it takes."""
    from queenmq.postgres.migrate import migrate

    home = Path(tempfile.mkdtemp(prefix="qmq-"))
    home.chmod(0o711)
    server = EmbeddedPostgres(home, options=FAST)
    try:
        run_now(migrate(run_now(server.start())))
    finally:
        run_now(server.stop())
    yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def made_home(home_dir: Path, stopped_home: Path) -> Path:
    """A home of the test's own with a migrated database in it that nobody runs."""
    subprocess.run(["cp", "-a", str(stopped_home / "postgres"), str(home_dir / "postgres")], check=True)
    return home_dir


@pytest.fixture
async def durable_postgres(made_home: Path) -> AsyncIterator[EmbeddedPostgres]:
    """A PostgreSQL of the test's own with fsync on: to be killed."""
    server = EmbeddedPostgres(made_home)
    await server.start()
    yield server
    await server.stop()


async def _as_superuser(server: EmbeddedPostgres, *statements: str) -> None:
    connection = await asyncpg.connect(server.dsn("postgres", SUPERUSER))
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def template(postgres: EmbeddedPostgres) -> str:
    """A database migrated once, which the tests' own are copied from."""
    from queenmq.postgres.migrate import migrate

    async def make() -> None:
        await _as_superuser(postgres, f"CREATE DATABASE {TEMPLATE} OWNER {ROLE}")
        await migrate(postgres.dsn(TEMPLATE))
        await _as_superuser(postgres, "CHECKPOINT")

    run_now(make())
    return TEMPLATE


@pytest.fixture
async def empty_database_url(postgres: EmbeddedPostgres) -> AsyncIterator[str]:
    """A database with nothing in it, owned by the plain role: for tests of migrations."""
    name = f"empty_{next(_numbers)}"
    await _as_superuser(postgres, f"CREATE DATABASE {name} OWNER {ROLE}")
    yield postgres.dsn(name)
    await _as_superuser(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def database_url(postgres: EmbeddedPostgres, template: str) -> AsyncIterator[str]:
    """A migrated database of the test's own."""
    name = f"test_{next(_numbers)}"
    await _as_superuser(postgres, f"CREATE DATABASE {name} OWNER {ROLE} TEMPLATE {template} STRATEGY FILE_COPY")
    yield postgres.dsn(name)
    await _as_superuser(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def pg(database_url: str) -> AsyncIterator[Connection]:
    """A connection to `database_url`."""
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()
