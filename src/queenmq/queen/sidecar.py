"""The sidecar: everything that a server says to the database about messages, in batches, one lane a kind.

Owns the lanes; knows nothing of HTTP. Never waits for one caller on behalf of another. Invariant: at most `connections` calls are under
way at any moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from uuid import UUID

from queenmq.clock import Clock
from queenmq.errors import Unavailable
from queenmq.metrics import Metrics
from queenmq.postgres.pool import Database
from queenmq.queen.ack_lane import AckLane, AckUnit, LeaseLane, LeaseUnit
from queenmq.queen.directory import Directory
from queenmq.queen.pop_lane import PopLane
from queenmq.queen.push_lane import PushLane, PushUnit
from queenmq.queen.transaction_lane import TransactionLane, TransactionUnit

AGAIN_SECONDS = 0.5
AGAIN_MOST = 240


class Sidecar:
    """The lanes of one server."""

    def __init__(
        self,
        database: Database,
        directory: Directory,
        clock: Clock,
        metrics: Metrics,
        *,
        stored: Callable[[set[str]], None],
        acked: Callable[[list[AckUnit]], None],
        freed: Callable[[list[int]], None],
        recheck: Callable[[PushUnit], Awaitable[None]],
        committed: Callable[[TransactionUnit], None],
    ) -> None:
        self._closing = False
        self._again: dict[UUID, asyncio.TimerHandle] = {}
        self.push = PushLane(database, directory, clock, metrics.lane("push"), stored=stored, recheck=recheck)
        self.pop = PopLane(database, clock, metrics.lane("pop"), abandoned=self.release)
        self.ack = AckLane(database, clock, metrics.lane("ack"), freed=acked)
        self.lease = LeaseLane(database, clock, metrics.lane("lease"), freed=freed)
        self.transaction = TransactionLane(database, directory, clock, metrics.lane("transaction"), recheck=recheck, over=committed)

    def release(self, lease: UUID) -> asyncio.Future[bool]:
        """Gives a lease back without counting an attempt; nobody needs to wait for it."""
        return self._end(lease, "release")

    def settle(self, lease: UUID) -> asyncio.Future[bool]:
        """Ends a lease as if all of its messages had been completed."""
        return self._end(lease, "settle")

    async def extend(self, lease: UUID, seconds: int) -> tuple[datetime | None, datetime | None]:
        """Prolongs a lease: its new and its old end, both None when it isn't live."""
        unit = LeaseUnit(lease, "extend", seconds, asyncio.get_running_loop().create_future())
        self.lease.submit([unit])
        await unit.future
        return unit.until, unit.before

    def _end(self, lease: UUID, action: str) -> asyncio.Future[bool]:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._try_to_end(lease, action, future, AGAIN_MOST)
        return future

    def _try_to_end(self, lease: UUID, action: str, future: asyncio.Future[bool], tries: int) -> None:
        """Said again while the database is away: else what was claimed for nobody stays leased, and what was delivered comes again."""
        loop = asyncio.get_running_loop()
        unit = LeaseUnit(lease, action, 0, loop.create_future())

        def over(done: asyncio.Future[bool]) -> None:
            error = None if done.cancelled() else done.exception()
            if isinstance(error, Unavailable) and tries and not self._closing:
                self._again[lease] = loop.call_later(AGAIN_SECONDS, self._try_to_end, lease, action, future, tries - 1)
            elif not future.done():
                if error is not None:
                    future.set_exception(error)
                    future.exception()
                else:
                    future.set_result(not done.cancelled() and done.result())

        self._again.pop(lease, None)
        unit.future.add_done_callback(over)
        try:
            self.lease.submit([unit])
        except Unavailable as error:
            unit.fail(error)

    async def close(self) -> None:
        """Claims first, leases last: what was claimed for nobody is still given back."""
        self._closing = True
        for timer in self._again.values():
            timer.cancel()
        await asyncio.gather(*(lane.close() for lane in (self.push, self.pop, self.ack, self.transaction)))
        await self.lease.drain()
        await self.lease.close()
