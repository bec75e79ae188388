"""The drill's producers: through HTTP, and SQL users with transactions of their own. All write down what was acknowledged.

A push whose reply didn't arrive is sent again with the same transaction id. Never counts what nobody confirmed: a COMMIT without an
answer is settled later, by the user's own table. Invariant: a producer has one push under way.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import asyncpg
import msgspec
from benchmarks.lab import queries
from drills.checker import Ledger
from drills.line import Line, Lost, nothing_done

REPEATED = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
)
GONE = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what asyncpg may say once its connection broke off
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
)
SQL = queries("drill", Path(__file__).resolve().parent / "sql")
Level = Literal["read_committed", "repeatable_read", "serializable"]


class Pushed(msgspec.Struct):
    transaction_id: str
    status: str
    seq: int | None


PUSHED = msgspec.json.Decoder(list[Pushed])


@dataclass(slots=True)
class Pace:
    """How far the producers may go: kills and messages keep step, and a trickle always flows."""

    target: int
    steps: int  # kills to come
    ledger: Ledger
    done: int = 0
    finished: bool = False
    counts: dict[str, int] = field(default_factory=dict)

    async def turn(self) -> None:
        """Before each push."""
        if len(self.ledger.acknowledged) >= self.target * (self.done + 1.5) / (self.steps + 1):
            await asyncio.sleep(0.25)

    async def reached(self, patience: float) -> None:
        """Until the messages have come as far as the kills, or patience ends."""
        until = time.monotonic() + patience
        while time.monotonic() < until:
            if len(self.ledger.acknowledged) >= self.target * min(1.0, self.done / max(self.steps, 1)):
                return
            await asyncio.sleep(0.02)

    def count(self, name: str, more: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + more


@dataclass(slots=True)
class HttpProducer:
    """Pushes some messages to some of its partitions, again until each is acknowledged."""

    stream: int
    queue: str
    partitions: Sequence[str]
    port: int
    pace: Pace
    most: int = 20
    dice: random.Random = field(default_factory=random.Random)

    async def run(self) -> None:
        line = Line(self.port)
        try:
            while not self.pace.finished:
                await self.pace.turn()
                places = self.dice.sample(self.partitions, min(len(self.partitions), self.dice.choice((1, 1, 1, 2, 3))))
                ids = self.pace.ledger.take(self.stream, self.dice.randint(1, self.most))
                await self._push(line, [(number, places[at % len(places)]) for at, number in enumerate(ids)])
        finally:
            line.close()

    async def _push(self, line: Line, wanted: list[tuple[int, str]]) -> None:
        while wanted:
            items = [
                {"queue": self.queue, "partition": place, "payload": {"id": number}, "transactionId": str(number)}
                for number, place in wanted
            ]
            try:
                status, raw = await line.call("POST", "/api/v1/push", {"items": items})
            except Lost:
                self.pace.count("push_without_reply")
                await asyncio.sleep(self.dice.uniform(0.02, 0.1))
                continue
            if status == 201:
                answers = PUSHED.decode(raw)
                good: dict[int, int] = {}
                for answer in answers:
                    self.pace.count(f"push_{answer.status}")
                    if answer.status in ("queued", "duplicate") and answer.seq is not None:
                        good[int(answer.transaction_id)] = answer.seq
                self.pace.ledger.acknowledged.update(good)
                self.pace.ledger.seqs.update(good)
                wanted = [each for each in wanted if each[0] not in good]
            else:
                self.pace.count(f"push_{status}{'_nothing_done' if nothing_done(status, raw) else ''}")
                if 400 <= status < 500:
                    raise RuntimeError(f"a push was refused: {status} {raw.decode()}")
                await asyncio.sleep(self.dice.uniform(0.02, 0.1))


@dataclass(slots=True)
class SqlUser:
    """Pushes through the outbox, in transactions that also write rows of its own."""

    stream: int
    queue: str
    partitions: Sequence[str]
    level: Level
    connect: Callable[[], Any]
    pace: Pace
    slow: float = 0.0  # seconds that a slow transaction stays open after its pushes
    rolled_back: float = 0.0  # share
    rest: float = 0.02  # seconds between two transactions
    dice: random.Random = field(default_factory=random.Random)

    async def run(self) -> None:
        connection: asyncpg.Connection[Any] | None = None
        try:
            while not self.pace.finished:
                await self.pace.turn()
                if connection is None or connection.is_closed():
                    try:
                        connection = await self.connect()
                    except GONE:
                        await asyncio.sleep(0.1)
                        continue
                ids = list(self.pace.ledger.take(self.stream, self.dice.randint(1, 4)))
                self.pace.ledger.together.append(tuple(ids))
                await self._until_certain(connection, ids)
                await asyncio.sleep(self.rest * self.dice.uniform(0.5, 1.5))
        finally:
            if connection is not None:
                connection.terminate()

    async def _until_certain(self, connection: asyncpg.Connection[Any], ids: list[int]) -> None:
        """Repeats what PostgreSQL asks to have repeated. An answer that got lost is looked up at the end, in the user's own table."""
        back = self.dice.random() < self.rolled_back
        while not self.pace.finished:
            try:
                await self._transaction(connection, ids, back)
            except REPEATED as error:
                self.pace.count(f"sql_{self.level}_{error.sqlstate}")
                await asyncio.sleep(self.dice.uniform(0.0, 0.02))
                continue
            except GONE:
                self.pace.count("sql_connection_lost")
                connection.terminate()
                return
            if not back:
                self.pace.ledger.acknowledged.update(ids)
            self.pace.count(f"sql_{self.level}_{'rolled_back' if back else 'committed'}")
            return

    async def _transaction(self, connection: asyncpg.Connection[Any], ids: list[int], back: bool) -> None:
        transaction = connection.transaction(isolation=self.level)
        await transaction.start()
        work_first = self.dice.random() < 0.8
        try:
            await self._work(work_first)
            for number, place in zip(ids, sorted(self.dice.choices(self.partitions, k=len(ids))), strict=True):
                await connection.execute(SQL["push"], self.queue, place, f'{{"id":{number}}}')
            await connection.execute(SQL["order"], ids)
            await self._work(not work_first)
        except REPEATED:
            await transaction.rollback()
            raise
        await (transaction.rollback() if back else transaction.commit())

    async def _work(self, here: bool) -> None:
        """What a slow user does in his transaction, before his pushes or after them."""
        if here and self.slow:
            await asyncio.sleep(self.slow * self.dice.uniform(0.1, 1.0))
