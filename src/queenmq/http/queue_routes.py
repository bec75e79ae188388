"""The message plane's routes: from a request's bytes to the manager and back.

Never decides anything about messages. Invariant: what a pop claimed is either written to the client or given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from queenmq.errors import BadRequest, NotFound
from queenmq.http.wire import Request
from queenmq.messages import (
    BATCH_MOST,
    PARTITIONS_MOST,
    SECONDS_MOST,
    TIMEOUT_MOST_MS,
    AckBatchBody,
    AckItem,
    ConfigureBody,
    ExtendBody,
    PushBody,
    PushItem,
    TransactionBody,
    check_name,
    decode,
    parse_bool,
    parse_int,
    parse_moment,
)
from queenmq.queen.directory import QUEUE_MODE
from queenmq.queen.manager import Manager
from queenmq.queen.popping import PopRequest

Handler = Callable[[Request], Awaitable[None]]
MODES = {"all": "all", "new": "new", "new-only": "new"}


class QueueRoutes:
    """One server's hot routes."""

    def __init__(self, manager: Manager, *, max_body: int, default_mode: str) -> None:
        self.manager = manager
        self.max_body = max_body
        self._default_mode = MODES[default_mode]
        self._push = msgspec.json.Decoder(PushBody)
        self._ack = msgspec.json.Decoder(AckItem)
        self._ack_batch = msgspec.json.Decoder(AckBatchBody)
        self._transaction = msgspec.json.Decoder(TransactionBody)
        self._configure = msgspec.json.Decoder(ConfigureBody)
        self._extend = msgspec.json.Decoder(ExtendBody)
        self.exact: dict[str, dict[str, Handler]] = {
            "/api/v1/push": {"POST": self.push},
            "/api/v1/ack": {"POST": self.ack},
            "/api/v1/ack/batch": {"POST": self.ack_batch},
            "/api/v1/transaction": {"POST": self.transaction},
            "/api/v1/configure": {"POST": self.configure},
            "/api/v1/pop": {"GET": self.pop},
        }
        self.prefixed: dict[str, dict[str, Handler]] = {
            "/api/v1/pop/queue/": {"GET": self.pop},
            "/api/v1/lease/": {"POST": self.extend},
        }

    async def push(self, request: Request) -> None:
        items = self.decode_push(await request.body(self.max_body))
        await request.reply(201, await self.manager.push(items))

    def decode_push(self, body: bytes) -> list[PushItem]:
        return decode(self._push, body).items

    async def ack(self, request: Request) -> None:
        body = decode(self._ack, await request.body(self.max_body))
        await request.reply(200, await self.manager.ack(body))

    async def ack_batch(self, request: Request) -> None:
        body = decode(self._ack_batch, await request.body(self.max_body))
        await request.reply(200, await self.manager.ack_batch(body))

    async def transaction(self, request: Request) -> None:
        body = decode(self._transaction, await request.body(self.max_body))
        await request.reply(200, await self.manager.transaction(body))

    async def configure(self, request: Request) -> None:
        body = decode(self._configure, await request.body(self.max_body))
        await request.reply(200, await self.manager.configure(body))

    async def extend(self, request: Request) -> None:
        segments = request.segments()
        if len(segments) != 5 or segments[4] != "extend":
            raise NotFound(f"no such route: {request.method} {request.path}")
        raw = await request.body(self.max_body)
        seconds = decode(self._extend, raw).seconds if raw.strip() else 60
        if not 1 <= seconds <= SECONDS_MOST:
            raise BadRequest(f"seconds: must be a whole number from 1 to {SECONDS_MOST}")
        await request.reply(200, await self.manager.extend(segments[3], seconds))

    async def pop(self, request: Request) -> None:
        wanted = self._pop_request(request)
        exchange = request.exchange
        task = asyncio.current_task()
        if exchange is not None and task is not None:
            exchange.on_lost(task.cancel)
        try:
            popped = await self.manager.pop(wanted)
        except asyncio.CancelledError:
            if exchange is not None and exchange.lost:
                return
            raise
        finally:
            if exchange is not None:
                exchange.on_lost(None)
        if popped is None:
            if wanted.wait:
                await request.reply(200, b'{"success":true,"messages":[]}')
            else:
                await request.reply(204, b"")
            return
        try:
            sent = await request.reply(200, popped.body)
            written = sent and (exchange is None or await exchange.written())
        except BaseException:
            self.manager.undelivered(popped)
            raise
        if written:
            self.manager.delivered(popped)
        else:
            self.manager.undelivered(popped)

    def _pop_request(self, request: Request) -> PopRequest:
        segments = request.segments()
        query = request.query()
        queue = partition = namespace = task = None
        if len(segments) > 3:
            if len(segments) not in (5, 7) or (len(segments) == 7 and segments[5] != "partition"):
                raise NotFound(f"no such route: {request.method} {request.path}")
            queue = check_name(segments[4], "queue")
            partition = check_name(segments[6], "partition") if len(segments) == 7 else None
        else:
            namespace = check_name(query["namespace"], "namespace") if query.get("namespace") else None
            task = check_name(query["task"], "task") if query.get("task") else None
            if namespace is None and task is None:
                raise BadRequest("namespace: name a namespace or a task, or pop /api/v1/pop/queue/:queue")
        group = query.get("consumerGroup") or query.get("group") or QUEUE_MODE
        mode = query.get("subscriptionMode") or self._default_mode
        if mode not in MODES:
            raise BadRequest("subscriptionMode: must be all, new or new-only")
        moment = None
        since = query.get("subscriptionFrom")
        mode = MODES[mode]
        if since == "now":
            mode = "new"
        elif since:
            mode, moment = "from", parse_moment(since, "subscriptionFrom")
        if group == QUEUE_MODE:
            mode, moment = "all", None
        lease = parse_int(query.get("leaseTime"), "leaseTime", 0, 1, SECONDS_MOST)
        return PopRequest(
            queue,
            partition,
            namespace,
            task,
            check_name(group, "consumerGroup"),
            parse_int(query.get("batch"), "batch", 1, 1, BATCH_MOST),
            parse_int(query.get("partitions"), "partitions", 1, 1, PARTITIONS_MOST),
            parse_bool(query.get("wait"), "wait"),
            parse_int(query.get("timeout"), "timeout", 30_000, 0, TIMEOUT_MOST_MS, clamp=True) / 1000,
            parse_bool(query.get("autoAck"), "autoAck"),
            mode,
            moment,
            lease or None,
        )
