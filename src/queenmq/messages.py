"""The words of the wire: what requests look like, and the checks that every entrance makes before anything else sees them.

Pure: no I/O, no clock. Every refusal is a BadRequest that names the field, the limit and the fix. Invariant: what passes here fits into
the database as it is.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Literal, TypeVar
from uuid import UUID

import msgspec

from queenmq.errors import BadRequest, TooLarge

NAME_MOST = 255
HEADERS_MOST = 8192
DELAY_MOST = 315_360_000.0
BATCH_MOST = 10_000
PARTITIONS_MOST = 1_000
TIMEOUT_MOST_MS = 60_000
SECONDS_MOST = 315_360_000
ITEMS_MOST = 100_000

Status = Literal["completed", "success", "failed", "dlq", "retry"]


class PushItem(msgspec.Struct, gc=False):
    """One message to store."""

    queue: str
    payload: msgspec.Raw
    partition: str | None = None
    transactionId: str | None = None
    traceId: str | None = None
    headers: dict[str, str] | None = None
    delaySeconds: float | None = None


class PushBody(msgspec.Struct, gc=False):
    items: list[PushItem]


class AckItem(msgspec.Struct, gc=False):
    """One answer to a delivered message."""

    transactionId: str
    partitionId: str
    status: Status = "completed"
    error: str | None = None
    consumerGroup: str | None = None
    leaseId: str | None = None


class AckBatchBody(msgspec.Struct, gc=False):
    acknowledgments: list[AckItem]
    consumerGroup: str | None = None


class PushOperation(msgspec.Struct, tag="push", tag_field="type"):
    items: list[PushItem]


class AckOperation(msgspec.Struct, tag="ack", tag_field="type"):
    transactionId: str
    partitionId: str
    status: Status = "completed"
    error: str | None = None
    consumerGroup: str | None = None
    leaseId: str | None = None


class TransactionBody(msgspec.Struct):
    operations: list[PushOperation | AckOperation]
    requiredLeases: list[str] = []
    kv: object = None
    timers: object = None


class ConfigureBody(msgspec.Struct):
    queue: str
    namespace: str | None = None
    task: str | None = None
    options: dict[str, object] | None = None


class ExtendBody(msgspec.Struct):
    seconds: int = 60


T = TypeVar("T")
_AT = re.compile(r" - at `\$(?:\.)?(.*)`$")


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """The body as its type; what is wrong with it otherwise."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        text = str(error)
        at = _AT.search(text)
        where = at.group(1) if at and at.group(1) else "body"
        raise BadRequest(f"{where}: {_AT.sub('', text)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"body: not valid JSON in UTF-8: {error}") from None
    except RecursionError:
        raise BadRequest("body: nested too deeply: at most some hundred levels") from None


def check_name(value: str, field: str) -> str:
    """A queue, partition, group, namespace, task or transaction id."""
    if not value:
        raise BadRequest(f"{field}: must not be empty")
    if len(value) > NAME_MOST:
        raise BadRequest(f"{field}: {len(value)} characters, at most {NAME_MOST} are allowed")
    if "\0" in value:
        raise BadRequest(f"{field}: must not contain a NUL character")
    return value


def check_text(value: str | None, field: str, most: int = 65_536) -> str | None:
    """Free text, such as an error message."""
    if value is None:
        return None
    if "\0" in value:
        value = value.replace("\0", "\ufffd")
    if len(value) > most:
        raise BadRequest(f"{field}: {len(value)} characters, at most {most} are allowed")
    return value


def check_trace(value: str, field: str) -> str:
    try:
        return str(UUID(value))
    except ValueError:
        raise BadRequest(f"{field}: must be a UUID") from None


def check_delay(value: float, field: str) -> float:
    if not 0 <= value <= DELAY_MOST:
        raise BadRequest(f"{field}: must lie between 0 and {DELAY_MOST:.0f} seconds")
    return value


def check_headers(value: dict[str, str], field: str) -> str:
    """The headers as JSON text."""
    encoded = msgspec.json.encode(value)
    if len(encoded) > HEADERS_MOST:
        raise BadRequest(f"{field}: {len(encoded)} bytes, at most {HEADERS_MOST} are allowed")
    if b"\\u0000" in encoded:
        raise BadRequest(f"{field}: must not contain a NUL character")
    return encoded.decode()


def payload_text(raw: msgspec.Raw, most_bytes: int, field: str) -> str:
    """The payload byte for byte, as text."""
    try:
        text = str(raw, "utf-8")
    except UnicodeDecodeError:
        raise BadRequest(f"{field}: not valid UTF-8") from None
    if len(text) * 4 > most_bytes and len(text.encode()) > most_bytes:
        raise TooLarge(f"{field}: {len(text.encode())} bytes, at most {most_bytes} are allowed (QUEEN_MAX_MESSAGE_KB)")
    return str(text)


def parse_partition_id(value: str, field: str) -> int:
    """Partition ids are opaque to clients; 0 for what can't be one of ours."""
    if not value:
        raise BadRequest(f"{field}: must not be empty")
    if value.isascii() and value.isdigit() and len(value) <= 10:
        number = int(value)
        return number if number < 2**31 else 0
    return 0


def parse_moment(value: str, field: str) -> datetime:
    """An ISO 8601 moment; without an offset it is UTC."""
    try:
        moment = datetime.fromisoformat(value)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise BadRequest(f"{field}: must be 'now' or an ISO 8601 moment such as 2026-11-19T12:00:00Z") from None


_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def parse_bool(value: str | None, field: str, default: bool = False) -> bool:
    if value is None or value == "":
        return default
    found = _BOOLEANS.get(value.lower())
    if found is None:
        raise BadRequest(f"{field}: must be true or false")
    return found


def parse_int(value: str | None, field: str, default: int, least: int, most: int, *, clamp: bool = False) -> int:
    """A whole number within its limits; `clamp` cuts it down to the most allowed."""
    if value is None or value == "":
        return default
    text = value.strip()
    if not (text.isascii() and text.lstrip("-").isdigit() and len(text) <= 18):
        raise BadRequest(f"{field}: must be a whole number from {least} to {most}")
    number = int(text)
    if clamp and number > most:
        return most
    if not least <= number <= most:
        raise BadRequest(f"{field}: must be a whole number from {least} to {most}")
    return number


# configure: each option's type, least and most
_INT = (int, 0, 2**31 - 1)
OPTIONS: dict[str, tuple[type, int, int]] = {
    "leaseTime": (int, 1, SECONDS_MOST),
    "retryLimit": _INT,
    "retryDelay": (int, 0, 10**12),
    "maxSize": (int, 0, 10**15),
    "ttl": (int, 0, SECONDS_MOST),
    "priority": (int, -(2**31), 2**31 - 1),
    "delayedProcessing": (int, 0, SECONDS_MOST),
    "windowBuffer": (int, 0, SECONDS_MOST),
    "windowMaxWait": (int, 0, SECONDS_MOST),
    "deadLetterQueue": (bool, 0, 1),
    "dlqAfterMaxRetries": (bool, 0, 1),
    "encryptionEnabled": (bool, 0, 1),
    "retentionEnabled": (bool, 0, 1),
    "retentionSeconds": (int, 0, SECONDS_MOST),
    "completedRetentionSeconds": (int, 0, SECONDS_MOST),
    "maxWaitTimeSeconds": (int, 0, SECONDS_MOST),
    "retentionWaitsForArchive": (bool, 0, 1),
}


def check_options(options: dict[str, object] | None) -> dict[str, object]:
    """The known options, checked; unknown ones are refused by name, nulls mean 'as it is'."""
    found: dict[str, object] = {}
    for name, value in (options or {}).items():
        if name not in OPTIONS:
            raise BadRequest(f"options.{name}: no such option; there are {', '.join(OPTIONS)}")
        if value is None:
            continue
        kind, least, most = OPTIONS[name]
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        if kind is bool and not isinstance(value, bool):
            raise BadRequest(f"options.{name}: must be true or false")
        if kind is int and (not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most):
            raise BadRequest(f"options.{name}: must be a whole number from {least} to {most}")
        found[name] = value
    return found
