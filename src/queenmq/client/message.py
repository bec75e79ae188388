"""The values that go in and out of the client: messages, items to push, and the server's answers as typed structs.

Nothing here does I/O or knows HTTP. A payload stays the bytes that the server sent until somebody asks for `data`.
Invariant: a Message names everything that an acknowledgement of it needs (partition, lease, group).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, TypeVar

import msgspec

T = TypeVar("T")

QUEUE_MODE = "__QUEUE_MODE__"
DEFAULT_PARTITION = "Default"

Status = Literal["completed", "success", "failed", "dlq", "retry"]
STATUSES: tuple[Status, ...] = ("completed", "success", "failed", "dlq", "retry")


class Message(msgspec.Struct, frozen=True, dict=True, eq=False, kw_only=True, rename="camel"):
    """One delivered message. `data` is the payload, decoded when first asked for; `raw` its bytes as they were pushed."""

    id: str
    transaction_id: str
    partition_id: str
    queue: str
    partition: str
    created_at: datetime
    lease_id: str | None = None
    consumer_group: str | None = None
    trace_id: str | None = None
    retry_count: int | None = 0
    priority: int | None = 0
    seq: int | None = None
    producer_sub: str | None = None
    headers: dict[str, str] | None = None
    raw: msgspec.Raw = msgspec.field(name="data", default=msgspec.Raw(b"null"))

    @cached_property
    def data(self) -> Any:
        """The payload as plain Python values."""
        return msgspec.json.decode(self.raw)

    def decode(self, kind: type[T]) -> T:
        """The payload as `kind`: a msgspec.Struct, a dataclass, a TypedDict … ; msgspec.ValidationError when it doesn't fit."""
        return msgspec.json.decode(self.raw, type=kind)


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A payload to push with its own settings; a bare payload will do where none are needed."""

    payload: Any
    partition: str | None = None
    transaction_id: str | None = None
    trace_id: str | None = None
    headers: Mapping[str, str] | None = None
    delay_seconds: float | None = None


class Pushed(msgspec.Struct, frozen=True, kw_only=True):
    """The server's answer for one pushed item: queued, duplicate (stored before), buffered (on the server's disk) or failed."""

    status: str
    transaction_id: str | None = None
    message_id: str | None = None
    partition_id: str | None = None
    queue: str | None = msgspec.field(name="queueName", default=None)
    trace_id: str | None = None
    seq: int | None = None
    index: int | None = None
    error: str | None = None


class Acked(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The server's answer for one acknowledgement. `error` beside success says what was odd (the message was removed)."""

    success: bool
    transaction_id: str | None = None
    error: str | None = None
    queue_name: str | None = None
    partition_name: str | None = None
    lease_released: bool | None = None
    dlq: bool | None = None
    index: int | None = None


class Extended(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The server's answer to a lease's extension."""

    success: bool
    lease_id: str | None = None
    error: str | None = None
    expires_at: datetime | None = None
    new_expires_at: datetime | None = None


class Committed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The server's answer to a transaction."""

    success: bool
    transaction_id: str | None = None
    results: list[Any] = msgspec.field(default_factory=list)
    error: str | None = None


class Configured(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A queue as it is after `configure`: every option with its effective value."""

    queue: str
    namespace: str | None = None
    task: str | None = None
    queue_id: str | int | None = None
    options: dict[str, Any] = msgspec.field(default_factory=dict)


class Reply(msgspec.Struct, frozen=True):
    """What came back over the wire."""

    status: int
    body: bytes = b""
    retry_after: str | None = None
