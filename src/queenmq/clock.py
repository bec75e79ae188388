"""Time, injected: nothing in the package asks the operating system for the time but through a Clock.

Wall time is for people and replies, monotonic time for waits. Lease ends, delays and retries are decided by `queen.now()` in SQL.
Invariant: `monotonic()` never goes back, whatever the wall does.
"""

from __future__ import annotations

import time


class Clock:
    """The machine's clock."""

    def wall(self) -> float:
        """Seconds since 1970, UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds from an arbitrary start that only grow."""
        return time.monotonic()


class MovableClock(Clock):
    """For tests: stands still until moved."""

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self._wall = wall
        self._monotonic = 0.0

    def wall(self) -> float:
        return self._wall

    def monotonic(self) -> float:
        return self._monotonic

    def move(self, seconds: float) -> None:
        """Both clocks go forward together."""
        if seconds < 0:
            raise ValueError("a clock moves forward")
        self._wall += seconds
        self._monotonic += seconds
