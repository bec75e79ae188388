"""The client as its users see it: `Queen` (async), a `Queue` handle and a `Transaction`.

Builds requests with the wire core, sends them with the transport, gives back typed values. Keeps no queue state of its own.
Invariant: every pushed item has a transaction id made before the first try, so a push is never stored twice by a repetition.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Self, Unpack, overload

import msgspec

from queenmq.client import wire
from queenmq.client.consumer import Consumer, Handler, Messages, Terms
from queenmq.client.errors import AckRefused, LeaseLost, OutcomeUnknown, PushFailed, QueenClientError, TransactionFailed, UsageError
from queenmq.client.ids import TransactionIds
from queenmq.client.message import Acked, Committed, Configured, Item, Message, Pushed, Status
from queenmq.client.settings import ConsumerSettings, ConsumeSettings, PopSettings, PushSettings, SubscriptionMode
from queenmq.client.transport import Transport
from queenmq.clock import Clock

DEFAULT_URL = "http://127.0.0.1:6632"


class Queen:
    """A connection to a QueenMQ server.

    `timeout` bounds a call with all its repetitions, `attempt_timeout` one try of a call that may be repeated. `token` is sent as
    `Authorization: Bearer`. At most `connections` are open at once, besides one for each long poll.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        attempt_timeout: float = 10.0,
        connections: int = 100,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self._ids = TransactionIds(self.clock)
        sent = {"user-agent": "queenmq-client", "accept": "application/json", **(headers or {})}
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
        self._transport = Transport(
            url, headers=sent, timeout=timeout, attempt_timeout=attempt_timeout, connections=connections, clock=self.clock
        )
        self._consumers: list[Consumer] = []

    @property
    def url(self) -> str:
        """The server's address."""
        return self._transport.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Stops the consumers of this client gracefully and closes its connections."""
        for consumer in self._consumers:
            await consumer.stopped()
        await self._transport.close()

    def queue(self, name: str) -> Queue:
        """A handle with the queue's name filled in."""
        return Queue(self, name)

    def new_transaction_id(self) -> str:
        """An id as the client makes them: ordered by time, never the same twice."""
        return self._ids.make()

    # ------------------------------------------------------------ push

    async def push(
        self,
        queue: str,
        data: Any,
        *,
        partition: str | None = None,
        transaction_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay_seconds: float | None = None,
        trace_id: str | None = None,
    ) -> Pushed:
        """Stores one message; when this returns, it is durable. A second push with the same `transaction_id` answers `duplicate`."""
        item = Item(
            payload=data,
            partition=partition,
            transaction_id=transaction_id,
            headers=headers,
            delay_seconds=delay_seconds,
            trace_id=trace_id,
        )
        return (await self.push_many(queue, [item]))[0]

    async def push_many(self, queue: str, items: Iterable[Any], *, partition: str | None = None) -> list[Pushed]:
        """Stores many messages in one request, in order; `items` are payloads, or `Item`s with settings of their own.

        Items of one partition are stored together or not at all. What the server couldn't store just now is sent again until the
        timeout; then PushFailed.
        """
        asked = [wire.push_item(queue, item, self._ids.make(), partition=partition) for item in items]
        try:
            return await self._push(asked) if asked else []
        except QueenClientError as error:
            error.transaction_ids = tuple(item.transaction_id for item in asked)
            if isinstance(error, OutcomeUnknown):
                error.hint = PushFailed.hint
            raise

    async def _push(self, asked: Sequence[wire.PushItem]) -> list[Pushed]:
        pending = dict(enumerate(asked))
        results: dict[int, Pushed] = {}
        deadline = self.clock.monotonic() + self._transport.timeout
        attempt = 0
        while pending:
            attempt += 1
            left = max(0.1, deadline - self.clock.monotonic())
            reply = await self._transport.call(wire.push(list(pending.values())), timeout=left)
            for place, answer in zip(list(pending), wire.pushed(reply, len(pending)), strict=True):
                results[place] = msgspec.structs.replace(answer, index=place)
                if answer.status != "failed":
                    del pending[place]
            if pending and not await self._transport.pause(attempt, deadline):
                text = f"{len(pending)} of {len(asked)} items were not stored: {results[next(iter(pending))].error}"
                raise PushFailed(text, [results[place] for place in range(len(asked))])
        return [results[place] for place in range(len(asked))]

    # ------------------------------------------------------------ pop

    async def pop(
        self,
        queue: str | None = None,
        *,
        partition: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
        group: str | None = None,
        batch: int = 1,
        wait: bool = False,
        timeout: float = 30.0,
        partitions: int = 1,
        auto_ack: bool = False,
        subscription_mode: SubscriptionMode | None = None,
        subscription_from: str | datetime | None = None,
        lease_time: int | None = None,
    ) -> list[Message]:
        """Claims up to `batch` messages under a lease; an empty list when there are none (with `wait`, none within `timeout` seconds).

        When the answer is lost on its way, the messages come again after their lease; the call raises OutcomeUnknown.
        """
        ask = wire.Selection(
            queue=queue,
            partition=partition,
            namespace=namespace,
            task=task,
            group=group,
            batch=batch,
            partitions=partitions,
            auto_ack=auto_ack,
            subscription_mode=subscription_mode,
            subscription_from=subscription_from,
            lease_time=lease_time,
        )
        return await self.select(ask, wait=timeout if wait else None)

    async def select(self, ask: wire.Selection, *, wait: float | None = None) -> list[Message]:
        """`pop` with its question as a value; waits longer than the server holds a request by asking again."""
        end = self.clock.monotonic() + (wait or 0.0)
        while True:
            left = None if wait is None else max(0.0, end - self.clock.monotonic())
            messages = wire.popped(await self._transport.call(wire.pop(ask, wait=left)))
            if messages or left is None or self.clock.monotonic() >= end or left <= wire.LONGEST_HOLD:
                return messages

    # ------------------------------------------------------------ ack, extend

    @overload
    async def ack(self, messages: Message, status: Status = "completed", error: str | None = None) -> Acked: ...

    @overload
    async def ack(self, messages: Sequence[Message], status: Status = "completed", error: str | None = None) -> list[Acked]: ...

    async def ack(
        self, messages: Message | Sequence[Message], status: Status = "completed", error: str | None = None
    ) -> Acked | list[Acked]:
        """Answers for one message or many: `completed`, `failed` (again after the queue's retryDelay), `dlq` or `retry` (again, uncounted).

        AckRefused when the lease is gone.
        """
        single = isinstance(messages, Message)
        chosen = [messages] if isinstance(messages, Message) else list(messages)
        if not chosen:
            return []
        results = await self.settle([wire.ack_item(message, status, error) for message in chosen])
        refused = [answer for answer in results if not answer.success]
        if refused:
            raise AckRefused(f"{len(refused)} of {len(results)} acknowledgements refused: {refused[0].error}", results)
        return results[0] if single else results

    async def settle(self, items: Sequence[wire.AckItem], *, timeout: float | None = None) -> list[Acked]:
        """Acknowledgements of any mix of statuses in one request; refusals are in the answers, not raised."""
        return wire.acked(await self._transport.call(wire.ack(items), timeout=timeout), len(items))

    async def extend(self, lease: Message | str, seconds: float = 60.0, *, timeout: float | None = None) -> datetime | None:
        """Lets a lease (all messages of its pop) live at least `seconds` from now; gives its new end. LeaseLost when it is over."""
        lease_id = lease if isinstance(lease, str) else lease.lease_id
        if not lease_id:
            raise UsageError("this message has no lease", hint="what was popped with auto_ack is already acknowledged")
        answer = wire.extended(await self._transport.call(wire.extend(lease_id, seconds), timeout=timeout))
        if not answer.success:
            raise LeaseLost(answer.error or "the lease has ended")
        return answer.new_expires_at or answer.expires_at

    # ------------------------------------------------------------ transaction, configure

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Pushes and acknowledgements that happen together or not at all, at the end of the block; an exception in it sends nothing."""
        collected = self.new_transaction()
        yield collected
        await self.commit(collected)

    def new_transaction(self) -> Transaction:
        """An empty Transaction to fill and `commit`, for where a block doesn't fit."""
        return Transaction(self._ids)

    async def commit(self, collected: Transaction) -> Committed | None:
        """Sends a Transaction; None when there is nothing in it. TransactionFailed when the server did nothing of it."""
        if not collected.operations:
            return None
        answer = wire.committed(await self._transport.call(wire.transaction(collected.operations)))
        if not answer.success:
            raise TransactionFailed(answer.error or "the transaction was refused", answer.results)
        collected.committed = answer
        return answer

    async def configure(self, queue: str, *, namespace: str | None = None, task: str | None = None, **options: Any) -> Configured:
        """Makes the queue or changes it; only the named options change (`lease_time=30`, `retry_limit=5`, …)."""
        return wire.configured(await self._transport.call(wire.configure(queue, namespace, task, options)))

    # ------------------------------------------------------------ consume

    def consumer(
        self,
        queue: str | None = None,
        *,
        partition: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
        group: str | None = None,
        batch: int = 1,
        partitions: int = 1,
        concurrency: int = 1,
        each: bool = True,
        wait: float = 30.0,
        lease_time: int = 60,
        stop_timeout: float = 30.0,
        subscription_mode: SubscriptionMode | None = None,
        subscription_from: str | datetime | None = None,
    ) -> Callable[[Handler], Consumer]:
        """Decorates a handler of messages (`each=False`: of whole batches); `run()` then serves it. See Consumer."""
        ask = wire.Selection(
            queue=queue,
            partition=partition,
            namespace=namespace,
            task=task,
            group=group,
            batch=batch,
            partitions=partitions,
            subscription_mode=subscription_mode,
            subscription_from=subscription_from,
            lease_time=lease_time,
        )
        wire.pop(ask)  # a wrong argument shows here, where it is written
        terms = Terms(ask=ask, lease_time=lease_time, wait=wait, concurrency=concurrency, each=each, stop_timeout=stop_timeout)

        def register(handler: Handler) -> Consumer:
            consumer = Consumer(self, handler, terms)
            self._consumers.append(consumer)
            return consumer

        return register

    def consume(
        self,
        queue: str | None = None,
        *,
        partition: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
        group: str | None = None,
        batch: int = 1,
        partitions: int = 1,
        wait: float = 30.0,
        lease_time: int = 60,
        subscription_mode: SubscriptionMode | None = None,
        subscription_from: str | datetime | None = None,
    ) -> Messages:
        """Messages one after the other, without end: `async for message in q.consume("orders"):`. See Messages."""
        ask = wire.Selection(
            queue=queue,
            partition=partition,
            namespace=namespace,
            task=task,
            group=group,
            batch=batch,
            partitions=partitions,
            subscription_mode=subscription_mode,
            subscription_from=subscription_from,
            lease_time=lease_time,
        )
        wire.pop(ask)
        return Messages(self, Terms(ask=ask, lease_time=lease_time, wait=wait))

    async def run(self, *, signals: bool = True) -> None:
        """Serves every handler decorated with `consumer` until `stop()`, or until SIGINT or SIGTERM when `signals`."""
        if not self._consumers:
            raise UsageError("there is no consumer to run", hint='decorate a handler with @q.consumer("orders")')
        await Consumer.run_all(self._consumers, signals=signals)

    def stop(self) -> None:
        """Asks the consumers to stop: no new pops, what is in hand is finished or given back."""
        for consumer in self._consumers:
            consumer.stop()


class Transaction:
    """Collects what is to happen together. `committed` has the server's answer afterwards."""

    def __init__(self, ids: TransactionIds) -> None:
        self._ids = ids
        self.operations: list[wire.Operation] = []
        self.committed: Committed | None = None

    def push(self, queue: str, data: Any, *, partition: str | None = None) -> str:
        """Adds a message (a payload or an Item); gives its transaction id."""
        item = wire.push_item(queue, data, self._ids.make(), partition=partition)
        self.operations.append(wire.PushOperation(items=[item]))
        return item.transaction_id

    def push_many(self, queue: str, items: Iterable[Any], *, partition: str | None = None) -> list[str]:
        """Adds messages; gives their transaction ids."""
        added = [wire.push_item(queue, item, self._ids.make(), partition=partition) for item in items]
        if added:
            self.operations.append(wire.PushOperation(items=added))
        return [item.transaction_id for item in added]

    def ack(self, messages: Message | Sequence[Message], status: Status = "completed", error: str | None = None) -> None:
        """Adds acknowledgements; the transaction fails when their lease is gone."""
        for message in [messages] if isinstance(messages, Message) else messages:
            self.operations.append(wire.ack_operation(wire.ack_item(message, status, error)))


class Queue:
    """One queue of a Queen: the same methods without its name."""

    def __init__(self, queen: Queen, name: str) -> None:
        self.queen = queen
        self.name = name

    async def push(self, data: Any, **settings: Unpack[PushSettings]) -> Pushed:
        """See Queen.push."""
        return await self.queen.push(self.name, data, **settings)

    async def push_many(self, items: Iterable[Any], *, partition: str | None = None) -> list[Pushed]:
        """See Queen.push_many."""
        return await self.queen.push_many(self.name, items, partition=partition)

    async def pop(self, **settings: Unpack[PopSettings]) -> list[Message]:
        """See Queen.pop."""
        return await self.queen.pop(self.name, **settings)

    async def configure(self, *, namespace: str | None = None, task: str | None = None, **options: Any) -> Configured:
        """See Queen.configure."""
        return await self.queen.configure(self.name, namespace=namespace, task=task, **options)

    def consumer(self, **settings: Unpack[ConsumerSettings]) -> Callable[[Handler], Consumer]:
        """See Queen.consumer."""
        return self.queen.consumer(self.name, **settings)

    def consume(self, **settings: Unpack[ConsumeSettings]) -> Messages:
        """See Queen.consume."""
        return self.queen.consume(self.name, **settings)
