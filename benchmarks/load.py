"""The load generator: keep-alive HTTP/1.1 connections that cost as little CPU as Python can.

Requests are bytes made before the clock starts; a reply is counted by its status line and its length and not decoded, because server,
PostgreSQL and load share the cores. Its invariant: one request in flight per connection, and only a 2xx status counts as acknowledged;
what the replies say is checked by `checked` outside the clock and by counting rows afterwards.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

from benchmarks.common import Sample

HEAD_END = b"\r\n\r\n"
LENGTH = b"content-length: "


def request(method: str, path: str, body: bytes = b"", host: str = "127.0.0.1") -> bytes:
    """One whole HTTP request."""
    head = f"{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class LoadError(RuntimeError):
    """The server closed a connection or answered what no benchmark expects."""


class Connection(asyncio.Protocol):
    """One connection that fires the next request as soon as the last reply is complete.

    `requests` yields (bytes, messages in it); a reply with a good status adds that number.
    """

    def __init__(self, requests: Iterator[tuple[bytes, int]], latencies: list[float]) -> None:
        self._requests, self._latencies = requests, latencies
        self._transport: asyncio.Transport | None = None
        self._missing = -1  # bytes of the reply's body still to come; -1: its head isn't complete
        self._head = b""
        self._good = False
        self._began = self._until = 0.0
        self._in_flight = 0
        self.done: asyncio.Future[None] | None = None
        self.acknowledged = 0
        self.refused: dict[bytes, int] = {}

    def start(self, until: float) -> asyncio.Future[None]:
        self._until = until
        self.done = asyncio.get_running_loop().create_future()
        self.acknowledged = 0
        self._fire(time.perf_counter())
        return self.done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(LoadError(f"connection lost: {exc}"))

    def data_received(self, data: bytes) -> None:
        if self._missing < 0:
            if self._head:
                data = self._head + data
            end = data.find(HEAD_END)
            if end < 0:
                self._head = data
                return
            at = data.find(LENGTH, 0, end)
            if at < 0:
                at = data.lower().find(LENGTH, 0, end)
            self._head = b""
            self._missing = int(data[at + 16 : data.find(b"\r\n", at)]) - (len(data) - end - 4) if at >= 0 else 0
            self._good = data[9:10] == b"2"
            if not self._good:
                self.refused[data[9:12]] = self.refused.get(data[9:12], 0) + 1
        else:
            self._missing -= len(data)
        if self._missing > 0:
            return
        now = time.perf_counter()
        self._latencies.append(now - self._began)
        if self._good:
            self.acknowledged += self._in_flight
        self._missing = -1
        if now < self._until:
            self._fire(now)
        elif self.done is not None:
            self.done.set_result(None)

    def _fire(self, now: float) -> None:
        body, self._in_flight = next(self._requests)
        self._began = now
        assert self._transport is not None
        self._transport.write(body)


class HttpLoad:
    """The connections of one case, kept open over its rounds."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._connections: list[Connection] = []
        self._latencies: list[float] = []

    async def open(self, feeds: Sequence[Iterator[tuple[bytes, int]]]) -> None:
        loop = asyncio.get_running_loop()
        for feed in feeds:
            _, connection = await loop.create_connection(lambda feed=feed: Connection(feed, self._latencies), self._host, self._port)  # type: ignore[misc]
            self._connections.append(connection)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def refused(self) -> dict[str, int]:
        """Replies that were no success, by status, since the load was opened."""
        total: dict[str, int] = {}
        for connection in self._connections:
            for status, count in connection.refused.items():
                total[status.decode()] = total.get(status.decode(), 0) + count
        return total

    async def turn(self, seconds: float, cpu: Callable[[], dict[str, float]]) -> Sample:
        self._latencies.clear()
        before, own = cpu(), os.times()
        start = time.perf_counter()
        await asyncio.gather(*(connection.start(start + seconds) for connection in self._connections))
        taken = time.perf_counter() - start
        after, now = cpu(), os.times()
        spent = {"load": now.user + now.system - own.user - own.system, **{kind: after[kind] - before[kind] for kind in before}}
        return Sample(sum(connection.acknowledged for connection in self._connections), taken, list(self._latencies), spent)


class Caller(asyncio.Protocol):
    """One connection for steps that need the reply's body: `call` sends a request and answers (status, body)."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()
        self._needed = -1  # bytes of the whole reply; -1: its head isn't complete
        self._body = 0
        self._waiter: asyncio.Future[tuple[int, bytes]] | None = None

    @classmethod
    async def connect(cls, host: str, port: int) -> Caller:
        _, made = await asyncio.get_running_loop().create_connection(cls, host, port)
        return made

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(LoadError(f"connection lost: {exc}"))

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._needed < 0:
            end = self._data.find(HEAD_END)
            if end < 0:
                return
            at = self._data.find(LENGTH, 0, end)
            self._body = end + 4
            self._needed = self._body + (int(self._data[at + 16 : self._data.find(b"\r\n", at)]) if at >= 0 else 0)
        if len(self._data) >= self._needed and self._waiter is not None:
            reply = int(self._data[9:12]), bytes(self._data[self._body : self._needed])
            self._data.clear()
            self._needed = -1
            self._waiter.set_result(reply)

    def call(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        assert self._transport is not None
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._waiter


def cycle(requests: Iterable[tuple[bytes, int]], offset: int) -> Iterator[tuple[bytes, int]]:
    """The prepared requests for ever, each connection starting elsewhere."""
    prepared = list(requests)
    return itertools.cycle(prepared[offset % len(prepared) :] + prepared[: offset % len(prepared)])


def push_body(queue: str, partitions: Sequence[str], payloads: Sequence[str]) -> bytes:
    """A push request's body: item i goes to partition i (modulo) with payload i (modulo); the server makes the transaction ids."""
    count = max(len(partitions), len(payloads))
    items = [
        f'{{"queue":"{queue}","partition":"{partitions[at % len(partitions)]}","payload":{payloads[at % len(payloads)]}}}'
        for at in range(count)
    ]
    return ('{"items":[' + ",".join(items) + "]}").encode()
