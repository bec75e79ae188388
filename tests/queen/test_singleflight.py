"""One load for all who ask: what each waiter gets when the load fails, is overtaken, or when one of them leaves (correction U9)."""

from __future__ import annotations

import asyncio

import pytest

from queenmq.clock import MovableClock
from queenmq.shared_state.queue_config_cache import MISS_SECONDS, QueueConfig, QueueConfigCache
from queenmq.shared_state.singleflight import Singleflight


class Loader:
    """Loads that end when the test says so."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.results: list[asyncio.Future[str]] = []
        self.kept: dict[str, str] = {}
        self.flight: Singleflight[str, str] = Singleflight(self.load, self.kept.__setitem__)

    async def load(self, key: str) -> str:
        self.calls.append(key)
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.results.append(future)
        return await future

    async def ask(self, key: str = "k") -> asyncio.Task[str]:
        task = asyncio.create_task(self.flight.get(key))
        await turns()
        return task


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_all_who_ask_meanwhile_wait_for_one_load() -> None:
    loader = Loader()
    tasks = [await loader.ask() for _ in range(5)]
    other = await loader.ask("other")
    assert loader.calls == ["k", "other"]
    loader.results[0].set_result("v")
    loader.results[1].set_result("w")
    assert await asyncio.gather(*tasks) == ["v"] * 5 and await other == "w" and loader.kept == {"k": "v", "other": "w"}


async def test_a_failing_load_reaches_every_waiter_and_the_next_one_loads_again() -> None:
    loader = Loader()
    tasks = [await loader.ask() for _ in range(5)]
    loader.results[0].set_exception(RuntimeError("away"))
    for task in tasks:
        with pytest.raises(RuntimeError, match="away"):
            await task
    again = await loader.ask()
    loader.results[1].set_result("v")
    assert await again == "v" and loader.calls == ["k", "k"]


async def test_a_load_that_an_invalidation_overtook_is_neither_kept_nor_answered() -> None:
    loader = Loader()
    before = await loader.ask()
    loader.flight.invalidate()
    after = await loader.ask()
    loader.results[0].set_result("stale")
    await turns()
    assert not before.done() and not loader.kept
    loader.results[1].set_result("fresh")
    assert await before == await after == "fresh" and loader.kept == {"k": "fresh"}


async def test_a_waiter_that_leaves_disturbs_nobody_and_a_load_that_all_left_is_still_kept() -> None:
    loader = Loader()
    first, second, third = [await loader.ask() for _ in range(3)]
    first.cancel()
    await turns()
    assert first.cancelled() and not second.done()
    second.cancel()
    third.cancel()
    await turns()
    loader.results[0].set_result("v")
    await turns()
    assert loader.kept == {"k": "v"} and loader.calls == ["k"]


async def test_a_load_that_fails_after_everybody_left_is_nobodys_unhandled_error() -> None:
    loader = Loader()
    task = await loader.ask()
    task.cancel()
    await turns()
    loader.results[0].set_exception(RuntimeError("nobody hears it"))
    await turns()
    again = await loader.ask()
    loader.results[1].set_result("v")
    assert await again == "v"


def config(version: int = 1, name: str = "orders", number: int = 1) -> QueueConfig:
    return QueueConfig(number, name, None, None, 0, 0, False, version)


async def test_options_are_asked_for_once_until_they_are_dropped() -> None:
    answers = [config(1), config(2), config(3)]
    asked: list[str] = []

    async def load(name: str) -> QueueConfig:
        asked.append(name)
        return answers[len(asked) - 1]

    cache = QueueConfigCache(load, MovableClock())
    assert [found.version for _ in range(3) if (found := await cache.get("orders"))] == [1, 1, 1] and len(asked) == 1
    assert cache.name_of(1) == "orders"
    cache.drop(1)
    assert cache.peek("orders") is None
    assert (await cache.get("orders") or config(0)).version == 2
    cache.drop_name("orders")
    assert (await cache.get("orders") or config(0)).version == 3 and len(asked) == 3


async def test_an_unknown_queue_is_remembered_for_a_moment_only() -> None:
    asked: list[str] = []
    clock = MovableClock()
    there = False

    async def load(name: str) -> QueueConfig | None:
        asked.append(name)
        return config() if there else None

    cache = QueueConfigCache(load, clock)
    assert await cache.get("orders") is None and await cache.get("orders") is None and len(asked) == 1
    there = True
    clock.move(MISS_SECONDS)
    assert await cache.get("orders") == config() and len(asked) == 2


async def test_whoever_makes_a_queue_forgets_that_it_was_missing() -> None:
    there = False

    async def load(name: str) -> QueueConfig | None:
        return config() if there else None

    cache = QueueConfigCache(load, MovableClock())
    assert await cache.get("orders") is None
    there = True
    cache.drop_name("orders")
    assert await cache.get("orders") == config()
