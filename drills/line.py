"""One keep-alive connection to a server that is killed again and again.

Never repeats a request by itself. Invariant: `call` answers with a whole reply or raises `Lost`: then nobody knows
whether it was done.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from benchmarks.load import Caller, LoadError, request

SECONDS = 40.0


class Lost(Exception):
    """The reply didn't arrive. `sent` is False when the request can't have reached the server."""

    def __init__(self, sent: bool) -> None:
        super().__init__("no reply")
        self.sent = sent


class _Caller(Caller):
    gone = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        super().connection_lost(exc)


class Line:
    """Connects when there is something to say."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._caller: _Caller | None = None

    async def call(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        if self._caller is None or self._caller.gone:
            self._caller = None
            try:
                made = await _Caller.connect("127.0.0.1", self._port)
            except OSError:
                raise Lost(sent=False) from None
            assert isinstance(made, _Caller)
            self._caller = made
        raw = request(method, path, b"" if body is None else msgspec.json.encode(body))
        try:
            return await asyncio.wait_for(self._caller.call(raw), SECONDS)
        except (LoadError, TimeoutError, OSError):
            self.close()
            raise Lost(sent=True) from None

    def close(self) -> None:
        if self._caller is not None:
            self._caller.close()
            self._caller = None


def nothing_done(status: int, reply: bytes) -> bool:
    """Whether a refusal says that it may be sent again safely."""
    if 400 <= status < 500:
        return True
    told: Any = msgspec.json.decode(reply) if reply else {}
    return bool(told.get("nothingDone"))
