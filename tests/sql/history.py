"""One history: a list of steps taken on the SQL core and on the model alike, compared after every step.

Used by the property test and by drills/sql_histories.py. A step is a kind and four small numbers, read against the state at that
moment, so that any list of steps is a history and a failing one can be shortened. Ends by consuming everything: nothing may be lost.
"""

from __future__ import annotations

import itertools
import json
import random
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tests.sql.model import Model, Options, Partition, Place
from tests.sql.support import Ack, Connection, Item, Popped, ack, group, partitions, pop, push, push_packed

from queenmq.testing.clock import move_clock

Step = tuple[str, int, int, int, int]
KINDS = (
    *("push",) * 6, *("pop",) * 8, *("ack",) * 9, *("ack_plain",) * 3, *("move",) * 5, "fail", "fail", "ack_stale", "ack_without",
    "ack_without", "release", "extend", "seek", "remove", "delete", "sleep", "group", "outbox", "insert", "audience", "configure",
    "transaction",
)  # fmt: skip
NAMES = ("a", "b")
STATUSES = ("completed", "completed", "completed", "failed", "retry", "dlq", "success")
MODES = ("all", "new", "from")
CONFIGURE = "SELECT queen.configure_queue($1, NULL, NULL, $2::jsonb)"
INSERT = "INSERT INTO queen.messages (partition_id, transaction_id, payload) SELECT p, t, '1' FROM unnest($1::int[], $2::text[]) u(p, t)"
READY = "SELECT partition_id FROM queen.partition_consumers WHERE group_id = $1 AND ready_at <= queen.now() ORDER BY ready_at, partition_id"
LOST = "SELECT * FROM queen.removed_messages WHERE reason = 'lost' AND partition_id = ANY ($1)"
DEAD = "SELECT partition_id, seq, consumer_group FROM queen.dead_letter_queue WHERE partition_id = ANY ($1) ORDER BY id"
STORED = "SELECT partition_id, seq FROM queen.messages WHERE partition_id = ANY ($1) ORDER BY 1, 2"
TRANSACTION = """
SELECT outcomes, failures, item_seqs
  FROM queen.execute_transaction(1, ARRAY[$1::int], ARRAY[1], ARRAY[1], ARRAY[$2::text], ARRAY['1'::json], NULL, NULL, NULL, NULL, NULL,
           $3::int[], $4::int[], $5::text[], $6::text[], NULL, NULL, $7::uuid[], ARRAY[1], ARRAY[$8::uuid])
"""
_numbers = itertools.count(1)


class Broken(AssertionError):
    """The SQL core and the model disagree; `kind` is lost, duplicates, reordered or unexpected."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


LOSSES = {"stranded", "never delivered", "reported as lost", "stored"}


def options_from(seed: int) -> Options:
    draw = random.Random(seed)
    window = draw.choice((0, 0, 0, 3))
    return Options(
        retry_limit=draw.choice((0, 1, 2)), retry_delay_ms=draw.choice((0, 1000, 5000)), delay=draw.choice((0, 0, 0, 4)),
        window=window, window_most=window * 4, ttl=draw.choice((None, None, None, 40)),
    )  # fmt: skip


def random_steps(draw: random.Random, length: int) -> list[Step]:
    def number() -> int:
        return draw.randrange(64)

    return [(draw.choice(KINDS), number(), number(), number(), number()) for _ in range(length)]


def settings(options: Options) -> str:
    return (
        f'{{"leaseTime": {options.lease_time}, "retryLimit": {options.retry_limit}, "retryDelay": {options.retry_delay_ms},'
        f' "delayedProcessing": {options.delay}, "windowBuffer": {options.window},'
        f' "windowMaxWait": {options.window_most}, "ttl": {options.ttl or 0}}}'
    )


@dataclass
class Taken:
    """A lease as its holder knows it."""

    group: str
    name: str
    popped: Popped
    ids: list[str]


@dataclass
class History:
    """The state of one run."""

    pg: Connection
    queue: str
    model: Model
    ids: dict[str, int]
    groups: dict[str, int] = field(default_factory=dict)
    leases: list[Taken] = field(default_factory=list)
    delivered: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    deliveries: int = 0
    messages: int = 0

    def fail_unless(self, same: bool, what: str, *details: Any) -> None:
        if not same:
            kind = "lost" if what in LOSSES else what if what in ("duplicates", "reordered") else "unexpected"
            raise Broken(kind, f"{what}: {details}")

    # -- steps

    async def push(self, a: int, b: int, c: int, d: int) -> None:
        name = NAMES[a % 2]
        items = []
        for number in range(1 + b % 4):
            again = (c + number) % 5 == 0 and self.messages
            transaction_id = f"t{(d + number) % self.messages}" if again else f"t{self.messages + number}"
            items.append((transaction_id, 6.0 if (c + number) % 11 == 0 else None))
        self.messages += len(items)
        [self.ids[name]] = await partitions(self.pg, f"{self.queue}/{name}")
        sent = [Item(self.ids[name], transaction_id, delay=delay) for transaction_id, delay in items]
        plain = all(item.delay is None for item in sent)
        done = await (push_packed(self.pg, *sent, skip=d % 3 == 0) if plain and d % 2 else push(self.pg, *sent, skip=d % 3 == 0))
        expected = self.model.push(name, items)
        self.fail_unless(list(zip(done.seqs, done.duplicates, strict=True)) == expected, "push", done, expected)

    async def outbox(self, a: int, b: int, c: int, d: int) -> None:
        name = NAMES[a % 2]
        transaction_id = f"t{self.messages}"
        self.messages += 1
        await self.pg.fetchval("SELECT queen.push($1, $2, '1', $3)", self.queue, name, transaction_id)
        self.model.push(name, [(transaction_id, None)])
        await self.pg.fetchrow("SELECT * FROM queen.take_wakes()")

    async def insert(self, a: int, b: int, c: int, d: int) -> None:
        items = [(NAMES[(a + number) % 2], f"t{self.messages + number}") for number in range(1 + b % 3)]
        self.messages += len(items)
        await self.pg.execute(INSERT, [self.ids[name] for name, _ in items], [transaction_id for _, transaction_id in items])
        for name, transaction_id in items:
            self.model.push(name, [(transaction_id, None)])
        await self.pg.fetchrow("SELECT * FROM queen.take_wakes()")

    async def audience(self, a: int, b: int, c: int, d: int) -> None:
        """A copy for one group only, as a redrive makes it: nobody claims in between."""
        name = NAMES[a % 2]
        part = self.model.partitions[name]
        only = sorted(self.groups)[b % len(self.groups)]
        await self.push(a, 0, 1, d)
        seq = part.next - 1
        if seq in part.messages and part.messages[seq].audience is None and f"t{self.messages - 1}" == part.messages[seq].transaction_id:
            await self.pg.execute("INSERT INTO queen.message_audience VALUES ($1, $2, $3)", self.ids[name], seq, only)
            part.messages[seq].audience = only

    async def move(self, a: int, b: int, c: int, d: int) -> None:
        seconds = (1, 2, 5, 11, 45)[a % 5]
        await move_clock(self.pg, seconds)
        self.model.now += timedelta(seconds=seconds)

    async def group(self, a: int, b: int, c: int, d: int) -> None:
        name, mode = f"g{a % 3}", MODES[b % 3]
        moment = self.model.now - timedelta(seconds=c % 20) if mode == "from" else None
        self.groups[name] = await group(self.pg, self.queue, name, mode, moment)
        self.model.make_group(name, mode, moment)

    async def configure(self, a: int, b: int, c: int, d: int) -> None:
        new = options_from(a)
        old = self.model.options
        await self.pg.fetchval(
            "SELECT queen.configure_queue($1, NULL, NULL, $2::jsonb)",
            self.queue,
            settings(new) if new.ttl else settings(new)[:-1] + ', "ttl": 0}',
        )
        if new.retry_delay_ms < old.retry_delay_ms:
            soon = self.model.now + timedelta(milliseconds=new.retry_delay_ms)
            for place in self.places():
                place.attempts = {seq: (count, min(moment, soon)) for seq, (count, moment) in place.attempts.items()}
        self.model.options = new

    def places(self) -> list[Place]:
        return [place for part in self.model.partitions.values() for place in part.places.values()]

    async def pop(self, a: int, b: int, c: int, d: int) -> None:
        name = sorted(self.groups)[a % len(self.groups)]
        await self.take(
            name, batch=1 + b % 5, spread=1 + c % 2, only=NAMES[d % 2] if d % 3 == 0 else None, seconds=3 if d % 7 == 0 else None
        )

    async def take(self, name: str, batch: int, spread: int, only: str | None, seconds: int | None) -> int:
        ready = await self.pg.fetch(READY, self.groups[name])
        called = {number: at for at, number in self.ids.items()}
        order = [called[row["partition_id"]] for row in ready]
        for at, part in self.model.partitions.items():
            if name in part.places and self.model.would_give(at, name):
                self.fail_unless(at in order, "stranded", at, name, part)
        if only is not None:
            order = [at for at in order if at == only]
        lease = uuid.uuid4()
        got = await pop(
            self.pg, self.groups[name], batch=batch, spread=spread, partition=self.ids[only] if only else None, lease=lease, seconds=seconds
        )
        left, parts, expected = batch, spread, []
        for at in order:
            if not left or not parts:
                break
            given = self.model.claim(at, name, left, lease, seconds)
            if given:
                left, parts = left - len(given), parts - 1
                expected += [(self.ids[at], seq, tries) for seq, tries in given]
                ids = [self.model.partitions[at].messages[seq].transaction_id for seq, _ in given]
                self.leases.append(Taken(name, at, got, ids))
                self.delivered.setdefault((at, name), set()).update(ids)
        self.deliveries += len(expected)
        found = [(row["partition_id"], row["seq"], row["attempts"]) for row in got.rows]
        self.fail_unless(set(found) <= set(expected) and len(found) <= len(expected), "duplicates", got, expected)
        self.fail_unless(set(expected) <= set(found), "stranded", got, expected)
        self.fail_unless(found == expected, "reordered", got, expected)
        self.fail_unless(not got.told["held"] and got.told["more"] is None, "the walk did not end", got.told)
        return len(expected)

    async def _ack(self, taken: Taken, lease: uuid.UUID | None, ids: list[str], statuses: list[str], by_group: bool = True) -> None:
        if not ids or self.model.partitions[taken.name].asleep:
            return
        answers = await ack(
            self.pg,
            *(
                Ack(self.ids[taken.name], one, status, lease, taken.group if by_group else None, "e")
                for one, status in zip(ids, statuses, strict=True)
            ),
        )
        plain = ["completed" if status == "success" else status for status in statuses]
        expected, released = self.model.ack(taken.name, taken.group, lease, list(zip(ids, plain, strict=True)))
        # The reason of a removal is kept only while some group needs it.
        told = [(one.success, "removed" if one.error and one.error.startswith("removed") else one.error, one.dead) for one in answers]
        self.fail_unless(told == expected, "ack", taken, answers, expected, ids, statuses)
        self.fail_unless(all(one.released == released for one in answers), "released", answers, released)

    async def ack(self, a: int, b: int, c: int, d: int) -> None:
        if self.leases:
            taken = self.leases[-1 - a % min(len(self.leases), 3)]
            ids = taken.ids[b % len(taken.ids) :] if b % 3 else list(taken.ids)
            # Without a group's name a group is found by its lease, while the partition still knows it.
            known = [place for place in (self.model.partitions[taken.name].places.get(taken.group),) if place is not None]
            by_lease = any(lease is not None and lease.id == taken.popped.lease for place in known for lease in (place.lease, place.last))
            statuses = [STATUSES[(c + d * number) % 7] for number in range(len(ids))]
            await self._ack(taken, taken.popped.lease, ids, statuses, by_group=not by_lease or bool(d % 2))

    async def ack_plain(self, a: int, b: int, c: int, d: int) -> None:
        if self.leases:
            taken = self.leases[-1 - a % min(len(self.leases), 3)]
            await self._ack(taken, taken.popped.lease, taken.ids, ["completed"] * len(taken.ids))

    async def fail(self, a: int, b: int, c: int, d: int) -> None:
        if self.leases:
            taken = self.leases[-1 - a % min(len(self.leases), 2)]
            await self._ack(taken, taken.popped.lease, taken.ids, ["failed"] * len(taken.ids))

    async def ack_stale(self, a: int, b: int, c: int, d: int) -> None:
        if self.leases:
            taken = self.leases[a % len(self.leases)]
            await self._ack(
                taken,
                taken.popped.lease if b % 2 else uuid.uuid4(),
                taken.ids,
                [STATUSES[(c + number) % 7] for number in range(len(taken.ids))],
            )

    async def ack_without(self, a: int, b: int, c: int, d: int) -> None:
        """Without a lease: any message, delivered or not, also one that never was."""
        name, at = sorted(self.groups)[a % len(self.groups)], NAMES[b % 2]
        if name in self.model.partitions[at].places:
            ids = [f"t{c % (self.messages + 2)}", f"t{d % (self.messages + 2)}"]
            await self._ack(Taken(name, at, Popped(uuid.uuid4(), []), ids), None, ids, [STATUSES[c % 7], STATUSES[d % 7]])

    async def transaction(self, a: int, b: int, c: int, d: int) -> None:
        """Acks of one batch and a push, all or nothing: under the batch's lease, live or not."""
        at = NAMES[b % 2]
        part = self.model.partitions[at]
        if not self.leases or part.asleep:
            return
        taken = self.leases[-1 - a % min(len(self.leases), 3)]
        place = self.model.partitions[taken.name].places.get(taken.group)
        if place is None:
            return
        ids, new = taken.ids[: 1 + c % 2], f"t{self.messages}"
        self.messages += 1
        before = (self.model.partitions[at].next, self.model.partitions[at].last_created)
        live = place.lease is not None and place.lease.id == taken.popped.lease and place.lease.until > self.model.now
        settled = live and all(
            (seq := self.model.partitions[taken.name].find(one)) is not None and not (place.lease and seq in place.lease.answered)
            for one in ids
        )
        if not settled:
            ids = []
        row = await self.pg.fetchrow(
            TRANSACTION,
            self.ids[at],
            new,
            [1] * len(ids),
            [self.ids[taken.name]] * len(ids),
            [None] * len(ids),
            ids,
            [None] * len(ids),
            taken.popped.lease,
        )
        assert row is not None
        anywhere = any(
            held.lease is not None and held.lease.id == taken.popped.lease and held.lease.until > self.model.now for held in self.places()
        )
        self.fail_unless(row["outcomes"] == [1 if anywhere else 2], "transaction", row, live)
        if anywhere:
            self.model.push(at, [(new, None)])
            self.fail_unless(row["item_seqs"] == [before[0]], "seq in a transaction", row)
            if ids:
                self.model.ack(taken.name, taken.group, taken.popped.lease, [(one, "completed") for one in ids])

    async def release(self, a: int, b: int, c: int, d: int) -> None:
        if self.leases:
            lease = self.leases[-1 - a % len(self.leases)].popped.lease
            await self.pg.fetchrow("SELECT * FROM queen.release_leases(ARRAY[$1::uuid], ARRAY[$2::boolean])", lease, b % 3 == 0)
            self.model.release(lease, b % 3 == 0)

    async def extend(self, a: int, b: int, c: int, d: int) -> None:
        if self.leases:
            lease = self.leases[-1 - a % len(self.leases)].popped.lease
            row = await self.pg.fetchrow("SELECT expires_at FROM queen.extend_leases(ARRAY[$1::uuid], ARRAY[$2::int])", lease, b)
            assert row is not None
            self.fail_unless((row["expires_at"][0] is not None) == self.model.extend(lease, b), "extend", row)

    async def seek(self, a: int, b: int, c: int, d: int) -> None:
        name, at, part = sorted(self.groups)[a % len(self.groups)], NAMES[b % 2], self.model.partitions[NAMES[b % 2]]
        place = part.places.get(name)
        if place is None or (place.lease is not None and place.lease.until > self.model.now and d % 4 == 0):
            return
        seq = 1 + c % (part.next + 1) if d % 3 == 0 else None
        moment = self.model.now - timedelta(seconds=c) if d % 3 == 1 else None
        await self.pg.fetchval(
            "SELECT queen.seek($1, $2, $3, $4, $5, $6, true)", self.queue, name, at, seq, moment, seq is None and moment is None
        )
        self.model.seek(at, name, seq, moment)

    async def remove(self, a: int, b: int, c: int, d: int) -> None:
        part = self.model.partitions[NAMES[a % 2]]
        if part.asleep or part.next == 1:
            return
        low = 1 if b % 3 == 0 else 1 + b % (part.next - 1)
        high = part.next + 3 if b % 5 == 0 else low + c % 4
        gone = await self.pg.fetchval("SELECT queen.remove_messages($1, $2, $3, 'test')", self.ids[NAMES[a % 2]], low, high)
        expected = self.model.remove(NAMES[a % 2], set(range(low, min(high, part.next - 1) + 1)))
        self.fail_unless(gone == expected, "remove", gone, expected)

    async def delete(self, a: int, b: int, c: int, d: int) -> None:
        part = self.model.partitions[NAMES[a % 2]]
        seqs = {seq for seq in part.messages if (seq + b) % 4 == 0}
        await self.pg.execute("DELETE FROM queen.messages WHERE partition_id = $1 AND (seq + $2) % 4 = 0", self.ids[NAMES[a % 2]], b)
        if seqs:
            self.model.remove(NAMES[a % 2], seqs)

    async def sleep(self, a: int, b: int, c: int, d: int) -> None:
        name = NAMES[a % 2]
        part = self.model.partitions[name]
        if b % 2 and not part.asleep and part.next > 1:
            await self.remove(a, 15, 0, 0)
        slept = await self.pg.fetchval("SELECT queen.sleep_partition($1)", self.ids[name])
        self.fail_unless(slept == self.model.sleep(name), "sleep", slept, part)

    # -- checks

    async def compare(self) -> None:
        """Every consumer row against the model's places."""
        for name, part in self.model.partitions.items():
            rows = await self.pg.fetch("SELECT * FROM queen.partition_consumers WHERE partition_id = $1", self.ids[name])
            found = {row["group_id"]: row for row in rows}
            self.fail_unless(set(found) == {self.groups[one] for one in part.places}, "rows", name, found, part.places)
            for one, place in part.places.items():
                self._compare(part, place, found[self.groups[one]])

    def _compare(self, part: Partition, place: Place, row: Any) -> None:
        acked = {seq for r in row["acked"] or [] for seq in range(r.lower, r.upper)}
        theirs, ours = self._raised(part, row["cursor_seq"], acked), self._raised(part, place.cursor, place.acked)
        self.fail_unless(theirs == ours, "settled", part, place, dict(row))
        pending = any(seq > ours[0] and seq not in ours[1] for seq in part.messages)
        self.fail_unless(row["ready_at"] is not None or not pending, "stranded", place, dict(row))
        lease = (row["lease_id"], row["lease_from"], row["lease_to"], row["lease_until"])
        expected = (None, None, None, None) if place.lease is None else (place.lease.id, place.lease.lo, place.lease.hi, place.lease.until)
        self.fail_unless(lease == expected, "lease", lease, expected)
        tries = {int(seq): value[0] for seq, value in json.loads(row["attempts"] or "{}").items()}
        mine = {seq: count for seq, (count, _) in place.attempts.items()}
        gone = (set(tries) ^ set(mine)) & set(part.messages)
        self.fail_unless(not gone and all(tries[seq] == mine[seq] for seq in set(tries) & set(mine)), "attempts", tries, mine)
        if place.lease is not None and place.lease.until > self.model.now:
            self.fail_unless(row["ready_at"] == place.lease.until, "a leased partition is ready", dict(row))

    @staticmethod
    def _raised(part: Partition, cursor: int, acked: set[int]) -> tuple[int, set[int]]:
        """The cursor over all that is settled or gone, and what is settled above it among what exists."""
        while cursor + 1 < part.next and (cursor + 1 in acked or cursor + 1 not in part.messages):
            cursor += 1
        return cursor, {seq for seq in acked if seq > cursor and seq in part.messages}

    async def finish(self) -> None:
        """Consumes everything; then every message that is there was settled in every group, and nothing counts as lost."""
        for _ in range(400):
            await self.move(3, 0, 0, 0)
            took = 0
            for name in self.groups:
                took += await self.take(name, batch=5, spread=2, only=None, seconds=None)
                for taken in self.leases[-2:]:
                    await self._ack(taken, taken.popped.lease, taken.ids, ["completed"] * len(taken.ids))
            if not took and all(self._done(part, place) for part in self.model.partitions.values() for place in part.places.values()):
                break
        await self.compare()
        for part in self.model.partitions.values():
            for place in part.places.values():
                self.fail_unless(self._done(part, place), "never delivered", place, part)
        ids = list(self.ids.values())
        lost = await self.pg.fetch(LOST, ids)
        self.fail_unless(not lost, "reported as lost", lost)
        dead = await self.pg.fetch(
            "SELECT partition_id, seq, consumer_group FROM queen.dead_letter_queue WHERE partition_id = ANY ($1) ORDER BY id",
            list(self.ids.values()),
        )
        called = {number: at for at, number in self.ids.items()}
        found = sorted((called[row["partition_id"]], row["seq"], row["consumer_group"]) for row in dead)
        self.fail_unless(found == sorted(self.model.dead), "dead letters", found, self.model.dead)
        rows = await self.pg.fetch(STORED, ids)
        stored = {(called[row["partition_id"]], row["seq"]) for row in rows}
        expected = {(name, seq) for name, part in self.model.partitions.items() for seq in part.messages}
        self.fail_unless(stored == expected, "stored", stored ^ expected)

    def _done(self, part: Partition, place: Place) -> bool:
        cursor, _ = self._raised(part, place.cursor, place.acked)
        return cursor == part.next - 1


async def start(pg: Connection, options: Options) -> History:
    """A queue of its own with two partitions and a group; the clock stands still at a whole second."""
    queue = f"history-{next(_numbers)}-{uuid.uuid4().hex[:8]}"
    await pg.execute("UPDATE queen_test.clock SET stopped = date_trunc('second', stopped)")
    now: datetime = await pg.fetchval("SELECT queen.now()")
    await pg.fetchval(CONFIGURE, queue, settings(options))
    ids = await partitions(pg, *(f"{queue}/{name}" for name in NAMES))
    history = History(pg, queue, Model(options, list(NAMES), now), dict(zip(NAMES, ids, strict=True)))
    history.groups["g0"] = await group(pg, queue, "g0")
    history.model.make_group("g0", "all", None)
    return history


async def run(pg: Connection, options: Options, steps: list[Step]) -> History:
    history = await start(pg, options)
    for number, (kind, a, b, c, d) in enumerate(steps):
        try:
            await getattr(history, kind)(a, b, c, d)
            await history.compare()
        except Broken as error:
            raise Broken(error.kind, f"step {number} {kind} {(a, b, c, d)} of {options}: {error}") from None
    await history.finish()
    return history
