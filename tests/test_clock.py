"""The clocks: the machine's only grows, the tests' stands still until it is moved."""

from __future__ import annotations

import time

import pytest

from queenmq.clock import Clock, MovableClock


def test_the_machine_clock_tells_the_time_and_never_goes_back() -> None:
    clock = Clock()
    before = time.time()
    assert before <= clock.wall() <= time.time()
    readings = [clock.monotonic() for _ in range(100)]
    assert readings == sorted(readings)


def test_a_movable_clock_stands_still_until_moved() -> None:
    clock = MovableClock(wall=1000.0)
    assert (clock.wall(), clock.monotonic()) == (1000.0, 0.0)
    clock.move(1.5)
    assert (clock.wall(), clock.monotonic()) == (1001.5, 1.5)


def test_a_movable_clock_moves_forward_only() -> None:
    with pytest.raises(ValueError, match="forward"):
        MovableClock().move(-1)
