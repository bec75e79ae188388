"""A real server for a test: `server` over a database of the test's own, `serve_with` for other settings, `http` to talk to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest

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
