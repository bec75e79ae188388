"""Pushes on their way to `queen.push_messages`.

A unit is what one request stores in one partition. A partition belongs to one call at a time (two calls would only wait for each other
in the database) unless it is the only one, and what waits for it keeps its order. Every item has a transaction id before it comes here,
so a call that broke is made again and stores nothing twice. Invariant: what is submitted after an answer is stored after what was
answered; requests that overlap have no order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from queenmq.clock import Clock
from queenmq.errors import ConfigChanged, PartitionGone, QueenError, Unavailable
from queenmq.metrics import LaneMetrics
from queenmq.postgres.pool import Database
from queenmq.queen.directory import Directory
from queenmq.queen.lane import SECOND_WEIGHT, Lane, Unit
from queenmq.shared_state.partition_id_cache import PartitionRef
from queenmq.shared_state.queue_config_cache import QueueConfig

log = logging.getLogger(__name__)

TRIES = 8
# What a call may carry for a partition that the next call follows closely: both together stay below the time that a call waits for a lock.
OVERLAP_WEIGHT = 2_000
SEPARATOR = "\x1e"


@dataclass(slots=True)
class Rare:
    """The columns that few items have, by position; a list is None when no item of the unit has that column."""

    traces: list[str | None] | None = None
    encrypted: list[bool | None] | None = None
    producers: list[str | None] | None = None
    headers: list[str | None] | None = None
    delays: list[float | None] | None = None


def _told() -> None:
    """A request hears of its end once."""


class Ticket:
    """One request's wait for all of its parts: called once, when the last one is settled."""

    __slots__ = ("call", "left")

    def __init__(self, parts: int, call: Callable[[], None]) -> None:
        self.left = parts
        self.call = call

    @classmethod
    def awaited(cls, parts: int) -> tuple[Ticket, asyncio.Future[None]]:
        """One that sets a future."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return cls(parts, lambda: None if future.done() else future.set_result(None)), future


class _Flight:
    """What one call carries for one partition."""

    __slots__ = ("left", "light")

    def __init__(self) -> None:
        self.left = 0
        self.light = False


class PushUnit(Unit):
    """One request's items for one partition."""

    __slots__ = (
        "_bytes", "_settled", "base", "config", "duplicates", "error", "flight",
        "key", "payloads", "rare", "ref", "seqs", "ticket", "transactions",
        "weight",
    )  # fmt: skip

    def __init__(
        self, ref: PartitionRef, config: QueueConfig, transactions: list[str], payloads: list[str], rare: Rare | None, ticket: Ticket
    ) -> None:
        self.ref = ref
        self.key = ref.id
        self.flight: _Flight
        self.config = config
        self.transactions = transactions
        self.payloads = payloads
        self.rare = rare
        self.ticket = ticket
        self.weight = len(transactions)
        self._bytes = len(payloads[0]) if len(payloads) == 1 else sum(map(len, payloads))
        self._settled = False
        self.base: int | None = None
        self.seqs: list[int] | None = None
        self.duplicates: list[bool] | None = None
        self.error: QueenError | None = None

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def done(self) -> bool:
        return self._settled

    def settle(self) -> None:
        """It is decided what became of it; the request hears of it by `ring`."""
        self._settled = True

    def ring(self) -> None:
        """Tells the request; once."""
        ticket = self.ticket
        ticket.left -= 1
        if not ticket.left:
            # What is called holds the units: without this every request would stay until the cycle collector comes.
            call, ticket.call = ticket.call, _told
            call()

    def fail(self, error: QueenError) -> None:
        """The request decides what a part that wasn't stored means."""
        if not self._settled:
            self.error = error
            self.settle()
            self.ring()


class PushLane(Lane[PushUnit]):
    """Batches by partition."""

    def __init__(
        self,
        database: Database,
        directory: Directory,
        clock: Clock,
        metrics: LaneMetrics,
        *,
        width: int = 5,
        stored: Callable[[set[str]], None],
        recheck: Callable[[PushUnit], Awaitable[None]],
    ) -> None:
        super().__init__("push", width, clock, metrics)
        self._database = database
        self._directory = directory
        self._stored = stored
        self._recheck = recheck
        self._waiting: dict[int, deque[PushUnit]] = {}
        self._free: dict[int, None] = {}
        self._busy: dict[int, int] = {}
        self._flight: _Flight | None = None

    def repeatable(self, unit: PushUnit) -> bool:
        return True

    def enqueue(self, units: list[PushUnit]) -> None:
        for unit in units:
            waiting = self._waiting.get(unit.key)
            if waiting is None:
                self._waiting[unit.key] = deque((unit,))
                if unit.key not in self._busy:
                    self._free[unit.key] = None
            else:
                waiting.append(unit)

    def take(self) -> list[PushUnit]:
        batch: list[PushUnit] = []
        weight = size = 0
        # An equal part for each free connection: else everything would fly on one while the others idle.
        share = max(SECOND_WEIGHT, -(-self.waiting_units // max(self.width - self.flying, 1)))
        most = self.max_units if len(self._waiting) > 1 else OVERLAP_WEIGHT
        for key in self._takeable():
            if batch and (weight >= share or weight >= most or size >= self.max_bytes):
                break
            waiting = self._waiting[key]
            flight = self._flight = _Flight()
            while waiting and (not batch or (weight < most and size < self.max_bytes)):
                unit = waiting.popleft()
                weight += unit.weight
                size += unit.bytes
                unit.flight = flight
                flight.left += 1
                batch.append(unit)
            flight.light = weight <= 2 * OVERLAP_WEIGHT
            self._free.pop(key, None)
            self._busy[key] = self._busy.get(key, 0) + 1
            if not waiting:
                del self._waiting[key]
        return batch

    def _takeable(self) -> list[int]:
        """The partitions whose turn it is. When only one is under way at all, a second call may follow the first closely: it unpacks its
        items beside it and then waits a few milliseconds for its lock, instead of PostgreSQL waiting for us."""
        if self._free:
            return list(self._free)
        if len(self._busy) == 1 and not self._aside and self._flight is not None and self._flight.light:
            return [key for key, flights in self._busy.items() if flights == 1 and key in self._waiting]
        return []

    def abandon(self) -> list[PushUnit]:
        found = [unit for waiting in self._waiting.values() for unit in waiting]
        self._waiting.clear()
        self._free.clear()
        return found

    def overdue(self, now: float) -> list[PushUnit]:
        found: list[PushUnit] = []
        for key in [key for key in self._busy if key in self._waiting]:
            waiting = self._waiting[key]
            while waiting and waiting[0].deadline <= now:
                found.append(waiting.popleft())
            if not waiting:
                del self._waiting[key]
        return found

    def landed(self, units: list[PushUnit]) -> None:
        for unit in units:
            unit.flight.left -= 1
            if unit.flight.left:
                continue
            flights = self._busy[unit.key] = self._busy[unit.key] - 1
            if flights:
                continue
            del self._busy[unit.key]
            if unit.key in self._waiting:
                self._free[unit.key] = None

    async def call(self, units: list[PushUnit], skip: bool) -> list[PushUnit]:
        held: list[PushUnit] = []
        for _ in range(TRIES):
            try:
                return held + await self._store(units, skip) if units else held
            except PartitionGone:
                # Those whose names somebody is making right now are set aside: the others don't wait for them.
                late = await self._directory.renew(units)
                held += [unit for unit in units if id(unit) in late]
                units = [unit for unit in units if id(unit) not in late]
            except ConfigChanged:
                for name in {unit.config.name for unit in units}:
                    self._directory.queues.drop_name(name)
            await self._directory.reconfigure(units, self._recheck)
        raise Unavailable("the queue keeps changing: send again later")

    async def _store(self, units: list[PushUnit], skip: bool) -> list[PushUnit]:
        call = _Call(units)
        row = await self._database.row(call.statement, *call.arguments, skip)
        bases, seqs, duplicates = row["bases"], row["seqs"], row["duplicates"]
        held: list[PushUnit] = []
        stored: list[PushUnit] = []
        for unit, which, position, start in call.places:
            base = bases[which - 1]
            if base is None:
                held.append(unit)
                continue
            if seqs is None:
                unit.base = base + position
            else:
                unit.seqs = seqs[start : start + unit.weight]
                unit.duplicates = duplicates[start : start + unit.weight]
            unit.settle()
            stored.append(unit)
        # One turn later: what waits leaves first, and the replies are built while the database works.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._tell, stored)
        return held

    def _tell(self, stored: list[PushUnit]) -> None:
        for unit in stored:
            try:
                unit.ring()
            except Exception:
                # Whatever goes wrong with one reply is nothing to the others of the same call.
                log.exception("a push's reply failed")
        self._stored({unit.ref.queue for unit in stored})


class _Call:
    """One call: distinct partitions ascending, the items grouped by them, and per unit where its items are."""

    __slots__ = ("arguments", "places", "statement")

    def __init__(self, units: list[PushUnit]) -> None:
        units = sorted(units, key=lambda unit: unit.ref.id) if len(units) > 1 else units
        ids: list[int] = []
        counts: list[int] = []
        groups: list[list[PushUnit]] = []
        versions: dict[int, int] = {}
        self.places: list[tuple[PushUnit, int, int, int]] = []
        total = 0
        for unit in units:
            if not ids or ids[-1] != unit.ref.id:
                ids.append(unit.ref.id)
                counts.append(0)
                groups.append([])
            self.places.append((unit, len(ids), counts[-1], total))
            counts[-1] += unit.weight
            total += unit.weight
            groups[-1].append(unit)
            config = unit.config
            if versions.get(config.id, config.version) >= config.version:
                versions[config.id] = config.version
        seen = (list(versions), list(versions.values()))
        packed = _packed(groups, counts) if all(unit.rare is None for unit in units) else None
        if packed is not None:
            self.statement = "push_packed"
            self.arguments: tuple[object, ...] = (ids, counts, *packed, *seen)
            return
        which = [number for number, count in enumerate(counts, 1) for _ in range(count)]
        position = [at for count in counts for at in range(count)]
        transactions = [each for unit in units for each in unit.transactions]
        payloads = [each for unit in units for each in unit.payloads]
        self.statement = "push_messages"
        self.arguments = (ids, counts, which, position, transactions, payloads, *_columns(units), *seen)


def _packed(groups: list[list[PushUnit]], counts: list[int]) -> tuple[list[str], list[str]] | None:
    """Per partition the ids and the payloads as one text each (the driver takes 0.8 µs an item for arrays, 0.1 for this); None where
    the separator occurs."""
    transactions: list[str] = []
    payloads: list[str] = []
    for units, count in zip(groups, counts, strict=True):
        if len(units) == 1:
            names, bodies = SEPARATOR.join(units[0].transactions), SEPARATOR.join(units[0].payloads)
        else:
            names = SEPARATOR.join([SEPARATOR.join(unit.transactions) for unit in units])
            bodies = SEPARATOR.join([SEPARATOR.join(unit.payloads) for unit in units])
        if names.count(SEPARATOR) != count - 1 or bodies.count(SEPARATOR) != count - 1:
            return None
        transactions.append(names)
        payloads.append(bodies)
    return transactions, payloads


def _columns(units: list[PushUnit]) -> tuple[list[object] | None, ...]:
    """The rare columns over all items, each None when nobody has it."""
    found: list[list[object] | None] = []
    for name in ("traces", "encrypted", "producers", "headers", "delays"):
        parts = [getattr(unit.rare, name) if unit.rare is not None else None for unit in units]
        if all(part is None for part in parts):
            found.append(None)
            continue
        column: list[object] = []
        for unit, part in zip(units, parts, strict=True):
            column.extend(part if part is not None else [None] * unit.weight)
        found.append(column)
    return tuple(found)
