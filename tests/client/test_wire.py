"""The wire core: what is asked for arrives as asked, and answers are read for any content that a server may send."""

from __future__ import annotations

import contextlib
import json
import math
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.client import wire
from queenmq.client.errors import BadReply, Forbidden, NotFound, QueenClientError, Refused, TooLarge, Unavailable, UsageError
from queenmq.client.message import Item, Message, Reply

TEXT = st.text(st.characters(codec="utf-8"))
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
MOMENT = datetime(2026, 11, 19, 22, 0, tzinfo=UTC)


def message(**changes: Any) -> Message:
    values: dict[str, Any] = {
        "id": "i", "transaction_id": "t", "partition_id": "p", "queue": "q", "partition": "Default", "created_at": MOMENT,
        "lease_id": "l", "consumer_group": "billing",
    }  # fmt: skip
    return Message(**(values | changes))


def read_path(request: wire.Request) -> tuple[list[str], dict[str, str]]:
    parts = urlsplit(request.path)
    query = parse_qs(parts.query, keep_blank_values=True, strict_parsing=True)
    return [unquote(part, errors="strict") for part in parts.path.split("/")[1:]], {name: value[0] for name, value in query.items()}


@given(queue=NAMES, partition=NAMES, payload=JSON, transaction_id=NAMES, headers=st.none() | st.dictionaries(TEXT, TEXT, max_size=3))
def test_a_pushed_item_arrives_as_it_was_given(
    queue: str, partition: str, payload: Any, transaction_id: str, headers: dict[str, str] | None
) -> None:
    item = wire.push_item(queue, Item(payload=payload, headers=headers), transaction_id, partition=partition)
    sent = json.loads(wire.push([item]).body or b"")["items"][0]
    wanted = {"queue": queue, "partition": partition, "payload": payload, "transactionId": transaction_id}
    assert sent == (wanted if headers is None else wanted | {"headers": headers})


@given(queue=NAMES, partition=NAMES, group=NAMES, batch=st.integers(1, 10_000))
def test_names_of_any_characters_survive_the_path_and_the_query(queue: str, partition: str, group: str, batch: int) -> None:
    request = wire.pop(wire.Selection(queue=queue, partition=partition, group=group, batch=batch))
    path, query = read_path(request)
    assert path == ["api", "v1", "pop", "queue", queue, "partition", partition]
    assert query["consumerGroup"] == group
    assert query["batch"] == str(batch)
    assert request.path.isascii()


@given(namespace=st.none() | TEXT, task=st.none() | TEXT)
def test_a_wildcard_pop_names_its_namespace_and_task(namespace: str | None, task: str | None) -> None:
    ask = wire.Selection(namespace=namespace, task=task)
    if namespace is None and task is None:
        with pytest.raises(UsageError, match="nothing to pop from"):
            wire.pop(ask)
        return
    path, query = read_path(wire.pop(ask))
    assert path == ["api", "v1", "pop"]
    assert (query.get("namespace"), query.get("task")) == (namespace, task)


@pytest.mark.parametrize("name", [".", "..", "..."])
def test_a_name_of_dots_is_not_folded_away(name: str) -> None:
    assert wire.pop(wire.Selection(queue=name)).path.split("?")[0] == "/api/v1/pop/queue/" + "%2E" * len(name)


@given(
    data=JSON,
    retry_count=st.none() | st.integers(0, 9),
    lease=st.none() | TEXT,
    headers=st.none() | st.dictionaries(TEXT, TEXT, max_size=2),
    more=st.dictionaries(st.sampled_from(["later", "field"]), JSON),
)
def test_a_popped_message_is_read_whole_and_unknown_fields_are_left_alone(
    data: Any, retry_count: int | None, lease: str | None, headers: dict[str, str] | None, more: dict[str, Any]
) -> None:
    body = {
        "success": True, "queue": "q", "partition": "c", "leaseId": lease,
        "messages": [
            {
                "id": "i", "transactionId": "t", "traceId": None, "data": data, "createdAt": "2026-11-19T22:00:00.123Z", "queue": "q",
                "partition": "c", "partitionId": "7", "consumerGroup": "g", "leaseId": lease, "retryCount": retry_count, "priority": None,
                "seq": 3, "producerSub": None, "headers": headers, **more,
            },
            None,
        ],
    }  # fmt: skip
    [got] = wire.popped(Reply(200, json.dumps(body).encode()))
    assert got.data == data
    assert json.loads(bytes(got.raw)) == data
    assert (got.transaction_id, got.partition_id, got.lease_id, got.seq, got.headers) == ("t", "7", lease, 3, headers)
    assert got.created_at == datetime(2026, 11, 19, 22, 0, 0, 123_000, UTC)


@pytest.mark.parametrize("reply", [Reply(204), Reply(200, b'{"success":true,"messages":[]}'), Reply(200)])
def test_nothing_to_deliver_is_an_empty_list(reply: Reply) -> None:
    assert wire.popped(reply) == []


def test_a_payload_can_be_decoded_into_a_type() -> None:
    class Order(msgspec.Struct):
        amount: int

    assert message(raw=msgspec.Raw(b'{"amount":3}')).decode(Order) == Order(3)
    with pytest.raises(msgspec.ValidationError):
        message(raw=msgspec.Raw(b'{"amount":"three"}')).decode(Order)


@given(st.binary(max_size=60), st.integers(200, 599))
def test_any_answer_is_read_or_refused_with_an_error_of_the_client(body: bytes, status: int) -> None:
    reply = Reply(status, body)
    for read in (
        wire.popped,
        wire.extended,
        wire.committed,
        wire.configured,
        lambda got: wire.pushed(got, 1),
        lambda got: wire.acked(got, 1),
    ):
        with contextlib.suppress(QueenClientError):
            read(reply)


@given(st.sampled_from([math.nan, math.inf, -math.inf]), st.integers(0, 3))
def test_what_json_does_not_have_is_refused_instead_of_changed(number: float, depth: int) -> None:
    payload: Any = number
    for level in range(depth):
        payload = [None, payload] if level % 2 else {"a": payload}
    with pytest.raises(UsageError, match="JSON doesn't have"):
        wire.encode_payload(payload)


@pytest.mark.parametrize("payload", [object(), "\ud800", {("a",): 1}])
def test_a_payload_that_is_not_json_is_named(payload: Any) -> None:
    with pytest.raises(UsageError, match="can't be written as JSON"):
        wire.encode_payload(payload)


def test_finished_json_is_pushed_as_it_is() -> None:
    item = wire.push_item("q", msgspec.Raw(b'{"a": 1.0}'), "t")
    assert b'"payload":{"a": 1.0}' in (wire.push([item]).body or b"")


def test_an_ack_carries_lease_and_group_of_its_message() -> None:
    request = wire.ack([wire.ack_item(message(), "failed", "why")])
    assert json.loads(request.body or b"") == {
        "acknowledgments": [
            {"transactionId": "t", "partitionId": "p", "status": "failed", "error": "why", "consumerGroup": "billing", "leaseId": "l"}
        ]
    }


@pytest.mark.parametrize(
    ("lease", "status", "repeatable"),
    [("l", "failed", True), ("l", "completed", True), ("", "completed", True), ("", "failed", False), (None, "retry", False)],
)
def test_an_ack_is_repeatable_under_a_lease_or_when_it_completes(lease: str | None, status: Any, repeatable: bool) -> None:
    assert wire.ack([wire.ack_item(message(lease_id=lease), status)]).after_loss is repeatable


def test_a_transaction_names_each_lease_once_and_is_never_repeatable() -> None:
    acks = [
        wire.ack_operation(wire.ack_item(message(transaction_id=name, lease_id=lease)))
        for name, lease in (("a", "x"), ("b", "x"), ("c", ""))
    ]
    request = wire.transaction([*acks, wire.PushOperation(items=[wire.push_item("q", 1, "t1")])])
    body = json.loads(request.body or b"")
    assert body["requiredLeases"] == ["x"]
    assert [operation["type"] for operation in body["operations"]] == ["ack", "ack", "ack", "push"]
    assert body["operations"][3]["items"] == [{"queue": "q", "payload": 1, "transactionId": "t1"}]
    assert "leaseId" not in body["operations"][2]
    assert (request.after_loss, request.after_refusal) == (False, False)


def test_options_go_by_their_python_names() -> None:
    request = wire.configure("q", None, "t", {"lease_time": 30, "dlq_after_max_retries": True})
    assert json.loads(request.body or b"") == {"queue": "q", "task": "t", "options": {"leaseTime": 30, "dlqAfterMaxRetries": True}}
    with pytest.raises(UsageError, match="no queue option leaseTime") as caught:
        wire.configure("q", None, None, {"leaseTime": 30})
    assert "lease_time" in caught.value.hint


def test_a_long_poll_asks_for_milliseconds_and_never_for_more_than_the_server_holds() -> None:
    _, query = read_path(wire.pop(wire.Selection(queue="q"), wait=1.5))
    assert (query["wait"], query["timeout"]) == ("true", "1500")
    request = wire.pop(wire.Selection(queue="q"), wait=600)
    assert (read_path(request)[1]["timeout"], request.hold) == ("60000", 60.0)


def test_a_moment_without_a_time_zone_is_refused() -> None:
    with pytest.raises(UsageError, match="time zone"):
        wire.pop(wire.Selection(queue="q", group="g", subscription_from=datetime(2026, 1, 1)))  # noqa: DTZ001
    _, query = read_path(wire.pop(wire.Selection(queue="q", group="g", subscription_from=MOMENT)))
    assert datetime.fromisoformat(query["subscriptionFrom"]) == MOMENT


@pytest.mark.parametrize(
    "call",
    [
        lambda: wire.push([]),
        lambda: wire.ack([]),
        lambda: wire.push_item("", 1, "t"),
        lambda: wire.push_item("q", Item(payload=1, delay_seconds=-1), "t"),
        lambda: wire.pop(wire.Selection(queue="q", batch=0)),
        lambda: wire.pop(wire.Selection(partition="p")),
        lambda: wire.ack_item(message(), "done"),  # type: ignore[arg-type]
        lambda: wire.extend("l", 0),
        lambda: wire.extend("", 1),
        lambda: wire.pop(wire.Selection(queue="\ud800")),
    ],
)
def test_a_wrong_call_is_found_before_anything_is_sent(call: Any) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    assert isinstance(caught.value, ValueError)


def test_an_error_carries_status_text_and_hint() -> None:
    with pytest.raises(TooLarge) as caught:
        wire.raise_for(Reply(413, b'{"error":"items[3].payload: over 1 MB"}'))
    assert (caught.value.status, caught.value.text) == (413, "items[3].payload: over 1 MB")
    assert "QUEEN_MAX_BODY_MB" in str(caught.value)
    with pytest.raises(Forbidden):
        wire.raise_for(Reply(401, b"{}"))
    with pytest.raises(NotFound, match="HTTP 404: <html>"):
        wire.raise_for(Reply(404, b"<html>not here</html>"))
    with pytest.raises(Refused, match="HTTP 500"):
        wire.raise_for(Reply(500))


@pytest.mark.parametrize(
    ("header", "seconds"), [("2", 2.0), ("0.5", 0.5), (None, None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("-1", None), ("nan", None)]
)
def test_retry_after_is_read_in_seconds(header: str | None, seconds: float | None) -> None:
    with pytest.raises(Unavailable) as caught:
        wire.raise_for(Reply(503, b'{"error":"busy","nothingDone":true}', header))
    assert (caught.value.retry_after, caught.value.nothing_done) == (seconds, True)


def test_as_many_answers_as_questions_or_it_is_no_answer() -> None:
    with pytest.raises(BadReply):
        wire.pushed(Reply(201, b"[]"), 1)
    with pytest.raises(BadReply):
        wire.acked(Reply(200, b'[{"success":true},{"success":true}]'), 1)
