"""The shortest way of a push: from the parsed request to the lane and back, without a task, a scope or a future of its own.

Taken by `POST /api/v1/push` on a connection with nothing else under way, when CORS is off; what has to wait for anything but the store
goes the usual way. Costs about half of what the ASGI way costs (benchmarks/queue_push.py). Never decides anything that the usual way
wouldn't. Invariant: one reply a request, in the order of the requests.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from queenmq.errors import QueenError
from queenmq.http.protocol import QueenProtocol
from queenmq.http.queue_routes import QueueRoutes
from queenmq.http.wire import error_body, head, too_large

log = logging.getLogger(__name__)

PUSH = b"/api/v1/push"


class _Nobody:
    """An event that nobody waits for."""

    __slots__ = ()

    def set(self) -> None: ...


class HotCycle:
    """What uvicorn's protocol wants to see of a request under way."""

    __slots__ = ("body", "disconnected", "keep_alive", "more_body", "response_complete")
    message_event = _Nobody()

    def __init__(self, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self.body = bytearray()
        self.more_body = True
        self.disconnected = False
        self.response_complete = False


class HotProtocol(QueenProtocol):
    """One client's connection; `routes` is set by `with_routes`."""

    routes: QueueRoutes
    hot: HotCycle | None = None
    # uvicorn's own cycle, or a HotCycle in its place
    cycle: Any

    @classmethod
    def with_routes(cls, routes: QueueRoutes) -> type[HotProtocol]:
        """The class that a server's listener makes its connections of."""
        return type("ServerProtocol", (cls,), {"routes": routes})

    def on_headers_complete(self) -> None:
        if (
            self.url == PUSH
            and (self.cycle is None or self.cycle.response_complete)
            and self.parser.get_method() == b"POST"
            and not self.expect_100_continue
            and not self.parser.should_upgrade()
        ):
            self.hot = HotCycle(self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive())
            self.cycle = self.hot
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        hot = self.hot
        if hot is None or hot is not self.cycle:
            super().on_body(body)
        elif not hot.response_complete:
            hot.body += body
            if len(hot.body) > self.routes.max_body:
                hot.keep_alive = False
                self._answer(hot, too_large(self.routes.max_body))

    def on_message_complete(self) -> None:
        hot = self.hot
        if hot is None or hot is not self.cycle:
            super().on_message_complete()
        elif hot.more_body and not hot.response_complete:
            hot.more_body = False
            self._push(hot)

    def _push(self, hot: HotCycle) -> None:
        routes = self.routes
        try:
            items = routes.decode_push(bytes(hot.body))
            if not routes.manager.push_soon(items, lambda reply: self._answer(hot, reply)):
                task = self.loop.create_task(self._push_later(hot))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
        except QueenError as error:
            self._answer(hot, error)

    async def _push_later(self, hot: HotCycle) -> None:
        """The usual way of the manager, for what has to be asked first."""
        try:
            self._answer(hot, await self.routes.manager.push(self.routes.decode_push(bytes(hot.body))))
        except QueenError as error:
            self._answer(hot, error)
        except asyncio.CancelledError:
            self._answer(hot, QueenError("the server is stopping"))
            raise
        except Exception as error:
            log.exception("a push failed")
            self._answer(hot, QueenError(f"internal error: {type(error).__name__}; the server's log says more"))

    def _answer(self, hot: HotCycle, reply: bytes | QueenError) -> None:
        if hot.response_complete:
            return
        hot.response_complete = True
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
        if hot.keep_alive:
            transport.write(b"%b\r\n%b" % (start, body))
            self.on_response_complete()
        else:
            transport.write(b"%bconnection: close\r\n\r\n%b" % (start, body))
            transport.close()
