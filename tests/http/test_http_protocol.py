"""HTTP/1.1 as bytes: pipelining, keep-alive, chunks, half requests; every reply whole, in order, and the connection as it was said."""

from __future__ import annotations

import contextlib
import json
import socket

import httpx
import pytest
from tests.http.wire import get, post, wire

from queenmq.testing.live import LiveServer


def pushing(queue: str, *payloads: object, **more: object) -> bytes:
    return json.dumps({"items": [{"queue": queue, "payload": payload, **more} for payload in payloads]}).encode()


def test_a_connection_serves_one_request_after_another(shared: LiveServer, queue: str) -> None:
    with wire(shared.url) as line:
        for number in range(20):
            line.send(post("/api/v1/push", pushing(queue, number)))
            status, headers, body = line.reply()
            assert (status, headers.get("connection"), json.loads(body)[0]["seq"]) == (201, None, number + 1)


def test_pipelined_requests_are_answered_in_order_whatever_they_are(shared: LiveServer, queue: str) -> None:
    path = f"/api/v1/pop/queue/{queue}"
    requests = [
        (post("/api/v1/push", pushing(queue, 1)), 201),
        (get(path), 200),
        (get(path), 204),
        (get("/nothing"), 404),
        (post("/api/v1/push", b"{"), 400),
        (post("/api/v1/push", pushing(queue, 2)), 201),
        (get("/health"), 200),
        (get("/api/v1/push"), 405),
        (get(f"{path}?wait=true&timeout=50"), 200),
        (post("/api/v1/ack/batch", b'{"acknowledgments":[]}'), 200),
    ]
    with wire(shared.url) as line:
        for _ in range(5):
            line.send(b"".join(request for request, _ in requests))
            statuses = [line.reply()[0] for _ in requests]
            assert [a == b for a, (_, b) in zip(statuses, requests, strict=True)].count(False) <= 2, statuses
            assert [statuses[at] for at in (0, 3, 4, 5, 6, 7, 9)] == [201, 404, 400, 201, 200, 405, 200]


def test_pipelined_pushes_keep_their_order(shared: LiveServer, queue: str) -> None:
    with wire(shared.url) as line:
        line.send(b"".join(post("/api/v1/push", pushing(queue, n, transactionId=f"t{n}")) for n in range(300)))
        found = [json.loads(line.reply()[2])[0] for _ in range(300)]
    assert [(entry["transaction_id"], entry["seq"]) for entry in found] == [(f"t{n}", n + 1) for n in range(300)]


@pytest.mark.parametrize("path", ["/api/v1/push", "/api/v1/transaction"])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_body_may_come_in_chunks(shared: LiveServer, queue: str, path: str, size: int) -> None:
    whole = pushing(queue, "x" * 300)
    if path.endswith("transaction"):
        whole = b'{"operations":[{"type":"push",' + whole[1:] + b"]}"
    parts = [whole[at : at + size] for at in range(0, len(whole), size)]
    with wire(shared.url) as line:
        line.send(f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for part in parts:
            line.send(b"%x\r\n%b\r\n" % (len(part), part))
        line.send(b"0\r\n\r\n")
        assert line.reply()[0] == (201 if path.endswith("push") else 200)
        line.send(get(f"/api/v1/pop/queue/{queue}"))
        assert json.loads(line.reply()[2])["messages"][0]["data"] == "x" * 300


@pytest.mark.parametrize("path", ["/api/v1/push", "/api/v1/configure"])
def test_a_request_may_come_byte_by_byte(shared: LiveServer, queue: str, path: str) -> None:
    body = pushing(queue, 1) if path.endswith("push") else json.dumps({"queue": queue}).encode()
    with wire(shared.url) as line:
        for byte in post(path, body):
            line.send(bytes([byte]))
        assert line.reply()[0] in (200, 201)


@pytest.mark.parametrize("path", ["/api/v1/push", "/api/v1/ack/batch"])
def test_a_client_that_asks_before_sending_its_body_is_told_to_go_on(shared: LiveServer, queue: str, path: str) -> None:
    body = pushing(queue, 1) if path.endswith("push") else b'{"acknowledgments":[]}'
    with wire(shared.url) as line:
        line.send(post(path, b"", "Expect: 100-continue").replace(b"Content-Length: 0", b"Content-Length: %d" % len(body)))
        assert line.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.send(body)
        assert line.reply()[0] in (200, 201)
        line.send(get("/livez"))
        assert line.reply()[0] == 200


def test_a_client_that_asks_before_sending_too_much_is_refused_at_once(shared: LiveServer) -> None:
    with wire(shared.url) as line:
        line.send(post("/api/v1/push", b"", "Expect: 100-continue").replace(b"Content-Length: 0", b"Content-Length: 99999999"))
        status, headers, _ = line.reply()
        assert status == 413 and headers["connection"] == "close" and line.ended()


def test_a_head_request_is_answered_without_a_body(shared: LiveServer) -> None:
    with wire(shared.url) as line:
        for path, expected in (("/health", 200), ("/livez", 200), ("/nothing", 404), ("/api/v1/push", 405), ("/api/v1/pop/queue/x", 405)):
            line.send(get(path).replace(b"GET", b"HEAD", 1))
            status, headers, _ = line.reply(head=True)
            assert status == expected and int(headers["content-length"]) > 0
        line.send(get("/livez"))
        assert line.reply()[0] == 200


CLOSE, PUSH = "Connection: close", post("/api/v1/push", pushing("closing", 1))
CLOSING = [
    post("/api/v1/push", pushing("closing", 1), CLOSE),
    *(get(path, CLOSE) for path in ("/api/v1/pop/queue/none", "/nothing", "/livez")),
    *(request.replace(b"HTTP/1.1", b"HTTP/1.0") for request in (PUSH, get("/livez"))),
]


@pytest.mark.parametrize("request_", CLOSING)
def test_a_connection_that_shall_close_is_closed_after_the_reply(shared: LiveServer, request_: bytes) -> None:
    with wire(shared.url) as line:
        line.send(request_)
        status, headers, _ = line.reply()
        assert status in (200, 201, 204, 404) and headers["connection"] == "close" and line.ended()


START = b"POST /api/v1/push HTTP/1.1\r\n"
NO_HTTP = [
    b"nonsense\r\n\r\n",
    b"GET\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/9.9\r\n\r\n",
    START + b"Content-Length: -5\r\n\r\n",
    START + b"Content-Length: x\r\n\r\n",
    START + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    START + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
]


@pytest.mark.parametrize("data", NO_HTTP)
def test_what_is_no_http_is_refused_and_the_connection_closed(shared: LiveServer, plain: httpx.Client, data: bytes) -> None:
    with wire(shared.url) as line:
        line.send(data)
        status, headers, _ = line.reply()
        assert status == 400 and headers["connection"] == "close" and line.ended()
    assert plain.get("/health").status_code == 200


def test_bytes_beyond_ascii_in_a_path_or_query_are_refused(shared: LiveServer, plain: httpx.Client) -> None:
    for path in ("/api/v1/pop/queue/\u00e4", "/api/v1/pop/queue/x?group=\u00e4", "/\u00e4"):
        with wire(shared.url) as line:
            line.send(get(path))
            assert line.reply()[0] in (400, 404)
    assert plain.get("/health").status_code == 200


HALVES = [
    b"GET /hea",
    START + b"Content-Le",
    post("/api/v1/push", b'{"items":[]}')[:-3],
    post("/api/v1/transaction", b"x" * 200_000)[:-3],
    START + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
]


@pytest.mark.parametrize("part", HALVES)
@pytest.mark.parametrize("how", ["closed", "reset"])
def test_half_a_request_does_nothing(shared: LiveServer, plain: httpx.Client, part: bytes, how: str) -> None:
    with wire(shared.url) as line:
        line.send(part)
        if how == "reset":
            line.vanish()
    assert plain.get("/health").status_code == 200


def test_a_refused_body_leaves_the_connection_usable_when_it_was_read(shared: LiveServer, queue: str) -> None:
    with wire(shared.url) as line:
        for body in (b"{", b"x" * 100_000, pushing(queue, "x" * 300_000), pushing("", 1)):
            line.send(post("/api/v1/push", body))
            status, headers, _ = line.reply()
            assert status in (400, 413)
            if headers.get("connection") == "close":
                return
        line.send(get("/livez"))
        assert line.reply()[0] == 200


def test_what_is_posted_to_a_wrong_place_is_skipped(shared: LiveServer) -> None:
    with wire(shared.url) as line:
        for path, expected in (("/nothing", 404), ("/health", 405), ("/api/v1/pop", 405), ("/api/v1/pop/queue/x", 405)):
            line.send(post(path, b"y" * 500_000))
            assert line.reply()[0] == expected
        line.send(get("/livez"))
        assert line.reply()[0] == 200


@pytest.mark.parametrize("what", ["figures", "pushes", "small pushes"])
def test_a_client_that_reads_nothing_is_not_read_any_more(shared: LiveServer, plain: httpx.Client, queue: str, what: str) -> None:
    """Replies that nobody reads don't pile up in the server."""
    payloads = range(50) if what == "pushes" else [1]
    request = get("/metrics") * 50 if what == "figures" else post("/api/v1/push", pushing(queue, *payloads)) * (200 // len(payloads))
    with wire(shared.url, receive_buffer=4096) as line:
        line.sock.settimeout(1)
        line.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        sent = 0
        try:
            while sent < 32 << 20:
                sent += line.sock.send(request)
        except TimeoutError:
            assert plain.post("/api/v1/push", content=pushing(queue, 1)).status_code == 201
            return
    raise AssertionError("everything was read")


@pytest.mark.parametrize(
    "odd", ["Content-Length : 1", "X: y\nTransfer-Encoding: chunked", "X: y\r\n Transfer-Encoding: chunked", "Content-Length: 1"]
)
def test_a_head_that_could_be_read_in_two_ways_is_refused_or_read_in_one(shared: LiveServer, queue: str, odd: str) -> None:
    """What a proxy before us takes for the end of one request is never the beginning of another one here."""
    with wire(shared.url) as line:
        line.send(post("/api/v1/push", pushing(queue, 1), odd) + get("/livez"))
        status, headers, _ = line.reply()
        assert status == 400 and headers["connection"] == "close" and line.ended()


@pytest.mark.parametrize("part", [b"X: " + b"y" * 8192 + b"\r\n", b"y" * 8192])
def test_a_head_without_end_is_refused(shared: LiveServer, plain: httpx.Client, part: bytes) -> None:
    with wire(shared.url) as line:
        line.send(b"POST /api/v1/push HTTP/1.1\r\nHost: x\r\nZ: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(60):
                line.send(part)
        status, headers, body = line.reply()
        assert status == 431 and headers["connection"] == "close" and "head" in json.loads(body)["error"]
    assert plain.get("/health").status_code == 200


def test_a_long_head_is_read(shared: LiveServer) -> None:
    with wire(shared.url) as line:
        line.send(get("/livez", *(f"X-{number}: {'y' * 1000}" for number in range(50))))
        assert line.reply()[0] == 200
