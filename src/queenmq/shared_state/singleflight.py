"""One load at a time for each key: whoever asks meanwhile waits for the same one.

An exception reaches every waiter, a load that an invalidation overtook is thrown away and done again, and a miss is remembered for a
moment only. Never keeps values itself beyond that. Invariant: no waiter is left hanging, whatever the loader does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Singleflight(Generic[K, V]):
    """Loads under way, with a generation for each key that an invalidation moves on."""

    def __init__(self, load: Callable[[K], Awaitable[V]], keep: Callable[[K, V], None]) -> None:
        self._load = load
        self._keep = keep
        self._flights: dict[K, asyncio.Task[V]] = {}
        self._generation = 0

    def invalidate(self) -> None:
        """Whatever is being loaded now may be stale: its result is not kept."""
        self._generation += 1

    async def get(self, key: K) -> V:
        """The value, loaded once for all who wait. A waiter that is cancelled doesn't disturb the others."""
        task = self._flights.get(key)
        if task is None:
            task = self._flights[key] = asyncio.create_task(self._fly(key))
            task.add_done_callback(lambda done: self._landed(key, done))
        return await asyncio.shield(task)

    def _landed(self, key: K, task: asyncio.Task[V]) -> None:
        if self._flights.get(key) is task:
            del self._flights[key]
        if not task.cancelled():
            task.exception()

    async def _fly(self, key: K) -> V:
        while True:
            generation = self._generation
            value = await self._load(key)
            if generation == self._generation:
                self._keep(key, value)
                return value
