"""uvicorn's httptools protocol with three things more: a reply in one write, word of a client that left, and whether a reply was written.

A route that finds `queenmq.exchange` in its scope may answer through it instead of `send`. "Written" means handed to the kernel: the
transport's buffer is empty after the reply. Never parses anything itself. Invariant: one reply a request, by one way or the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_MOST = 65_536
_WHY = b'{"error":"head: more than 65536 bytes: send shorter headers","code":"too_large"}'
HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
    % (len(_WHY), _WHY)
)


class Exchange:
    """One request's connection, as a route sees it."""

    __slots__ = ("_cycle", "_protocol")

    def __init__(self, protocol: QueenProtocol, cycle: RequestResponseCycle) -> None:
        self._protocol = protocol
        self._cycle = cycle

    @property
    def lost(self) -> bool:
        """The client is gone."""
        return self._protocol.lost or self._protocol.transport.is_closing()

    def body(self) -> bytes | None:
        """The whole body when it is here already."""
        if self._cycle.more_body or self._cycle.waiting_for_100_continue:
            return None
        whole, self._cycle.body = bytes(self._cycle.body), bytearray()
        return whole

    def on_lost(self, callback: Callable[[], object] | None) -> None:
        """What to call when the client leaves before the reply."""
        self._protocol.when_lost = callback
        if callback is not None and self._protocol.lost:
            callback()

    def last(self) -> None:
        """The connection is closed after the reply."""
        self._cycle.keep_alive = False

    async def ready(self) -> None:
        """Waits while the client reads too slowly for one more reply."""
        if self._protocol.flow.write_paused:
            await self._protocol.flow.drain()

    def reply(self, head: bytes, body: bytes) -> bool:
        """Head (status line and headers without the last blank line) and body in one write; False when the client is gone."""
        cycle = self._cycle
        if cycle.response_started:
            return False
        self._protocol.when_lost = None
        cycle.response_started = cycle.response_complete = True
        # The scope holds us and we hold the scope: without this every request would stay until the cycle collector comes.
        cycle.scope.pop("queenmq.exchange", None)  # type: ignore[typeddict-item]
        if self.lost:
            return False
        if cycle.keep_alive:
            self._protocol.transport.write(b"%b\r\n%b" % (head, body))
        else:
            self._protocol.transport.write(b"%bconnection: close\r\n\r\n%b" % (head, body))
            self._protocol.transport.close()
        cycle.message_event.set()
        cycle.on_response()
        return True

    async def written(self) -> bool:
        """Waits until the reply is with the kernel; False when the client left before that."""
        protocol = self._protocol
        if protocol.lost:
            return False
        if not protocol.transport.get_write_buffer_size():
            return True
        drained: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        protocol.drains.append(drained)
        # Below the usual mark the transport wouldn't say when its buffer is empty.
        protocol.transport.set_write_buffer_limits(high=0)
        try:
            return await drained
        finally:
            protocol.drains.remove(drained)
            if not protocol.drains and not protocol.lost:
                protocol.transport.set_write_buffer_limits()


class QueenProtocol(HttpToolsProtocol):
    """One client's connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lost = False
        self.when_lost: Callable[[], object] | None = None
        self.drains: list[asyncio.Future[bool]] = []
        # bytes of a head that isn't over yet
        self._head: int | None = None
        self._began = False

    def data_received(self, data: bytes) -> None:
        self._began = False
        super().data_received(data)
        # The read in which it began may hold whole requests before it.
        if self._head is not None and not self._began:
            self._head += len(data)
            if self._head > HEAD_MOST and not self.transport.is_closing():
                self.transport.write(HEAD_TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        self._head, self._began = 0, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head = None
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope["queenmq.exchange"] = Exchange(self, cycle)  # type: ignore[typeddict-unknown-key]
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline:
            # uvicorn reads on after every reply: what is pipelined would pile up faster than it is answered.
            self.flow.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        callback, self.when_lost = self.when_lost, None
        super().connection_lost(exc)
        self._drained(False)
        if callback is not None:
            callback()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.get_write_buffer_size():
            self._drained(True)

    def _drained(self, written: bool) -> None:
        """Said at once, not looked up later: a connection that we close ourselves is lost right after the last byte was written."""
        for drain in self.drains:
            if not drain.done():
                drain.set_result(written)


__all__ = ["Exchange", "QueenProtocol"]
