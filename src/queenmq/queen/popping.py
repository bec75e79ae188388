"""Pops: from what a client asked for to the claim's reply.

Resolves names, waits when asked to, releases what was claimed for a caller that left. Never moves a cursor: a claim is settled by acks,
or, with autoAck, after the reply was written. Invariant: every claim ends in a reply or a release.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from queenmq.clock import Clock
from queenmq.metrics import Metrics
from queenmq.queen.ack_lane import AckUnit
from queenmq.queen.directory import QUEUE_MODE, Directory
from queenmq.queen.encryption import SealBroken, Sealer
from queenmq.queen.pop_lane import Claimed, PopUnit
from queenmq.queen.replies import PopReply
from queenmq.queen.sidecar import Sidecar
from queenmq.queen.waits import RECHECK_SECONDS, Waits
from queenmq.shared_state.partition_id_cache import PartitionRef

if TYPE_CHECKING:
    import asyncpg

log = logging.getLogger(__name__)

AGAIN_FIRST, AGAIN_MOST, AGAIN_TOTAL = 0.002, 0.1, 0.05


@dataclass(frozen=True, slots=True)
class PopRequest:
    """What a client asked for. Without a queue it is a namespace and task."""

    queue: str | None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    group: str = QUEUE_MODE
    batch: int = 1
    partitions: int = 1
    wait: bool = False
    timeout: float = 30.0
    auto_ack: bool = False
    mode: str = "all"
    moment: datetime | None = None
    lease_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Popped:
    """A reply that carries messages; `delivered` or `undelivered` is said of it once."""

    body: bytes
    lease: UUID
    auto_ack: bool
    count: int


class Popper:
    """The way of a pop."""

    def __init__(
        self, sidecar: Sidecar, directory: Directory, waits: Waits, clock: Clock, metrics: Metrics, sealer: Sealer, salt: int
    ) -> None:
        self._sidecar = sidecar
        self._directory = directory
        self._waits = waits
        self._clock = clock
        self._metrics = metrics
        self._sealer = sealer
        self._reply = PopReply(salt)

    async def pop(self, request: PopRequest) -> Popped | None:
        """What there is, at once or within the timeout; None for nothing."""
        if not request.wait:
            claimed = await self._claim_now(request)
            return await self._answer(request, claimed) if claimed is not None and claimed.rows else None
        deadline = self._clock.monotonic() + request.timeout
        generation = self._waits.enter(request.queue)
        pause = AGAIN_FIRST
        try:
            while True:
                claimed = await self._claim(request)
                if claimed is not None and claimed.rows:
                    return await self._answer(request, claimed)
                left = deadline - self._clock.monotonic()
                if left <= 0 or self._waits.closed:
                    return None
                if claimed is not None and claimed.again:
                    wait, pause = min(pause, left), min(pause * 2, AGAIN_MOST)
                else:
                    wait, pause = min(left, RECHECK_SECONDS, self._until(claimed)), AGAIN_FIRST
                generation = await self._waits.park(request.queue, generation, wait)
        finally:
            self._waits.leave(request.queue)

    def _until(self, claimed: Claimed | None) -> float:
        """Seconds until something that is there becomes ready."""
        if claimed is None or claimed.next_ready is None:
            return RECHECK_SECONDS
        return max(claimed.next_ready - self._clock.wall(), 0.001)

    async def _claim_now(self, request: PopRequest) -> Claimed | None:
        """One claim, repeated while the walk isn't over or a pusher is just about to commit."""
        deadline = self._clock.monotonic() + AGAIN_TOTAL
        pause = AGAIN_FIRST
        while True:
            claimed = await self._claim(request)
            if claimed is None or claimed.rows or not claimed.again or self._clock.monotonic() >= deadline:
                return claimed
            await asyncio.sleep(pause)
            pause *= 2

    async def _claim(self, request: PopRequest) -> Claimed | None:
        """One call; None when there is nothing that could be claimed from."""
        for _ in range(2):
            groups = await self._groups(request)
            if not groups:
                return None
            partition: int | None = None
            if request.queue is not None and request.partition is not None:
                ref = await self._directory.find(request.queue, request.partition)
                if ref is None:
                    return None
                partition = ref.id
            claimed = await self._submit(request, groups, partition)
            if not claimed.gone or request.queue is None:
                return claimed
            self._directory.forget_group(request.queue, request.group)
            self._directory.partitions.forget_queue(request.queue)
        return None

    async def _groups(self, request: PopRequest) -> list[int]:
        if request.queue is not None:
            found = await self._directory.group(request.queue, request.group, request.mode, request.moment)
            return [] if found is None else [found]
        subscription = (request.namespace, request.task, request.group, request.mode, request.moment)
        await self._directory.subscribe(*subscription)
        walks = await self._directory.walks(*subscription[:3])
        if not walks:
            await self._directory.subscribe(*subscription, anew=True)
            walks = await self._directory.walks(*subscription[:3])
        return [group for group, _ in walks]

    async def _submit(self, request: PopRequest, groups: list[int], partition: int | None) -> Claimed:
        future: asyncio.Future[Claimed] = asyncio.get_running_loop().create_future()
        unit = PopUnit(groups, partition, request.batch, request.partitions, request.lease_seconds, future)
        self._sidecar.pop.submit([unit])
        try:
            claimed = await future
            while claimed.more:
                unit.future = asyncio.get_running_loop().create_future()
                self._sidecar.pop.submit([unit])
                claimed = await unit.future
        except asyncio.CancelledError:
            # The caller left. A claim that is already answered is given back here, one that is under way by the lane.
            if unit.future.done() and not unit.future.cancelled() and unit.future.exception() is None and unit.future.result().rows:
                self._sidecar.release(unit.lease)
            raise
        if not claimed.rows:
            self._metrics.claim_empty += 1
        return claimed

    async def _answer(self, request: PopRequest, claimed: Claimed) -> Popped | None:
        """The reply; when it can't be built the claim is given back."""
        try:
            ids = {row["partition_id"] for row in claimed.rows}
            await self._directory.names(ids)
            refs = {each: ref for each in ids if (ref := self._directory.partitions.by_id(each)) is not None}
            priorities: dict[str, int] = {}
            for ref in refs.values():
                if ref.queue not in priorities:
                    config = await self._directory.queues.get(ref.queue)
                    priorities[ref.queue] = config.priority if config is not None else 0
            rows = [row for row in claimed.rows if row["partition_id"] in refs]
            opened: dict[tuple[int, int], str] = {}
            if any(row["is_encrypted"] for row in rows):
                rows, opened = await self._open(request, claimed, rows, refs)
            if not rows:
                # The queue was deleted meanwhile.
                self._sidecar.release(claimed.lease)
                return None
            body = self._reply.build(rows, refs, priorities, request.group, None if request.auto_ack else claimed.lease, opened)
        except BaseException:
            self._sidecar.release(claimed.lease)
            raise
        return Popped(body, claimed.lease, request.auto_ack, len(rows))

    async def _open(
        self, request: PopRequest, claimed: Claimed, rows: list[asyncpg.Record], refs: dict[int, PartitionRef]
    ) -> tuple[list[asyncpg.Record], dict[tuple[int, int], str]]:
        """What can be delivered, with the payloads that were sealed. A message that doesn't open holds up its partition only: it and what
        follows it there is given back, nothing is counted. Raises when nothing else is left."""
        opened: dict[tuple[int, int], str] = {}
        broken: dict[int, SealBroken] = {}
        found: list[asyncpg.Record] = []
        for row in rows:
            partition = row["partition_id"]
            if partition in broken:
                continue
            try:
                if row["is_encrypted"]:
                    opened[partition, row["seq"]] = self._sealer.unseal(row["payload"], refs[partition].queue)
            except SealBroken as error:
                log.error("a message can't be delivered", extra={"partition": partition, "seq": row["seq"], "error": str(error)})
                self._metrics.count("messages_not_opened")
                broken[partition] = error
                if request.auto_ack:
                    # The lease is settled as a whole: nothing of this partition may be in it.
                    found = [each for each in found if each["partition_id"] != partition]
                continue
            found.append(row)
        if broken and not found:
            raise next(iter(broken.values()))
        kept = {(row["partition_id"], row["seq"]) for row in found}
        await self._give_back(request, claimed, [row for row in rows if (row["partition_id"], row["seq"]) not in kept])
        return found, opened

    async def _give_back(self, request: PopRequest, claimed: Claimed, rows: list[asyncpg.Record]) -> None:
        """Some messages of a claim, before the others are delivered."""
        units: dict[int, AckUnit] = {}
        group = None if request.group == QUEUE_MODE else request.group
        for row in rows:
            partition = row["partition_id"]
            if partition not in units:
                units[partition] = AckUnit(partition, group, claimed.lease, asyncio.get_running_loop().create_future())
            units[partition].add(row["transaction_id"], "retry", None)
        if units:
            self._sidecar.ack.submit(units.values())
        for unit in units.values():
            await unit.future
            if unit.error is not None:
                raise unit.error

    def delivered(self, popped: Popped) -> None:
        """The reply was handed to the kernel."""
        if popped.auto_ack:
            self._sidecar.settle(popped.lease)

    def undelivered(self, popped: Popped) -> None:
        """The client left before that: nothing is counted against the messages."""
        self._sidecar.release(popped.lease)
