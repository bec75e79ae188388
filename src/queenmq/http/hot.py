"""The shortest way of a push: from the bytes of one read to the lane and back, without a parser, a task, a scope or a future.

Taken by a plain `POST /api/v1/push` that is wholly in one read on a connection with nothing else under way, when CORS is off, and only if
nothing has to be asked first; every other request goes the usual way. It halves what a small push costs this process
(benchmarks/queue_push.py). Never decides anything that the usual way wouldn't. Invariant: one reply a request, in the order of the
requests: what comes while a push is under way waits for its reply.
"""

from __future__ import annotations

import re
from typing import Any

from queenmq.errors import QueenError
from queenmq.http.protocol import QueenProtocol
from queenmq.http.queue_routes import QueueRoutes
from queenmq.http.wire import error_body, head

_PUSH = b"POST /api/v1/push HTTP/1.1\r\n"
_HEADERS = len(_PUSH) - 2
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})[ \t]*(?=\r\n)", re.IGNORECASE)
# With one of these a request takes the usual way.
_UNUSUAL = re.compile(
    rb"\r\n(?:transfer-encoding|content-encoding|expect|upgrade|origin|connection:(?![ \t]*keep-alive\r\n))", re.IGNORECASE
)

_ODD = (b" :", b"\t:", b"\r\n ", b"\r\n\t", b"\0")


def whole_push(data: bytes) -> bytes | None:
    """The body of a push that is wholly in one read, with nothing before or behind it and nothing unusual in its head; else None."""
    if not data.startswith(_PUSH):
        return None
    end = data.find(b"\r\n\r\n", _HEADERS)
    if end < 0:
        return None
    lengths = _LENGTH.findall(data, _HEADERS, end + 2)
    # What a proxy before us may read in another way is left to the parser, which refuses it.
    if data.count(b"\n", 0, end + 4) != data.count(b"\r\n", 0, end + 4) or any(data.find(odd, 0, end) >= 0 for odd in _ODD):
        return None
    if len(lengths) != 1 or int(lengths[0]) != len(data) - end - 4 or _UNUSUAL.search(data, _HEADERS, end + 2):
        return None
    return data[end + 4 :]


class HotProtocol(QueenProtocol):
    """One client's connection; `routes` is set by `with_routes`."""

    routes: QueueRoutes
    _flies = False
    _parsing = False
    _close_after = False
    _held = b""
    _used = 0.0
    cycle: Any

    @classmethod
    def with_routes(cls, routes: QueueRoutes) -> type[HotProtocol]:
        """The class that a server's listener makes its connections of."""
        return type("ServerProtocol", (cls,), {"routes": routes})

    def data_received(self, data: bytes) -> None:
        if self._flies:
            self._held += data
            self.flow.pause_reading()
            return
        cycle = self.cycle
        # Whoever doesn't read its replies goes the usual way, which waits for that.
        if not self._parsing and not self.flow.write_paused and (cycle is None or (cycle.response_complete and not self.pipeline)):
            body = whole_push(data)
            if body is not None:
                self._flies = True
                if self._push(body):
                    return
                self._flies = False
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._parsing = True
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._parsing = False
        super().on_message_complete()

    def _push(self, body: bytes) -> bool:
        """Whether the push is on its way; what is wrong with it is said by the usual way."""
        if len(body) > self.routes.max_body:
            return False
        try:
            return self.routes.manager.push_soon(self.routes.decode_push(body), self._answer)
        except QueenError:
            return False

    def _answer(self, reply: bytes | QueenError) -> None:
        """The reply in one write, then what has come meanwhile."""
        self._flies = False
        transport = self.transport
        if self.lost or transport.is_closing():
            return
        if isinstance(reply, QueenError):
            body = error_body(reply)
            start = head(reply.status, len(body))
            if reply.retry_after is not None:
                start += b"retry-after: %d\r\n" % reply.retry_after
        else:
            body = reply
            start = head(201, len(body))
        transport.write(b"%b\r\n%b" % (start, body))
        if self._close_after:
            transport.close()
            return
        self._used = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        if self._held:
            held, self._held = self._held, b""
            self.flow.resume_reading()
            self.data_received(held)

    def timeout_keep_alive_handler(self) -> None:
        """A timer that a short push left running looks when the connection was last used: a timer a request costs too much."""
        left = self._used + self.timeout_keep_alive - self.loop.time()
        if self._flies or left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(max(left, 1.0), self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        if self._flies:
            self._close_after = True
        else:
            super().shutdown()
