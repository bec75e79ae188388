"""A peer that misbehaves: a real socket that reads whole HTTP requests and answers, cuts or keeps silent, as its script says.

It is no stand-in for the server: it knows no queue. Each request takes the next step of the script; the last step goes on for ever.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Asked:
    """One request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


Step = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answer(status: int, body: Any = None, *, headers: dict[str, str] | None = None, close: bool = False) -> Step:
    """Answers with JSON (bytes are sent as they are); `close` ends the connection after it."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(content)}", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]

    async def step(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + content)
        await writer.drain()
        if close:
            writer.close()

    return step


async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads the request and closes the connection without a word."""
    writer.close()


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Never answers; ends when the client goes away."""
    await reader.read()


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An answer that never gets whole: a header line now and then, until the client goes away."""
    writer.write(b"HTTP/1.1 200 OK\r\n")
    gone = asyncio.ensure_future(reader.read())
    while not gone.done():
        writer.write(b"x-drop: 1\r\n")
        await asyncio.wait([gone], timeout=0.05)


@dataclass
class Peer:
    """What the misbehaving peer saw."""

    script: list[Step]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    ended: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    server: asyncio.Server | None = None

    async def go_away(self) -> None:
        """New connections are refused from now on."""
        assert self.server is not None
        self.server.close()

    async def until(self, true: Callable[[Peer], bool], seconds: float = 10.0) -> None:
        """Waits for something to have happened."""
        async with asyncio.timeout(seconds), self.changed:
            await self.changed.wait_for(lambda: true(self))

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                first, *lines = head.decode("latin-1").split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                method, target, _ = first.split(" ")
                step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                self.asked.append(Asked(method, target, headers, body))
                await self._tell()
                await step(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self.ended += 1
            await self._tell()


@asynccontextmanager
async def misbehaving(*script: Step, port: int = 0) -> AsyncIterator[Peer]:
    """A peer on loopback that goes through `script`."""
    peer = Peer(list(script))
    handlers: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        await peer.serve(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    peer.server = server
    peer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield peer
    finally:
        server.close()
        for task in handlers:
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
