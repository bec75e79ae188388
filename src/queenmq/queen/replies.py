"""What clients read, as JSON bytes, built straight from rows: payloads and headers go through byte for byte.

Pure. Never decodes a payload. Invariant: every reply is one valid JSON document.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from queenmq.ids import id_parts, message_id
from queenmq.queen.ack_lane import Answer
from queenmq.queen.push_lane import PushUnit
from queenmq.shared_state.partition_id_cache import PartitionRef

if TYPE_CHECKING:
    import asyncpg

_encode = msgspec.json.encode


def text(value: str | None) -> str:
    """A JSON string, or null."""
    return "null" if value is None else _encode(value).decode()


def flag(value: bool) -> str:
    return "true" if value else "false"


def moment(value: datetime | None) -> str:
    """ISO 8601, UTC, milliseconds."""
    return "null" if value is None else f'"{value.isoformat(timespec="milliseconds")[:-6]}Z"'


def texts(values: list[str]) -> list[str]:
    """JSON strings without their quotes, all at once: within a JSON string a quote is always escaped, so `","` only stands between two."""
    return _encode(values).decode()[2:-2].split('","') if values else []


def pushed(unit: PushUnit, positions: Iterable[int], salt: int) -> list[str]:
    """The entries of one partition's items in a push's reply."""
    ref = unit.ref
    first, second = id_parts(ref.id, salt)
    named = f'"partition_id":"{ref.id}","queueName":{text(ref.queue)},"status":"'
    ids = texts(unit.transactions)
    if unit.error is not None:
        error = text(str(unit.error))
        if not ref.id:
            named = f'"partition_id":null,"queueName":{text(ref.queue)},"status":"'
        return [
            f'{{"index":{index},"message_id":null,"transaction_id":"{name}",{named}failed","trace_id":null,"seq":null,"error":{error}}}'
            for index, name in zip(positions, ids, strict=True)
        ]
    if unit.seqs is None and (unit.rare is None or unit.rare.traces is None):
        base = unit.base or 0
        first = f"{first}{base >> 48:04x}{second}"
        named = f'",{named}queued","trace_id":null,"seq":'
        return [
            f'{{"index":{index},"message_id":"{first}{seq & 0xFFFFFFFFFFFF:012x}","transaction_id":"{name}{named}{seq}}}'
            for index, name, seq in zip(positions, ids, range(base, base + len(ids)), strict=True)
        ]
    seqs = unit.seqs if unit.seqs is not None else list(range(unit.base or 0, (unit.base or 0) + len(ids)))
    duplicates = unit.duplicates or [False] * len(ids)
    traces = (unit.rare.traces if unit.rare is not None else None) or [None] * len(ids)
    return [
        f'{{"index":{index},"message_id":"{message_id((first, second), seq)}","transaction_id":"{name}",{named}'
        f'{"duplicate" if duplicate else "queued"}","trace_id":{text(trace)},"seq":{seq}}}'
        for index, name, seq, duplicate, trace in zip(positions, ids, seqs, duplicates, traces, strict=True)
    ]


def push_reply_one(unit: PushUnit, salt: int) -> bytes:
    """The reply to a push of one plain item."""
    if unit.seqs is not None or unit.base is None:
        return push_reply([unit], [], salt, 1)
    ref, seq = unit.ref, unit.base
    return (
        f'[{{"index":0,"message_id":"{message_id(id_parts(ref.id, salt), seq)}","transaction_id":{text(unit.transactions[0])},'
        f'"partition_id":"{ref.id}","queueName":{text(ref.queue)},"status":"queued","trace_id":null,"seq":{seq}}}]'
    ).encode()


def push_reply(units: list[PushUnit], places: list[list[int]], salt: int, count: int) -> bytes:
    """A push's reply: the items in the order in which they were sent; `places` are the units' positions in the request."""
    if len(units) == 1:
        return f"[{','.join(pushed(units[0], range(count), salt))}]".encode()
    found = [""] * count
    for unit, positions in zip(units, places, strict=True):
        for index, entry in zip(positions, pushed(unit, positions, salt), strict=True):
            found[index] = entry
    return f"[{','.join(found)}]".encode()


class PopReply:
    """Builds a pop's reply."""

    def __init__(self, salt: int) -> None:
        self._salt = salt

    def build(
        self,
        rows: list[asyncpg.Record],
        refs: dict[int, PartitionRef],
        priorities: dict[str, int],
        group: str,
        lease: UUID | None,
        opened: dict[tuple[int, int], str],
    ) -> bytes:
        """All messages of one claim; without a lease (autoAck) the lease id is empty. `opened` has the sealed payloads by address."""
        lease_text = '""' if lease is None else f'"{lease}"'
        tail_lease = f',"consumerGroup":{text(group)},"leaseId":{lease_text},"retryCount":'
        found: list[str] = []
        last_partition, last_created = -1, None
        parts, names, priority, created = ("", ""), "", 0, ""
        for row in rows:
            partition = row["partition_id"]
            if partition != last_partition:
                last_partition = partition
                ref = refs[partition]
                parts, priority = id_parts(partition, self._salt), priorities.get(ref.queue, 0)
                names = f',"queue":{text(ref.queue)},"partition":{text(ref.name)},"partitionId":"{partition}"{tail_lease}'
            if row["created_at"] is not last_created:
                last_created = row["created_at"]
                created = moment(last_created)
            payload = row["payload"]
            if row["is_encrypted"]:
                payload = opened[partition, row["seq"]]
            trace = row["trace_id"]
            trace_text = "null" if trace is None else f'"{trace}"'
            found.append(
                f'{{"id":"{message_id(parts, row["seq"])}","transactionId":{text(row["transaction_id"])},"traceId":{trace_text},'
                f'"data":{payload},"createdAt":{created}{names}{row["attempts"]},"priority":{priority},"seq":{row["seq"]},'
                f'"producerSub":{text(row["producer"])},"headers":{row["headers"] or "null"}}}'
            )
        first = refs[rows[0]["partition_id"]]
        return (
            f'{{"success":true,"queue":{text(first.queue)},"partition":{text(first.name)},"partitionId":"{first.id}","leaseId":{lease_text},'
            f'"consumerGroup":{text(group)},"messages":[{",".join(found)}]}}'
        ).encode()


def ack_item(index: int, transaction: str, ref: PartitionRef | None, answer: Answer) -> str:
    """One item of an ack's reply."""
    success, error, released, dead = answer
    queue, partition = (text(ref.queue), text(ref.name)) if ref is not None else ("null", "null")
    return (
        f'{{"index":{index},"transactionId":{text(transaction)},"success":{flag(success)},"error":{text(error)},'
        f'"queueName":{queue},"partitionName":{partition},"leaseReleased":{flag(released)},"dlq":{flag(dead)}}}'
    )


def extend_reply(lease: str, new: datetime | None, old: datetime | None) -> bytes:
    """A lease's new end."""
    if new is None:
        error = '"success":false,"error":"Invalid or expired lease","expiresAt":null,"newExpiresAt":null'
        return f'[{{"index":0,"leaseId":{text(lease)},{error}}}]'.encode()
    return (
        f'[{{"index":0,"leaseId":{text(lease)},"success":true,"error":null,"expiresAt":{moment(old)},"newExpiresAt":{moment(new)}}}]'
    ).encode()
