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
from queenmq.queen.encryption import Sealer
from queenmq.queen.push_lane import PushUnit
from queenmq.shared_state.partition_id_cache import PartitionRef

if TYPE_CHECKING:
    import asyncpg

_encode = msgspec.json.encode


def text(value: str | None) -> str:
    """A JSON string, or null."""
    return "null" if value is None else _encode(value).decode()


def moment(value: datetime | None) -> str:
    """ISO 8601, UTC, milliseconds."""
    return "null" if value is None else f'"{value.isoformat(timespec="milliseconds")[:-6]}Z"'


def pushed(index: int, unit: PushUnit, at: int, parts: tuple[str, str], queue: str) -> str:
    """One item of a push's reply."""
    ref = unit.ref
    trace = unit.rare.traces[at] if unit.rare is not None and unit.rare.traces is not None else None
    if unit.error is not None:
        return (
            f'{{"index":{index},"message_id":null,"transaction_id":{text(unit.transactions[at])},"partition_id":"{ref.id}",'
            f'"queueName":{queue},"status":"failed","trace_id":{text(trace)},"seq":null,"error":{text(str(unit.error))}}}'
        )
    if unit.seqs is None:
        seq, status = (unit.base or 0) + at, "queued"
    else:
        seq = unit.seqs[at]
        status = "duplicate" if unit.duplicates is not None and unit.duplicates[at] else "queued"
    return (
        f'{{"index":{index},"message_id":"{message_id(parts, seq)}","transaction_id":{text(unit.transactions[at])},"partition_id":"{ref.id}",'
        f'"queueName":{queue},"status":"{status}","trace_id":{text(trace)},"seq":{seq}}}'
    )


def push_reply(units: Iterable[tuple[PushUnit, list[int] | None]], salt: int, count: int) -> bytes:
    """A push's reply: the items in the order in which they were sent. Positions are None where a unit is the whole request."""
    found: list[str] = [""] * count
    for unit, positions in units:
        parts = id_parts(unit.ref.id, salt)
        queue = text(unit.ref.queue)
        if positions is None:
            if count == 1:
                return f"[{pushed(0, unit, 0, parts, queue)}]".encode()
            found = [pushed(at, unit, at, parts, queue) for at in range(count)]
        else:
            for at, index in enumerate(positions):
                found[index] = pushed(index, unit, at, parts, queue)
    return f"[{','.join(found)}]".encode()


class PopReply:
    """Builds a pop's reply."""

    def __init__(self, salt: int, sealer: Sealer) -> None:
        self._salt = salt
        self._sealer = sealer

    def build(
        self, rows: list[asyncpg.Record], refs: dict[int, PartitionRef], priorities: dict[str, int], group: str, lease: UUID | None
    ) -> bytes:
        """All messages of one claim; without a lease (autoAck) the lease id is empty."""
        lease_text = '""' if lease is None else f'"{lease}"'
        tail_lease = f',"consumerGroup":{text(group)},"leaseId":{lease_text},"retryCount":'
        found: list[str] = []
        last_partition, last_created = -1, None
        parts, names, priority, created, queue = ("", ""), "", 0, "", ""
        for row in rows:
            partition = row["partition_id"]
            if partition != last_partition:
                last_partition = partition
                ref = refs[partition]
                parts, queue, priority = id_parts(partition, self._salt), ref.queue, priorities.get(ref.queue, 0)
                names = f',"queue":{text(ref.queue)},"partition":{text(ref.name)},"partitionId":"{partition}"{tail_lease}'
            if row["created_at"] is not last_created:
                last_created = row["created_at"]
                created = moment(last_created)
            payload = row["payload"]
            if row["is_encrypted"]:
                payload = self._sealer.unseal(payload, queue)
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
        f'{{"index":{index},"transactionId":{text(transaction)},"success":{"true" if success else "false"},"error":{text(error)},'
        f'"queueName":{queue},"partitionName":{partition},"leaseReleased":{"true" if released else "false"},"dlq":{"true" if dead else "false"}}}'
    )


def extend_reply(lease: str, new: datetime | None, old: datetime | None) -> bytes:
    """A lease's new end."""
    if new is None:
        return (
            f'[{{"index":0,"leaseId":{text(lease)},"success":false,"error":"Invalid or expired lease","expiresAt":null,"newExpiresAt":null}}]'
        ).encode()
    return (
        f'[{{"index":0,"leaseId":{text(lease)},"success":true,"error":null,"expiresAt":{moment(old)},"newExpiresAt":{moment(new)}}}]'
    ).encode()
