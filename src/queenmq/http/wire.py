"""Requests and replies at the level of bytes: bodies with a limit, JSON replies, errors, CORS.

Never knows what a route does. Invariant: every reply has a Content-Length and, except 204, a JSON body.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from queenmq.errors import BadRequest, QueenError, TooLarge
from queenmq.http.protocol import Exchange
from queenmq.postgres.pool import LostConnection

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_HEADS: dict[int, bytes] = {
    status.value: b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: " % (status.value, status.phrase.encode())
    for status in HTTPStatus
}
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n"


class Request:
    """One request with its way to answer."""

    __slots__ = ("exchange", "extra", "method", "path", "receive", "scope", "send")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.exchange: Exchange | None = scope.get("queenmq.exchange")
        self.extra: list[tuple[bytes, bytes]] = []

    async def body(self, most: int) -> bytes:
        """The body, or TooLarge as soon as it is known to be."""
        if self.exchange is not None:
            whole = self.exchange.body()
            if whole is not None:
                if len(whole) > most:
                    raise too_large(most)
                return whole
        for name, value in self.scope["headers"]:
            if name == b"content-length" and int(value) > most:
                raise too_large(most)
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise BadRequest("body: the client left before its end")
            part = message.get("body", b"")
            size += len(part)
            if size > most:
                raise too_large(most)
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)

    def segments(self) -> list[str]:
        """The path's parts, each percent-decoded by itself, so that a name may contain a slash."""
        raw: bytes = self.scope.get("raw_path") or self.path.encode()
        try:
            return [unquote(part, errors="strict") for part in raw.decode("ascii").split("/")[1:]]
        except UnicodeDecodeError:
            raise BadRequest("path: must be percent-encoded UTF-8") from None

    def query(self) -> dict[str, str]:
        """The query's parameters; the last of equal names counts."""
        raw: bytes = self.scope["query_string"]
        if not raw:
            return {}
        try:
            return dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict"))
        except ValueError:
            raise BadRequest("query: must be percent-encoded UTF-8") from None

    async def reply(self, status: int, body: bytes) -> bool:
        """Answers in JSON; False when the client is gone already."""
        if self.exchange is not None:
            start = head(status, len(body))
            for name, value in self.extra:
                start += b"%b: %b\r\n" % (name, value)
            await self.exchange.ready()
            return self.exchange.reply(start, b"" if self.method == "HEAD" else body)
        headers = [*self.extra]
        if status != 204:
            headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})
        return True

    async def refuse(self, error: QueenError) -> None:
        """An error as clients read it."""
        if error.retry_after is not None:
            self.extra.append((b"retry-after", b"%d" % error.retry_after))
        if isinstance(error, TooLarge) and self.exchange is not None:
            # What follows of the body is not read: the connection can't be used any further.
            self.exchange.last()
        await self.reply(error.status, error_body(error))


def head(status: int, size: int) -> bytes:
    """Status line and headers of a reply, without the last blank line."""
    return NO_CONTENT if status == 204 else b"%b%d\r\n" % (_HEADS[status], size)


def error_body(error: QueenError) -> bytes:
    """An error as clients read it. `nothingDone`: it may be sent again safely."""
    told: dict[str, object] = {"error": str(error), "code": error.code}
    if error.status in (429, 503) and not isinstance(error, LostConnection):
        told["nothingDone"] = True
    return msgspec.json.encode(told)


def stopped() -> QueenError:
    """What a request is answered with that the server's end cut off."""
    return LostConnection("the server stopped while this was under way: whether it was done is not known")


def defect(error: Exception, what: str) -> QueenError:
    """An exception that nobody expected: logged here, told without its words."""
    log.error("%s failed", what, exc_info=error)
    return QueenError(f"internal error: {type(error).__name__}; the server's log says more")


def too_large(most: int) -> TooLarge:
    """What a body over the limit is answered with."""
    return TooLarge(f"body: more than {most} bytes (QUEEN_MAX_BODY_MB): send it in several requests")
