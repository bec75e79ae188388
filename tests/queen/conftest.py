"""A manager in the test's own loop, over a real database: what lies between HTTP and SQL."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import asyncpg
import pytest
from tests.queen.support import SESSIONS

from queenmq.clock import Clock
from queenmq.metrics import Metrics
from queenmq.postgres.pool import Database
from queenmq.queen.encryption import Sealer
from queenmq.queen.manager import Limits, Manager

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
    MakeManager = Callable[..., Awaitable[Manager]]

_numbers = itertools.count(1)


@pytest.fixture
async def make_manager(shared_url: str) -> AsyncIterator[MakeManager]:
    """Managers, as many as a test has servers; all are closed at the end, and leave no task behind."""
    made: list[tuple[Manager, Database]] = []

    async def make(url: str = shared_url, keys: tuple[tuple[str, bytes], ...] = (), size: int = 8) -> Manager:
        database = Database(url, size)
        await database.open()
        manager = Manager(database, Clock(), Metrics(), sealer=Sealer(keys), salt=1, session=next(SESSIONS), limits=Limits())
        made.append((manager, database))
        return manager

    yield make
    for manager, database in made:
        await manager.close()
        await database.close()


@pytest.fixture
async def manager(make_manager: MakeManager) -> Manager:
    """One of them."""
    return await make_manager()


@pytest.fixture
async def sql(shared_url: str) -> AsyncIterator[Connection]:
    """A session beside it."""
    connection = await asyncpg.connect(shared_url)
    yield connection
    await connection.close()


@pytest.fixture
async def other(shared_url: str) -> AsyncIterator[Connection]:
    """One more, to hold something."""
    connection = await asyncpg.connect(shared_url)
    yield connection
    connection.terminate()


@pytest.fixture
def queue() -> str:
    """A queue name that no other test uses."""
    return f"q{next(_numbers)}"
