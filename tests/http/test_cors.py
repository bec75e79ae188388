"""Browsers from other origins: off by default, by name or for all, error replies and replies of the read-only routes included."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from tests.http.wire import Plain

from queenmq.testing.live import LiveServer

SHOP, EVIL = {"origin": "https://shop.example"}, {"origin": "https://evil.example"}
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}


@pytest.fixture(scope="module")
def named(shared_url: str) -> Iterator[Plain]:
    with LiveServer(shared_url, {"QUEEN_CORS_ORIGINS": "https://shop.example"}) as live, Plain(base_url=live.url) as client:
        yield client


def allowed(reply: httpx.Response) -> str | None:
    found: str | None = reply.headers.get("access-control-allow-origin")
    return found


def test_by_default_no_origin_is_told_anything(plain: Plain) -> None:
    assert allowed(plain.get("/api/v1/pop/queue/none", headers=SHOP)) is None
    assert plain.options("/api/v1/push", headers={**SHOP, **PREFLIGHT}).status_code == 405


def test_a_named_origin_may_ask_and_read(named: Plain) -> None:
    reply = named.options("/api/v1/push", headers={**SHOP, **PREFLIGHT})
    assert reply.status_code == 204 and allowed(reply) == "https://shop.example" and "POST" in reply.headers["access-control-allow-methods"]
    body = {"items": [{"queue": "cors", "payload": 1}]}
    for answer, status in (
        (named.post("/api/v1/push", json=body, headers=SHOP), 201),
        (named.post("/api/v1/push", content=b"{", headers=SHOP), 400),
        (named.get("/nothing", headers=SHOP), 404),
        (named.put("/api/v1/push", headers=SHOP), 405),
        (named.get("/api/v1/pop/queue/none", headers=SHOP), 204),
    ):
        assert answer.status_code == status and allowed(answer) == "https://shop.example" and answer.headers["vary"] == "origin"


def test_another_origin_is_told_nothing(named: Plain) -> None:
    assert allowed(named.options("/api/v1/push", headers={**EVIL, **PREFLIGHT})) is None
    assert allowed(named.get("/api/v1/pop/queue/none", headers=EVIL)) is None
    assert allowed(named.get("/api/v1/pop/queue/none")) is None


def test_the_read_only_routes_are_open_to_a_named_origin_too(named: Plain) -> None:
    for path in ("/health", "/metrics", "/api/v1/resources/queues"):
        assert allowed(named.get(path, headers=SHOP)) == "https://shop.example"
        assert allowed(named.get(path, headers=EVIL)) is None


def test_a_star_stands_for_every_origin(shared_url: str) -> None:
    with LiveServer(shared_url, {"QUEEN_CORS_ORIGINS": "*", "QUEEN_SERVER_ID": "star"}) as live, Plain(base_url=live.url) as client:
        assert allowed(client.get("/api/v1/pop/queue/none", headers=EVIL)) == "*"
