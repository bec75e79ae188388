"""Names to ids: queues, partitions, consumer groups. Asks the caches first, the database where they don't know.

Names that are missing are made in calls of their own, many at once, those that somebody is making right now are asked for again.
Never decides anything: an id that is no longer right makes the call that uses it fail without effect. Invariant: what it answers, the
database said.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, TypeVar

from queenmq.clock import Clock
from queenmq.errors import Busy, QueenError, Unavailable
from queenmq.postgres.pool import Database, LostConnection
from queenmq.shared_state.partition_id_cache import PartitionIdCache, PartitionRef
from queenmq.shared_state.queue_config_cache import QueueConfig, QueueConfigCache
from queenmq.shared_state.singleflight import Singleflight

if TYPE_CHECKING:
    import asyncpg

NAMES_A_CALL = 500
MAKE_SECONDS = 10.0
MAKE_PAUSE, MAKE_PAUSE_MOST = 0.004, 0.05
RENEW_SECONDS = 0.1
ANEW_SECONDS = 1.0
QUEUE_MODE = "__QUEUE_MODE__"


class Named(Protocol):
    """A push: where it goes, under which options."""

    ref: PartitionRef
    config: QueueConfig


N = TypeVar("N", bound=Named)


class _Asked:
    """A name that is being made, and until when that is tried."""

    __slots__ = ("deadline", "future")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.future: asyncio.Future[PartitionRef] = asyncio.get_running_loop().create_future()


class Directory:
    """One server's view of what exists."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self.partitions = PartitionIdCache()
        self.queues = QueueConfigCache(self._load_queue, clock)
        self._groups: dict[tuple[str, str], int] = {}
        self._subscriptions: dict[tuple[str | None, str | None, str], float] = {}
        self._making: dict[tuple[str, str], _Asked] = {}
        self._asked = asyncio.Event()
        self._maker: asyncio.Task[None] | None = None
        self._finding: Singleflight[tuple[str, str], PartitionRef | None] = Singleflight(self._find, lambda key, ref: None)

    async def _load_queue(self, name: str) -> QueueConfig | None:
        found = await self._ask("queue_config", name)
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

    async def _ask(self, name: str, *args: object) -> list[asyncpg.Record]:
        """A question, which may be asked again when the connection broke: nothing is done by it."""
        for pause in (0.01, 0.02, 0.04):
            try:
                return await self._database.rows(name, *args)
            except LostConnection:
                await asyncio.sleep(pause)
        try:
            return await self._database.rows(name, *args)
        except LostConnection as error:
            raise Unavailable(str(error)) from None

    # partitions

    async def make(self, queue: str, partition: str) -> PartitionRef:
        """The partition, made or woken when need be."""
        known = self.partitions.get(queue, partition)
        if known is not None:
            return known
        asked = self._making.get((queue, partition))
        if asked is None:
            asked = self._making[queue, partition] = _Asked(self._clock.monotonic() + MAKE_SECONDS)
            self._asked.set()
            if self._maker is None:
                self._maker = asyncio.create_task(self._make_all())
        return await asyncio.shield(asked.future)

    async def _make_all(self) -> None:
        """Makes whatever is asked for until nothing is, 500 names a call; those that somebody is making right now come after the others."""
        pause = MAKE_PAUSE
        try:
            await asyncio.sleep(0)
            while self._making:
                self._asked.clear()
                names = sorted(itertools.islice(self._making, NAMES_A_CALL))
                if await self._make_some(names):
                    pause = MAKE_PAUSE
                    continue
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._asked.wait(), pause)
                pause = min(pause * 2, MAKE_PAUSE_MOST)
        finally:
            self._maker = None
            self._give_up(list(self._making), Unavailable("the server is stopping"))

    async def _make_some(self, names: list[tuple[str, str]]) -> bool:
        """One call; False when it got nowhere."""
        try:
            row = await self._database.row("make_partitions", [q for q, _ in names], [p for _, p in names])
        except (Busy, LostConnection):
            found: list[tuple[int, int | None]] = [(0, None)] * len(names)
        except Unavailable as error:
            # Whatever became of the names, nothing was stored under them.
            self._give_up(names, Unavailable(str(error)))
            return True
        except Exception as error:
            self._give_up(names, error)
            return True
        else:
            found = list(zip(row["queue_ids"], row["partition_ids"], strict=True))
        now, moved = self._clock.monotonic(), False
        for name, (queue_id, partition_id) in zip(names, found, strict=True):
            asked = self._making.pop(name)
            if partition_id is not None:
                moved = True
                ref = self.partitions.put(PartitionRef(partition_id, name[1], name[0], queue_id))
                if not asked.future.done():
                    asked.future.set_result(ref)
                continue
            self._making[name] = asked
            if now > asked.deadline:
                moved = True
                self._give_up((name,), Busy("somebody is making this partition and does not commit: send again later"))
        return moved

    def _give_up(self, names: Iterable[tuple[str, str]], error: BaseException) -> None:
        for name in names:
            asked = self._making.pop(name, None)
            if asked is not None and not asked.future.done():
                asked.future.set_exception(error)
                asked.future.exception()

    async def renew(self, pushes: Iterable[Named]) -> set[int]:
        """Partitions that turned out asleep or gone are made anew. Answers (as `id(push)`) the pushes whose names somebody is making right
        now: nobody else waits for those."""
        pushes = list(pushes)
        for ref in {id(push.ref): push.ref for push in pushes}.values():
            if self.partitions.get(ref.queue, ref.name) is ref:
                self.partitions.forget(ref.queue, ref.name)
            self.queues.drop_name(ref.queue)
        makes = {name: asyncio.create_task(self.make(*name)) for name in {(push.ref.queue, push.ref.name) for push in pushes}}
        done, pending = await asyncio.wait(makes.values(), timeout=RENEW_SECONDS)
        for task in pending:
            task.cancel()
        for task in done:
            task.result()
        return {id(push) for push in pushes if makes[push.ref.queue, push.ref.name] in pending}

    async def reconfigure(self, pushes: Iterable[N], recheck: Callable[[N], Awaitable[None]]) -> None:
        """Pushes are given what is known now of their partition and queue."""
        for push in pushes:
            push.ref = self.partitions.get(push.ref.queue, push.ref.name) or push.ref
            config = await self.queues.get(push.ref.queue)
            if config is None:
                continue
            old, push.config = push.config, config
            try:
                await recheck(push)
            except QueenError:
                # Else the next try would be made under the new version without what it demands.
                push.config = old
                raise

    async def close(self) -> None:
        """Whoever waits for a name is refused."""
        if self._maker is not None:
            self._maker.cancel()
            await asyncio.gather(self._maker, return_exceptions=True)

    async def find(self, queue: str, partition: str) -> PartitionRef | None:
        """The partition if it is there and awake."""
        return self.partitions.get(queue, partition) or await self._finding.get((queue, partition))

    async def _find(self, key: tuple[str, str]) -> PartitionRef | None:
        (row,) = await self._ask("find_partitions", [key[0]], [key[1]])
        if row["partition_ids"][0] is None:
            return None
        return self.partitions.put(PartitionRef(row["partition_ids"][0], key[1], key[0], row["queue_ids"][0]))

    async def names(self, ids: Iterable[int]) -> None:
        """Learns the names behind ids that this server hasn't met."""
        unknown = [each for each in set(ids) if self.partitions.by_id(each) is None]
        if unknown:
            for row in await self._ask("partition_names", unknown):
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

    async def subscribe(
        self, namespace: str | None, task: str | None, group: str, mode: str, moment: datetime | None, *, anew: bool = False
    ) -> None:
        """Stores a namespace/task subscription, once; `anew`: it may have been deleted, which is looked after once a second."""
        key = (namespace, task, group)
        stored = self._subscriptions.get(key)
        if stored is None or (anew and self._clock.monotonic() - stored >= ANEW_SECONDS):
            await self._patiently("make_subscription", namespace, task, group, mode, moment)
            self._subscriptions[key] = self._clock.monotonic()

    async def walks(self, namespace: str | None, task: str | None, group: str) -> list[tuple[int, int]]:
        """(group id, queue id) of every queue of the subscription, in the order in which a pop serves them."""
        found = await self._ask("wildcard_walks", namespace, task, group)
        return [(row["id"], row["queue_id"]) for row in found]

    async def _patiently(self, name: str, *args: object) -> int | None:
        """A making call whose locks are held for a moment by others."""
        deadline = self._clock.monotonic() + MAKE_SECONDS
        pause = 0.004
        while True:
            try:
                found: int | None = await self._database.value(name, *args)
                return found
            except (Busy, LostConnection):
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
