"""Many sessions at once on the SQL core, as servers and users would use it, some of them killed; then every message is accounted for.

Servers push over several partitions and set aside what is held, users push in transactions of their own at every isolation level (slow,
some rolled back, one left idle), plain inserts come in between, consumers of several groups answer, fail, give back or run late, partitions
appear, fall asleep and wake, groups come later, backends are killed. Invariant of the accounts: `pushed` holds what was certainly
committed, `perhaps` what nobody knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import asyncpg
from tests.sql.support import Ack, Connection, Item, ack, group, pop, push, push_packed, stranded
from tests.sql.transactions import Transaction, execute

QUEUE = "crowd"
LEASE = 1
GONE = (
    *(asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.InternalClientError, asyncpg.AdminShutdownError),
    *(ConnectionError, OSError),
)
AGAIN = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError)
INSERT = "INSERT INTO queen.messages (partition_id, transaction_id, payload) SELECT p, t, '1' FROM unnest($1::int[], $2::text[]) u(p, t)"
SETTLED = """
SELECT c.partition_id, min(c.cursor_seq) AS upto
  FROM queen.partition_consumers c JOIN queen.partitions p ON p.id = c.partition_id JOIN queen.queues q ON q.id = p.queue_id
 WHERE q.name = $1
 GROUP BY c.partition_id
HAVING count(*) = (SELECT count(*) FROM queen.consumer_groups_metadata WHERE queue_name = $1) AND min(c.cursor_seq) > 0
"""
OURS = "SELECT p.id FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1"
UNSETTLED = f"""
SELECT count(*) FROM queen.partition_consumers c JOIN queen.partition_lookup l USING (partition_id)
 WHERE l.next_seq > greatest(c.cursor_seq + 1, l.first_seq) AND partition_id IN ({OURS})
"""
HOLES = f"""
SELECT count(*) FROM queen.partition_lookup l
 WHERE l.next_seq - l.first_seq <> (SELECT count(*) FROM queen.messages m WHERE m.partition_id = l.partition_id)
   AND partition_id IN ({OURS})
"""
LOST = f"SELECT count(*) FROM queen.removed_messages WHERE reason = 'lost' AND partition_id IN ({OURS})"


def dropped(connection: Connection | None) -> Connection | None:
    """A backend that was killed leaves a connection that may not know it yet: nothing is left of it."""
    if connection is not None:
        connection.terminate()
    return None


@dataclass
class Held:
    """A batch as its consumer knows it."""

    until: float
    open: bool = True


@dataclass
class Account:
    """What one group was given."""

    made: float
    done: set[str] = field(default_factory=set)
    last: dict[int, int] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    """Answered by a call whose reply was lost."""


@dataclass
class Crowd:
    """One run."""

    connect: Callable[[], Awaitable[Connection]]
    draw: random.Random
    pushed: dict[str, float] = field(default_factory=dict)
    perhaps: set[str] = field(default_factory=set)
    again: set[str] = field(default_factory=set)
    """Pushed once more after a lost reply: retention may have taken the first copy meanwhile."""
    accounts: dict[str, Account] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    deliveries: int = 0
    kills: int = 0
    stop: float = 0.0
    finishing: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    backends: dict[int, int] = field(default_factory=dict)
    names: int = 6

    async def session(self, number: int, connection: Connection | None) -> Connection:
        if connection is None or connection.is_closed():
            connection = await self.connect()
            await connection.execute("SET lock_timeout = '20ms'")
            self.backends[number] = connection.get_server_pid()
        return connection

    async def pause(self, seconds: float) -> None:
        """Thinks for so long, unless the run ends first."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.over.wait(), seconds)

    def name(self) -> str:
        return f"p{self.draw.randrange(self.names)}"

    # -- those who push

    async def server(self, number: int) -> None:
        connection, turn = None, 0
        known: dict[str, int] = {}
        while time.monotonic() < self.stop:
            turn += 1
            wanted = [(self.name(), f"s{number}-{turn}-{at}") for at in range(self.draw.randrange(1, 6))]
            began, skip = time.monotonic(), False
            while wanted and time.monotonic() < self.stop + 5:
                try:
                    connection = await self.session(number, connection)
                    unknown = sorted({name for name, _ in wanted} - known.keys())
                    if unknown:
                        row = await connection.fetchrow("SELECT * FROM queen.make_partitions($1, $2)", [QUEUE] * len(unknown), unknown)
                        assert row is not None
                        known |= {name: made for name, made in zip(unknown, row["partition_ids"], strict=True) if made is not None}
                    now = [(name, one) for name, one in wanted if name in known]
                    way = self.draw.choice((push, push_packed))
                    done = await way(connection, *(Item(known[name], one) for name, one in now), skip=skip) if now else None
                except GONE:
                    connection = dropped(connection)
                    self.perhaps |= {one for _, one in wanted}
                    self.again |= {one for _, one in wanted}
                    continue
                except asyncpg.LockNotAvailableError:
                    skip = True
                    continue
                except asyncpg.PostgresError as error:
                    if error.sqlstate != "QM001":
                        raise
                    known.clear()
                    continue
                stored = {one for (_, one), seq in zip(now, done.seqs, strict=True) if seq is not None} if done else set()
                self.pushed |= dict.fromkeys(stored, began)
                wanted = [(name, one) for name, one in wanted if one not in stored]
                await self.pause(0.004 if wanted else self.draw.random() / 200)

    async def user(self, number: int, level: str) -> None:
        connection, turn = None, 0
        while time.monotonic() < self.stop:
            turn += 1
            ids, began = [f"u{number}-{turn}-{at}" for at in range(self.draw.randrange(1, 4))], time.monotonic()
            try:
                connection = await self.session(number, connection)
                await connection.execute("SET lock_timeout = 0")
                await connection.execute(f"BEGIN ISOLATION LEVEL {level}")
                await connection.fetchval("SELECT count(*) FROM queen.queues")
                for one in ids:
                    await connection.fetchval("SELECT queen.push($1, $2, '1', $3)", QUEUE, self.name(), one)
                await self.pause(self.draw.choice((0, 0, 0.01, 0.3 if number % 5 == 0 else 0.02)))
                if self.draw.random() < 0.2:
                    await connection.execute("ROLLBACK")
                    continue
                self.perhaps |= set(ids)
                await connection.execute("COMMIT")
                self.pushed |= dict.fromkeys(ids, began)
            except AGAIN:
                self.perhaps -= set(ids)
                if connection is not None:
                    with contextlib.suppress(*GONE):
                        await connection.execute("ROLLBACK")
            except GONE:
                connection = dropped(connection)
                continue

    async def inserter(self, number: int) -> None:
        connection, turn = None, 0
        while time.monotonic() < self.stop:
            turn += 1
            ids, began = [f"i{number}-{turn}-{at}" for at in range(self.draw.randrange(1, 9))], time.monotonic()
            try:
                connection = await self.session(number, connection)
                known = sorted(row["id"] for row in await connection.fetch(OURS, QUEUE))
                some = sorted(self.draw.choice(known) for _ in ids) if known else []
                self.perhaps |= set(ids)
                await connection.execute(INSERT, some, ids[: len(some)])
                self.pushed |= dict.fromkeys(ids[: len(some)], began)
            except AGAIN:
                self.perhaps -= set(ids)
            except GONE:
                connection = dropped(connection)
                continue
            await self.pause(self.draw.random() / 20)

    # -- those who consume

    async def consumer(self, number: int, name: str) -> None:
        connection, after, got = None, (0, 0), None
        while not self.finishing or time.monotonic() < self.stop:
            try:
                connection = await self.session(number, connection)
                before = time.monotonic()
                got = await pop(connection, self.groups[name], batch=self.draw.randrange(1, 12), spread=2, seconds=LEASE, after=after)
                after = tuple(got.told["more"]) if got.told["more"] and not got.rows else (0, 0)
                if not got.rows:
                    await self.pause(0.005)
                    continue
                self._given(name, got.rows, before)
                await self._answer(connection, name, got.lease, got.rows)
            except GONE:
                connection = dropped(connection)
                self.accounts[name].unsure |= set(got.ids) if got is not None else set()
                # What became of the claim or the answers nobody knows; nothing is open on our side.
                for held in self.accounts[name].held.values():
                    held.open = False

    def _given(self, name: str, rows: list[Any], before: float) -> None:
        account = self.accounts[name]
        for row in rows:
            p, seq, one = row["partition_id"], row["seq"], row["transaction_id"]
            self.deliveries += 1
            if one in account.done and one not in self.again:
                self.faults["duplicates"] += 1
            if one not in account.seen and seq < account.last.get(p, 0):
                self.faults["reordered"] += 1
            account.seen.add(one)
            account.last[p] = max(seq, account.last.get(p, 0))
        for p in {row["partition_id"] for row in rows}:
            old = account.held.get(p)
            if old is not None and old.open and before < old.until - 0.2:
                self.faults["duplicates"] += 1
            account.held[p] = Held(before + LEASE)

    async def _answer(self, connection: Connection, name: str, lease: uuid.UUID, rows: list[Any]) -> None:
        account, chance = self.accounts[name], self.draw.random()
        parts = {row["partition_id"] for row in rows}
        held = [account.held[p] for p in parts]
        if not self.finishing and chance < 0.03:
            return
        if not self.finishing and chance < 0.06:
            for one in held:
                one.open = False
            await connection.fetchrow("SELECT * FROM queen.release_leases(ARRAY[$1::uuid], ARRAY[false], true)", lease)
            return
        acks = []
        for row in rows:
            status = self.draw.choices(("completed", "failed", "retry"), (1, 0, 0) if self.finishing else (30, 1, 1))[0]
            acks.append(Ack(row["partition_id"], row["transaction_id"], status, lease, name))
        skip = False
        for one in held:
            one.open = False
        if not self.finishing and chance > 0.85:
            await self._transact(connection, acks, lease)
            return
        while acks:
            try:
                done = await ack(connection, *acks, skip=skip)
            except asyncpg.LockNotAvailableError:
                skip = True
                continue
            for each, answer in zip(acks, done, strict=True):
                if answer.success and each.status == "completed":
                    account.done.add(each.transaction_id)
            acks = [each for each, answer in zip(acks, done, strict=True) if answer.held]

    async def _transact(self, connection: Connection, acks: list[Ack], lease: uuid.UUID) -> None:
        """Answers the batch and pushes what follows from it, all or nothing; nothing happens when the lease ran out."""
        name = acks[0].group or ""
        follows = [Item(p, f"t-{uuid.uuid4()}") for p in sorted({one.partition for one in acks})]
        began, skip = time.monotonic(), False
        self.perhaps |= {item.transaction_id for item in follows}
        outcome = 0
        while outcome == 0:
            try:
                done = await execute(connection, Transaction(follows, acks, [lease]), skip=skip)
            except asyncpg.LockNotAvailableError:
                skip = True
                continue
            outcome = done.outcomes[0]
        if outcome == 1:
            self.pushed |= {item.transaction_id: began for item in follows}
            self.accounts[name].done |= {one.transaction_id for one in acks if one.status == "completed"}
        else:
            self.perhaps -= {item.transaction_id for item in follows}

    # -- the rest of a server's work

    async def keeper(self, number: int) -> None:
        """Takes wakes, removes what all groups have settled, puts to sleep what is empty, toggles options."""
        connection = None
        while not self.finishing or time.monotonic() < self.stop:
            try:
                connection = await self.session(number, connection)
                await connection.fetchrow("SELECT * FROM queen.take_wakes()")
                if not self.finishing:
                    for row in await connection.fetch(SETTLED, QUEUE):
                        await connection.fetchval("SELECT queen.remove_messages($1, 1, $2, 'retention')", row["partition_id"], row["upto"])
                        await connection.fetchval("SELECT queen.sleep_partition($1)", row["partition_id"])
                    await connection.fetchval(
                        "SELECT queen.configure_queue($1, NULL, NULL, $2)", QUEUE, f'{{"windowBuffer": {self.draw.choice((0, 0, 0, 1))}}}'
                    )
            except GONE:
                connection = dropped(connection)
            except AGAIN:
                pass
            except asyncpg.PostgresError as error:
                if error.sqlstate != "QM008":
                    raise
            await self.pause(0.03)

    async def killer(self) -> None:
        connection = await self.connect()
        while time.monotonic() < self.stop:
            await self.pause(0.25)
            victim = self.draw.choice(list(self.backends.values()))
            self.kills += bool(await connection.fetchval("SELECT pg_terminate_backend($1)", victim))

    async def newcomer(self) -> None:
        """Partitions and groups that appear while all are at work."""
        connection = await self.connect()
        for number in range(3):
            await self.pause((self.stop - time.monotonic()) / (5 - number))
            self.names += 3
            name = f"late{number}"
            with contextlib.suppress(*AGAIN):
                self.groups[name] = await group(connection, QUEUE, name, self.draw.choice(("all", "new")))
                self.accounts[name] = Account(time.monotonic())
                self._extra.append(asyncio.ensure_future(self.consumer(200 + number, name)))

    _extra: list[asyncio.Future[None]] = field(default_factory=list)

    # -- all together

    async def run(self, seconds: float) -> None:
        setup = await self.connect()
        await setup.fetchval('SELECT queen.configure_queue($1, NULL, NULL, \'{"retryLimit": 1000000, "retryDelay": 20}\')', QUEUE)
        for name in ("g", "h"):
            self.groups[name] = await group(setup, QUEUE, name)
            self.accounts[name] = Account(time.monotonic())
        self.stop = time.monotonic() + seconds
        consumers = [self.consumer(100 + at, name) for at, name in enumerate(("g", "g", "h", "h"))]
        others = [asyncio.ensure_future(one) for one in (*consumers, self.keeper(50), self.keeper(51))]
        levels = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE", "READ COMMITTED")
        users = [self.user(10 + at, level) for at, level in enumerate(levels)]
        await asyncio.gather(*(self.server(at) for at in range(3)), *users, self.inserter(30), self.killer(), self.newcomer())
        self.finishing, self.stop = True, time.monotonic() + 30
        await setup.fetchval("SELECT queen.configure_queue($1, NULL, NULL, '{\"windowBuffer\": 0}')", QUEUE)
        while time.monotonic() < self.stop:
            if not await setup.fetchval("SELECT count(*) FROM queen.wakes") and not await setup.fetchval(UNSETTLED, QUEUE):
                break
            await self.pause(0.05)
        self.stop = time.monotonic()
        self.over.set()
        await asyncio.gather(*others, *self._extra)
        await self._judge(setup)

    async def _judge(self, pg: Connection) -> None:
        for name, account in self.accounts.items():
            due = {one for one, began in self.pushed.items() if name in ("g", "h") or began > account.made}
            self.faults["lost"] += len(due - account.done - account.unsure)
            self.faults["unexpected"] += len(account.seen - self.pushed.keys() - self.perhaps)
        self.faults["stranded"] += await stranded(pg)
        self.faults["unsettled"] += await pg.fetchval(UNSETTLED, QUEUE)
        self.faults["gaps"] += await pg.fetchval(HOLES, QUEUE) + await pg.fetchval(LOST, QUEUE)
        self.faults += Counter()
