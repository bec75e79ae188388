"""`SyncQueen`: the client for code without asyncio. Every call runs on a background event loop with the async client and waits for it.

Adds nothing to what is sent and keeps no state of the queue. Safe to share between threads.
Invariant: after `close` the background thread has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from queenmq.client.consumer import Consumer, Handler, Messages
from queenmq.client.errors import UsageError
from queenmq.client.message import Acked, Configured, Message, Pushed, Status
from queenmq.client.queen import DEFAULT_URL, Queen, Transaction
from queenmq.client.settings import ConnectionSettings, ConsumerSettings, ConsumeSettings, PopSettings, PushSettings

T = TypeVar("T")


class SyncQueen:
    """A connection to a QueenMQ server for plain code; takes what Queen takes."""

    def __init__(self, url: str = DEFAULT_URL, **settings: Unpack[ConnectionSettings]) -> None:
        self._queen = Queen(url, **settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="queenmq-client", daemon=True)
        self._thread.start()
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stops consumers gracefully, closes the connections and the background thread."""
        if self.closed:
            return
        try:
            self.wait_for(self._queen.close())
            self.wait_for(self._loop.shutdown_asyncgens())
        finally:
            self.closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the background loop; an interrupt of the caller cancels it."""
        if self.closed or threading.current_thread() is self._thread:
            work.close()
            raise UsageError("this client is closed" if self.closed else "a SyncQueen can't be used inside its own event loop")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    # ------------------------------------------------------------ the calls of Queen

    def push(self, queue: str, data: Any, **settings: Unpack[PushSettings]) -> Pushed:
        """See Queen.push."""
        return self.wait_for(self._queen.push(queue, data, **settings))

    def push_many(self, queue: str, items: Iterable[Any], *, partition: str | None = None) -> list[Pushed]:
        """See Queen.push_many."""
        return self.wait_for(self._queen.push_many(queue, items, partition=partition))

    def pop(self, queue: str | None = None, **settings: Unpack[PopSettings]) -> list[Message]:
        """See Queen.pop."""
        return self.wait_for(self._queen.pop(queue, **settings))

    @overload
    def ack(self, messages: Message, status: Status = "completed", error: str | None = None) -> Acked: ...

    @overload
    def ack(self, messages: Sequence[Message], status: Status = "completed", error: str | None = None) -> list[Acked]: ...

    def ack(self, messages: Message | Sequence[Message], status: Status = "completed", error: str | None = None) -> Acked | list[Acked]:
        """See Queen.ack."""
        if isinstance(messages, Message):
            return self.wait_for(self._queen.ack(messages, status, error))
        return self.wait_for(self._queen.ack(messages, status, error))

    def extend(self, lease: Message | str, seconds: float = 60.0) -> datetime | None:
        """See Queen.extend."""
        return self.wait_for(self._queen.extend(lease, seconds))

    def configure(self, queue: str, *, namespace: str | None = None, task: str | None = None, **options: Any) -> Configured:
        """See Queen.configure."""
        return self.wait_for(self._queen.configure(queue, namespace=namespace, task=task, **options))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """See Queen.transaction."""
        collected = self._queen.new_transaction()
        yield collected
        self.wait_for(self._queen.commit(collected))

    def consumer(self, queue: str | None = None, **settings: Unpack[ConsumerSettings]) -> Callable[[Handler], Consumer]:
        """See Queen.consumer; plain functions run in threads, as many as `concurrency`."""
        return self._queen.consumer(queue, **settings)

    def consume(self, queue: str | None = None, **settings: Unpack[ConsumeSettings]) -> SyncMessages:
        """See Queen.consume: `for message in q.consume("orders"):`."""
        return SyncMessages(self, self._queen.consume(queue, **settings))

    def run(self, *, signals: bool = True) -> None:
        """Serves the decorated handlers until `stop()`, or until SIGINT or SIGTERM when `signals` and in the main thread."""
        with self._on_signals() if signals else contextlib.nullcontext():
            self.wait_for(self._queen.run(signals=False))

    def stop(self) -> None:
        """Asks the consumers to stop; from any thread."""
        if not self.closed:
            self._loop.call_soon_threadsafe(self._queen.stop)

    @contextlib.contextmanager
    def _on_signals(self) -> Iterator[None]:
        before: Mapping[signal.Signals, Any] = {}

        def stop(number: int, frame: FrameType | None) -> None:
            self.stop()

        if threading.current_thread() is threading.main_thread():
            before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class SyncMessages:
    """Messages one after the other for plain code; the rules of Messages hold, with `with` for `async with`."""

    def __init__(self, queen: SyncQueen, messages: Messages) -> None:
        self._queen = queen
        self._messages = messages
        self._inside = False
        self._walks: list[Iterator[Message]] = []

    def __iter__(self) -> Iterator[Message]:
        walk = _walk(self._queen, self._messages)
        if self._inside:
            # `break` drops the iterator, and with it would end it, before the block knows how it is left
            self._walks.append(walk)
        return walk

    def __enter__(self) -> Self:
        self._inside = True
        self._queen.wait_for(self._messages.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._queen.wait_for(self._messages.__aexit__(kind, error, trace))
        self._walks.clear()


def _walk(queen: SyncQueen, messages: Messages) -> Iterator[Message]:
    # a function, not a method: the iterator must not hold what holds it, so that dropping it ends it at once
    walk = aiter(messages)

    async def one() -> Message:
        return await anext(walk)

    async def end() -> None:
        await walk.aclose()

    try:
        while True:
            yield queen.wait_for(one())
    finally:
        if not queen.closed:
            queen.wait_for(end())
