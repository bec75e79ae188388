"""Transaction ids grow whatever the clock does; repetition is allowed only where nothing can happen twice."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.client import retry, wire
from queenmq.client.errors import BadRequest, NotReachable, OutcomeUnknown, QueenClientError, Unavailable
from queenmq.client.ids import TransactionIds
from queenmq.clock import MovableClock


class Jumping(MovableClock):
    """A wall clock that is set to whatever it is told."""

    now = 0.0

    def wall(self) -> float:
        return self.now


@given(moments=st.lists(st.floats(0, 4_000_000_000), min_size=1, max_size=50), bits=st.integers(0))
def test_ids_grow_whatever_the_clock_and_the_random_numbers_do(moments: list[float], bits: int) -> None:
    clock = Jumping()
    ids = TransactionIds(clock, lambda count: bits & ((1 << count) - 1))
    made = []
    for clock.now in moments:
        made += [ids.make(), ids.make()]
    assert made == sorted(set(made))
    assert {uuid.UUID(one).version for one in made} == {7}
    assert {uuid.UUID(one).variant for one in made} == {uuid.RFC_4122}


def test_the_tail_runs_over_into_the_time_and_still_grows() -> None:
    clock = Jumping()
    ids = TransactionIds(clock, lambda count: (1 << count) - 1)
    ids._tail = (1 << 74) - 2
    before = ids.make()
    assert ids.make() > before or ids._milliseconds == 1


PUSH = wire.push([wire.push_item("q", 1, "t")])
POP = wire.pop(wire.Selection(queue="q"))
TRANSACTION = wire.transaction([wire.PushOperation(items=[wire.push_item("q", 1, "t")])])


@pytest.mark.parametrize(
    ("request_", "failure", "allowed"),
    [
        (PUSH, NotReachable(""), True),
        (POP, NotReachable(""), True),
        (TRANSACTION, NotReachable(""), True),
        (PUSH, OutcomeUnknown(""), True),
        (POP, OutcomeUnknown(""), False),
        (TRANSACTION, OutcomeUnknown(""), False),
        (PUSH, Unavailable("", status=503), True),
        (POP, Unavailable("", status=503), True),
        (TRANSACTION, Unavailable("", status=503), False),
        (TRANSACTION, Unavailable("", status=503, nothing_done=True), True),
        (PUSH, Unavailable("", status=504), True),
        (POP, Unavailable("", status=504), False),
        (TRANSACTION, Unavailable("", status=502), False),
        (PUSH, BadRequest("", status=400), False),
    ],
)
def test_only_what_cannot_happen_twice_is_repeated(request_: wire.Request, failure: QueenClientError, allowed: bool) -> None:
    assert retry.may_repeat(request_, failure) is allowed


@given(attempt=st.integers(1, 10_000), draw=st.floats(0, 1, exclude_max=True))
def test_pauses_grow_to_a_bound_and_are_spread(attempt: int, draw: float) -> None:
    pause = retry.pause(attempt, draw)
    assert 0 < pause <= retry.LONGEST_PAUSE
    assert pause >= retry.pause(1, draw)


@given(draw=st.floats(0, 1, exclude_max=True), seconds=st.floats(0, 1000))
def test_what_the_server_asks_for_is_the_least(draw: float, seconds: float) -> None:
    assert seconds <= retry.pause(3, draw, seconds) <= seconds * 1.2
