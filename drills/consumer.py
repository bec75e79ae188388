"""A consumer of the drill, as a process of its own that may be killed at any moment: pops, writes down, answers.

Never answers what it hasn't written down first. Invariant: what stands in its journal was in its hands.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "src"))

import msgspec
from drills.checker import identity
from drills.journal import Journal
from drills.line import Line, Lost, nothing_done


class Payload(msgspec.Struct):
    id: int


class Message(msgspec.Struct):
    transactionId: str
    partitionId: str
    seq: int
    data: Payload


class Reply(msgspec.Struct):
    messages: list[Message]
    leaseId: str = ""


class Answer(msgspec.Struct):
    transactionId: str
    success: bool


class Outcome(msgspec.Struct):
    success: bool


class Orders(msgspec.Struct):
    """What the drill tells a consumer when it starts it."""

    port: int
    queue: str
    group: str
    journal: str
    stream: int  # of its first loop; the next ones follow
    loops: int
    shapes: list[tuple[int, int]]  # messages and partitions of a pop
    lease_seconds: int
    partitions: list[str]  # where its transactions push
    transactions: float  # share of the replies that are answered in a transaction
    returns: float  # share in which one message is given back
    overdue: float  # share that it answers after the lease's end


REPLY = msgspec.json.Decoder(Reply)
ANSWERS = msgspec.json.Decoder(list[Answer])
OUTCOME = msgspec.json.Decoder(Outcome)


@dataclass(slots=True)
class Loop:
    """One of a consumer's conversations: pop, answer, pop."""

    orders: Orders
    journal: Journal
    stream: int
    dice: random.Random
    pushed: int = 0
    parent: int = field(default_factory=os.getppid)

    async def run(self) -> None:
        told = self.orders
        line = Line(told.port)
        path = f"/api/v1/pop/queue/{told.queue}?consumerGroup={told.group}&wait=true&timeout=2000&leaseTime={told.lease_seconds}"
        while True:
            batch, spread = self.dice.choice(told.shapes)
            try:
                status, raw = await line.call("GET", f"{path}&batch={batch}&partitions={spread}")
            except Lost:
                if os.getppid() != self.parent:
                    return  # the drill itself is gone
                await asyncio.sleep(0.05)
                continue
            if status != 200:
                self.journal.trouble("pop", status)
                await asyncio.sleep(0.05)
                continue
            reply = REPLY.decode(raw)
            if reply.messages:
                await self._work(line, reply)

    async def _work(self, line: Line, reply: Reply) -> None:
        messages = reply.messages
        self.journal.delivered(
            reply.leaseId,
            [int(each.partitionId) for each in messages],
            [each.seq for each in messages],
            [each.data.id for each in messages],
        )
        if self.dice.random() < self.orders.overdue:
            await asyncio.sleep(self.orders.lease_seconds * self.dice.uniform(0.9, 1.3))
        if self.dice.random() < self.orders.transactions:
            await self._transaction(line, reply)
            return
        back: Message | None = None
        if self.dice.random() < self.orders.returns:
            back = self.dice.choice(messages)
            self.journal.returning(reply.leaseId, [back.data.id])
        await self._answer(line, reply, back)

    def _acks(self, reply: Reply, back: Message | None) -> list[dict[str, str]]:
        status = self.dice.choice(("retry", "failed"))
        return [
            {
                "transactionId": each.transactionId,
                "partitionId": each.partitionId,
                "leaseId": reply.leaseId,
                "status": status if each is back else "completed",
            }
            for each in reply.messages
        ]

    async def _answer(self, line: Line, reply: Reply, back: Message | None) -> None:
        """Says what became of the messages, again while no reply comes: under a lease that is safe."""
        body = {"acknowledgments": self._acks(reply, back), "consumerGroup": self.orders.group}
        for _ in range(20):
            try:
                status, raw = await line.call("POST", "/api/v1/ack/batch", body)
            except Lost:
                await asyncio.sleep(0.05)
                continue
            if status == 200:
                answers = ANSWERS.decode(raw)
                done = [
                    message.data.id
                    for message, answer in zip(reply.messages, answers, strict=True)
                    if answer.success and message is not back
                ]
                self.journal.completed(reply.leaseId, done)
                return
            self.journal.trouble("ack", status)
            await asyncio.sleep(0.05)

    async def _transaction(self, line: Line, reply: Reply) -> None:
        """Answers the whole reply and pushes to several partitions, all or nothing. Sent once: repeated, it could only be refused."""
        places = self.dice.sample(self.orders.partitions, self.dice.randint(2, 4))
        ids = [identity(self.stream, self.pushed + at) for at in range(len(places))]
        self.pushed += len(ids)
        items = [
            {"queue": self.orders.queue, "partition": place, "payload": {"id": number}, "transactionId": str(number)}
            for place, number in zip(places, ids, strict=True)
        ]
        acks = [{"type": "ack", "consumerGroup": self.orders.group, **each} for each in self._acks(reply, None)]
        self.journal.pushing(ids)
        body = {"operations": [{"type": "push", "items": items}, *acks], "requiredLeases": [reply.leaseId]}
        try:
            status, raw = await line.call("POST", "/api/v1/transaction", body)
        except Lost as lost:
            if not lost.sent:
                self.journal.pushed(ids, done=False)
            return
        if status == 200:
            done = OUTCOME.decode(raw).success
            self.journal.pushed(ids, done)
            if done:
                self.journal.completed(reply.leaseId, [each.data.id for each in reply.messages])
            return
        self.journal.trouble("transaction", status)
        if nothing_done(status, raw):
            self.journal.pushed(ids, done=False)


async def consume(orders: Orders) -> None:
    journal = Journal(Path(orders.journal))
    loops = [Loop(orders, journal, orders.stream + at, random.Random(orders.stream + at)) for at in range(orders.loops)]
    await asyncio.gather(*(loop.run() for loop in loops))


def main(words: Sequence[str]) -> None:
    asyncio.run(consume(msgspec.json.decode(words[0], type=Orders)))


if __name__ == "__main__":
    main(sys.argv[1:])
