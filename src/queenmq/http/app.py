"""The ASGI application: finds the route, turns errors into replies, adds CORS headers where they are configured.

Hot routes first, by one dictionary look-up; everything else goes to the Starlette application behind. Never lets an exception out.
Invariant: every request gets exactly one reply unless its client has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from queenmq.errors import NotFound, QueenError
from queenmq.http.queue_routes import Handler, QueueRoutes
from queenmq.http.wire import Receive, Request, Scope, Send, defect, stopped

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


def _adding(extra: list[tuple[bytes, bytes]], send: Send) -> Send:
    """The same with more headers."""

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *extra]
        await send(message)

    return sending


class WrongMethod(QueenError):
    """The route is there, but not for this method."""

    code, status = "wrong_method", 405


class App:
    """Raw ASGI."""

    def __init__(self, routes: QueueRoutes, rest: Asgi, rest_paths: Callable[[str], bool], *, origins: tuple[str, ...] = ()) -> None:
        self._exact = routes.exact
        self._prefixed = routes.prefixed
        self._rest = rest
        self._rest_paths = rest_paths
        self._origins = frozenset(origin.encode() for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return
        request = Request(scope, receive, send)
        try:
            if self._origins and await self._cors(request):
                return
            handlers = self._exact.get(request.path) or self._find(request.path)
            if handlers is None:
                if self._rest_paths(request.path):
                    if request.method not in ("GET", "HEAD"):
                        raise self._wrong_method(request, ("GET", "HEAD"))
                    await self._rest(scope, receive, _adding(request.extra, send) if request.extra else send)
                    return
                raise NotFound(f"no such route: {request.method} {request.path}")
            await self._handler(handlers, request)(request)
        except QueenError as error:
            await request.refuse(error)
        except asyncio.CancelledError:
            if request.exchange is None or not request.exchange.lost:
                await request.refuse(stopped())
        except Exception as error:
            await request.refuse(defect(error, f"{request.method} {request.path}"))

    def _find(self, path: str) -> dict[str, Handler] | None:
        for prefix, handlers in self._prefixed.items():
            if path.startswith(prefix):
                return handlers
        return None

    @classmethod
    def _handler(cls, handlers: dict[str, Handler], request: Request) -> Handler:
        handler = handlers.get(request.method)
        if handler is None:
            raise cls._wrong_method(request, tuple(handlers))
        return handler

    @staticmethod
    def _wrong_method(request: Request, allowed: tuple[str, ...]) -> WrongMethod:
        request.extra.append((b"allow", ", ".join(allowed).encode()))
        return WrongMethod(f"{request.method} is not allowed here: use {', '.join(allowed)}")

    async def _cors(self, request: Request) -> bool:
        """Adds the headers that a browser asks for; answers preflight requests."""
        origin = next((value for name, value in request.scope["headers"] if name == b"origin"), None)
        if origin is None or not (origin in self._origins or b"*" in self._origins):
            return False
        request.extra.append((b"access-control-allow-origin", b"*" if b"*" in self._origins else origin))
        request.extra.append((b"vary", b"origin"))
        if request.method != "OPTIONS":
            return False
        request.extra.append((b"access-control-allow-methods", b"GET, POST, DELETE"))
        request.extra.append((b"access-control-allow-headers", b"content-type, authorization"))
        request.extra.append((b"access-control-max-age", b"600"))
        await request.reply(204, b"")
        return True
