"""What a client may do wrong, on every route: a status of 400 to 413, an error that names the field, and nothing done."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import asyncpg
import httpx
import pytest

PUSH, ACK, BATCH = "/api/v1/push", "/api/v1/ack", "/api/v1/ack/batch"
TRANSACTION, CONFIGURE, EXTEND = "/api/v1/transaction", "/api/v1/configure", f"/api/v1/lease/{uuid.uuid4()}/extend"
POSTS = (PUSH, ACK, BATCH, TRANSACTION, CONFIGURE, EXTEND)
LONG = "n" * 256


def refused(reply: httpx.Response, names: str, status: int = 400, code: str = "bad_request") -> None:
    """The one form of a refusal."""
    assert reply.status_code == status, (reply.status_code, reply.text)
    assert reply.headers["content-type"] == "application/json"
    told = reply.json()
    assert told["code"] == code and names in told["error"], told


def items(*found: dict[str, Any]) -> dict[str, Any]:
    return {"items": list(found)}


GOOD: dict[str, Any] = {"queue": "never-made", "payload": 1}
GOOD_ACK: dict[str, Any] = {"transactionId": "t", "partitionId": "1"}


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "body",
    [
        b"{", b"[", b"nonsense", b'"text"', b"[]", b"7", b"null", b"{}}", b'{"a":1}{"b":2}', b"\x00", b"\xff\xfe",
        b'{"items":NaN}', b"{'items':[]}", b'{"items":[],}', b"\xef\xbb\xbf{}",
    ],
)  # fmt: skip
def test_a_body_that_is_no_such_json_is_refused(plain: httpx.Client, path: str, body: bytes) -> None:
    refused(plain.post(path, content=body), "")


@pytest.mark.parametrize("path", [PUSH, ACK, BATCH, TRANSACTION, CONFIGURE])
def test_an_empty_body_is_refused(plain: httpx.Client, path: str) -> None:
    refused(plain.post(path), "body")


@pytest.mark.parametrize(
    ("item", "names"),
    [
        ({"payload": 1}, "items[0]: Object missing required field `queue`"),
        ({"queue": "q"}, "items[0]: Object missing required field `payload`"),
        ({**GOOD, "queue": ""}, "items[0].queue: must not be empty"),
        ({**GOOD, "queue": LONG}, "items[0].queue: 256 characters, at most 255"),
        ({**GOOD, "queue": "a\0b"}, "items[0].queue: must not contain a NUL"),
        ({**GOOD, "queue": 7}, "items[0].queue"),
        ({**GOOD, "queue": None}, "items[0].queue"),
        ({**GOOD, "queue": True}, "items[0].queue"),
        ({**GOOD, "partition": ""}, "items[0].partition: must not be empty"),
        ({**GOOD, "partition": LONG}, "items[0].partition: 256"),
        ({**GOOD, "partition": "a\0"}, "items[0].partition"),
        ({**GOOD, "partition": ["p"]}, "items[0].partition"),
        ({**GOOD, "transactionId": ""}, "items[0].transactionId: must not be empty"),
        ({**GOOD, "transactionId": LONG}, "items[0].transactionId: 256"),
        ({**GOOD, "transactionId": "\0"}, "items[0].transactionId"),
        ({**GOOD, "transactionId": 1}, "items[0].transactionId"),
        ({**GOOD, "traceId": "no uuid"}, "items[0].traceId: must be a UUID"),
        ({**GOOD, "traceId": ""}, "items[0].traceId"),
        ({**GOOD, "headers": {"a": 1}}, "items[0].headers"),
        ({**GOOD, "headers": "x"}, "items[0].headers"),
        ({**GOOD, "headers": {"a": "v" * 8192}}, "items[0].headers: "),
        ({**GOOD, "delaySeconds": -1}, "items[0].delaySeconds: must lie between"),
        ({**GOOD, "delaySeconds": 1e300}, "items[0].delaySeconds: must lie between"),
        ({**GOOD, "delaySeconds": "5"}, "items[0].delaySeconds"),
        ({**GOOD, "delaySeconds": True}, "items[0].delaySeconds"),
    ],
)
@pytest.mark.parametrize("where", ["alone", "among others", "in another partition"])
def test_a_bad_item_is_named_and_nothing_of_its_request_is_stored(
    plain: httpx.Client, queue: str, item: dict[str, Any], names: str, where: str
) -> None:
    item = {**item, **({"queue": queue} if item.get("queue") == "never-made" else {})}
    good = {"queue": queue, "payload": "good", "transactionId": "good"}
    if where == "alone":
        body = items(item)
    elif where == "among others":
        body, names = items(good, good, item, good), names.replace("items[0]", "items[2]")
    else:
        body, names = items({**good, "partition": "other"}, item), names.replace("items[0]", "items[1]")
    refused(plain.post(PUSH, json=body), names)
    assert plain.get(f"/api/v1/pop/queue/{queue}").status_code == 204
    assert queue not in [found["name"] for found in plain.get("/api/v1/resources/queues").json()["queues"]]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    "payload",
    [b"NaN", b"Infinity", b"01", b"-", b"1.", b".5", b"+1", b"0x1", b"tru", b"'a'", b'"\x01"', b'"a\nb"', b'"\\x"', b'"\\u12"', b'"\xff"',
     b'"\xed\xa0\x80"', b'"\xc0\x80"', b'"\x00"', b'"\\ud800"', b'"\\udc00"', b"[1,]", b'{"a" 1}', b'{"a":1,}', b"{1:2}", b"", b" ",
     b"nul"],
)  # fmt: skip
def test_a_payload_that_is_no_json_is_refused(plain: httpx.Client, queue: str, payload: bytes, known: bool) -> None:
    if known:
        assert plain.post(PUSH, json=items({"queue": queue, "payload": 1})).status_code == 201
    body = b'{"items":[{"queue":"%b","payload":1},{"queue":"%b","payload":%b}]}' % (queue.encode(), queue.encode(), payload)
    refused(plain.post(PUSH, content=body), "")
    expected = [1] if known else []
    reply = plain.get(f"/api/v1/pop/queue/{queue}", params={"batch": 10})
    assert [m["data"] for m in (reply.json()["messages"] if reply.content else [])] == expected


@pytest.mark.parametrize(
    "payload",
    [b"null", b"true", b"0", b"-0.0e-10", b"1e400", b'""', b'"\\u0000"', b'"\xf0\x9f\x90\x9d"', b"[]", b"{}", b'{"a":1,"a":2}',
     b" [ 1 , 2 ] ", b"123456789012345678901234567890.5", b'"\\/"', b'{"":{"":[{}]}}'],
)  # fmt: skip
def test_every_json_payload_comes_back_byte_for_byte(plain: httpx.Client, queue: str, payload: bytes) -> None:
    assert plain.post(PUSH, content=b'{"items":[{"queue":"%b","payload":%b}]}' % (queue.encode(), payload)).status_code == 201
    assert b'"data":' + payload.strip() in plain.get(f"/api/v1/pop/queue/{queue}").content.replace(b'"data": ', b'"data":')


@pytest.mark.parametrize("text", ["\\ud800", "\\udfff", "a\\ud800b", "\\udc00\\ud800"])
@pytest.mark.parametrize("field", ["queue", "partition", "transactionId"])
def test_half_a_surrogate_is_no_name(plain: httpx.Client, queue: str, field: str, text: str) -> None:
    item = json.dumps({"queue": queue, "payload": 1, field: "X"}).replace("X", text)
    refused(plain.post(PUSH, content=f'{{"items":[{item}]}}'), "")
    acked = json.dumps({**GOOD_ACK, "transactionId": "X"}).replace("X", text)
    refused(plain.post(ACK, content=acked), "")


@pytest.mark.parametrize(
    "name",
    ["a/b", "a b", "ä", "日本", "a'b", 'a"b', "a%b", "a%2Fb", "a\\b", "🐝", "..", "{}", "a?b#c", "a;b", "\x7f", "\x1e", "a\nb", "n" * 255],
)
def test_any_name_works_in_a_path_when_it_is_percent_encoded(plain: httpx.Client, queue: str, name: str) -> None:
    from urllib.parse import quote

    full = (queue + name)[:255]
    pushed = plain.post(PUSH, json=items({"queue": full, "partition": name, "payload": 1, "transactionId": name}))
    assert pushed.status_code == 201 and pushed.json()[0]["queueName"] == full and pushed.json()[0]["transaction_id"] == name
    group = {"consumerGroup": name}
    reply = plain.get(f"/api/v1/pop/queue/{quote(full, safe='')}/partition/{quote(name, safe='')}", params=group)
    message = reply.json()["messages"][0]
    assert (message["queue"], message["partition"], message["transactionId"], message["consumerGroup"]) == (full, name, name, name)
    acked = plain.post(ACK, json={k: message[k] for k in ("transactionId", "partitionId", "leaseId", "consumerGroup")})
    assert acked.json()[0]["success"] is True and acked.json()[0]["partitionName"] == name


@pytest.mark.parametrize(
    "path", ["/api/v1/pop/queue/%ff", "/api/v1/pop/queue/%c3%28/partition/x", "/api/v1/pop/queue/%00", "/api/v1/pop/queue/x?group=%ff"]
)
def test_bad_percent_encoding_is_refused(plain: httpx.Client, path: str) -> None:
    refused(plain.get(path), "")


@pytest.mark.parametrize("name", ["a%", "a%2", "a%zz"])
def test_a_lone_percent_sign_stands_for_itself(plain: httpx.Client, name: str) -> None:
    assert plain.get(f"/api/v1/pop/queue/{name}").status_code == 204


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("batch=0", "batch"), ("batch=-1", "batch"), ("batch=x", "batch"), ("batch=1.5", "batch"), ("batch=10001", "batch"),
        ("batch=99999999999999999999999999", "batch"), ("batch=%D9%A1", "batch"), ("partitions=0", "partitions"), ("partitions=1001",
        "partitions"),
        ("partitions=true", "partitions"), ("timeout=-1", "timeout"), ("timeout=abc", "timeout"), ("timeout=1e3", "timeout"),
        ("timeout=NaN", "timeout"),
        ("wait=maybe", "wait"), ("wait=2", "wait"), ("autoAck=yes", "autoAck"), ("leaseTime=0", "leaseTime"), ("leaseTime=-5", "leaseTime"),
        ("leaseTime=315360001", "leaseTime"), ("subscriptionMode=some", "subscriptionMode"), ("subscriptionFrom=yesterday",
        "subscriptionFrom"),
        ("subscriptionFrom=2026-13-01", "subscriptionFrom"), ("consumerGroup=%00", "consumerGroup"), (f"group={LONG}", "consumerGroup"),
    ],
)  # fmt: skip
def test_a_bad_query_parameter_is_named(plain: httpx.Client, queue: str, query: str, names: str) -> None:
    refused(plain.get(f"/api/v1/pop/queue/{queue}?{query}"), f"{names}:")


@pytest.mark.parametrize(
    "moment",
    ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "0001-01-01", "9999-12-31T23:59:59Z", "now", "2026-11-19T12:00:00Z"],
)
def test_any_moment_may_be_named_as_the_beginning_of_a_subscription(plain: httpx.Client, queue: str, moment: str) -> None:
    assert plain.post(PUSH, json=items({"queue": queue, "payload": 1})).status_code == 201
    reply = plain.get(f"/api/v1/pop/queue/{queue}", params={"consumerGroup": "g", "subscriptionFrom": moment})
    assert reply.status_code in (200, 204) or (reply.status_code == 400 and "subscriptionFrom" in reply.json()["error"]), reply.text


def test_unknown_parameters_are_ignored_and_too_long_a_wait_is_cut(plain: httpx.Client, queue: str) -> None:
    plain.post(PUSH, json=items({"queue": queue, "payload": 1}))
    reply = plain.get(f"/api/v1/pop/queue/{queue}?autopilot=1&timeout=99999999999&wait=true&batch=&partitions=&wait=TRUE")
    assert len(reply.json()["messages"]) == 1


def test_a_wildcard_pop_names_a_namespace_or_a_task(plain: httpx.Client) -> None:
    refused(plain.get("/api/v1/pop"), "namespace")
    refused(plain.get("/api/v1/pop", params={"namespace": LONG}), "namespace: 256")
    refused(plain.get("/api/v1/pop", params={"task": "\0"}), "task")


@pytest.mark.parametrize(
    ("ack", "names"),
    [
        ({"partitionId": "1"}, "transactionId"),
        ({"transactionId": "t"}, "partitionId"),
        ({**GOOD_ACK, "transactionId": ""}, "transactionId: must not be empty"),
        ({**GOOD_ACK, "transactionId": LONG}, "transactionId: 256"),
        ({**GOOD_ACK, "transactionId": None}, "transactionId"),
        ({**GOOD_ACK, "partitionId": ""}, "partitionId: must not be empty"),
        ({**GOOD_ACK, "partitionId": 1}, "partitionId"),
        ({**GOOD_ACK, "status": "done"}, "status"),
        ({**GOOD_ACK, "status": None}, "status"),
        ({**GOOD_ACK, "error": 5}, "error"),
        ({**GOOD_ACK, "error": "e" * 65_537}, "error: 65537"),
        ({**GOOD_ACK, "consumerGroup": ""}, "consumerGroup: must not be empty"),
        ({**GOOD_ACK, "consumerGroup": LONG}, "consumerGroup: 256"),
        ({**GOOD_ACK, "leaseId": 5}, "leaseId"),
    ],
)
def test_a_bad_ack_is_named_alone_in_a_batch_and_in_a_transaction(plain: httpx.Client, queue: str, ack: dict[str, Any], names: str) -> None:
    refused(plain.post(ACK, json=ack), names)
    reply = plain.post(BATCH, json={"acknowledgments": [GOOD_ACK, ack]})
    refused(reply, names)
    assert "acknowledgments[1]" in reply.json()["error"]
    pushed = {"type": "push", "items": [{"queue": queue, "payload": 1}]}
    reply = plain.post(TRANSACTION, json={"operations": [pushed, {"type": "ack", **ack}]})
    refused(reply, names)
    assert "operations[1]" in reply.json()["error"]
    assert plain.get(f"/api/v1/pop/queue/{queue}").status_code == 204
    assert queue not in [found["name"] for found in plain.get("/api/v1/resources/queues").json()["queues"]]


@pytest.mark.parametrize(
    "partition", ["0", "-1", "x", "1.5", "99999999999999999999", "2147483648", "4294967297", "١", " 1", str(uuid.uuid4()), "'; --", "\0"]
)
@pytest.mark.parametrize("lease", [None, "", "x", "0" * 32, str(uuid.UUID(int=0)), str(uuid.uuid4()), "{" * 100, "\0"])
def test_an_ack_of_nothing_says_so(plain: httpx.Client, partition: str, lease: str | None) -> None:
    reply = plain.post(ACK, json={"transactionId": "t", "partitionId": partition, "leaseId": lease})
    assert reply.status_code == 200
    (answer,) = reply.json()
    assert answer["success"] is False and answer["queueName"] is None
    assert answer["error"] == ("Invalid or expired lease" if lease else "Message not found")


def test_a_foreign_lease_acks_nothing(plain: httpx.Client, queue: str) -> None:
    plain.post(PUSH, json=items(*({"queue": queue, "partition": p, "payload": 1, "transactionId": "t"} for p in ("a", "b"))))
    first, second = (plain.get(f"/api/v1/pop/queue/{queue}").json()["messages"][0] for _ in "ab")
    answers = plain.post(BATCH, json={"acknowledgments": [
        {"transactionId": "t", "partitionId": first["partitionId"], "leaseId": second["leaseId"]},
        {"transactionId": "t", "partitionId": first["partitionId"], "leaseId": first["leaseId"], "consumerGroup": "not this one"},
        {"transactionId": "t", "partitionId": second["partitionId"], "leaseId": second["leaseId"]},
    ]}).json()  # fmt: skip
    assert [(a["success"], a["error"]) for a in answers] == [(False, "Invalid or expired lease")] * 2 + [(True, None)]
    assert [a["index"] for a in answers] == [0, 1, 2]


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({}, "operations"),
        ({"operations": []}, "operations: must not be empty"),
        ({"operations": {}}, "operations"),
        ({"operations": [{"type": "pop"}]}, "operations[0]"),
        ({"operations": [{"items": []}]}, "operations[0]"),
        ({"operations": [{"type": "push"}]}, "operations[0]: Object missing required field `items`"),
        ({"operations": [{"type": "push", "items": [{"queue": "", "payload": 1}]}]}, "queue: must not be empty"),
        ({"operations": [{"type": "push", "items": [{"queue": "q", "payload": 1, "delaySeconds": -2}]}]}, "delaySeconds"),
        ({"operations": [{"type": "ack", **GOOD_ACK}], "requiredLeases": "x"}, "requiredLeases"),
        ({"operations": [{"type": "ack", **GOOD_ACK}], "requiredLeases": [1]}, "requiredLeases[0]"),
        ({"operations": [{"type": "ack", **GOOD_ACK}], "kv": {}}, "kv: not supported"),
        ({"operations": [{"type": "ack", **GOOD_ACK}], "timers": []}, "timers: not supported"),
    ],
)
def test_a_bad_transaction_is_refused(plain: httpx.Client, body: dict[str, Any], names: str) -> None:
    refused(plain.post(TRANSACTION, json=body), names)


@pytest.mark.parametrize(("bad", "at"), [("one", "operations[0].items[1].queue"), ("two", "operations[2].items[0].queue")])
def test_a_bad_item_of_a_transaction_is_named_by_its_place(plain: httpx.Client, queue: str, bad: str, at: str) -> None:
    good, wrong = {"queue": queue, "payload": 1}, {"queue": "", "payload": 1}
    first, second = ([good, wrong], [good]) if bad == "one" else ([good, good], [wrong])
    operations = [{"type": "push", "items": first}, {"type": "ack", **GOOD_ACK}, {"type": "push", "items": second}]
    refused(plain.post(TRANSACTION, json={"operations": operations}), f"{at}:")


@pytest.mark.parametrize("lease", ["x", str(uuid.uuid4()), "0", "%27%3B", "a%2Fb", "%7B%7D"])
def test_a_lease_that_nobody_has_is_not_prolonged_and_satisfies_no_transaction(plain: httpx.Client, queue: str, lease: str) -> None:
    (answer,) = plain.post(f"/api/v1/lease/{lease}/extend", json={}).json()
    assert (answer["success"], answer["error"], answer["newExpiresAt"]) == (False, "Invalid or expired lease", None)
    body = {"operations": [{"type": "push", "items": [{"queue": queue, "payload": 1}]}], "requiredLeases": [lease]}
    assert plain.post(TRANSACTION, json=body).json()["success"] is False
    assert plain.get(f"/api/v1/pop/queue/{queue}").status_code == 204


@pytest.mark.parametrize("seconds", [0, -1, 315_360_001, "60", True, None, 1.5, 1e30, [60]])
def test_a_lease_is_prolonged_by_a_whole_number_of_seconds(plain: httpx.Client, seconds: object) -> None:
    refused(plain.post(EXTEND, json={"seconds": seconds}), "seconds")


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({}, "queue"),
        ({"queue": ""}, "queue: must not be empty"),
        ({"queue": LONG}, "queue: 256"),
        ({"queue": "never-made", "namespace": ""}, "namespace"),
        ({"queue": "never-made", "task": 5}, "task"),
        ({"queue": "never-made", "options": []}, "options"),
        ({"queue": "never-made", "options": {"leaseTme": 5}}, "options.leaseTme: no such option"),
        ({"queue": "never-made", "options": {"leaseTime": 0}}, "options.leaseTime"),
        ({"queue": "never-made", "options": {"leaseTime": True}}, "options.leaseTime"),
        ({"queue": "never-made", "options": {"leaseTime": "5"}}, "options.leaseTime"),
        ({"queue": "never-made", "options": {"leaseTime": 1.5}}, "options.leaseTime"),
        ({"queue": "never-made", "options": {"retryLimit": -1}}, "options.retryLimit"),
        ({"queue": "never-made", "options": {"retryLimit": 2**31}}, "options.retryLimit"),
        ({"queue": "never-made", "options": {"maxSize": 10**30}}, "options.maxSize"),
        ({"queue": "never-made", "options": {"priority": {"a": []}}}, "options.priority"),
        ({"queue": "never-made", "options": {"deadLetterQueue": 1}}, "options.deadLetterQueue"),
        ({"queue": "never-made", "options": {"encryptionEnabled": True}}, "options.encryptionEnabled: this server has no key"),
    ],
)
def test_a_bad_configuration_is_named_and_makes_no_queue(plain: httpx.Client, body: dict[str, Any], names: str) -> None:
    refused(plain.post(CONFIGURE, json=body), names)
    assert "never-made" not in [found["name"] for found in plain.get("/api/v1/resources/queues").json()["queues"]]


ALLOWED = {
    **dict.fromkeys(POSTS, "POST"),
    "/api/v1/pop": "GET",
    "/api/v1/pop/queue/x": "GET",
    "/health": "GET, HEAD",
    "/metrics": "GET, HEAD",
}


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
@pytest.mark.parametrize("path", ALLOWED)
def test_a_wrong_method_answers_405_with_the_right_ones(plain: httpx.Client, path: str, method: str) -> None:
    if method in ALLOWED[path]:
        return
    reply = plain.request(method, path, content=b"{}" if method in ("PUT", "PATCH") else None)
    assert reply.status_code == 405 and reply.headers["allow"] == ALLOWED[path]
    assert method == "HEAD" or reply.json()["code"] == "wrong_method"


@pytest.mark.parametrize("path", ["/", "/nothing", "/api", "/api/v1/push/", "/api/v1/pushes", "/api/v2/push", "/api/v1/pop/queue",
    "/api/v1/pop/queue/a/b",
                                  "/api/v1/pop/queue/a/partition", "/api/v1/pop/queue/a/partition/b/c", "/api/v1/lease/x", "/%2e%2e/etc",
                                  "//"])  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_route_answers_404_in_json(plain: httpx.Client, path: str, method: str) -> None:
    reply = plain.request(method, path)
    assert reply.status_code == 404 or (path.startswith(("/api/v1/pop/queue/", "/api/v1/lease/")) and reply.status_code == 405), reply.text
    assert reply.json()["code"] in ("not_found", "wrong_method")


def test_a_queue_that_is_not_there_is_empty(plain: httpx.Client) -> None:
    for path in (
        "/api/v1/pop/queue/none",
        "/api/v1/pop/queue/none/partition/p",
        "/api/v1/pop?namespace=none",
        "/api/v1/pop?task=none&namespace=x",
    ):
        assert plain.get(path).status_code == 204


@pytest.mark.parametrize("path", [PUSH, ACK, BATCH, TRANSACTION, CONFIGURE, EXTEND])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_answers_413(plain: httpx.Client, path: str, chunked: bool) -> None:
    whole = b'{"x":"' + b"y" * (10 << 20) + b'"}'
    reply = plain.post(path, content=iter([whole[at : at + 65536] for at in range(0, len(whole), 65536)]) if chunked else whole)
    refused(reply, "QUEEN_MAX_BODY_MB", 413, "too_large")
    assert reply.headers["connection"] == "close"


def test_a_message_over_the_limit_answers_413_and_one_at_the_limit_is_stored(plain: httpx.Client, queue: str) -> None:
    at_limit = {"queue": queue, "payload": "x" * (256 * 1024 - 2)}
    refused(
        plain.post(PUSH, json=items({"queue": queue, "payload": 1}, {"queue": queue, "payload": "x" * (256 * 1024 - 1)})),
        "items[1].payload",
        413,
        "too_large",
    )
    refused(plain.post(PUSH, json=items({"queue": queue, "payload": "ä" * (128 * 1024)})), "items[0].payload", 413, "too_large")
    refused(
        plain.post(TRANSACTION, json={"operations": [{"type": "push", "items": [{"queue": queue, "payload": "x" * (1 << 19)}]}]}),
        "payload",
        413,
        "too_large",
    )
    assert plain.post(PUSH, json=items(at_limit)).status_code == 201
    assert [len(m["data"]) for m in plain.get(f"/api/v1/pop/queue/{queue}", params={"batch": 5}).json()["messages"]] == [256 * 1024 - 2]


def test_a_request_of_very_many_items_is_stored_as_one(plain: httpx.Client, queue: str) -> None:
    item = b'{"queue":"%b","payload":1}' % queue.encode()
    reply = plain.post(PUSH, content=b'{"items":[' + b",".join([item] * 20_000) + b"]}")
    assert reply.status_code == 201 and [entry["seq"] for entry in reply.json()] == list(range(1, 20_001))


def test_the_last_of_equal_keys_counts(plain: httpx.Client, queue: str) -> None:
    reply = plain.post(PUSH, content=f'{{"items":[],"items":[{{"queue":"x","queue":"{queue}","payload":1,"payload":2}}]}}')
    assert reply.status_code == 201 and reply.json()[0]["queueName"] == queue
    assert plain.get(f"/api/v1/pop/queue/{queue}").json()["messages"][0]["data"] == 2


def test_empty_lists_are_answered_with_empty_lists(plain: httpx.Client) -> None:
    assert (plain.post(PUSH, json={"items": []}).status_code, plain.post(PUSH, json={"items": []}).json()) == (201, [])
    assert plain.post(BATCH, json={"acknowledgments": []}).json() == []


@pytest.mark.parametrize("depth", [900, 3_000, 20_000, 100_000])
def test_nesting_too_deep_fails_alone(plain: httpx.Client, queue: str, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    reply = plain.post(PUSH, content=f'{{"items":[{{"queue":"{queue}","payload":{deep}}}]}}')
    assert reply.status_code in (201, 400), reply.text
    if reply.status_code == 400:
        assert reply.json()["code"] == "bad_request" and re.search("nest|deep", reply.json()["error"])


async def test_nothing_that_a_client_names_gets_into_a_statement(shared_url: str, web: httpx.AsyncClient, queue: str) -> None:
    name = f"{queue}'; DROP TABLE queen.messages; --"
    item = {"queue": name, "partition": name, "payload": name, "transactionId": name}
    assert (await web.post(PUSH, json=items(item))).status_code == 201
    connection = await asyncpg.connect(shared_url)
    try:
        assert await connection.fetchval("SELECT name FROM queen.queues WHERE name = $1", name) == name
    finally:
        await connection.close()
