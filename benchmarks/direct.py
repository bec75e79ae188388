"""Our SQL functions called directly over asyncpg connections, as the peers' are: no server, no HTTP.

The arrays are those that the server prepares (partitions distinct and ascending, counts, plain items packed: per partition one text of
ids and one of payloads); transaction ids are fresh in every call and rise in time, as those that the server makes. Its invariant: a
partition is pushed to by one connection at a time, as within a server.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
import uuid
from dataclasses import dataclass
from typing import Any

import asyncpg
import msgspec
from benchmarks.common import Sample
from benchmarks.lab import Postgres, queries

OURS = queries("ours")
NAMES_A_CALL = 500
SEPARATOR = "\x1e"
GROUP = "__QUEUE_MODE__"


@dataclass(slots=True)
class Shape:
    """The arrays of one call that stay the same from call to call."""

    partitions: list[int]
    counts: list[int]
    which: list[int]
    position: list[int]
    payloads: list[str]
    packed: list[str]

    def pack(self, items: list[str]) -> list[str]:
        """Per partition one text, as the server sends plain items."""
        ends = itertools.accumulate(self.counts)
        return [SEPARATOR.join(items[end - count : end]) for end, count in zip(ends, self.counts, strict=True)]


def shape(partitions: list[int], payloads: list[str]) -> Shape:
    """`payloads` go round the partitions; a partition's items stand together, as the server puts them."""
    distinct = sorted(set(partitions[: len(payloads)]))
    least, more = divmod(len(payloads), len(distinct))
    counts = [least + (at < more) for at in range(len(distinct))]
    which = [at + 1 for at, count in enumerate(counts) for _ in range(count)]
    position = [place for count in counts for place in range(count)]
    made = Shape(distinct, counts, which, position, payloads, [])
    made.packed = made.pack(payloads)
    return made


async def make_partitions(connection: asyncpg.Connection[Any], queue: str, names: list[str]) -> list[int]:
    """The ids of the partitions, by position; made where they are missing."""
    ids: list[int] = []
    for start in range(0, len(names), NAMES_A_CALL):
        some = names[start : start + NAMES_A_CALL]
        ids.extend(await connection.fetchval(OURS["make_partitions"], [queue] * len(some), some))
    return ids


async def fill(connection: asyncpg.Connection[Any], ids: list[int], each: int, payloads: list[str]) -> int:
    """`each` messages into every partition, about a thousand a call; answers how many were stored."""
    statement, at_once, stored = await connection.prepare(OURS["push_messages"]), max(1, 1_000 // each), 0
    for start in range(0, len(ids), at_once):
        made = shape(
            ids[start : start + at_once], (payloads * (each * at_once // len(payloads) + 1))[: each * len(ids[start : start + at_once])]
        )
        transactions = [str(uuid.uuid4()) for _ in made.which]
        await statement.fetchrow(made.partitions, made.counts, made.which, made.position, transactions, made.payloads)
        stored += len(transactions)
    return stored


class Pusher:
    """As many connections as a case has, kept open over its rounds; each owns its share of the partitions (one: all share it)."""

    def __init__(self, postgres: Postgres, database: str, queue: str) -> None:
        self._postgres, self._database, self._queue = postgres, database, queue
        self._connections: list[asyncpg.Connection[Any]] = []
        self._shares: list[list[int]] = []
        self._payloads: list[str] = []
        self._prefix, self._calls = uuid.uuid4().hex[:16], itertools.count()

    async def open(self, connections: int, names: list[str], payloads: list[str]) -> None:
        self._connections = [await self._postgres.connect(self._database) for _ in range(connections)]
        ids = await make_partitions(self._connections[0], self._queue, names)
        self._shares = [ids[at::connections] if len(ids) >= connections else ids for at in range(connections)]
        self._payloads = payloads

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()

    async def push(self, batch: int, seconds: float) -> Sample:
        """Every connection pushes `batch` messages a call until the time is up; what is answered counts."""
        latencies: list[float] = []
        statements = [await connection.prepare(OURS["push_packed"]) for connection in self._connections]
        clock = time.perf_counter
        before, database = os.times(), self._postgres.cpu()
        start = clock()
        until = start + seconds

        async def pusher(number: int) -> int:
            shapes = self._shapes(self._shares[number], batch)
            call, fetch, pushed = 0, statements[number].fetchrow, 0
            tails = [f"{at:04x}" for at in range(batch)]
            while (began := clock()) < until:
                made = shapes[call % len(shapes)]
                head = f"{self._prefix}{next(self._calls):08x}"
                transactions = [head + tail for tail in tails]
                row = await fetch(made.partitions, made.counts, made.pack(transactions), made.packed)
                if row is None or row["duplicates"] is not None or None in row["bases"]:
                    raise RuntimeError(f"push_messages answered {row}")
                call += 1
                pushed += batch
                latencies.append(clock() - began)
            return pushed

        pushed = sum(await asyncio.gather(*(pusher(number) for number in range(len(statements)))))
        taken = clock() - start
        after = os.times()
        cpu = {"client": after.user + after.system - before.user - before.system, "postgres": self._postgres.cpu() - database}
        return Sample(pushed, taken, latencies, cpu)

    def _shapes(self, share: list[int], batch: int) -> list[Shape]:
        payloads = (self._payloads * (batch // len(self._payloads) + 1))[:batch]
        windows = range(0, len(share), batch) if len(share) > batch else [0]
        return [shape((share[at:] + share[:at])[: max(batch, 1)], payloads) for at in windows]


class Told(msgspec.Struct):
    """What a claim's last row says of its walk: the smallest candidate that it met (in microseconds), and where it ended early."""

    first: int | None = None
    more: tuple[int, int] | None = None


@dataclass(slots=True)
class Claim:
    """What one claim took: (partition, transaction id) of each message, under this lease."""

    lease: uuid.UUID
    messages: list[tuple[int, str]]
    seconds: float


class Claimer:
    """One consumer of a queue's group, calling `pop_messages` and `ack_messages` itself, with the lower bound that a server keeps."""

    SLACK = 500_000  # microseconds below the smallest candidate of the last claim
    WHOLE_WALK = 1.0  # seconds between walks from the beginning

    def __init__(self, postgres: Postgres, database: str, queue: str) -> None:
        self._postgres, self._database, self._queue = postgres, database, queue
        self._bound, self._walked = 0, 0.0
        self.group = 0

    async def open(self) -> None:
        self._connection = await self._postgres.connect(self._database)
        self.group = await self._connection.fetchval(OURS["make_group"], self._queue, GROUP)
        self._pop = await self._connection.prepare(OURS["pop_messages"])
        self._ack = await self._connection.prepare(OURS["ack_messages"])

    async def close(self) -> None:
        await self._connection.close()

    async def claim(self, batch: int, spread: int = 1) -> Claim:
        lease, began = uuid.uuid4(), time.perf_counter()
        if began - self._walked > self.WHOLE_WALK:
            self._bound = 0
        start = (self._bound, 0)
        whole = False
        while True:
            if start == (0, 0):
                self._walked, whole = began, True
            rows = await self._pop.fetch([batch], [spread], [None], [lease], [None], [1], [self.group], [start[0]], [start[1]])
            told = msgspec.json.decode(rows[-1]["payload"], type=Told)
            if len(rows) > 1 or (told.more is None and whole):
                break
            # An empty part of the walk is not an empty queue: on from where it ended, or once from the beginning.
            start = told.more if told.more is not None else (0, 0)
        seconds = time.perf_counter() - began
        self._bound = 0 if told.first is None else max(0, told.first - self.SLACK)
        return Claim(lease, [(row["partition_id"], row["transaction_id"]) for row in rows[:-1]], seconds)

    async def ack(self, claim: Claim) -> None:
        """Everything the claim took is completed."""
        partitions = sorted({partition for partition, _ in claim.messages})
        place = {partition: at + 1 for at, partition in enumerate(partitions)}
        which = [place[partition] for partition, _ in claim.messages]
        transactions = [transaction for _, transaction in claim.messages]
        rows = len(partitions)
        row = await self._ack.fetchrow(partitions, [GROUP] * rows, [claim.lease] * rows, which, transactions)
        if row is None or set(row["states"]) != {1}:
            raise RuntimeError(f"ack_messages answered {row}")
