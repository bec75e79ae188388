"""Consumers: a handler served by several workers (`Consumer`), and messages as an async iterator (`Messages`).

Order is kept: after a failure, the later messages of the same partition in the batch are handed back uncounted, and come again behind it.
Never acknowledges what the handler didn't finish. Invariant: `run` ends only when no handler of it is running any more (threads apart).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
import random
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from queenmq.client import retry, wire
from queenmq.client.errors import QueenClientError, Unavailable, UsageError
from queenmq.client.hand import InHand, error_text
from queenmq.client.message import Message, Status

if TYPE_CHECKING:
    from queenmq.client.queen import Queen

log = logging.getLogger("queenmq.client")

Handler = Callable[[Any], Any]
_GIVE_BACK_SECONDS = 5.0


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How to consume: what to ask for, the lease, the workers."""

    ask: wire.Selection
    lease_time: int
    wait: float
    concurrency: int = 1
    each: bool = True
    stop_timeout: float = 30.0

    def __post_init__(self) -> None:
        if self.lease_time < 1 or self.concurrency < 1:
            raise UsageError(f"lease_time is {self.lease_time} and concurrency is {self.concurrency}", hint="both are at least 1")


class Consumer:
    """Serves one handler: a coroutine function, or a plain function, which then runs in a thread.

    `concurrency` workers pop `batch` messages each under a lease of `lease_time` seconds, which is extended while the handler works.
    A handler that returns acknowledges; one that raises gives the message back as failed, with the error's text.
    """

    def __init__(self, queen: Queen, handler: Handler, terms: Terms) -> None:
        self.handler = handler
        self.terms = terms
        self._queen = queen
        self._is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
        self._stopping = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._threads: ThreadPoolExecutor | None = None

    def __call__(self, argument: Any) -> Any:
        """The handler itself, as it was before it was decorated."""
        return self.handler(argument)

    async def run(self) -> None:
        """Works until `stop()`; raises what the server holds against the question itself (a wrong option, no right)."""
        if not self._idle.is_set():
            raise UsageError("this consumer is already running")
        self._idle.clear()
        if not self._is_async:
            self._threads = ThreadPoolExecutor(self.terms.concurrency, thread_name_prefix="queenmq-handler")
        workers = [asyncio.create_task(self._work(), name=f"queenmq-worker-{n}") for n in range(self.terms.concurrency)]
        stop = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([stop, *workers], return_when=asyncio.FIRST_COMPLETED)
            self._stopping.set()
            await asyncio.wait(workers, timeout=self.terms.stop_timeout)
        finally:
            self._stopping.set()
            for task in (stop, *workers):
                task.cancel()
            ended = await asyncio.gather(stop, *workers, return_exceptions=True)
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)
            self._stopping.clear()
            self._idle.set()
        for outcome in ended[1:]:
            if isinstance(outcome, Exception):
                raise outcome

    def stop(self) -> None:
        """No more pops; handlers that run have `stop_timeout` seconds, the messages not begun are handed back."""
        self._stopping.set()

    async def stopped(self) -> None:
        """Stops, and returns when the last handler has ended."""
        if not self._idle.is_set():
            self.stop()
            await self._idle.wait()

    @staticmethod
    async def run_all(consumers: Sequence[Consumer], *, signals: bool) -> None:
        """Runs several until all have stopped; an error of one stops the others and is raised."""

        def stop_all() -> None:
            for consumer in consumers:
                consumer.stop()

        with _on_signals(stop_all) if signals else contextlib.nullcontext():
            tasks = [asyncio.create_task(consumer.run()) for consumer in consumers]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
                if any(task.done() and task.exception() for task in tasks):
                    stop_all()
                await asyncio.wait(tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            task.result()

    async def _work(self) -> None:
        while not self._stopping.is_set():
            messages = await _take(self._queen, self.terms, self._stopping)
            if messages:
                async with InHand(self._queen, messages, self.terms.lease_time) as hand:
                    await (self._handle_each(hand, messages) if self.terms.each else self._handle_batch(hand, messages))

    async def _handle_each(self, hand: InHand, messages: list[Message]) -> None:
        held: set[str] = set()
        for message in messages:
            if hand.lost or self._stopping.is_set():
                return
            if message.partition_id in held:
                continue
            status, error = await self._call(message)
            hand.settle(message, status, error)
            if status == "failed":
                held.add(message.partition_id)

    async def _handle_batch(self, hand: InHand, messages: list[Message]) -> None:
        if self._stopping.is_set():
            return
        status, error = await self._call(messages)
        for message in messages:
            hand.settle(message, status, error)

    async def _call(self, argument: Message | list[Message]) -> tuple[Status, str | None]:
        try:
            if self._threads is None:
                await self.handler(argument)
            else:
                job = functools.partial(contextvars.copy_context().run, self.handler, argument)
                result = await asyncio.get_running_loop().run_in_executor(self._threads, job)
                if inspect.isawaitable(result):  # a plain function around a coroutine function
                    await result
        except Exception as error:
            log.warning("a handler failed: %s", error_text(error), exc_info=error)
            return "failed", error_text(error)
        return "completed", None


class Messages:
    """Messages one after the other, each acknowledged when the next one is asked for.

    In `async with q.consume(…) as messages:` an exception that leaves the block gives the message in hand back as failed, and leaving it
    in any other way acknowledges it. Without the block, `break` hands it back to be delivered again (acknowledge it first if it is done).
    """

    def __init__(self, queen: Queen, terms: Terms) -> None:
        self._queen = queen
        self._terms = terms
        self._inside = False
        self._walks: list[AsyncGenerator[Message, None]] = []
        self._verdict: tuple[Status, str | None] = ("retry", None)

    def __aiter__(self) -> AsyncGenerator[Message, None]:
        walk = self._walk()
        if self._inside:
            # kept only here: without the block, dropping the iterator must end it
            self._walks.append(walk)
        return walk

    async def __aenter__(self) -> Self:
        self._inside = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self._verdict = ("completed", None)
        elif isinstance(error, Exception):
            self._verdict = ("failed", error_text(error))
        for walk in self._walks:
            await walk.aclose()

    async def _walk(self) -> AsyncGenerator[Message, None]:
        while True:
            messages = await _take(self._queen, self._terms, None)
            if not messages:
                continue
            async with InHand(self._queen, messages, self._terms.lease_time) as hand:
                for message in messages:
                    if hand.lost:
                        break
                    try:
                        yield message
                    except GeneratorExit:
                        hand.settle(message, *self._verdict)
                        raise
                    hand.settle(message, "completed")


async def _take(queen: Queen, terms: Terms, stopping: asyncio.Event | None) -> list[Message]:
    """One pop that outlasts outages: while the server is away it is asked again, ever less often. Empty when `stopping` was set."""
    attempt = 0
    while True:
        try:
            messages = await _unless_stopping(queen, terms, stopping)
        except QueenClientError as error:
            if not error.passing:
                raise
            attempt += 1
            (log.warning if attempt == 1 else log.debug)("no messages for now, will ask again: %s", error)
            asked = error.retry_after if isinstance(error, Unavailable) else None
            if await _pause(retry.pause(attempt, random.random(), asked), stopping):
                return []
        else:
            if attempt:
                log.info("the server is back")
            return messages


async def _unless_stopping(queen: Queen, terms: Terms, stopping: asyncio.Event | None) -> list[Message]:
    if stopping is None:
        return await queen.select(terms.ask, wait=terms.wait)
    pop = asyncio.create_task(queen.select(terms.ask, wait=terms.wait))
    stop = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait([pop, stop], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
        if not pop.done():
            pop.cancel()
            await asyncio.gather(pop, return_exceptions=True)
    if pop.cancelled():
        return []
    messages = pop.result()
    if messages and stopping.is_set():
        await _give_back(queen, messages)
        return []
    return messages


async def _give_back(queen: Queen, messages: list[Message]) -> None:
    try:
        await queen.settle([wire.ack_item(message, "retry") for message in messages], timeout=_GIVE_BACK_SECONDS)
    except QueenClientError as error:
        log.warning("%d messages could not be handed back, they will come again after their lease: %s", len(messages), error)


async def _pause(seconds: float, stopping: asyncio.Event | None) -> bool:
    """Waits; True when `stopping` was set meanwhile."""
    if stopping is None:
        await asyncio.sleep(seconds)
        return False
    try:
        async with asyncio.timeout(seconds):
            return await stopping.wait()
    except TimeoutError:
        return False


@contextlib.contextmanager
def _on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGINT and SIGTERM call `stop` inside the block, where the platform and the thread allow it."""
    loop = asyncio.get_running_loop()
    taken: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError, RuntimeError):
                loop.add_signal_handler(number, stop)
                taken.append(number)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
