"""Transactions on their way to `queen.execute_transaction`: many in one call, each all or nothing.

Never repeated when the reply is lost: the caller is told honestly that it isn't known. Invariant: a unit is settled with its own outcome,
whatever becomes of its neighbours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from uuid import UUID

from queenmq.clock import Clock
from queenmq.errors import ConfigChanged, PartitionGone, QueenError, Unavailable
from queenmq.metrics import LaneMetrics
from queenmq.postgres.pool import Database
from queenmq.queen.ack_lane import Answer
from queenmq.queen.directory import Directory
from queenmq.queen.lane import Lane, Unit
from queenmq.queen.push_lane import TRIES, PushUnit

HELD, DONE = 0, 1


@dataclass(slots=True)
class TransactionAck:
    """One ack inside a transaction."""

    partition: int
    group: str | None
    transaction: str
    status: str
    error: str | None
    lease: UUID | None


@dataclass(slots=True)
class Outcome:
    """What became of one transaction: pushes by unit and position, acks by position."""

    success: bool
    error: str | None = None
    acks: list[Answer] = field(default_factory=list)


class TransactionUnit(Unit):
    """One transaction. Its pushes are units that never enter the push lane."""

    __slots__ = ("acks", "future", "leases", "pushes")

    def __init__(self, pushes: list[PushUnit], acks: list[TransactionAck], leases: list[UUID], future: asyncio.Future[Outcome]) -> None:
        self.pushes = pushes
        self.acks = acks
        self.leases = leases
        self.future = future

    @property
    def bytes(self) -> int:
        return sum(push.bytes for push in self.pushes)

    @property
    def done(self) -> bool:
        return self.future.done()

    def settle(self, outcome: Outcome) -> None:
        if not self.future.done():
            self.future.set_result(outcome)

    def fail(self, error: QueenError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()


class TransactionLane(Lane[TransactionUnit]):
    """Builds the arrays and reads the outcomes."""

    max_units = 500

    def __init__(
        self,
        database: Database,
        directory: Directory,
        clock: Clock,
        metrics: LaneMetrics,
        *,
        recheck: Callable[[PushUnit], Awaitable[None]],
        over: Callable[[TransactionUnit], None],
    ) -> None:
        super().__init__("transaction", 2, clock, metrics)
        self._database = database
        self._directory = directory
        self._recheck = recheck
        self._over = over

    async def call(self, units: list[TransactionUnit], skip: bool) -> list[TransactionUnit]:
        held: list[TransactionUnit] = []
        for _ in range(TRIES):
            pushes = [push for unit in units for push in unit.pushes]
            try:
                return held + await self._execute(units, skip) if units else held
            except PartitionGone:
                late = await self._directory.renew(pushes)
                held += [unit for unit in units if any(id(push) in late for push in unit.pushes)]
                units = [unit for unit in units if not any(id(push) in late for push in unit.pushes)]
            except ConfigChanged:
                for name in {push.config.name for push in pushes}:
                    self._directory.queues.drop_name(name)
            await self._directory.reconfigure([push for unit in units for push in unit.pushes], self._recheck)
        raise Unavailable("the queue keeps changing: send again later")

    async def _execute(self, units: list[TransactionUnit], skip: bool) -> list[TransactionUnit]:
        pushes = [(number, push) for number, unit in enumerate(units, 1) for push in unit.pushes]
        acks = [(number, ack) for number, unit in enumerate(units, 1) for ack in unit.acks]
        leases = [(number, lease) for number, unit in enumerate(units, 1) for lease in unit.leases]
        ids = sorted({push.ref.id for _, push in pushes})
        place = {each: at for at, each in enumerate(ids, 1)}
        rares: list[list[object]] = [[], [], [], [], []]
        for _, push in pushes:
            for column, name in zip(rares, ("traces", "encrypted", "producers", "headers", "delays"), strict=True):
                part = getattr(push.rare, name) if push.rare is not None else None
                column.extend(part if part is not None else [None] * push.weight)
        versions = {push.config.id: push.config.version for _, push in pushes}
        row = await self._database.row(
            "execute_transaction",
            len(units),
            ids,
            [number for number, push in pushes for _ in push.transactions],
            [place[push.ref.id] for _, push in pushes for _ in push.transactions],
            [transaction for _, push in pushes for transaction in push.transactions],
            [payload for _, push in pushes for payload in push.payloads],
            *rares,
            [number for number, _ in acks],
            [ack.partition for _, ack in acks],
            [ack.group for _, ack in acks],
            [ack.transaction for _, ack in acks],
            [ack.status for _, ack in acks],
            [ack.error for _, ack in acks],
            [ack.lease for _, ack in acks],
            [number for number, _ in leases],
            [lease for _, lease in leases],
            list(versions) or None,
            list(versions.values()) or None,
            skip,
        )
        held: list[TransactionUnit] = []
        item = ack_at = 0
        for number, unit in enumerate(units, 1):
            outcome = row["outcomes"][number - 1]
            for push in unit.pushes:
                push.seqs = row["item_seqs"][item : item + push.weight]
                push.duplicates = row["item_duplicates"][item : item + push.weight]
                item += push.weight
            answers = [
                (bool(row["ack_successes"][at]), row["ack_errors"][at], bool(row["ack_released"][at]), bool(row["ack_dead"][at]))
                for at in range(ack_at, ack_at + len(unit.acks))
            ]
            ack_at += len(unit.acks)
            if outcome == HELD:
                held.append(unit)
                continue
            unit.settle(Outcome(outcome == DONE, row["failures"][number - 1], answers))
            self._over(unit)
        return held
