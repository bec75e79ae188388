"""The short way of a small push: it answers as the long way does, and whatever isn't plain takes the long way."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from queenmq.http.hot import whole_push
from queenmq.testing.live import LiveServer

HEAD = b"POST /api/v1/push HTTP/1.1\r\nhost: x\r\ncontent-length: "


def raw(body: bytes, *headers: bytes) -> bytes:
    return HEAD + b"%d\r\n" % len(body) + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + body


def item(**more: Any) -> bytes:
    return json.dumps({"items": [{"queue": "orders", "payload": {"a": 1}, **more}]}).encode()


async def exchange(server: LiveServer, *pieces: bytes, replies: int = 1) -> list[tuple[int, Any]]:
    """Writes the pieces and reads so many replies."""
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    found = []
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        for _ in range(replies):
            head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode()
            length = next(int(line[16:]) for line in head.lower().split("\r\n") if line.startswith("content-length: "))
            found.append((int(head[9:12]), json.loads(await reader.readexactly(length))))
    finally:
        writer.close()
    return found


@pytest.mark.parametrize(
    "data",
    [
        raw(item())[:-1],
        raw(item()) + b"P",
        raw(item(), b"transfer-encoding: chunked"),
        raw(item(), b"Content-Encoding: gzip"),
        raw(item(), b"expect: 100-continue"),
        raw(item(), b"Connection: close"),
        raw(item(), b"connection: upgrade"),
        raw(item(), b"origin: http://elsewhere"),
        raw(item(), b"content-length: 3"),
        raw(item()).replace(b"content-length", b"x-length"),
        raw(item()).replace(b"/push", b"/pull"),
        raw(item())[: len(HEAD)],
        raw(item(), b"content-length : 3"),
        raw(item(), b"x: y\ntransfer-encoding: chunked"),
        raw(item(), b"x: y", b" transfer-encoding: chunked"),
        raw(item(), b"x: \0"),
        raw(item(), b"transfer-encoding\t: chunked"),
    ],
)
def test_what_is_not_plain_takes_the_long_way(data: bytes) -> None:
    assert whole_push(data) is None


def test_a_whole_push_is_recognised() -> None:
    assert whole_push(raw(item(), b"Connection: keep-alive", b"accept: */*")) == item()
    assert whole_push(raw(item()).replace(b"content-length", b"Content-Length")) == item()


async def test_both_ways_answer_alike(server: LiveServer) -> None:
    first = (await exchange(server, raw(item(transactionId="one"))))[0]
    short, long = (
        await exchange(server, raw(item(transactionId="two"))),
        await exchange(server, raw(item(transactionId="three"), b"origin: http://elsewhere")),
    )
    assert first[0] == short[0][0] == long[0][0] == 201
    assert short[0][1][0].keys() == long[0][1][0].keys()
    assert [reply[1][0]["seq"] for reply in (first, short[0], long[0])] == [1, 2, 3]
    again = await exchange(server, raw(item(transactionId="two")))
    assert again[0][1][0]["status"] == "duplicate"
    assert again[0][1][0]["message_id"] == short[0][1][0]["message_id"]


async def test_pipelined_requests_are_answered_in_order(server: LiveServer) -> None:
    await exchange(server, raw(item()))
    one, two, three = (raw(item(transactionId=name)) for name in ("one", "two", "three"))
    found = await exchange(server, one, two + three, b"GET /api/v1/pop/queue/orders HTTP/1.1\r\nhost: x\r\n\r\n", replies=4)
    assert [reply[0] for reply in found] == [201, 201, 201, 200]
    assert [reply[1][0]["transaction_id"] for reply in found[:3]] == ["one", "two", "three"]


async def test_a_push_in_pieces_is_stored_once(server: LiveServer, http: httpx.AsyncClient) -> None:
    await exchange(server, raw(item()))
    whole = raw(item(transactionId="pieces"))
    found = await exchange(server, whole[:30], whole[30:90], whole[90:])
    assert found[0][1][0]["seq"] == 2


async def test_what_is_wrong_with_a_small_push_is_said(server: LiveServer) -> None:
    await exchange(server, raw(item()))
    found = await exchange(server, raw(item(transactionId="")), raw(b'{"items":[{"payload":1}]}'), raw(item()), replies=3)
    assert [reply[0] for reply in found] == [400, 400, 201]
    assert "items[0].transactionId" in found[0][1]["error"]


async def test_a_client_that_leaves_before_its_answer_disturbs_nobody(server: LiveServer) -> None:
    await exchange(server, raw(item()))
    await exchange(server, raw(item(transactionId="left")), replies=0)
    assert (await exchange(server, raw(item(transactionId="stays"))))[0][0] == 201
