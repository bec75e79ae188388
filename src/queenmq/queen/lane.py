"""A lane: what arrives while a call is under way leaves together in the next one.

One lane per kind of request. Units wait here, leave as soon as one of the lane's connections is free, and get their answers by
position. What a call can't have because somebody holds a row is set aside and asked for again, all of it in one call, without holding
up anything else: after 4 ms, doubling to 50; every third round waits 20 ms for the unit that has waited longest.
Never runs SQL itself: a subclass says how a batch becomes one call. Invariant: every unit submitted is settled exactly once.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

import asyncpg

from queenmq.clock import Clock
from queenmq.errors import Busy, QueenError, Unavailable
from queenmq.metrics import LaneMetrics
from queenmq.postgres.pool import LostConnection, translate

log = logging.getLogger(__name__)

DEADLINE_SECONDS = 10.0
ASIDE_FIRST = 0.004
ASIDE_MOST = 0.05
HELD_TOO_LONG = "somebody holds a row of this partition for too long: send again later"
# A second call leaves beside the first only with so much to carry, or when the first takes long: a call costs what many items cost.
SECOND_WEIGHT = 256
SECOND_SECONDS = 0.005
CLOSE_SECONDS = 1.0
LOST_TRIES, LOST_PAUSE = 5, 0.005
STOPPING = "the server is stopping"
CUT_OFF = "the server stopped while this was under way: whether it was done is not known"


class Unit(ABC):
    """Something that a lane carries: it knows its weight, its deadline and how to take bad news."""

    __slots__ = ("deadline", "tries")
    weight = 1
    deadline: float
    tries: int

    @property
    def bytes(self) -> int:
        return 0

    @property
    @abstractmethod
    def done(self) -> bool:
        """Nobody waits for it any more."""

    @abstractmethod
    def fail(self, error: QueenError) -> None:
        """Settles it with an error."""


U = TypeVar("U", bound=Unit)


class Lane(ABC, Generic[U]):
    """Waiting units, the calls under way, and what was set aside."""

    max_units = 20_000
    max_bytes = 32 << 20
    most_waiting = 400_000
    most_waiting_bytes = 512 << 20

    def __init__(self, name: str, width: int, clock: Clock, metrics: LaneMetrics) -> None:
        self.name = name
        self.width = width
        self.clock = clock
        self.metrics = metrics
        self.waiting_units = 0
        self.waiting_bytes = 0
        self._queue: deque[U] = deque()
        self.flying = 0
        self._scheduled = False
        self._departed = float("-inf")
        self._later: asyncio.TimerHandle | None = None
        self._closed = False
        self._aside: list[U] = []
        self._aside_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def call(self, units: list[U], skip: bool) -> list[U]:
        """One call to the database: settles what it could, answers what somebody holds. Raises when it had no effect."""

    def repeatable(self, unit: U) -> bool:
        """Whether the unit may be sent again when it isn't known whether it was done."""
        return False

    def submit(self, units: Iterable[U]) -> None:
        """Takes units in; Unavailable when the lane is full or closed, and then it took none."""
        units = list(units)
        weight = sum(unit.weight for unit in units)
        size = sum(unit.bytes for unit in units)
        if self._closed:
            raise Unavailable(STOPPING)
        if self.waiting_units + len(self._aside) + weight > self.most_waiting or self.waiting_bytes + size > self.most_waiting_bytes:
            self.metrics.refused += 1
            raise Unavailable(f"too much is waiting for the database ({self.waiting_units} {self.name} items): send again later")
        deadline = self.clock.monotonic() + DEADLINE_SECONDS
        for unit in units:
            unit.deadline = deadline
            unit.tries = 0
        self.waiting_units += weight
        self.waiting_bytes += size
        self.enqueue(units)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def submit_one(self, unit: U) -> None:
        """`submit` for the one unit of a small request."""
        weight = unit.weight
        if (
            self._closed
            or self._aside
            or self.waiting_units + weight > self.most_waiting
            or self.waiting_bytes + unit.bytes > self.most_waiting_bytes
        ):
            self.submit((unit,))
            return
        unit.deadline = self.clock.monotonic() + DEADLINE_SECONDS
        unit.tries = 0
        self.waiting_units += weight
        self.waiting_bytes += unit.bytes
        self.enqueue([unit])
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def enqueue(self, units: list[U]) -> None:
        """Puts units where `take` finds them."""
        self._queue.extend(units)

    def take(self) -> list[U]:
        """The next batch; empty when nothing may leave now."""
        batch: list[U] = []
        weight = size = 0
        queue = self._queue
        while queue:
            unit = queue[0]
            weight += unit.weight
            size += unit.bytes
            if batch and (weight > self.max_units or size > self.max_bytes):
                break
            batch.append(queue.popleft())
        return batch

    def abandon(self) -> list[U]:
        """Everything that waits, whether it might leave or not; for the end."""
        found = list(self._queue)
        self._queue.clear()
        return found

    def landed(self, units: list[U]) -> None:
        """The batch's call is over (set-aside units excepted: they still count as under way)."""

    def _may_leave(self) -> bool:
        """Whether another call may leave now."""
        if not self.flying:
            return True
        if self.flying >= self.width:
            return False
        if self.waiting_units >= SECOND_WEIGHT:
            return True
        left = self._departed + SECOND_SECONDS - self.clock.monotonic()
        if left <= 0:
            return True
        if self._later is None and self.waiting_units:
            self._later = asyncio.get_running_loop().call_later(left, self._flush_late)
        return False

    def _flush_late(self) -> None:
        self._later = None
        self._flush()

    def _flush(self) -> None:
        self._scheduled = False
        if self._closed:
            self._fail(self.abandon(), Unavailable(STOPPING))
            return
        while self._may_leave():
            batch = self.take()
            if not batch:
                return
            self.waiting_units -= sum(unit.weight for unit in batch)
            self.waiting_bytes -= sum(unit.bytes for unit in batch)
            self.flying += 1
            self._departed = self.clock.monotonic()
            task = asyncio.create_task(self._fly(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _fly(self, batch: list[U]) -> None:
        started = self.clock.monotonic()
        held: list[U] = []
        try:
            held = await self._attempt(batch, skip=False)
        finally:
            self.metrics.call(self.clock.monotonic() - started, sum(unit.weight for unit in batch))
            self.flying -= 1
            if held:
                self._set_aside(held)
                away = set(map(id, held))
                self.landed([unit for unit in batch if id(unit) not in away])
            else:
                self.landed(batch)
            self._flush()

    async def _attempt(self, units: list[U], skip: bool) -> list[U]:
        """One call with everything that may go wrong: never raises, answers what was set aside."""
        try:
            return await self.call(units, skip)
        except Busy:
            self.metrics.busy += 1
            return units if skip else await self._attempt(units, True)
        except LostConnection as error:
            again = [unit for unit in units if not unit.done and unit.tries < LOST_TRIES and self.repeatable(unit)]
            kept = set(map(id, again))
            self._fail([unit for unit in units if id(unit) not in kept], error)
            for unit in again:
                unit.tries += 1
            if not again:
                return []
            # Connections break together: the next one may be dead as well, and is known to be in a moment.
            await asyncio.sleep(LOST_PAUSE * 2 ** max(unit.tries for unit in again))
            return await self._attempt(again, skip)
        except QueenError as error:
            return await self._one_by_one(units, skip, error)
        except asyncio.CancelledError:
            self._fail(units, LostConnection(CUT_OFF))
            raise
        except Exception as error:
            known = translate(error)
            if known is None:
                log.exception("a %s call failed", self.name)
                known = QueenError(f"internal error: {type(error).__name__}; the server's log says more")
            if not isinstance(error, asyncpg.PostgresError):
                # Not the database's: it may have been done, and is not done twice.
                self._fail([unit for unit in units if not self.repeatable(unit)], known)
                units = [unit for unit in units if not unit.done]
            return await self._one_by_one(units, skip, known)

    async def _one_by_one(self, units: list[U], skip: bool, error: QueenError) -> list[U]:
        """A call that failed for one bad unit must not fail the others: each goes alone."""
        if len(units) <= 1 or isinstance(error, Unavailable):
            # An earlier try may have been done: then "nothing was done" would be a lie.
            self._fail([unit for unit in units if unit.tries], LostConnection(str(error)) if isinstance(error, Unavailable) else error)
            self._fail(units, error)
            return []
        held: list[U] = []
        for unit in units:
            held.extend(await self._attempt([unit], skip))
        return held

    @staticmethod
    def _fail(units: Iterable[U], error: QueenError) -> None:
        for unit in units:
            if not unit.done:
                unit.fail(error)

    # what was set aside

    def _set_aside(self, units: list[U]) -> None:
        self.metrics.set_aside += len(units)
        self._aside.extend(units)
        if self._aside_task is None:
            self._aside_task = asyncio.create_task(self._aside_rounds())

    async def _aside_rounds(self) -> None:
        pause, rounds = ASIDE_FIRST, 0
        units: list[U] = []
        try:
            while self._aside:
                await asyncio.sleep(pause)
                pause = min(pause * 2, ASIDE_MOST)
                rounds += 1
                units, self._aside = self._aside, []
                began = self.clock.monotonic()
                units = self._expire(units)
                if not units:
                    continue
                patient = units[:1] if rounds % 3 == 0 else []
                held = await self._attempt_patiently(patient)
                if len(units) > len(patient):
                    held += await self._attempt(units[len(patient) :], True)
                self._aside = held + self._aside
                away = set(map(id, held))
                over = [unit for unit in units if id(unit) not in away]
                if over:
                    pause = ASIDE_FIRST
                    self.metrics.waited(self.clock.monotonic() - began)
                    self.landed(over)
                    self._flush()
        finally:
            self._aside_task = None
            # Stopped in mid-round; else all of them are settled.
            self._fail([*units, *self._aside], LostConnection(CUT_OFF))

    async def _attempt_patiently(self, units: list[U]) -> list[U]:
        """Waits up to the lock timeout for the one unit that has waited longest."""
        if not units:
            return []
        try:
            return await self.call(units, False)
        except Busy:
            return units
        except LostConnection:
            return await self._attempt(units, True) if all(map(self.repeatable, units)) else self._lost(units)
        except QueenError:
            return await self._attempt(units, True)
        except Exception as error:
            return await self._one_by_one(units, True, translate(error) or QueenError(f"internal error: {type(error).__name__}"))

    def _lost(self, units: list[U]) -> list[U]:
        self._fail(units, LostConnection("the connection to the database was lost: whether it was done is not known"))
        return []

    def overdue(self, now: float) -> list[U]:
        """Takes out what waits behind something set aside and can't wait any longer."""
        return []

    def _expire(self, units: list[U]) -> list[U]:
        now = self.clock.monotonic()
        behind = self.overdue(now)
        self.waiting_units -= sum(unit.weight for unit in behind)
        self.waiting_bytes -= sum(unit.bytes for unit in behind)
        self._fail(behind, Busy(HELD_TOO_LONG))
        late = [unit for unit in units if unit.done or now >= unit.deadline]
        if late:
            self._fail(late, Busy(HELD_TOO_LONG))
            self.landed(late)
            self._flush()
        gone = set(map(id, late))
        return [unit for unit in units if id(unit) not in gone]

    async def drain(self) -> None:
        """Lets what is waiting leave, for a moment at most."""
        self._flush()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)

    async def close(self) -> None:
        """Ends what is under way within a moment; everything still waiting is refused."""
        self._closed = True
        if self._later is not None:
            self._later.cancel()
        self._fail(self.abandon(), Unavailable(STOPPING))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        ending = [*self._tasks, *([self._aside_task] if self._aside_task is not None else [])]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._fail(self.abandon(), Unavailable(STOPPING))
