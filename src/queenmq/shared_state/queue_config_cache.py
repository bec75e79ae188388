"""Tier 1: what a server remembers of queues' options. Advisory: `push_messages` compares the version, a mismatch reloads.

Never decides alone what may be stored. Invariant: an entry is what the database said at some moment after the last invalidation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from queenmq.clock import Clock
from queenmq.shared_state.singleflight import Singleflight

MISS_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """The options that a server acts on before the database does."""

    id: int
    name: str
    namespace: str | None
    task: str | None
    max_size: int
    priority: int
    encrypted: bool
    version: int


class QueueConfigCache:
    """Options by queue name; unknown queues are remembered for a second."""

    def __init__(self, load: Callable[[str], Awaitable[QueueConfig | None]], clock: Clock) -> None:
        self._known: dict[str, QueueConfig] = {}
        self._names: dict[int, str] = {}
        self._misses: dict[str, float] = {}
        self._clock = clock
        self._flight: Singleflight[str, QueueConfig | None] = Singleflight(load, self._keep)

    def peek(self, name: str) -> QueueConfig | None:
        """Without asking anybody."""
        return self._known.get(name)

    def name_of(self, queue_id: int) -> str | None:
        return self._names.get(queue_id)

    async def get(self, name: str) -> QueueConfig | None:
        """The options; None for a queue that isn't there."""
        known = self._known.get(name)
        if known is not None:
            return known
        if self._clock.monotonic() < self._misses.get(name, float("-inf")):
            return None
        return await self._flight.get(name)

    def drop(self, queue_id: int) -> None:
        """Forgets a queue whose options changed, and whatever is being loaded now."""
        name = self._names.pop(queue_id, None)
        if name is not None:
            self._known.pop(name, None)
        self._flight.invalidate()

    def drop_name(self, name: str) -> None:
        """Forgets a queue by name."""
        known = self._known.pop(name, None)
        if known is not None:
            self._names.pop(known.id, None)
        self._misses.pop(name, None)
        self._flight.invalidate()

    def clear(self) -> None:
        """Forgets all: after the notifications were interrupted, anything may have changed."""
        self._known.clear()
        self._names.clear()
        self._misses.clear()
        self._flight.invalidate()

    def _keep(self, name: str, config: QueueConfig | None) -> None:
        if config is None:
            if len(self._misses) > 10_000:
                self._misses.clear()
            self._misses[name] = self._clock.monotonic() + MISS_SECONDS
            return
        self._known[name] = config
        self._names[config.id] = name
