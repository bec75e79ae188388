"""Transaction ids, made by the client: UUID version 7, ordered by time, never the same twice.

They make a push repeatable: the server answers `duplicate` for an id that it has. Does no I/O.
Invariant: each id of one maker is greater than the one before, also within a millisecond and when the wall clock goes back.
"""

from __future__ import annotations

import secrets
import threading
import uuid
from collections.abc import Callable

from queenmq.clock import Clock

_TAIL_BITS = 74
_VERSION, _VARIANT = 0x7, 0x2


class TransactionIds:
    """A maker of ids; `random_bits(n)` gives n random bits."""

    def __init__(self, clock: Clock, random_bits: Callable[[int], int] = secrets.randbits) -> None:
        self._clock = clock
        self._random_bits = random_bits
        self._milliseconds = 0
        self._tail = 0
        # a SyncQueen's transactions are filled in their callers' threads
        self._one_at_a_time = threading.Lock()

    def make(self) -> str:
        """A new id, greater than all before it."""
        with self._one_at_a_time:
            return self._make()

    def _make(self) -> str:
        now = int(self._clock.wall() * 1000)
        if now > self._milliseconds:
            self._milliseconds = now
            # the top bit is left free, so that counting on within the millisecond has room
            self._tail = self._random_bits(_TAIL_BITS - 1)
        else:
            self._tail += 1 + self._random_bits(32)
            if self._tail >> _TAIL_BITS:
                self._milliseconds += 1
                self._tail = self._random_bits(_TAIL_BITS - 1)
        high, low = self._tail >> 62, self._tail & ((1 << 62) - 1)
        number = (self._milliseconds & ((1 << 48) - 1)) << 80 | _VERSION << 76 | high << 64 | _VARIANT << 62 | low
        return str(uuid.UUID(int=number))
