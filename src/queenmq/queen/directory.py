"""Names to ids: queues, partitions, consumer groups. Asks the caches first, the database where they don't know.

Names that are missing are made in calls of their own, many at once, those that somebody is making right now are asked for again.
Never decides anything: an id that is no longer right makes the call that uses it fail without effect. Invariant: what it answers, the
database said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime

from queenmq.clock import Clock
from queenmq.errors import Busy
from queenmq.postgres.pool import Database
from queenmq.shared_state.partition_id_cache import PartitionIdCache, PartitionRef
from queenmq.shared_state.queue_config_cache import QueueConfig, QueueConfigCache
from queenmq.shared_state.singleflight import Singleflight

NAMES_A_CALL = 500
MAKE_SECONDS = 10.0
QUEUE_MODE = "__QUEUE_MODE__"


class Directory:
    """One server's view of what exists."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self.partitions = PartitionIdCache()
        self.queues = QueueConfigCache(self._load_queue, clock)
        self._groups: dict[tuple[str, str], int] = {}
        self._subscriptions: set[tuple[str | None, str | None, str]] = set()
        self._making: dict[tuple[str, str], asyncio.Future[PartitionRef]] = {}
        self._maker: asyncio.Task[None] | None = None
        self._finding: Singleflight[tuple[str, str], PartitionRef | None] = Singleflight(self._find, lambda key, ref: None)

    async def _load_queue(self, name: str) -> QueueConfig | None:
        found = await self._database.rows("queue_config", name)
        if not found:
            return None
        row = found[0]
        return QueueConfig(
            row["id"],
            row["name"],
            row["namespace"],
            row["task"],
            row["max_size"],
            row["priority"],
            row["encryption_enabled"],
            row["config_version"],
        )

    # partitions

    async def make(self, queue: str, partition: str) -> PartitionRef:
        """The partition, made or woken when need be."""
        known = self.partitions.get(queue, partition)
        if known is not None:
            return known
        future = self._making.get((queue, partition))
        if future is None:
            future = self._making[queue, partition] = asyncio.get_running_loop().create_future()
            if self._maker is None:
                self._maker = asyncio.create_task(self._make_all())
        return await asyncio.shield(future)

    async def _make_all(self) -> None:
        """Makes whatever is asked for until nothing is, 500 names a call."""
        await asyncio.sleep(0)
        pause, deadline = 0.004, self._clock.monotonic() + MAKE_SECONDS
        while self._making:
            names = sorted(self._making)[:NAMES_A_CALL]
            try:
                row = await self._database.row("make_partitions", [q for q, _ in names], [p for _, p in names])
            except Busy as error:
                if self._clock.monotonic() > deadline:
                    self._give_up(names, error)
                await asyncio.sleep(pause)
                continue
            except Exception as error:
                self._give_up(names, error)
                continue
            missing = 0
            for (queue, partition), queue_id, partition_id in zip(names, row["queue_ids"], row["partition_ids"], strict=True):
                if partition_id is None:
                    missing += 1
                    continue
                ref = self.partitions.put(PartitionRef(partition_id, partition, queue, queue_id))
                future = self._making.pop((queue, partition))
                if not future.done():
                    future.set_result(ref)
            if missing == len(names):
                if self._clock.monotonic() > deadline:
                    self._give_up(names, Busy("somebody is making this partition and does not commit: send again later"))
                await asyncio.sleep(pause)
                pause = min(pause * 2, 0.05)
            else:
                pause, deadline = 0.004, self._clock.monotonic() + MAKE_SECONDS
        self._maker = None

    def _give_up(self, names: Iterable[tuple[str, str]], error: BaseException) -> None:
        for name in names:
            future = self._making.pop(name, None)
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()

    async def remake(self, refs: Iterable[PartitionRef]) -> None:
        """Refs that turned out asleep or gone: forgotten and made anew."""
        refs = list(refs)
        for ref in refs:
            self.partitions.forget(ref.queue, ref.name)
            self.queues.drop_name(ref.queue)
        await asyncio.gather(*(self.make(ref.queue, ref.name) for ref in refs))

    async def find(self, queue: str, partition: str) -> PartitionRef | None:
        """The partition if it is there and awake."""
        return self.partitions.get(queue, partition) or await self._finding.get((queue, partition))

    async def _find(self, key: tuple[str, str]) -> PartitionRef | None:
        row = await self._database.row("find_partitions", [key[0]], [key[1]])
        if row["partition_ids"][0] is None:
            return None
        return self.partitions.put(PartitionRef(row["partition_ids"][0], key[1], key[0], row["queue_ids"][0]))

    async def names(self, ids: Iterable[int]) -> None:
        """Learns the names behind ids that this server hasn't met."""
        unknown = [each for each in set(ids) if self.partitions.by_id(each) is None]
        if unknown:
            for row in await self._database.rows("partition_names", unknown):
                self.partitions.put(PartitionRef(row["id"], row["partition"], row["queue"], row["queue_id"]))

    # consumer groups

    async def group(self, queue: str, group: str, mode: str, moment: datetime | None) -> int | None:
        """The group's id, made at its first pop; None while its queue isn't there."""
        known = self._groups.get((queue, group))
        if known is not None:
            return known
        found: int | None = await self._patiently("make_group", queue, group, mode, moment)
        if found is not None:
            self._groups[queue, group] = found
        return found

    async def subscribe(self, namespace: str | None, task: str | None, group: str, mode: str, moment: datetime | None) -> None:
        """Stores a namespace/task subscription, once."""
        key = (namespace, task, group)
        if key not in self._subscriptions:
            await self._patiently("make_subscription", namespace, task, group, mode, moment)
            self._subscriptions.add(key)

    async def walks(self, namespace: str | None, task: str | None, group: str) -> list[tuple[int, int]]:
        """(group id, queue id) of every queue of the subscription, in the order in which a pop serves them."""
        found = await self._database.rows("wildcard_walks", namespace, task, group)
        return [(row["id"], row["queue_id"]) for row in found]

    async def _patiently(self, name: str, *args: object) -> int | None:
        """A making call whose locks are held for a moment by others."""
        deadline = self._clock.monotonic() + MAKE_SECONDS
        pause = 0.004
        while True:
            try:
                found: int | None = await self._database.value(name, *args)
                return found
            except Busy:
                if self._clock.monotonic() > deadline:
                    raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, 0.05)

    # forgetting

    def forget_group(self, queue: str, group: str) -> None:
        self._groups.pop((queue, group), None)

    def forget_queue(self, queue_id: int) -> None:
        """The queue is gone."""
        name = self.queues.name_of(queue_id)
        self.queues.drop(queue_id)
        names = {name} if name is not None else set()
        names |= {ref.queue for ref in list(self.partitions._ids.values()) if ref.queue_id == queue_id} if name is None else set()
        for each in names:
            self.partitions.forget_queue(each)
            for key in [key for key in self._groups if key[0] == each]:
                del self._groups[key]

    def clear(self) -> None:
        """The notifications were interrupted: anything may have changed."""
        self.partitions.clear()
        self.queues.clear()
        self._groups.clear()
        self._subscriptions.clear()
