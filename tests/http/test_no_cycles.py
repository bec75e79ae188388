"""A server collects cycles seldom, so a request must leave none behind: memory would grow by every body until the collector comes."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from queenmq.http.protocol import Exchange
from queenmq.http.wire import Request
from queenmq.queen.push_lane import PushUnit, Ticket
from queenmq.testing.live import LiveServer


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("items", [1, 3, 2000])
@pytest.mark.parametrize("pieces", [1, 2])
async def test_a_push_leaves_nothing_for_the_cycle_collector(server: LiveServer, items: int, pieces: int) -> None:
    """In one piece it takes the short way, in two the usual one."""
    body = json.dumps({"items": [{"queue": "orders", "partition": f"p{n % 3}", "payload": "x" * 100} for n in range(items)]}).encode()
    head = b"POST /api/v1/push HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    for _ in range(5):
        if pieces == 1:
            writer.write(head + body)
        else:
            writer.write(head)
            await writer.drain()
            await asyncio.sleep(0)
            writer.write(body)
        reply = await reader.readuntil(b"\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 201")
        length = next(line for line in reply.split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(int(length.split(b":")[1]))
    writer.close()
    await writer.wait_closed()
    left = [each for each in gc.get_objects() if isinstance(each, PushUnit | Ticket | Request | Exchange)]
    assert left == []
