"""What a lane makes of everything that a call may end in, on a lane whose calls do what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import asyncpg
import pytest
from tests.queen.support import until

from queenmq.clock import Clock
from queenmq.errors import BadRequest, Busy, QueenError, Unavailable
from queenmq.metrics import LaneMetrics
from queenmq.postgres.pool import LostConnection
from queenmq.queen.lane import LOST_TRIES, Lane, Unit


class Parcel(Unit):
    """A unit that remembers what became of it."""

    def __init__(self, name: str, *, safe: bool = True) -> None:
        self.name = name
        self.safe = safe
        self.over: asyncio.Future[QueenError | None] = asyncio.get_running_loop().create_future()

    @property
    def done(self) -> bool:
        return self.over.done()

    def settle(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def fail(self, error: QueenError) -> None:
        if not self.over.done():
            self.over.set_result(error)


Behaviour = Callable[[list[Parcel], bool, int], list[Parcel]]


class Scripted(Lane[Parcel]):
    """Each call is recorded and does what the behaviour says: settle what it doesn't answer, or raise."""

    def __init__(self, behaviour: Behaviour, width: int = 2) -> None:
        super().__init__("scripted", width, Clock(), LaneMetrics())
        self.behaviour = behaviour
        self.calls: list[tuple[list[str], bool]] = []

    def repeatable(self, unit: Parcel) -> bool:
        return unit.safe

    async def call(self, units: list[Parcel], skip: bool) -> list[Parcel]:
        self.calls.append(([unit.name for unit in units], skip))
        await asyncio.sleep(0)
        held = self.behaviour(units, skip, len(self.calls))
        for unit in units:
            if unit not in held:
                unit.settle()
        return held


async def run(lane: Scripted, *parcels: Parcel) -> list[str]:
    """What became of each: `ok` or the kind of its error."""
    lane.submit(parcels)
    found = await asyncio.wait_for(asyncio.gather(*(parcel.over for parcel in parcels)), 20)
    await lane.close()
    return ["ok" if error is None else type(error).__name__ for error in found]


def raising(error: Exception, times: int = 1) -> Behaviour:
    """The first calls fail so."""

    def behave(units: list[Parcel], skip: bool, number: int) -> list[Parcel]:
        if number <= times:
            raise error
        return []

    return behave


async def test_units_of_one_turn_leave_together_and_later_ones_with_the_next_call() -> None:
    lane = Scripted(lambda units, skip, number: [])
    first, second = [Parcel("a"), Parcel("b")], [Parcel("c"), Parcel("d"), Parcel("e")]
    lane.submit(first[:1])
    lane.submit(first[1:])
    await asyncio.sleep(0)
    for parcel in second:
        lane.submit([parcel])
    await asyncio.gather(*(parcel.over for parcel in (*first, *second)))
    assert [names for names, _ in lane.calls] == [["a", "b"], ["c", "d", "e"]] and lane.waiting_units == 0


async def test_a_lost_call_is_made_again_for_what_may_be_repeated_only() -> None:
    lane = Scripted(raising(LostConnection("gone")))
    assert await run(lane, Parcel("a"), Parcel("b", safe=False), Parcel("c")) == ["ok", "LostConnection", "ok"]
    assert lane.calls == [(["a", "b", "c"], False), (["a", "c"], False)]


async def test_a_call_that_is_lost_again_and_again_is_given_up() -> None:
    lane = Scripted(raising(LostConnection("gone"), 1000))
    assert await run(lane, Parcel("a")) == ["LostConnection"] and len(lane.calls) == LOST_TRIES + 1


async def test_what_may_have_been_done_is_never_said_to_be_undone() -> None:
    def behave(units: list[Parcel], skip: bool, number: int) -> list[Parcel]:
        raise LostConnection("gone") if number == 1 else Unavailable("no connection")

    assert await run(Scripted(behave), Parcel("a")) == ["LostConnection"]
    assert await run(Scripted(raising(Unavailable("no connection"), 9)), Parcel("a")) == ["Unavailable"]


async def test_a_call_that_fails_for_one_bad_unit_is_made_for_each_alone() -> None:
    def behave(units: list[Parcel], skip: bool, number: int) -> list[Parcel]:
        if any(unit.name == "bad" for unit in units):
            raise BadRequest("this one")
        return []

    lane = Scripted(behave)
    assert await run(lane, Parcel("a"), Parcel("bad"), Parcel("b", safe=False)) == ["ok", "BadRequest", "ok"]
    assert lane.calls == [(["a", "bad", "b"], False), (["a"], False), (["bad"], False), (["b"], False)]


async def test_a_database_that_is_away_is_not_asked_once_for_each() -> None:
    lane = Scripted(raising(Unavailable("away"), 9))
    assert await run(lane, *(Parcel(str(n)) for n in range(50))) == ["Unavailable"] * 50 and len(lane.calls) == 1


async def test_after_an_error_of_the_database_each_goes_alone_and_after_one_of_ours_only_what_may_be_repeated() -> None:
    lane = Scripted(raising(asyncpg.InternalServerError("defect")))
    assert await run(lane, Parcel("a"), Parcel("b", safe=False)) == ["ok", "ok"]
    lane = Scripted(raising(RuntimeError("ours")))
    assert await run(lane, Parcel("a"), Parcel("b", safe=False), Parcel("c")) == ["ok", "QueenError", "ok"]
    assert lane.calls == [(["a", "b", "c"], False), (["a"], False), (["c"], False)]


async def test_a_busy_call_skips_and_what_is_held_is_asked_for_apart_until_it_is_free() -> None:
    def behave(units: list[Parcel], skip: bool, number: int) -> list[Parcel]:
        held = [unit for unit in units if unit.name == "held" and number < 12]
        if held and not skip:
            raise Busy("somebody")
        return held

    lane = Scripted(behave)
    parcels = [Parcel("a"), Parcel("held"), Parcel("b")]
    lane.submit(parcels)
    await asyncio.gather(parcels[0].over, parcels[2].over)
    assert not parcels[1].done and lane.calls == [(["a", "held", "b"], False), (["a", "held", "b"], True)]
    later = Parcel("later")
    lane.submit([later])
    await later.over
    assert await asyncio.wait_for(parcels[1].over, 20) is None
    apart = lane.calls[3:]
    assert {tuple(names) for names, _ in apart} == {("held",)} and any(not skip for _, skip in apart) and lane.metrics.set_aside >= 1
    assert all(names for names, _ in lane.calls), "no call is made for nothing"
    await lane.close()


async def test_what_is_held_past_its_deadline_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queenmq.queen.lane.DEADLINE_SECONDS", 0.1)
    assert await run(Scripted(lambda units, skip, number: units), Parcel("a")) == ["Busy"]


async def test_the_end_leaves_nobody_waiting_whatever_the_calls_do() -> None:
    never = asyncio.Event()

    class Hanging(Scripted):
        async def call(self, units: list[Parcel], skip: bool) -> list[Parcel]:
            if units[0].name == "aside" and skip is False:
                raise Busy("somebody")
            if units[0].name == "aside" and len(self.calls) < 1:
                self.calls.append((["aside"], skip))
                return units
            await never.wait()
            return []

    lane = Hanging(lambda units, skip, number: [], width=1)
    aside, flying, waiting = Parcel("aside"), Parcel("flying"), Parcel("waiting")
    lane.submit([aside])
    await until(lambda: bool(lane.calls))
    lane.submit([flying])
    await asyncio.sleep(0)
    lane.submit([waiting])
    before = asyncio.get_running_loop().time()
    await lane.close()
    assert asyncio.get_running_loop().time() - before < 3
    kinds = [type(await asyncio.wait_for(parcel.over, 1)) for parcel in (aside, flying, waiting)]
    assert kinds == [LostConnection, LostConnection, Unavailable]
    with pytest.raises(Unavailable, match="stopping"):
        lane.submit([Parcel("late")])
