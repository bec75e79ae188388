"""Consumers against the real server: order, failures, leases that live as long as the handler, stopping, outages."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from typing import Protocol

import pytest
from tests.client.names import own
from tests.client.peer import answer, misbehaving
from tests.client.relay import relay_to

from queenmq.client import BadRequest, Consumer, Message, Queen, SyncQueen, UsageError


class Server(Protocol):
    """What the `server` fixture gives."""

    url: str


@pytest.fixture
async def q(server: Server) -> AsyncIterator[Queen]:
    async with Queen(server.url) as queen:
        yield queen


async def running(q: Queen) -> asyncio.Task[None]:
    return asyncio.create_task(q.run(signals=False))


async def ended(run: asyncio.Task[None], q: Queen) -> None:
    q.stop()
    async with asyncio.timeout(20):
        await run


async def test_every_message_is_handled_in_its_partitions_order(q: Queen) -> None:
    for n in range(10):
        for partition in ("a", "b"):
            await q.push(own("orders"), n, partition=partition)
    seen: dict[str, list[int]] = {"a": [], "b": []}
    all_there = asyncio.Event()

    @q.consumer(own("orders"), group="billing", batch=4, concurrency=3)
    async def handle(message: Message) -> None:
        seen[message.partition].append(message.data)
        if sum(map(len, seen.values())) == 20:
            all_there.set()

    run = await running(q)
    async with asyncio.timeout(20):
        await all_there.wait()
    await ended(run, q)
    assert seen == {"a": list(range(10)), "b": list(range(10))}
    assert await q.pop(own("orders"), group="billing") == []


async def test_a_failure_is_told_and_order_is_kept_behind_it(q: Queen) -> None:
    await q.configure(own("orders"), retry_delay=10)
    await q.push_many(own("orders"), [1, 2, 3, 4])
    calls: list[tuple[int, int | None]] = []
    finished = asyncio.Event()

    @q.consumer(own("orders"), batch=4)
    async def handle(message: Message) -> None:
        calls.append((message.data, message.retry_count))
        if message.data == 2 and not message.retry_count:
            raise RuntimeError("out of stock")
        if message.data == 4:
            finished.set()

    run = await running(q)
    async with asyncio.timeout(20):
        await finished.wait()
    await ended(run, q)
    assert calls == [(1, 0), (2, 0), (2, 1), (3, 0), (4, 0)]


async def test_a_whole_batch_can_be_handled_at_once(q: Queen) -> None:
    await q.push_many(own("orders"), [1, 2, 3])
    batches: asyncio.Queue[list[Message]] = asyncio.Queue()

    @q.consumer(own("orders"), batch=10, each=False)
    async def handle(messages: list[Message]) -> None:
        await batches.put(messages)

    run = await running(q)
    assert [message.data for message in await asyncio.wait_for(batches.get(), 10)] == [1, 2, 3]
    await ended(run, q)
    assert await q.pop(own("orders")) == []


async def test_a_lease_lives_as_long_as_its_handler(q: Queen) -> None:
    await q.push(own("orders"), 1)
    begun, may_end = asyncio.Event(), asyncio.Event()
    calls = 0

    @q.consumer(own("orders"), lease_time=1)
    async def handle(message: Message) -> None:
        nonlocal calls
        calls += 1
        begun.set()
        await may_end.wait()

    run = await running(q)
    await asyncio.wait_for(begun.wait(), 10)
    # the lease alone would have ended twice by now
    assert await q.pop(own("orders"), wait=True, timeout=2.5) == []
    may_end.set()
    await ended(run, q)
    assert calls == 1
    assert await q.pop(own("orders"), wait=True, timeout=1.5) == []


async def test_stopping_finishes_what_runs_and_hands_back_the_rest_uncounted(q: Queen) -> None:
    await q.push_many(own("orders"), [1, 2, 3])
    begun, may_end = asyncio.Event(), asyncio.Event()

    @q.consumer(own("orders"), batch=3)
    async def handle(message: Message) -> None:
        begun.set()
        await may_end.wait()

    run = await running(q)
    await asyncio.wait_for(begun.wait(), 10)
    q.stop()
    may_end.set()
    await asyncio.wait_for(run, 10)
    assert [(message.data, message.retry_count) for message in await q.pop(own("orders"), batch=3)] == [(2, 0), (3, 0)]


async def test_a_handler_that_does_not_end_is_cancelled_at_the_limit_and_its_message_handed_back(q: Queen) -> None:
    await q.push(own("orders"), 1)
    begun = asyncio.Event()

    @q.consumer(own("orders"), stop_timeout=0.2)
    async def handle(message: Message) -> None:
        begun.set()
        await asyncio.Event().wait()

    run = await running(q)
    await asyncio.wait_for(begun.wait(), 10)
    await ended(run, q)
    assert [(message.data, message.retry_count) for message in await q.pop(own("orders"))] == [(1, 0)]


async def test_cancelling_the_run_hands_everything_back(q: Queen) -> None:
    await q.push_many(own("orders"), [1, 2])
    begun = asyncio.Event()

    @q.consumer(own("orders"), batch=2)
    async def handle(message: Message) -> None:
        begun.set()
        await asyncio.Event().wait()

    run = await running(q)
    await asyncio.wait_for(begun.wait(), 10)
    run.cancel()
    assert isinstance((await asyncio.gather(run, return_exceptions=True))[0], asyncio.CancelledError)
    assert [message.data for message in await q.pop(own("orders"), batch=2)] == [1, 2]


async def test_a_signal_stops_gracefully(q: Queen) -> None:
    await q.push(own("orders"), 1)

    @q.consumer(own("orders"))
    async def handle(message: Message) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    async with asyncio.timeout(20):
        await q.run()
    assert await q.pop(own("orders")) == []


async def test_an_outage_is_outlasted(server: Server) -> None:
    async with relay_to(server.url) as relay, Queen(relay.url, timeout=0.3) as q, Queen(server.url) as direct:
        seen: asyncio.Queue[int] = asyncio.Queue()

        @q.consumer(own("orders"))
        async def handle(message: Message) -> None:
            await seen.put(message.data)

        run = await running(q)
        await direct.push(own("orders"), 1)
        assert await asyncio.wait_for(seen.get(), 10) == 1
        await relay.away()
        await direct.push(own("orders"), 2)
        assert seen.empty()
        await relay.back()
        assert await asyncio.wait_for(seen.get(), 20) == 2
        await ended(run, q)


async def test_an_answer_given_during_an_outage_is_delivered_after_it(server: Server) -> None:
    async with relay_to(server.url) as relay, Queen(relay.url, timeout=0.2) as q, Queen(server.url) as direct:
        await direct.push(own("orders"), 1)
        handled = asyncio.Event()

        @q.consumer(own("orders"), lease_time=30)
        async def handle(message: Message) -> None:
            await relay.away()
            q.stop()
            handled.set()

        run = await running(q)
        await asyncio.wait_for(handled.wait(), 10)
        assert await direct.pop(own("orders"), wait=True, timeout=1) == []  # leased, while the answer meets closed doors
        assert not run.done()
        await relay.back()
        await asyncio.wait_for(run, 20)
        assert await direct.pop(own("orders")) == []


async def test_a_plain_function_around_a_coroutine_function_is_awaited(q: Queen) -> None:
    await q.push(own("orders"), 1)
    handled = asyncio.Event()

    async def work() -> None:
        handled.set()
        q.stop()

    @q.consumer(own("orders"))
    def handle(message: Message) -> object:
        return work()

    await asyncio.wait_for(q.run(signals=False), 20)
    assert handled.is_set()
    assert await q.pop(own("orders")) == []


async def test_a_question_the_server_refuses_ends_the_run_with_its_words() -> None:
    async with misbehaving(answer(400, {"error": "batch: at most 10000"})) as peer, Queen(peer.url) as q:

        @q.consumer(own("orders"), concurrency=2)
        async def handle(message: Message) -> None: ...

        with pytest.raises(BadRequest, match="at most 10000"):
            await asyncio.wait_for(q.run(signals=False), 10)


async def test_a_handlers_own_transaction_settles_its_message(q: Queen) -> None:
    await q.push(own("orders"), 7)

    @q.consumer(own("orders"), group="ship")
    async def handle(message: Message) -> None:
        async with q.transaction() as tx:
            tx.push(own("parcels"), message.data)
            tx.ack(message)
        q.stop()

    await asyncio.wait_for(q.run(signals=False), 20)
    assert [message.data for message in await q.pop(own("parcels"))] == [7]
    assert await q.pop(own("orders"), group="ship") == []


async def test_plain_functions_are_handlers_too_and_run_beside_each_other(q: Queen) -> None:
    for name in ("a", "b"):
        await q.push(own("orders"), name, partition=name)
    both = threading.Barrier(2, action=q.stop)

    @q.consumer(own("orders"), concurrency=2)
    def handle(message: Message) -> None:
        both.wait(10)

    await asyncio.wait_for(q.run(signals=False), 20)
    assert not both.broken


async def test_the_decorated_handler_can_still_be_called(q: Queen) -> None:
    @q.consumer(own("orders"))
    async def handle(message: str) -> str:
        return message.upper()

    assert isinstance(handle, Consumer)
    assert await handle("x") == "X"


async def test_a_wrong_consumer_is_found_where_it_is_written(q: Queen) -> None:
    with pytest.raises(UsageError):
        q.consumer()
    with pytest.raises(UsageError):
        q.consumer(own("orders"), concurrency=0)
    with pytest.raises(UsageError, match="no consumer"):
        await q.run()


# ------------------------------------------------------------ the iterator


async def test_the_iterator_acknowledges_when_the_next_message_is_asked_for(q: Queen) -> None:
    await q.push_many(own("orders"), [1, 2, 3])
    seen = []
    async with q.consume(own("orders"), batch=2) as messages:
        async for message in messages:
            seen.append(message.data)
            if len(seen) == 3:
                break
    assert seen == [1, 2, 3]
    assert await q.pop(own("orders"), batch=3) == []


async def test_an_exception_that_leaves_the_block_fails_its_message_and_hands_back_the_rest(q: Queen) -> None:
    await q.configure(own("orders"), retry_delay=1)
    await q.push_many(own("orders"), [1, 2])

    async def work() -> None:
        async with q.consume(own("orders"), batch=2) as messages:
            async for message in messages:
                message.data // 0

    with pytest.raises(ZeroDivisionError):
        await work()
    again = await q.pop(own("orders"), batch=2, wait=True, timeout=5)
    assert [(message.data, message.retry_count) for message in again] == [(1, 1), (2, 0)]


async def test_breaking_out_without_a_block_hands_the_message_back(q: Queen) -> None:
    await q.push(own("orders"), 1)
    async for message in q.consume(own("orders")):
        assert message.data == 1
        break
    [again] = await q.pop(own("orders"), wait=True, timeout=10)
    assert (again.data, again.retry_count) == (1, 0)


def test_plain_code_iterates_and_serves(server: Server) -> None:
    with SyncQueen(server.url) as q:
        q.push_many(own("orders"), [1, 2, 3])
        seen = []
        with q.consume(own("orders"), batch=2) as messages:
            for message in messages:
                seen.append(message.data)
                if message.data == 2:
                    break
        for message in q.consume(own("orders")):
            assert message.data == 3
            q.ack(message)
            break

        @q.consumer(own("orders"))
        def handle(message: Message) -> None:
            seen.append(message.data)
            q.stop()

        q.push(own("orders"), 4)
        q.run()
        assert seen == [1, 2, 4]
        assert q.pop(own("orders")) == []
