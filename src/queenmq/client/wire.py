"""The protocol as plain functions: arguments → Request, Reply → typed answer or error. No I/O, no clock, no random numbers.

Never sends, waits or retries; what may be repeated is written on the Request, the transport decides when.
Invariant: a Request that is `after_loss` has the same effect however often the server gets it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from queenmq.client.errors import REFUSALS, BadReply, Refused, Unavailable, UsageError
from queenmq.client.message import (
    STATUSES,
    Acked,
    Committed,
    Configured,
    Extended,
    Item,
    Message,
    Pushed,
    Reply,
    Status,
)

T = TypeVar("T")

LONGEST_HOLD = 60.0  # the server holds a long poll no longer, whatever it is asked for

OPTIONS = (
    "leaseTime", "retryLimit", "retryDelay", "maxSize", "ttl", "priority", "delayedProcessing", "windowBuffer", "windowMaxWait",
    "deadLetterQueue", "dlqAfterMaxRetries", "encryptionEnabled", "retentionEnabled", "retentionSeconds", "completedRetentionSeconds",
    "maxWaitTimeSeconds", "retentionWaitsForArchive",
)  # fmt: skip
OPTION_NAMES = {re.sub(r"[A-Z]", lambda found: "_" + found[0].lower(), name): name for name in OPTIONS}


class Request(msgspec.Struct, frozen=True):
    """What to send, and what may be done when it fails.

    `after_loss`: send it again although the first one may have arrived. `after_refusal`: send it again on any 503 (else only when the
    server says that nothing was done). `hold`: seconds that the server may keep the request waiting by design.
    """

    method: str
    path: str
    body: bytes | None
    after_loss: bool
    after_refusal: bool
    hold: float = 0.0


class PushItem(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """An item as it goes over the wire."""

    queue: str
    payload: msgspec.Raw
    transaction_id: str
    partition: str | None = None
    trace_id: str | None = None
    headers: dict[str, str] | None = None
    delay_seconds: float | None = None


class AckItem(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """An acknowledgement as it goes over the wire."""

    transaction_id: str
    partition_id: str
    status: Status
    error: str | None = None
    consumer_group: str | None = None
    lease_id: str | None = None


class PushOperation(msgspec.Struct, frozen=True, tag="push"):
    """Pushes of a transaction."""

    items: list[PushItem]


class AckOperation(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True, tag="ack"):
    """An acknowledgement of a transaction."""

    transaction_id: str
    partition_id: str
    status: Status
    error: str | None = None
    consumer_group: str | None = None
    lease_id: str | None = None


Operation = PushOperation | AckOperation


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What a pop asks for."""

    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    group: str | None = None
    batch: int = 1
    partitions: int = 1
    auto_ack: bool = False
    subscription_mode: Literal["all", "new", "new-only"] | None = None
    subscription_from: str | datetime | None = None
    lease_time: int | None = None


class _ErrorBody(msgspec.Struct, rename="camel"):
    error: str
    nothing_done: bool = False


class _PopBody(msgspec.Struct):
    messages: list[Message | None] = msgspec.field(default_factory=list)


# ---------------------------------------------------------------- requests


def push_item(queue: str, item: Any, transaction_id: str, *, partition: str | None = None) -> PushItem:
    """One item: a bare payload, or an Item whose own settings come first. `transaction_id` is taken when the Item has none."""
    whole = item if isinstance(item, Item) else Item(payload=item)
    if whole.delay_seconds is not None and not (math.isfinite(whole.delay_seconds) and whole.delay_seconds >= 0):
        raise UsageError(f"delay_seconds is {whole.delay_seconds}", hint="it is a number of seconds, 0 or more")
    where = whole.partition if whole.partition is not None else partition
    return PushItem(
        queue=_name("queue", queue),
        payload=encode_payload(whole.payload),
        transaction_id=whole.transaction_id or transaction_id,
        partition=None if where is None else _name("partition", where),
        trace_id=whole.trace_id,
        headers=None if whole.headers is None else dict(whole.headers),
        delay_seconds=whole.delay_seconds,
    )


def push(items: Sequence[PushItem]) -> Request:
    """Repeatable: every item carries its transaction id."""
    if not items:
        raise UsageError("nothing to push", hint="give at least one item")
    return Request("POST", "/api/v1/push", _encode({"items": items}), after_loss=True, after_refusal=True)


def pop(ask: Selection, *, wait: float | None = None) -> Request:
    """`wait`: seconds that the server may hold the request until something is there; None = answer at once.

    Not repeated after a loss: the lost answer may have carried messages, whose lease then simply lapses.
    """
    if ask.batch < 1 or ask.partitions < 1:
        raise UsageError(f"batch is {ask.batch} and partitions is {ask.partitions}", hint="both are at least 1")
    path = "/api/v1/pop"
    query: dict[str, str | int] = {"batch": ask.batch, "wait": "false" if wait is None else "true"}
    if ask.queue is not None:
        path += f"/queue/{_segment('queue', ask.queue)}"
        if ask.partition is not None:
            path += f"/partition/{_segment('partition', ask.partition)}"
    elif ask.partition is not None:
        raise UsageError("a partition without its queue", hint="name the queue as well")
    elif ask.namespace is None and ask.task is None:
        raise UsageError("nothing to pop from", hint="name a queue, a namespace or a task")
    else:
        query |= {name: value for name, value in (("namespace", ask.namespace), ("task", ask.task)) if value is not None}
    if wait is not None:
        query["timeout"] = round(min(wait, LONGEST_HOLD) * 1000)
    if ask.group is not None:
        query["consumerGroup"] = _name("group", ask.group)
    if ask.partitions > 1:
        query["partitions"] = ask.partitions
    if ask.auto_ack:
        query["autoAck"] = "true"
    if ask.subscription_mode is not None:
        query["subscriptionMode"] = ask.subscription_mode
    if ask.subscription_from is not None:
        query["subscriptionFrom"] = _moment(ask.subscription_from)
    if ask.lease_time is not None:
        query["leaseTime"] = ask.lease_time
    held = 0.0 if wait is None else min(wait, LONGEST_HOLD)
    return Request("GET", f"{path}?{urlencode(query)}", None, after_loss=False, after_refusal=True, hold=held)


def ack_item(message: Message, status: Status = "completed", error: str | None = None) -> AckItem:
    """The acknowledgement of a message, under the lease that it came with."""
    return AckItem(
        transaction_id=message.transaction_id,
        partition_id=message.partition_id,
        status=_status(status),
        error=error,
        consumer_group=message.consumer_group,
        lease_id=message.lease_id or None,
    )


def ack(items: Sequence[AckItem]) -> Request:
    """Repeatable under a lease, and for `completed` always: repeating answers as the first one did."""
    if not items:
        raise UsageError("nothing to acknowledge", hint="give at least one message")
    same = all(item.lease_id is not None or item.status in ("completed", "success") for item in items)
    return Request("POST", "/api/v1/ack/batch", _encode({"acknowledgments": items}), after_loss=same, after_refusal=same)


def ack_operation(item: AckItem) -> AckOperation:
    """An acknowledgement as an operation of a transaction."""
    return AckOperation(**{name: getattr(item, name) for name in AckItem.__struct_fields__})


def transaction(operations: Sequence[Operation]) -> Request:
    """All or nothing, and therefore never repeated unless the server says that nothing was done."""
    leases = {part.lease_id: None for part in operations if isinstance(part, AckOperation) and part.lease_id}
    body = _encode({"operations": operations, "requiredLeases": list(leases)})
    return Request("POST", "/api/v1/transaction", body, after_loss=False, after_refusal=False)


def extend(lease_id: str, seconds: float) -> Request:
    """Repeatable: an extension never shortens."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"seconds is {seconds}", hint="it is a number greater than 0")
    whole = int(seconds) if float(seconds).is_integer() else seconds
    body = _encode({"seconds": whole})
    return Request("POST", f"/api/v1/lease/{_segment('lease id', lease_id)}/extend", body, after_loss=True, after_refusal=True)


def configure(queue: str, namespace: str | None, task: str | None, options: Mapping[str, Any]) -> Request:
    """Options by their Python names (`lease_time`); repeatable, since it sets values."""
    body: dict[str, Any] = {"queue": _name("queue", queue)}
    if namespace is not None:
        body["namespace"] = namespace
    if task is not None:
        body["task"] = task
    named: dict[str, Any] = {}
    for name, value in options.items():
        wire_name = OPTION_NAMES.get(name)
        if wire_name is None:
            raise UsageError(f"there is no queue option {name}", hint="the options are " + ", ".join(sorted(OPTION_NAMES)))
        named[wire_name] = value
    if named:
        body["options"] = named
    return Request("POST", "/api/v1/configure", _encode(body), after_loss=True, after_refusal=True)


def encode_payload(value: Any) -> msgspec.Raw:
    """The payload as JSON bytes; a msgspec.Raw is taken as JSON that is finished."""
    if isinstance(value, msgspec.Raw):
        return value
    encoded = _encode(value)
    # msgspec writes NaN and infinity as null, which would quietly change the payload; only then is a closer look needed
    if b"null" in encoded:
        _refuse_not_finite(value)
    return msgspec.Raw(encoded)


# ---------------------------------------------------------------- answers


def raise_for(reply: Reply) -> None:
    """Raises the error that the status means; 2xx passes."""
    if 200 <= reply.status < 300:
        return
    try:
        body = msgspec.json.decode(reply.body, type=_ErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = reply.body[:200].decode("utf-8", "replace").strip()
        body = _ErrorBody(error=f"HTTP {reply.status}" + (f": {said}" if said else ""))
    if reply.status in (429, 502, 503, 504):
        nothing = body.nothing_done or reply.status == 429
        raise Unavailable(body.error, status=reply.status, retry_after=_retry_after(reply.retry_after), nothing_done=nothing)
    raise REFUSALS.get(reply.status, Refused)(body.error, status=reply.status)


def pushed(reply: Reply, count: int) -> list[Pushed]:
    """One answer per item, in their order."""
    answers = _decode(reply, list[Pushed])
    if len(answers) != count:
        raise BadReply(f"{count} items were pushed and {len(answers)} answered")
    return answers


def popped(reply: Reply) -> list[Message]:
    """The messages; none for 204 and for a long poll that ended empty."""
    raise_for(reply)
    if reply.status == 204 or not reply.body:
        return []
    return [message for message in _decode(reply, _PopBody).messages if message is not None]


def acked(reply: Reply, count: int) -> list[Acked]:
    """One answer per acknowledgement, in their order."""
    answers = _decode(reply, list[Acked])
    if len(answers) != count:
        raise BadReply(f"{count} acknowledgements were sent and {len(answers)} answered")
    return answers


def extended(reply: Reply) -> Extended:
    """The answer to an extension."""
    answers = _decode(reply, list[Extended])
    if len(answers) != 1:
        raise BadReply(f"one lease was to be extended and {len(answers)} answered")
    return answers[0]


def committed(reply: Reply) -> Committed:
    """The answer to a transaction, done or not."""
    return _decode(reply, Committed)


def configured(reply: Reply) -> Configured:
    """The queue with its effective options."""
    return _decode(reply, Configured)


# ---------------------------------------------------------------- pieces


def _decode(reply: Reply, kind: type[T]) -> T:
    raise_for(reply)
    try:
        return msgspec.json.decode(reply.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadReply(f"the answer can't be read: {error}", status=reply.status) from None


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"this can't be written as JSON: {error}", hint="use plain values, dataclasses or msgspec.Structs") from error


def _refuse_not_finite(value: Any) -> None:
    pending = [msgspec.to_builtins(value)]
    while pending:
        part = pending.pop()
        if isinstance(part, float) and not math.isfinite(part):
            raise UsageError(f"the payload contains {part}, which JSON doesn't have", hint="use None or a string instead")
        if isinstance(part, dict):
            pending.extend(part.values())
        elif isinstance(part, list | tuple | set | frozenset):
            pending.extend(part)


def _name(what: str, value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise UsageError(f"the {what} is {value!r}", hint="it is a string that isn't empty")


def _segment(what: str, value: str) -> str:
    try:
        quoted = quote(_name(what, value), safe="")
    except UnicodeEncodeError:
        raise UsageError(f"the {what} {value!r} can't be written as UTF-8") from None
    # proxies and servers fold "." and ".." away; quote() leaves dots alone
    return quoted.replace(".", "%2E") if not value.strip(".") else quoted


def _status(status: Status) -> Status:
    if status not in STATUSES:
        raise UsageError(f"there is no status {status!r}", hint="the statuses are " + ", ".join(STATUSES))
    return status


def _moment(value: str | datetime) -> str:
    if isinstance(value, str):
        return value
    if value.tzinfo is None:
        raise UsageError("subscription_from has no time zone", hint="use datetime.now(UTC) and the like")
    return value.isoformat()


def _retry_after(header: str | None) -> float | None:
    """Seconds; a date (the other form) counts as not given, for there is no clock here."""
    try:
        seconds = float(header) if header is not None else math.nan
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
