"""The queue as its users see it: push, pop, ack, transaction, extend, configure. The one thing that routes call.

Checks, resolves names, seals, hands over to the sidecar, builds the reply. Never touches SQL or HTTP. Invariant: what it reports as stored
or settled is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import UUID, uuid4

from queenmq.clock import Clock
from queenmq.errors import BadRequest, Busy, QueenError, QueueFull, Unavailable
from queenmq.ids import parse_lease, transaction_ids
from queenmq.messages import (
    ITEMS_MOST,
    NAME_MOST,
    AckBatchBody,
    AckItem,
    AckOperation,
    ConfigureBody,
    PushItem,
    PushOperation,
    TransactionBody,
    check_delay,
    check_headers,
    check_name,
    check_options,
    check_text,
    check_trace,
    parse_partition_id,
    payload_text,
)
from queenmq.metrics import Metrics
from queenmq.postgres.pool import Database, LostConnection
from queenmq.queen import replies
from queenmq.queen.ack_lane import AckUnit
from queenmq.queen.directory import QUEUE_MODE, Directory
from queenmq.queen.encryption import Sealer
from queenmq.queen.popping import Popped, Popper, PopRequest
from queenmq.queen.push_lane import PushUnit, Rare, Ticket
from queenmq.queen.sidecar import Sidecar
from queenmq.queen.transaction_lane import TransactionAck, TransactionUnit
from queenmq.queen.waits import Waits
from queenmq.shared_state.partition_id_cache import PartitionRef
from queenmq.shared_state.queue_config_cache import QueueConfig

log = logging.getLogger(__name__)

BACKLOG_SECONDS = 1.0
DEFAULT = "Default"
NO_CONFIG = QueueConfig(0, "", None, None, 0, 0, False, 0)
# an item's place in its request, for error messages
Where = Callable[[int], str]
Columns = tuple[list[str], list[str], Rare | None]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may carry."""

    message_bytes: int = 1024 * 1024


class Manager:
    """One server's queue."""

    def __init__(
        self, database: Database, clock: Clock, metrics: Metrics, *, sealer: Sealer, salt: int, session: int, limits: Limits
    ) -> None:
        self.directory = Directory(database, clock)
        self.waits = Waits()
        self.metrics = metrics
        self.consumed: Counter[tuple[int, str, str]] = Counter()
        self._database = database
        self._clock = clock
        self._sealer = sealer
        self._salt = salt
        self._limits = limits
        self._new_transactions = transaction_ids(session)
        self._backlogs: dict[int, tuple[float, int]] = {}
        self.sidecar = Sidecar(
            database,
            self.directory,
            clock,
            metrics,
            stored=self._stored,
            acked=self._acked,
            freed=self._freed,
            recheck=self._recheck,
            committed=self._committed,
        )
        self._popper = Popper(self.sidecar, self.directory, self.waits, clock, metrics, sealer, salt)

    # push

    async def push(self, items: list[PushItem]) -> bytes:
        """Stores the items; the reply has one entry each, in order."""
        if not items:
            return b"[]"
        if len(items) > ITEMS_MOST:
            raise BadRequest(f"items: {len(items)} items, at most {ITEMS_MOST} a request are allowed: split it")
        places = self._by_partition(items)
        ticket, done = Ticket.awaited(len(places))
        units = await self._units(places, self._columns(items, places), ticket)
        self.sidecar.push.submit([unit for unit in units if not unit.done])
        await done
        return self._pushed(units, places, len(items))

    def push_soon(self, items: list[PushItem], call: Callable[[bytes | QueenError], None]) -> bool:
        """The same without waiting for anything, when nothing has to be asked first: `call` is given the reply later. False: it was not
        begun, use `push`."""
        if not 0 < len(items) <= ITEMS_MOST:
            return False
        if len(items) == 1 and self._push_one_soon(items[0], call):
            return True
        places = self._by_partition(items)
        known = self._known(places)
        if known is None or any(config.max_size for _, config in known):
            return False

        def settled() -> None:
            try:
                call(self._pushed(units, places, len(items)))
            except QueenError as error:
                call(error)
            except Exception as error:
                # Whatever goes wrong with one reply is nothing to the others of the same call.
                log.exception("a push's reply failed")
                call(QueenError(f"internal error: {type(error).__name__}; the server's log says more"))

        ticket = Ticket(len(places), settled)
        units = self._prepare(self._columns(items, places), known, ticket)
        self.sidecar.push.submit(units)
        return True

    def _push_one_soon(self, item: PushItem, call: Callable[[bytes | QueenError], None]) -> bool:
        """The plainest push of all; False when it isn't: nothing was begun."""
        ref = self.directory.partitions.get(item.queue, DEFAULT if item.partition is None else item.partition)
        config = self.directory.queues.peek(item.queue)
        if ref is None or config is None or config.max_size or config.encrypted:
            return False
        if item.traceId is not None or item.headers or item.delaySeconds:
            return False
        name = item.transactionId
        if name is not None and (not 0 < len(name) <= NAME_MOST or "\0" in name):
            return False
        try:
            payload = str(item.payload, "utf-8")
        except UnicodeDecodeError:
            return False
        if len(payload) * 4 > self._limits.message_bytes:
            return False
        ticket = Ticket(1, lambda: call(unit.error if unit.error is not None else replies.push_reply_one(unit, self._salt)))
        unit = PushUnit(ref, config, self._new_transactions(1) if name is None else [name], [payload], None, ticket)
        self.sidecar.push.submit_one(unit)
        return True

    def _pushed(self, units: list[PushUnit], places: dict[tuple[str, str], list[int]], count: int) -> bytes:
        """The reply; raises when nothing was stored, most of all for a reason that the client can mend."""
        failed = [unit.error for unit in units if unit.error is not None]
        if len(failed) == len(units):
            raise min(failed, key=lambda error: error.status)
        return replies.push_reply(units, list(places.values()), self._salt, count)

    @staticmethod
    def _by_partition(items: list[PushItem], where: Where = "items[{}]".format) -> dict[tuple[str, str], list[int]]:
        """The items' positions by queue and partition; every name is checked once."""
        first = items[0]
        queue, partition = first.queue, first.partition
        for item in items:
            if item.partition != partition or item.queue != queue:
                break
        else:
            check_name(queue, f"{where(0)}.queue")
            return {(queue, DEFAULT if partition is None else check_name(partition, f"{where(0)}.partition")): list(range(len(items)))}
        places: dict[tuple[str, str], list[int]] = {}
        for at, item in enumerate(items):
            key = (item.queue, DEFAULT if item.partition is None else item.partition)
            place = places.get(key)
            if place is None:
                check_name(key[0], f"{where(at)}.queue")
                check_name(key[1], f"{where(at)}.partition")
                places[key] = [at]
            else:
                place.append(at)
        return places

    async def _units(self, places: dict[tuple[str, str], list[int]], columns: list[Columns], ticket: Ticket) -> list[PushUnit]:
        """What one request stores in each partition, asking the database for names and options that this server hasn't met. Those whose
        name somebody else is making for too long have failed already."""
        busy: dict[tuple[str, str], Busy] = {}
        known = self._known(places) or await self._resolve(list(places), busy)
        for config in {config.id: config for _, config in known if config.max_size}.values():
            await self._refuse_full(config)
        units = self._prepare(columns, known, ticket)
        for name, unit in zip(places, units, strict=True):
            if name in busy:
                unit.fail(busy[name])
        return units

    def _known(self, names: Iterable[tuple[str, str]]) -> list[tuple[PartitionRef, QueueConfig]] | None:
        """Partitions and options, when this server has met them all."""
        partitions, queues = self.directory.partitions, self.directory.queues
        found = []
        for name in names:
            ref, config = partitions.get(*name), queues.peek(name[0])
            if ref is None or config is None:
                return None
            found.append((ref, config))
        return found

    def _prepare(self, columns: list[Columns], known: list[tuple[PartitionRef, QueueConfig]], ticket: Ticket) -> list[PushUnit]:
        """Named and sealed."""
        found = []
        for (ref, config), (transactions, payloads, rare) in zip(known, columns, strict=True):
            unit = PushUnit(ref, config, transactions, payloads, rare, ticket)
            if config.encrypted:
                self._seal(unit)
            found.append(unit)
        return found

    async def _resolve(self, names: list[tuple[str, str]], busy: dict[tuple[str, str], Busy]) -> list[tuple[PartitionRef, QueueConfig]]:
        """The same, made or asked for where they aren't known; `busy` gets those that others are making, unless that is all of them."""
        queues = self.directory.queues
        for _ in range(5):
            made = await asyncio.gather(*(self.directory.make(*name) for name in names if name not in busy), return_exceptions=True)
            for name, result in zip([name for name in names if name not in busy], made, strict=True):
                if isinstance(result, Busy):
                    busy[name] = result
                elif isinstance(result, BaseException):
                    raise result
            there = [name for name in names if name not in busy]
            if not there:
                raise next(iter(busy.values()))
            for queue in {queue for queue, _ in there}:
                if queues.peek(queue) is None:
                    queues.drop_name(queue)
                    await queues.get(queue)
            known = self._known(there)
            if known is not None:
                found = dict(zip(there, known, strict=True))
                return [found.get(name) or (PartitionRef(0, name[1], name[0], 0), NO_CONFIG) for name in names]
        raise Unavailable("the queue was deleted while this push was under way: send again")

    def _columns(self, items: list[PushItem], places: dict[tuple[str, str], list[int]], where: Where = "items[{}]".format) -> list[Columns]:
        """Each partition's items, checked before anything is asked or made."""
        if len(places) == 1:
            return [self._checked(items, where)]
        found = []
        for place in places.values():

            def here(number: int, place: list[int] = place) -> str:
                return where(place[number])

            found.append(self._checked([items[at] for at in place], here))
        return found

    def _checked(self, items: list[PushItem], where: Where) -> Columns:
        """Transaction ids, payloads and the rare columns; what is wrong is named by its place in the request."""
        try:
            payloads = [str(item.payload, "utf-8") for item in items]
        except UnicodeDecodeError:
            payloads = []
        most = self._limits.message_bytes
        if not payloads or max(map(len, payloads)) * 4 > most:
            for number, item in enumerate(items):
                payload_text(item.payload, most, f"{where(number)}.payload")
        rare: Rare | None = None
        given = 0
        for number, item in enumerate(items):
            if item.transactionId is not None:
                given += 1
            if item.traceId is not None or item.headers or item.delaySeconds:
                rare = rare or Rare()
                self._rare(rare, item, number, len(items), where(number))
        transactions = self._new_transactions(len(items))
        if given:
            for number, item in enumerate(items):
                name = item.transactionId
                if name is not None:
                    if not 0 < len(name) <= NAME_MOST or "\0" in name:
                        check_name(name, f"{where(number)}.transactionId")
                    transactions[number] = name
        return transactions, payloads, rare

    @staticmethod
    def _rare(rare: Rare, item: PushItem, number: int, count: int, field: str) -> None:
        if item.traceId is not None:
            rare.traces = rare.traces or [None] * count
            rare.traces[number] = check_trace(item.traceId, f"{field}.traceId")
        if item.headers:
            rare.headers = rare.headers or [None] * count
            rare.headers[number] = check_headers(item.headers, f"{field}.headers")
        if item.delaySeconds:
            rare.delays = rare.delays or [None] * count
            rare.delays[number] = check_delay(item.delaySeconds, f"{field}.delaySeconds")

    def _seal(self, unit: PushUnit) -> None:
        """Seals what isn't sealed yet, when the queue demands it."""
        if not unit.config.encrypted or (unit.rare is not None and unit.rare.encrypted is not None):
            return
        unit.payloads = [self._sealer.seal(payload, unit.ref.queue) for payload in unit.payloads]
        unit.rare = unit.rare or Rare()
        unit.rare.encrypted = [True] * unit.weight

    async def _recheck(self, unit: PushUnit) -> None:
        """What other options demand than those that were known when the push began."""
        if unit.config.max_size:
            await self._refuse_full(unit.config)
        self._seal(unit)

    async def _refuse_full(self, config: QueueConfig) -> None:
        """maxSize, against a figure that is at most a second old."""
        at, backlog = self._backlogs.get(config.id, (float("-inf"), 0))
        now = self._clock.monotonic()
        if now - at >= BACKLOG_SECONDS:
            backlog = await self._database.value("backlog", config.id)
            self._backlogs[config.id] = (now, backlog)
        if backlog >= config.max_size:
            raise QueueFull(
                f"queue {config.name} is full: {backlog} messages wait, maxSize is {config.max_size}: consume some, or raise maxSize"
            )

    def _stored(self, queues: set[str]) -> None:
        for queue in queues:
            self.waits.notify(queue)

    # pop

    async def pop(self, request: PopRequest) -> Popped | None:
        return await self._popper.pop(request)

    def delivered(self, popped: Popped) -> None:
        self.metrics.count("messages_delivered", popped.count)
        self._popper.delivered(popped)

    def undelivered(self, popped: Popped) -> None:
        self.metrics.count("messages_given_back", popped.count)
        self._popper.undelivered(popped)

    # ack

    async def ack(self, item: AckItem) -> bytes:
        return await self._ack([item], None, "")

    async def ack_batch(self, body: AckBatchBody) -> bytes:
        return await self._ack(body.acknowledgments, body.consumerGroup, "acknowledgments[%d].") if body.acknowledgments else b"[]"

    async def _ack(self, items: list[AckItem], group: str | None, prefix: str) -> bytes:
        units: dict[tuple[int, str | None, UUID | None], AckUnit] = {}
        places: list[tuple[AckUnit, int, int]] = []
        loop = asyncio.get_running_loop()
        if group is not None:
            check_name(group, "consumerGroup")
        for at, item in enumerate(items):
            field = prefix % at if "%" in prefix else prefix
            check_name(item.transactionId, f"{field}transactionId")
            partition = parse_partition_id(item.partitionId, f"{field}partitionId")
            named = item.consumerGroup if item.consumerGroup is not None else group
            if named is not None and item.consumerGroup is not None:
                check_name(named, f"{field}consumerGroup")
            lease = parse_lease(item.leaseId)
            key = (partition, named, lease)
            unit = units.get(key)
            if unit is None:
                unit = units[key] = AckUnit(partition, named, lease, loop.create_future())
            places.append((unit, unit.weight, partition))
            unit.add(item.transactionId, "completed" if item.status == "success" else item.status, check_text(item.error, f"{field}error"))
        self.sidecar.ack.submit(units.values())
        for unit in units.values():
            await unit.future
        failed = [unit.error for unit in units.values() if unit.error is not None]
        if len(failed) == len(units):
            raise failed[0]
        await self._learn_names({partition for _, _, partition in places})
        found = []
        for at, (item, (unit, number, partition)) in enumerate(zip(items, places, strict=True)):
            answer = (False, str(unit.error), False, False) if unit.error is not None else unit.answers[number]
            found.append(replies.ack_item(at, item.transactionId, self.directory.partitions.by_id(partition), answer))
        return f"[{','.join(found)}]".encode()

    async def _learn_names(self, partitions: set[int]) -> None:
        """For a reply about something that is committed: it goes without the names rather than not at all."""
        with contextlib.suppress(QueenError):
            await self.directory.names(partitions)

    def _acked(self, units: list[AckUnit]) -> None:
        """Partitions may be free again; what was settled is added up."""
        for unit in units:
            ref = self.directory.partitions.by_id(unit.partition)
            if ref is None:
                self.waits.notify(None)
                continue
            self.waits.notify(ref.queue)
            for status, (success, _, _, dead) in zip(unit.statuses, unit.answers, strict=True):
                if success:
                    self.consumed[
                        ref.queue_id, unit.group or QUEUE_MODE, "dead" if dead else "completed" if status == "completed" else "failed"
                    ] += 1

    def _freed(self, queues: list[int]) -> None:
        for queue_id in queues:
            self.waits.notify(self.directory.queues.name_of(queue_id))

    # leases

    async def extend(self, lease: str, seconds: int) -> bytes:
        """Prolongs a lease; never shortens."""
        parsed = parse_lease(lease)
        if parsed is None:
            raise BadRequest("leaseId: must not be empty")
        new, old = await self.sidecar.extend(parsed, seconds)
        return replies.extend_reply(lease, new, old)

    # transaction

    async def transaction(self, body: TransactionBody) -> bytes:
        """All or nothing."""
        for name in ("kv", "timers"):
            if getattr(body, name) is not None:
                raise BadRequest(f"{name}: not supported here; nothing was done")
        loop = asyncio.get_running_loop()
        pushing = [(at, operation) for at, operation in enumerate(body.operations) if isinstance(operation, PushOperation)]
        items = [item for _, operation in pushing for item in operation.items]
        if not body.operations:
            raise BadRequest("operations: must not be empty")
        if len(items) > ITEMS_MOST:
            raise BadRequest(f"operations: {len(items)} items, at most {ITEMS_MOST} a transaction are allowed")
        where = [f"operations[{at}].items[{place}]" for at, operation in pushing for place in range(len(operation.items))].__getitem__
        acks = [self._transaction_ack(at, each) for at, each in enumerate(body.operations) if isinstance(each, AckOperation)]
        places = self._by_partition(items, where) if items else {}
        pushes = await self._units(places, self._columns(items, places, where), Ticket(0, lambda: None)) if items else []
        for push in pushes:
            if push.error is not None:
                raise push.error
        leases = [lease for each in dict.fromkeys(body.requiredLeases) if (lease := parse_lease(each)) is not None]
        unit = TransactionUnit(pushes, acks, leases, loop.create_future())
        self.sidecar.transaction.submit((unit,))
        outcome = await unit.future
        if not outcome.success:
            return f'{{"transactionId":"{uuid4()}","success":false,"results":[],"error":{replies.text(outcome.error)}}}'.encode()
        await self._learn_names({ack.partition for ack in acks})
        entries = [""] * len(items)
        for push, place in zip(pushes, places.values(), strict=True):
            for at, entry in zip(place, replies.pushed(push, place, self._salt), strict=True):
                entries[at] = entry
        results: list[str] = []
        item_at = ack_at = 0
        for operation in body.operations:
            if isinstance(operation, PushOperation):
                results.extend('{"type":"push",' + entry[1:] for entry in entries[item_at : item_at + len(operation.items)])
                item_at += len(operation.items)
            else:
                ack, answer = acks[ack_at], outcome.acks[ack_at]
                ack_at += 1
                ref = self.directory.partitions.by_id(ack.partition)
                results.append('{"type":"ack",' + replies.ack_item(len(results), ack.transaction, ref, answer)[1:])
        return f'{{"transactionId":"{uuid4()}","success":true,"results":[{",".join(results)}],"error":null}}'.encode()

    @staticmethod
    def _transaction_ack(at: int, operation: AckOperation) -> TransactionAck:
        field = f"operations[{at}]."
        check_name(operation.transactionId, f"{field}transactionId")
        if operation.consumerGroup is not None:
            check_name(operation.consumerGroup, f"{field}consumerGroup")
        status = "completed" if operation.status == "success" else operation.status
        partition = parse_partition_id(operation.partitionId, f"{field}partitionId")
        error = check_text(operation.error, f"{field}error")
        return TransactionAck(partition, operation.consumerGroup, operation.transactionId, status, error, parse_lease(operation.leaseId))

    def _committed(self, unit: TransactionUnit) -> None:
        self._stored({push.ref.queue for push in unit.pushes})
        for ack in unit.acks:
            ref = self.directory.partitions.by_id(ack.partition)
            self.waits.notify(ref.queue if ref is not None else None)

    # configure

    async def configure(self, body: ConfigureBody) -> bytes:
        """Makes the queue or merges options into it; all effective options come back."""
        check_name(body.queue, "queue")
        for field in ("namespace", "task"):
            if getattr(body, field) is not None:
                check_name(getattr(body, field), field)
        options = check_options(body.options)
        if options.get("encryptionEnabled") and not self._sealer.ready:
            raise BadRequest("options.encryptionEnabled: this server has no key: set QUEEN_ENCRYPTION_KEY first")
        found = json.loads(await self._patiently("configure_queue", body.queue, body.namespace, body.task, json.dumps(options)))
        self.directory.queues.drop_name(body.queue)
        found.pop("version")
        self.waits.notify(body.queue)
        return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()

    async def _patiently(self, name: str, *args: object) -> str:
        """A call of its own that waits a second for locks, with another try; what it does may be done twice."""
        for last in (False, False, True):
            try:
                found: str = await self._database.value(name, *args)
                return found
            except (Busy, LostConnection):
                if last:
                    raise
        raise AssertionError("unreachable")

    # what the database told

    def queue_changed(self, queue_id: int) -> None:
        self.directory.queues.drop(queue_id)

    def queue_gone(self, queue_id: int) -> None:
        name = self.directory.queues.name_of(queue_id)
        self.directory.forget_queue(queue_id)
        self._backlogs.pop(queue_id, None)
        self.waits.notify(name)

    def queue_woken(self, queue_id: int) -> None:
        self.waits.notify(self.directory.queues.name_of(queue_id))

    async def close(self) -> None:
        """Answers who waits, ends what is under way."""
        self.waits.close()
        await self.directory.close()
        await self.sidecar.close()
