"""Pops on their way to `queen.pop_messages`.

A unit is one claim: up to so many partitions and messages under one lease id. The lane remembers for each group where live entries of
the index begin, so that a claim needn't walk over dead ones, and walks from the very beginning once a second: losing the bound costs one
walk. A claim is never repeated blindly: when its reply is lost its lease is given back. Invariant: what was claimed for a caller that is
gone is released.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from queenmq.clock import Clock
from queenmq.errors import QueenError
from queenmq.ids import lease_id
from queenmq.metrics import LaneMetrics
from queenmq.postgres.pool import Database, LostConnection
from queenmq.queen.lane import Lane, Unit

if TYPE_CHECKING:
    import asyncpg

SLACK_MICROS = 2_000_000
FULL_WALK_SECONDS = 1.0
MOST_BOUNDS = 50_000


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a claim found."""

    lease: UUID
    until: datetime | None
    rows: list[asyncpg.Record]
    again: bool
    """Somebody holds a partition, or the walk isn't over: ask again soon."""
    more: bool
    """The walk ended before the index did: the unit goes on from there."""
    next_ready: float | None
    """When the next partition of the group becomes ready, in seconds since 1970."""
    gone: bool
    """The group is no longer there."""


class PopUnit(Unit):
    """One claim."""

    __slots__ = ("batch", "future", "groups", "lease", "lease_seconds", "partition", "rest", "spread")

    def __init__(
        self, groups: list[int], partition: int | None, batch: int, spread: int, lease_seconds: int | None, future: asyncio.Future[Claimed]
    ) -> None:
        self.groups = groups
        self.partition = partition
        self.batch = batch
        self.spread = spread
        self.lease_seconds = lease_seconds
        self.lease = lease_id()
        self.rest: list[tuple[int, int, int]] = []
        self.future = future

    @property
    def done(self) -> bool:
        return self.future.done()

    def fail(self, error: QueenError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()


class PopLane(Lane[PopUnit]):
    """Claims for many callers in one call."""

    max_units = 256

    def __init__(
        self, database: Database, clock: Clock, metrics: LaneMetrics, *, width: int = 2, abandoned: Callable[[UUID], object]
    ) -> None:
        super().__init__("pop", width, clock, metrics)
        self._database = database
        self._abandoned = abandoned
        self._bounds: dict[int, int] = {}
        self._full_walks: dict[int, float] = {}

    async def call(self, units: list[PopUnit], skip: bool) -> list[PopUnit]:
        units = [unit for unit in units if not unit.done]
        if not units:
            return []
        # One group's claims follow each other: what the first one took the next ones don't meet again.
        units.sort(key=lambda unit: unit.groups)
        walks: list[tuple[int, int, int, int]] = []
        for number, unit in enumerate(units, 1):
            walks.extend((number, *walk) for walk in unit.rest or [(group, self._bound(group), 0) for group in unit.groups])
        try:
            rows = await self._database.rows(
                "pop_messages",
                [unit.batch for unit in units],
                [unit.spread for unit in units],
                [unit.partition for unit in units],
                [unit.lease for unit in units],
                [unit.lease_seconds for unit in units],
                *(list(column) for column in zip(*walks, strict=True)),
            )
        except (LostConnection, asyncio.CancelledError):
            # The claim may have been made: nobody will ever hear of it.
            for unit in units:
                self._abandoned(unit.lease)
            raise
        self._answer(units, rows)
        return []

    def _answer(self, units: list[PopUnit], rows: list[asyncpg.Record]) -> None:
        start = 0
        for at, row in enumerate(rows):
            if row["seq"] is not None:
                continue
            unit, found, start = units[row["request"] - 1], rows[start:at], at + 1
            told = json.loads(row["payload"])
            self._learn(unit, told)
            if unit.done:
                if found:
                    self._abandoned(unit.lease)
                continue
            more = told["more"]
            unit.rest = []
            if more is not None:
                # From where the walk ended, never from the beginning: rows that a pusher holds would be walked for ever.
                at = unit.groups.index(told["group"])
                unit.rest = [(told["group"], more[0], more[1]), *((group, self._bound(group), 0) for group in unit.groups[at + 1 :])]
            unit.future.set_result(
                Claimed(
                    unit.lease,
                    row["created_at"],
                    found,
                    not found and (told["held"] or more is not None),
                    not found and more is not None,
                    told["next"] / 1e6 if told["next"] is not None else None,
                    told["gone"],
                )
            )

    def _bound(self, group: int) -> int:
        """Where the walk may begin."""
        now = self.clock.monotonic()
        if now - self._full_walks.get(group, float("-inf")) >= FULL_WALK_SECONDS:
            if len(self._full_walks) > MOST_BOUNDS:
                self._full_walks.clear()
                self._bounds.clear()
            self._full_walks[group] = now
            self._bounds.pop(group, None)
        return self._bounds.get(group, 0)

    def _learn(self, unit: PopUnit, told: dict[str, int | None]) -> None:
        first = told["first"]
        if first is not None and unit.partition is None and len(unit.groups) == 1:
            group = unit.groups[0]
            self._bounds[group] = max(self._bounds.get(group, 0), first - SLACK_MICROS)
