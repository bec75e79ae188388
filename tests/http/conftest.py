"""One server for all tests of a module over one database: queue names are the test's own."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator

import asyncpg
import httpx
import pytest
from tests.http.wire import Plain

from queenmq.testing.live import LiveServer

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def shared(shared_url: str) -> Iterator[LiveServer]:
    """The module's server: small limits, so that passing them is cheap."""
    with LiveServer(shared_url, {"QUEEN_MAX_BODY_MB": "2", "QUEEN_MAX_MESSAGE_KB": "256"}) as live:
        yield live


@pytest.fixture(scope="module")
def plain(shared: LiveServer) -> Iterator[Plain]:
    """A client of it that doesn't await."""
    with Plain(base_url=shared.url, timeout=20) as client:
        yield client


@pytest.fixture
async def web(shared: LiveServer) -> AsyncIterator[httpx.AsyncClient]:
    """A client of it."""
    async with httpx.AsyncClient(base_url=shared.url, timeout=20) as client:
        yield client


@pytest.fixture
async def emptied(shared_url: str) -> None:
    """No queue is left of the tests before; the server still remembers them, as after any deletion."""
    connection = await asyncpg.connect(shared_url)
    await connection.execute("DELETE FROM queen.queues; DELETE FROM queen.consumer_groups_metadata")
    await connection.close()


@pytest.fixture
def queue() -> str:
    """A queue name that no other test uses."""
    return f"q{next(_numbers)}"
