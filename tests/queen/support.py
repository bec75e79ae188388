"""Pushes, pops and acks as a test writes them, on a manager."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

import msgspec

from queenmq.messages import AckBatchBody, AckItem, PushItem, TransactionBody
from queenmq.queen.manager import Manager
from queenmq.queen.popping import Popped, PopRequest

DEADLINE = 20.0


# every manager has a session of its own, as the database gives them to servers
SESSIONS = itertools.count(10_000)


def item(queue: str, payload: object, partition: str | None = None, **more: Any) -> PushItem:
    return PushItem(queue, msgspec.Raw(json.dumps(payload).encode()), partition, **more)


async def push(manager: Manager, *items: PushItem) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(await manager.push(list(items)))
    return found


async def take(manager: Manager, queue: str, *, batch: int = 10, **more: Any) -> list[dict[str, Any]]:
    """What a pop delivers."""
    popped = await manager.pop(PopRequest(queue, batch=batch, **more))
    if popped is None:
        return []
    manager.delivered(popped)
    return messages(popped)


def messages(popped: Popped) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(popped.body)["messages"]
    return found


def ack_item(message: dict[str, Any], status: Any = "completed", *, lease: bool = True) -> AckItem:
    group = message["consumerGroup"] if message["consumerGroup"] != "__QUEUE_MODE__" else None
    return AckItem(message["transactionId"], message["partitionId"], status, None, group, message["leaseId"] if lease else None)


async def ack(manager: Manager, *found: dict[str, Any], status: Any = "completed") -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = json.loads(await manager.ack_batch(AckBatchBody([ack_item(each, status) for each in found])))
    return answers


async def transact(manager: Manager, body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await manager.transaction(msgspec.convert(body, TransactionBody)))
    return found


async def until(condition: Callable[[], bool], seconds: float = DEADLINE) -> None:
    """Gives way to the others until something has come true."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        assert loop.time() < deadline, "it did not come true"
        await asyncio.sleep(0)
