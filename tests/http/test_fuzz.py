"""Any JSON on any route, near misses most of all: never a 500, never a hang, and the server serves on."""

from __future__ import annotations

import json
import string
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queenmq.testing.live import LiveServer

FUZZ = settings(max_examples=150, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

WORDS = st.sampled_from(
    ["fuzz", "fuzz.a.b", "Default", "p", "t", "g", "", "\0", "ä", "a/b", "x" * 255, "x" * 256, "\x1e", "\\", '"', "','", "🐝"]
)
TEXTS = st.one_of(WORDS, WORDS, st.text(max_size=20))
NUMBERS = st.one_of(st.integers(), st.integers(-2, 70), st.floats(), st.sampled_from([2**31, 2**63, 2**64, 1e308, -1]))
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
ANYTHING = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=8)


def near(valid: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly what belongs there."""
    return st.one_of(valid, valid, valid, valid, ANYTHING)


def thing(required: dict[str, st.SearchStrategy[Any]], optional: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    return near(st.fixed_dictionaries({k: near(v) for k, v in required.items()}, optional={k: near(v) for k, v in optional.items()}))


LEASES = st.one_of(st.uuids().map(str), TEXTS)
PARTITIONS = st.one_of(st.integers(0, 30).map(str), TEXTS)
STATUSES = st.sampled_from(["completed", "success", "failed", "dlq", "retry", "done"])
ITEM = thing(
    {"queue": TEXTS, "payload": ANYTHING},
    {
        "partition": TEXTS,
        "transactionId": TEXTS,
        "traceId": st.uuids().map(str),
        "headers": st.dictionaries(TEXTS, TEXTS, max_size=3),
        "delaySeconds": st.floats(0, 2),
        "more": ANYTHING,
    },
)
ACK = thing(
    {"transactionId": TEXTS, "partitionId": PARTITIONS}, {"status": STATUSES, "error": TEXTS, "consumerGroup": TEXTS, "leaseId": LEASES}
)
PUSHED = st.fixed_dictionaries({"type": st.just("push"), "items": st.lists(ITEM, max_size=4)})
ACKED = ACK.map(lambda each: {"type": "ack", **each} if isinstance(each, dict) else each)
BODIES = {
    "/api/v1/push": thing({"items": st.lists(ITEM, max_size=5)}, {}),
    "/api/v1/ack": ACK,
    "/api/v1/ack/batch": thing({"acknowledgments": st.lists(ACK, max_size=5)}, {"consumerGroup": TEXTS}),
    "/api/v1/transaction": thing(
        {"operations": st.lists(st.one_of(PUSHED, ACKED), max_size=4)}, {"requiredLeases": st.lists(LEASES, max_size=2), "kv": ANYTHING}
    ),
    "/api/v1/configure": thing(
        {"queue": TEXTS},
        {
            "namespace": TEXTS,
            "task": TEXTS,
            "options": st.dictionaries(
                st.sampled_from(["leaseTime", "retryLimit", "retryDelay", "ttl", "priority", "windowBuffer"]), NUMBERS
            ),
        },
    ),
    "/api/v1/lease/00000000-0000-4000-8000-000000000000/extend": thing({}, {"seconds": NUMBERS}),
}
FINE = {200, 201, 204, 400, 404, 405, 409, 413}
NAMES = st.text(string.printable + "äß日\0/%", max_size=12)
QUERIES = st.dictionaries(
    st.sampled_from(
        ["batch", "partitions", "consumerGroup", "group", "autoAck", "subscriptionMode", "subscriptionFrom", "leaseTime", "task", "x"]
    ),
    st.one_of(TEXTS, NUMBERS.map(str), st.sampled_from(["true", "false", "all", "new", "new-only", "now", "2026-11-19T00:00:00Z", "1"])),
    max_size=4,
)


def checked(reply: httpx.Response) -> None:
    assert reply.status_code in FINE, (reply.status_code, reply.text)
    if reply.status_code != 204:
        told = reply.json()
        if reply.status_code >= 400:
            assert told["error"] and told["code"], told


@FUZZ
@given(st.sampled_from(sorted(BODIES)).flatmap(lambda path: st.tuples(st.just(path), BODIES[path])))
def test_no_body_makes_the_server_stumble(plain: httpx.Client, case: tuple[str, Any]) -> None:
    path, body = case
    checked(plain.post(path, content=json.dumps(body).encode()))


@FUZZ
@given(st.sampled_from(sorted(BODIES)), st.binary(max_size=60))
def test_no_bytes_make_the_server_stumble(plain: httpx.Client, path: str, body: bytes) -> None:
    checked(plain.post(path, content=body))


@FUZZ
@given(st.lists(NAMES, max_size=4), QUERIES)
def test_no_path_and_no_query_make_the_server_stumble(plain: httpx.Client, names: list[str], query: dict[str, str]) -> None:
    from urllib.parse import quote

    path = "/api/v1/pop/queue/" + "/partition/".join(quote(name, safe="") for name in names)
    checked(plain.get(path, params=query))
    checked(plain.get("/api/v1/pop", params={"namespace": names[0] if names else "fuzz", **query}))


def test_the_server_is_well_after_all_that(shared: LiveServer, plain: httpx.Client, queue: str) -> None:
    assert plain.get("/health").json()["status"] == "healthy"
    assert plain.post("/api/v1/push", json={"items": [{"queue": queue, "payload": 1}]}).status_code == 201
    assert plain.get(f"/api/v1/pop/queue/{queue}").json()["messages"][0]["data"] == 1
    assert plain.get("/metrics").json()["queen_waiting_pops"] == 0
