"""The message plane over HTTP, as the contract draws it."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import httpx
import pytest


@pytest.fixture
def http(emptied: None, web: httpx.AsyncClient) -> httpx.AsyncClient:
    """A client of the module's server, all of whose queues were just deleted."""
    return web


async def push(http: httpx.AsyncClient, *items: dict[str, Any]) -> list[dict[str, Any]]:
    reply = await http.post("/api/v1/push", json={"items": list(items)})
    assert reply.status_code == 201, reply.text
    found: list[dict[str, Any]] = reply.json()
    return found


async def pop(http: httpx.AsyncClient, path: str = "/api/v1/pop/queue/orders", **query: Any) -> list[dict[str, Any]]:
    reply = await http.get(path, params=query)
    if reply.status_code == 204:
        return []
    assert reply.status_code == 200, reply.text
    found: list[dict[str, Any]] = reply.json()["messages"]
    return found


async def ack(http: httpx.AsyncClient, *messages: dict[str, Any], status: str = "completed", **more: Any) -> list[dict[str, Any]]:
    acks = [
        {"transactionId": m["transactionId"], "partitionId": m["partitionId"], "leaseId": m["leaseId"], "status": status} for m in messages
    ]
    reply = await http.post("/api/v1/ack/batch", json={"acknowledgments": acks, **more})
    assert reply.status_code == 200, reply.text
    found: list[dict[str, Any]] = reply.json()
    return found


async def test_a_push_answers_one_entry_per_item_in_order(http: httpx.AsyncClient) -> None:
    trace = str(uuid.uuid4())
    found = await push(
        http,
        {"queue": "orders", "payload": 1, "transactionId": "one", "traceId": trace},
        {"queue": "orders", "partition": "p2", "payload": 2},
        {"queue": "orders", "payload": 3, "transactionId": "one"},
    )
    assert [entry["index"] for entry in found] == [0, 1, 2]
    assert [entry["status"] for entry in found] == ["queued", "queued", "duplicate"]
    assert found[0]["message_id"] == found[2]["message_id"]
    assert found[0]["transaction_id"] == "one" and found[0]["trace_id"] == trace and found[0]["seq"] == 1
    assert {entry["queueName"] for entry in found} == {"orders"}


async def test_payloads_come_back_byte_for_byte(http: httpx.AsyncClient) -> None:
    payload = '{"b": 1.50,  "a":"\\u00e4\\u0000", "a":[1e400]}'
    body = '{"items":[{"queue":"orders","payload":' + payload + "}]}"
    assert (await http.post("/api/v1/push", content=body)).status_code == 201
    reply = await http.get("/api/v1/pop/queue/orders")
    assert '"data":' + payload + ',"createdAt"' in reply.text


async def test_a_pop_carries_every_field_of_the_contract(http: httpx.AsyncClient) -> None:
    await push(http, {"queue": "orders", "partition": "p", "payload": {"a": 1}, "transactionId": "t", "headers": {"h": "v"}})
    reply = (await http.get("/api/v1/pop/queue/orders", params={"consumerGroup": "g"})).json()
    assert (reply["success"], reply["queue"], reply["partition"], reply["consumerGroup"]) == (True, "orders", "p", "g")
    message = reply["messages"][0]
    assert message["leaseId"] == reply["leaseId"] and message["partitionId"] == reply["partitionId"]
    assert (message["transactionId"], message["data"], message["headers"], message["retryCount"]) == ("t", {"a": 1}, {"h": "v"}, 0)
    assert (message["traceId"], message["priority"], message["seq"], message["producerSub"]) == (None, 0, 1, None)
    assert message["createdAt"].endswith("Z") and len(message["createdAt"]) == 24


async def test_an_empty_queue_answers_204_and_a_wait_that_ends_an_empty_list(http: httpx.AsyncClient) -> None:
    assert (await http.get("/api/v1/pop/queue/nothing")).status_code == 204
    reply = await http.get("/api/v1/pop/queue/nothing", params={"wait": "true", "timeout": 50})
    assert reply.status_code == 200 and reply.json() == {"success": True, "messages": []}


async def test_a_waiting_pop_is_woken_by_a_push(http: httpx.AsyncClient) -> None:
    waiting = asyncio.create_task(pop(http, wait="true", timeout=20000))
    await push(http, {"queue": "orders", "payload": "x"})
    assert [message["data"] for message in await waiting] == ["x"]


async def test_groups_read_independently_and_a_leased_partition_is_exclusive_in_its_group(http: httpx.AsyncClient) -> None:
    await push(http, *({"queue": "orders", "payload": n} for n in range(3)))
    first = await pop(http, batch=2, consumerGroup="a")
    assert await pop(http, consumerGroup="a") == []
    assert [m["data"] for m in await pop(http, batch=5, consumerGroup="b")] == [0, 1, 2]
    assert all(entry["success"] for entry in await ack(http, *first, consumerGroup="a"))
    assert [m["data"] for m in await pop(http, batch=5, consumerGroup="a")] == [2]


async def test_a_failed_message_comes_back_in_order_and_becomes_a_dead_letter_after_its_retries(http: httpx.AsyncClient) -> None:
    await http.post("/api/v1/configure", json={"queue": "orders", "options": {"retryDelay": 0, "retryLimit": 1}})
    await push(http, *({"queue": "orders", "payload": n} for n in range(2)))
    first = await pop(http, batch=1)
    await ack(http, *first, status="failed")
    again = await pop(http, batch=1)
    assert [(m["data"], m["retryCount"]) for m in again] == [(0, 1)]
    answer = await ack(http, *again, status="failed")
    assert answer[0]["dlq"] is True
    assert [m["data"] for m in await pop(http, batch=5)] == [1]


async def test_auto_ack_moves_the_cursor_and_gives_no_lease(http: httpx.AsyncClient) -> None:
    await push(http, *({"queue": "orders", "payload": n} for n in range(2)))
    reply = (await http.get("/api/v1/pop/queue/orders", params={"autoAck": "true"})).json()
    assert reply["leaseId"] == "" and reply["messages"][0]["leaseId"] == ""
    assert [m["data"] for m in await pop(http, wait="true", timeout=5000)] == [1]


async def test_one_pop_claims_several_partitions_under_one_lease(http: httpx.AsyncClient) -> None:
    await push(http, *({"queue": "orders", "partition": f"p{n % 4}", "payload": n} for n in range(12)))
    found = await pop(http, batch=7, partitions=3)
    assert len(found) == 7 and len({m["leaseId"] for m in found}) == 1 and 2 <= len({m["partition"] for m in found}) <= 3
    reply = (await http.post(f"/api/v1/lease/{found[0]['leaseId']}/extend", json={"seconds": 900})).json()
    assert len(reply) == 1 and reply[0]["success"] is True and reply[0]["newExpiresAt"] > reply[0]["expiresAt"]


async def test_a_namespace_pop_serves_the_highest_priority_first(http: httpx.AsyncClient) -> None:
    for name, priority in (("shop.mail.low", 1), ("shop.mail.high", 9)):
        await http.post("/api/v1/configure", json={"queue": name, "options": {"priority": priority}})
        await push(http, {"queue": name, "payload": name})
    found = [m["data"] for _ in range(2) for m in await pop(http, "/api/v1/pop", namespace="shop", task="mail", consumerGroup="g")]
    assert found == ["shop.mail.high", "shop.mail.low"]
    await push(http, {"queue": "shop.mail.later", "payload": "later"})
    assert [m["data"] for m in await pop(http, "/api/v1/pop", namespace="shop", task="mail", consumerGroup="g", wait="true")] == ["later"]


async def test_a_transaction_is_all_or_nothing(http: httpx.AsyncClient) -> None:
    await push(http, {"queue": "orders", "payload": 1})
    message = (await pop(http))[0]
    operations = [
        {"type": "push", "items": [{"queue": "bills", "payload": "a"}]},
        {"type": "ack", "transactionId": message["transactionId"], "partitionId": message["partitionId"], "status": "completed"},
    ]
    lost = (await http.post("/api/v1/transaction", json={"operations": operations, "requiredLeases": [str(uuid.uuid4())]})).json()
    assert lost["success"] is False and await pop(http, "/api/v1/pop/queue/bills") == []
    done = (await http.post("/api/v1/transaction", json={"operations": operations, "requiredLeases": [message["leaseId"]]})).json()
    assert done["success"] is True and [r["type"] for r in done["results"]] == ["push", "ack"]
    assert [m["data"] for m in await pop(http, "/api/v1/pop/queue/bills")] == ["a"]


async def test_delays_hold_a_message_and_what_follows(http: httpx.AsyncClient) -> None:
    await push(
        http, {"queue": "orders", "payload": 1}, {"queue": "orders", "payload": 2, "delaySeconds": 0.3}, {"queue": "orders", "payload": 3}
    )
    first = await pop(http, batch=10)
    assert [m["data"] for m in first] == [1]
    await ack(http, *first)
    assert await pop(http) == []
    assert [m["data"] for m in await pop(http, batch=10, wait="true", timeout=5000)] == [2, 3]


async def test_configure_merges_and_answers_all_effective_options(http: httpx.AsyncClient) -> None:
    first = (await http.post("/api/v1/configure", json={"queue": "a.b.c", "options": {"leaseTime": 7}})).json()
    second = (await http.post("/api/v1/configure", json={"queue": "a.b.c", "options": {"retryLimit": 9}})).json()
    assert (first["configured"], first["namespace"], first["task"]) == (True, "a", "b")
    assert (second["options"]["leaseTime"], second["options"]["retryLimit"], second["options"]["ttl"]) == (7, 9, 3600)


async def test_max_size_answers_409(http: httpx.AsyncClient) -> None:
    await http.post("/api/v1/configure", json={"queue": "orders", "options": {"maxSize": 2}})
    await push(http, {"queue": "orders", "payload": 1}, {"queue": "orders", "payload": 2})
    deadline = asyncio.get_running_loop().time() + 5
    while (reply := await http.post("/api/v1/push", json={"items": [{"queue": "orders", "payload": 3}]})).status_code == 201:
        assert asyncio.get_running_loop().time() < deadline
    assert reply.status_code == 409 and "maxSize" in json.loads(reply.text)["error"]
