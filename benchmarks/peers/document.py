"""The document's own way to choose a partition (seeds/3-partition-lookup.md): its tables in a database of their own, its two queries.

It never touches our schema. Its invariant: the same number of partitions and messages as on our side, all its indexes, statistics fresh.
"""

from __future__ import annotations

import time
from typing import Any

import asyncpg
from benchmarks.lab import Postgres, queries

STATEMENTS = queries("document")
GROUP = "__QUEUE_MODE__"


class Document:
    def __init__(self, postgres: Postgres, database: str, queue: str) -> None:
        self._postgres, self.database, self._queue = postgres, database, queue
        self._connection: asyncpg.Connection[Any] | None = None

    async def open(self, partitions: int, messages: int) -> None:
        self._postgres.create(self.database)
        self._connection = await self._postgres.connect(self.database)
        fill = STATEMENTS["fill"].replace(":partitions", str(partitions)).replace(":messages", str(messages))
        for statement in (STATEMENTS["schema"], fill, STATEMENTS["indexes"]):
            await self._connection.execute(statement)

    async def drain(self, left: int) -> None:
        """Everything but `left` partitions is consumed."""
        assert self._connection is not None
        await self._connection.execute(STATEMENTS["drain"].replace(":left", str(left)))

    async def timed(self, statement: str, times: int) -> list[float]:
        """Seconds of each run of `count_query` or `lookup_query`, prepared."""
        assert self._connection is not None
        prepared = await self._connection.prepare(STATEMENTS[statement])
        taken = []
        for _ in range(times):
            began = time.perf_counter()
            rows = await prepared.fetch(self._queue, GROUP)
            taken.append(time.perf_counter() - began)
            assert rows, "the document's query found nothing where messages wait"
        return taken

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
