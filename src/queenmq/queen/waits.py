"""Pops that wait: woken by what happens in their queue, and looked after every 100 ms all the same.

A generation per queue is compared before parking, so a notification that lands while the claim runs is not lost. Never claims anything
itself. Invariant: a waiter leaves no trace when it ends, however it ends.
"""

from __future__ import annotations

import asyncio

RECHECK_SECONDS = 0.1


class Waits:
    """Generations and parked futures by queue name; the name None stands for every queue."""

    def __init__(self) -> None:
        self._generations: dict[str | None, int] = {}
        self._waiters: dict[str | None, int] = {}
        self._parked: dict[str | None, set[asyncio.Future[None]]] = {}
        self._count = 0
        self._closed = False

    @property
    def waiting(self) -> int:
        return self._count

    @property
    def closed(self) -> bool:
        return self._closed

    def generation(self, queue: str | None) -> int:
        return self._generations.get(queue, 0)

    def notify(self, queue: str | None) -> None:
        """Something happened in the queue (None: in any)."""
        if queue is None:
            # Not only the parked: a notification that lands while a claim runs counts for it too.
            for each in list(self._generations):
                self._wake(each)
            return
        self._wake(queue)
        self._wake(None)

    def _wake(self, queue: str | None) -> None:
        if queue in self._generations:
            self._generations[queue] += 1
        for future in self._parked.pop(queue, ()):
            if not future.done():
                future.set_result(None)

    def enter(self, queue: str | None) -> int:
        """Begins a wait: the generation to compare with."""
        self._count += 1
        self._waiters[queue] = self._waiters.get(queue, 0) + 1
        return self._generations.setdefault(queue, 0)

    def leave(self, queue: str | None) -> None:
        self._count -= 1
        self._waiters[queue] -= 1
        if not self._waiters[queue]:
            del self._waiters[queue], self._generations[queue]

    async def park(self, queue: str | None, generation: int, seconds: float) -> int:
        """Waits for a notification later than the generation, or so long; answers the generation now."""
        if not self._closed and self.generation(queue) == generation:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._parked.setdefault(queue, set()).add(future)
            timer = asyncio.get_running_loop().call_later(max(seconds, 0.0), _finish, future)
            try:
                await future
            finally:
                timer.cancel()
                parked = self._parked.get(queue)
                if parked is not None:
                    parked.discard(future)
                    if not parked:
                        del self._parked[queue]
        return self.generation(queue)

    def close(self) -> None:
        """Every waiter is answered now."""
        self._closed = True
        self.notify(None)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
