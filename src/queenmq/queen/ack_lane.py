"""Acks on their way to `queen.ack_messages`.

A unit is what one request says of one partition under one group and lease. Units of the same row are merged into one, so that a
batch acked message by message by many callers still ends in one step. Invariant: every ack of a unit has an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from queenmq.clock import Clock
from queenmq.errors import QueenError
from queenmq.metrics import LaneMetrics
from queenmq.postgres.pool import Database
from queenmq.queen.lane import Lane, Unit

HELD, WHOLE, DETAILED, MISSING = 0, 1, 2, 3

# success, error, lease released, dead-lettered
Answer = tuple[bool, str | None, bool, bool]
WHOLE_ANSWER: Answer = (True, None, True, False)


class AckUnit(Unit):
    """One request's acks for one consumer row."""

    __slots__ = ("answers", "error", "errors", "future", "group", "lease", "partition", "statuses", "transactions", "weight")

    def __init__(self, partition: int, group: str | None, lease: UUID | None, future: asyncio.Future[None]) -> None:
        self.partition = partition
        self.group = group
        self.lease = lease
        self.transactions: list[str] = []
        self.statuses: list[str] = []
        self.errors: list[str | None] = []
        self.answers: list[Answer] = []
        self.error: QueenError | None = None
        self.future = future
        self.weight = 0

    def add(self, transaction: str, status: str, error: str | None) -> None:
        self.transactions.append(transaction)
        self.statuses.append(status)
        self.errors.append(error)
        self.weight += 1

    @property
    def done(self) -> bool:
        return self.future.done()

    def settle(self, answers: list[Answer]) -> None:
        self.answers = answers
        if not self.future.done():
            self.future.set_result(None)

    def fail(self, error: QueenError) -> None:
        self.error = error
        if not self.future.done():
            self.future.set_result(None)


class AckLane(Lane[AckUnit]):
    """Merges units of the same row into one call."""

    def __init__(
        self, database: Database, clock: Clock, metrics: LaneMetrics, *, width: int = 2, freed: Callable[[list[AckUnit]], None]
    ) -> None:
        super().__init__("ack", width, clock, metrics)
        self._database = database
        self._freed = freed

    def repeatable(self, unit: AckUnit) -> bool:
        """Under a lease a repeated ack is answered as the first was; without one only `completed` may be said twice."""
        return unit.lease is not None or all(status == "completed" for status in unit.statuses)

    async def call(self, units: list[AckUnit], skip: bool) -> list[AckUnit]:
        rows: dict[tuple[int, str | None, UUID | None], int] = {}
        which: list[int] = []
        transactions: list[str] = []
        statuses: list[str] = []
        errors: list[str | None] = []
        places: list[tuple[AckUnit, int, int]] = []
        for unit in units:
            row = rows.setdefault((unit.partition, unit.group, unit.lease), len(rows) + 1)
            places.append((unit, row, len(transactions)))
            which.extend([row] * unit.weight)
            transactions.extend(unit.transactions)
            statuses.extend(unit.statuses)
            errors.extend(unit.errors)
        plain = statuses.count("completed") == len(statuses)
        found = await self._database.row(
            "ack_messages",
            [key[0] for key in rows],
            [key[1] for key in rows],
            [key[2] for key in rows],
            which,
            transactions,
            None if plain else statuses,
            None if plain else errors,
            skip,
        )
        states = found["states"]
        details: dict[int, Answer] = {}
        if found["details"]:
            details = dict(
                zip(
                    found["details"],
                    zip(found["successes"], found["errors"], found["released"], found["dead"], strict=True),
                    strict=True,
                )
            )
        held: list[AckUnit] = []
        over: list[AckUnit] = []
        for unit, row, start in places:
            state = states[row - 1]
            if state == HELD:
                held.append(unit)
                continue
            if state == WHOLE:
                unit.settle([WHOLE_ANSWER] * unit.weight)
            elif state == DETAILED:
                unit.settle([details[number] for number in range(start + 1, start + 1 + unit.weight)])
            else:
                text = "Invalid or expired lease" if unit.lease is not None else "Message not found"
                unit.settle([(False, text, False, False)] * unit.weight)
            over.append(unit)
        self._freed(over)
        return held


class LeaseUnit(Unit):
    """One lease to prolong, give back, or settle."""

    __slots__ = ("action", "before", "future", "lease", "seconds", "until")

    def __init__(self, lease: UUID, action: str, seconds: int, future: asyncio.Future[bool]) -> None:
        self.lease = lease
        self.until: datetime | None = None
        self.before: datetime | None = None
        self.action = action
        self.seconds = seconds
        self.future = future

    @property
    def done(self) -> bool:
        return self.future.done()

    def settle(self, result: bool) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: QueenError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()


class LeaseLane(Lane[LeaseUnit]):
    """Leases by id: `extend`, `release` (no attempt is counted) and `settle` (autoAck, after the reply was written)."""

    def __init__(self, database: Database, clock: Clock, metrics: LaneMetrics, *, freed: Callable[[list[int]], None]) -> None:
        super().__init__("lease", 2, clock, metrics)
        self._database = database
        self._freed = freed

    def repeatable(self, unit: LeaseUnit) -> bool:
        return True

    async def call(self, units: list[LeaseUnit], skip: bool) -> list[LeaseUnit]:
        held: list[LeaseUnit] = []
        longer = [unit for unit in units if unit.action == "extend"]
        if longer:
            held.extend(await self._extend(longer, skip))
        ending = [unit for unit in units if unit.action != "extend"]
        if ending:
            held.extend(await self._end(ending, skip))
        return held

    async def _extend(self, units: list[LeaseUnit], skip: bool) -> list[LeaseUnit]:
        row = await self._database.row("extend_leases", [unit.lease for unit in units], [unit.seconds for unit in units], skip)
        held = []
        for unit, new, old, is_held in zip(units, row["expires_at"], row["was_expiring_at"], row["held"], strict=True):
            if skip and is_held and new is None:
                held.append(unit)
            else:
                unit.until, unit.before = new, old
                unit.settle(new is not None)
        return held

    async def _end(self, units: list[LeaseUnit], skip: bool) -> list[LeaseUnit]:
        row = await self._database.row("release_leases", [unit.lease for unit in units], [unit.action == "settle" for unit in units], skip)
        held_ids, ended = set(row["held"] or ()), set(row["ended"] or ())
        held = []
        for unit in units:
            if unit.lease in held_ids:
                held.append(unit)
            else:
                unit.settle(unit.lease in ended)
        self._freed(row["queues"] or [])
        return held
