"""One server for all tests of a module over one database (queue names are the test's own), and plain sockets for what no client sends."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import asyncpg
import httpx
import pytest

from queenmq.postgres.embedded import ROLE, SUPERUSER, EmbeddedPostgres
from queenmq.testing.live import LiveServer

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


@pytest.fixture(scope="module")
def shared(shared_url: str) -> Iterator[LiveServer]:
    """The module's server: small limits, so that passing them is cheap."""
    with LiveServer(shared_url, {"QUEEN_MAX_BODY_MB": "2", "QUEEN_MAX_MESSAGE_KB": "256"}) as live:
        yield live


@pytest.fixture(scope="module")
def plain(shared: LiveServer) -> Iterator[httpx.Client]:
    """A client of it that doesn't await."""
    with httpx.Client(base_url=shared.url, timeout=20) as client:
        yield client


@pytest.fixture
async def web(shared: LiveServer) -> AsyncIterator[httpx.AsyncClient]:
    """A client of it."""
    async with httpx.AsyncClient(base_url=shared.url, timeout=20) as client:
        yield client


@pytest.fixture
def queue() -> str:
    """A queue name that no other test uses."""
    return f"q{next(_numbers)}"


class Wire:
    """A connection on which a test says whatever bytes it likes."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.got = b""

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def until(self, end: bytes) -> bytes:
        """Reads up to and with these bytes."""
        while end not in self.got:
            part = self.sock.recv(65536)
            if not part:
                raise EOFError(self.got)
            self.got += part
        at = self.got.index(end) + len(end)
        found, self.got = self.got[:at], self.got[at:]
        return found

    def reply(self, *, head: bool = False) -> tuple[int, dict[str, str], bytes]:
        """One whole reply: status, headers, body."""
        start, *lines = self.until(b"\r\n\r\n").decode("latin-1").strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = 0 if head else int(headers.get("content-length", "0"))
        while len(self.got) < size:
            part = self.sock.recv(65536)
            if not part:
                raise EOFError(self.got)
            self.got += part
        body, self.got = self.got[:size], self.got[size:]
        return int(start.split()[1]), headers, body

    def ended(self) -> bool:
        """The server closes without another byte."""
        return not self.got and self.sock.recv(1) == b""


@contextmanager
def wire(url: str, *, receive_buffer: int = 0) -> Iterator[Wire]:
    """A connection to the server; with a small buffer a big reply gets stuck."""
    at = httpx.URL(url)
    with socket.socket() as sock:
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(15)
        sock.connect((at.host, at.port))
        yield Wire(sock)


def post(path: str, body: bytes, *more: str) -> bytes:
    """A POST as bytes."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *more, "", ""]
    return "\r\n".join(lines).encode() + body


def get(path: str, *more: str) -> bytes:
    """A GET as bytes."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *more, "", ""]).encode()
