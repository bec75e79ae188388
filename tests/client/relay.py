"""A relay on loopback before the real server, which can lose answers and be away: real faults between a client and a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Relay:
    """Passes bytes both ways, until told otherwise."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._own_port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.lost = 0
        self.lose_answers = 0
        """So many answers are swallowed, and their connections cut, from now on."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._own_port}"

    async def back(self) -> None:
        """Listens (again), on the same port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._own_port)
        self._own_port = self._server.sockets[0].getsockname()[1]

    async def away(self) -> None:
        """Refuses connections and cuts those that are there."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass(reader, up_writer))
                    both.create_task(self._pass(up_reader, writer, answers=True))
            finally:
                up_writer.close()
        except (ExceptionGroup, OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, answers: bool = False) -> None:
        while data := await source.read(65536):
            if answers and self.lose_answers:
                self.lose_answers -= 1
                self.lost += 1
                break
            target.write(data)
            await target.drain()
        raise ConnectionResetError


@asynccontextmanager
async def relay_to(target: str) -> AsyncIterator[Relay]:
    """A relay before `target`."""
    relay = Relay(target)
    await relay.back()
    try:
        yield relay
    finally:
        await relay.away()
