"""The SQL core through its functions, as the server calls them, in the fewest words; and waiting for a session to be blocked."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import asyncpg

from queenmq.postgres.migrate import scripts

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Row = asyncpg.Record
DEADLINE = 10.0
QUEUE_MODE = "__QUEUE_MODE__"


@dataclass
class Item:
    """One message to push."""

    partition: int
    transaction_id: str
    payload: str = "{}"
    trace: uuid.UUID | None = None
    headers: str | None = None
    delay: float | None = None


@dataclass
class Pushed:
    """Seqs and whether they were there before, by position; None where somebody held the partition."""

    seqs: list[int | None]
    duplicates: list[bool]


@dataclass
class Popped:
    """One claim."""

    lease: uuid.UUID
    rows: list[Row]
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def seqs(self) -> list[int]:
        return [row["seq"] for row in self.rows]

    @property
    def ids(self) -> list[str]:
        return [row["transaction_id"] for row in self.rows]


@dataclass
class Ack:
    """One answer."""

    partition: int
    transaction_id: str
    status: str | None = "completed"
    lease: uuid.UUID | None = None
    group: str | None = None
    error: str | None = None


@dataclass
class Answered:
    """What the core said to one answer."""

    success: bool
    error: str | None = None
    released: bool = False
    dead: bool = False
    held: bool = False


async def partitions(pg: Connection, *names: str) -> list[int]:
    """Makes partitions given as `queue/partition`."""
    split = [name.split("/") for name in names]
    row = await pg.fetchrow("SELECT * FROM queen.make_partitions($1, $2)", [q for q, _ in split], [p for _, p in split])
    assert row is not None
    ids: list[int] = row["partition_ids"]
    assert None not in ids
    return ids


async def group(pg: Connection, queue: str, name: str = QUEUE_MODE, mode: str = "all", moment: Any = None) -> int:
    made = await pg.fetchval("SELECT queen.make_group($1, $2, $3, $4)", queue, name, mode, moment)
    assert isinstance(made, int)
    return made


def arrays(items: Sequence[Item]) -> tuple[list[int], list[int], list[int], list[int], list[str], list[str]]:
    """The arrays that the server prepares."""
    parts = sorted({item.partition for item in items})
    counts = [0] * len(parts)
    which, position = [], []
    for item in items:
        at = parts.index(item.partition)
        which.append(at + 1)
        position.append(counts[at])
        counts[at] += 1
    return parts, counts, which, position, [item.transaction_id for item in items], [item.payload for item in items]


async def push(pg: Connection, *items: Item, skip: bool = False, notify: bool = False) -> Pushed:
    parts, counts, which, position, ids, payloads = arrays(items)
    traces = [item.trace for item in items] if any(item.trace for item in items) else None
    headers = [item.headers for item in items] if any(item.headers for item in items) else None
    delays = [item.delay for item in items] if any(item.delay for item in items) else None
    row = await pg.fetchrow(
        "SELECT * FROM queen.push_messages($1, $2, $3, $4, $5, $6, $7, NULL, NULL, $8, $9, p_skip => $10, p_notify => $11)",
        parts, counts, which, position, ids, payloads, traces, headers, delays, skip, notify,
    )  # fmt: skip
    assert row is not None
    if row["seqs"] is not None:
        return Pushed(list(row["seqs"]), list(row["duplicates"]))
    seqs = [None if row["bases"][w - 1] is None else row["bases"][w - 1] + p for w, p in zip(which, position, strict=True)]
    return Pushed(seqs, [False] * len(seqs))


async def push_packed(pg: Connection, *items: Item, skip: bool = False) -> Pushed:
    """As the server sends plain items: one text of ids and one of payloads for each partition."""
    parts = sorted({item.partition for item in items})
    sorted_items = [(at, item) for p in parts for at, item in enumerate(items) if item.partition == p]
    counts = [sum(item.partition == p for item in items) for p in parts]
    row = await pg.fetchrow(
        "SELECT * FROM queen.push_messages($1, $2, NULL, NULL, NULL, NULL, p_skip => $3, p_notify => false,"
        " p_packed_transactions => $4, p_packed_payloads => $5)",
        parts, counts, skip,
        ["\x1e".join(item.transaction_id for item in items if item.partition == p) for p in parts],
        ["\x1e".join(item.payload for item in items if item.partition == p) for p in parts],
    )  # fmt: skip
    assert row is not None
    seqs, duplicates = row["seqs"], row["duplicates"]
    if seqs is None:
        seqs = [None if base is None else base + at for base, count in zip(row["bases"], counts, strict=True) for at in range(count)]
        duplicates = [False] * len(seqs)
    answers = {at: (seq, again) for (at, _), seq, again in zip(sorted_items, seqs, duplicates, strict=True)}
    return Pushed([answers[at][0] for at in range(len(items))], [answers[at][1] for at in range(len(items))])


def named(partition: int, *ids: str, payload: str = "{}") -> list[Item]:
    return [Item(partition, one, payload) for one in ids]


def numbered(partition: int, first: int, last: int, prefix: str = "m") -> list[Item]:
    return [Item(partition, f"{prefix}{number}") for number in range(first, last + 1)]


async def pop(
    pg: Connection,
    *groups: int,
    batch: int = 100,
    spread: int = 1,
    partition: int | None = None,
    lease: uuid.UUID | None = None,
    seconds: int | None = None,
    after: tuple[int, int] = (0, 0),
) -> Popped:
    lease = lease or uuid.uuid4()
    rows = await pg.fetch(
        "SELECT * FROM queen.pop_messages($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        [batch], [spread], [partition], [lease], [seconds],
        [1] * len(groups), list(groups), [after[0]] * len(groups), [after[1]] * len(groups),
    )  # fmt: skip
    assert rows[-1]["seq"] is None
    return Popped(lease, rows[:-1], json.loads(rows[-1]["payload"]))


async def ack(pg: Connection, *acks: Ack, skip: bool = False) -> list[Answered]:
    """Rows of one partition, group and lease each, as the server groups them."""
    keys: list[tuple[int, str | None, uuid.UUID | None]] = []
    which = []
    for one in acks:
        key = (one.partition, one.group, one.lease)
        if key not in keys:
            keys.append(key)
        which.append(keys.index(key) + 1)
    plain = all(one.status == "completed" for one in acks)
    row = await pg.fetchrow(
        "SELECT * FROM queen.ack_messages($1, $2, $3, $4, $5, $6, $7, $8)",
        [key[0] for key in keys], [key[1] for key in keys], [key[2] for key in keys],
        which, [one.transaction_id for one in acks], None if plain else [one.status for one in acks],
        None if all(one.error is None for one in acks) else [one.error for one in acks], skip,
    )  # fmt: skip
    assert row is not None
    details = {ord_: at for at, ord_ in enumerate(row["details"] or [])}
    answers = []
    for number, w in enumerate(which, 1):
        state = row["states"][w - 1]
        if state == 2:
            at = details[number]
            answers.append(Answered(row["successes"][at], row["errors"][at], row["released"][at], row["dead"][at]))
        elif state == 1:
            answers.append(Answered(True, released=True))
        else:
            answers.append(Answered(False, "held" if state == 0 else "no such partition or group", held=state == 0))
    return answers


async def ack_all(pg: Connection, popped: Popped, status: str = "completed") -> list[Answered]:
    return await ack(pg, *(Ack(row["partition_id"], row["transaction_id"], status, popped.lease) for row in popped.rows))


async def consumer(pg: Connection, partition: int, group_id: int) -> Row:
    row = await pg.fetchrow("SELECT * FROM queen.partition_consumers WHERE partition_id = $1 AND group_id = $2", partition, group_id)
    assert row is not None
    return row


async def drain(pg: Connection, group_id: int, batch: int = 100, rounds: int = 1000) -> list[tuple[int, str]]:
    """Consumes until the group's index of ready partitions is walked and empty: what a consumer would be given in all."""
    given: list[tuple[int, str]] = []
    for _ in range(rounds):
        got = await pop(pg, group_id, batch=batch, spread=100)
        if not got.rows:
            if got.told["more"] is None and not got.told["held"]:
                return given
            continue
        given += [(row["partition_id"], row["transaction_id"]) for row in got.rows]
        assert all(answer.success for answer in await ack_all(pg, got))
    raise AssertionError("the group never became empty")


async def pid(connection: Connection) -> int:
    return connection.get_server_pid()


async def until_blocked(watcher: Connection, blocked: Connection, task: asyncio.Future[Any]) -> None:
    """Returns once that session waits for another's lock; fails when its call ends first."""
    end = time.monotonic() + DEADLINE
    while not await watcher.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", blocked.get_server_pid()):
        assert not task.done(), f"the call did not wait: {task}"
        assert time.monotonic() < end, "nobody was blocked"
        await asyncio.sleep(0)


async def stays_free(task: asyncio.Future[Any]) -> Any:
    """The call ends by itself, whoever holds what."""
    return await asyncio.wait_for(task, DEADLINE)


def state(error: asyncpg.PostgresError) -> str:
    return str(error.sqlstate)


async def plant(pg: Connection, name: str, *changes: str) -> None:
    """Installs functions/NAME.sql with pieces of its text replaced: a bug that a checker must find."""
    [script] = [script for script in scripts("functions") if script.name == f"{name}.sql"]
    text = script.text
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in text, f"{name}.sql no longer says {old!r}"
        text = text.replace(old, new)
    await pg.execute(text)


async def stranded(pg: Connection) -> int:
    """Groups that count a partition as drained although messages wait in it: nobody would ever deliver them."""
    found = await pg.fetchval(
        "SELECT count(*) FROM queen.partition_consumers c JOIN queen.partition_lookup l USING (partition_id)"
        " WHERE c.ready_at IS NULL AND l.next_seq > greatest(c.cursor_seq + 1, l.first_seq)"
    )
    assert isinstance(found, int)
    return found


async def outbox(pg: Connection, queue: str, partition: str, transaction_id: str | None = None) -> uuid.UUID:
    made = await pg.fetchval("SELECT queen.push($1, $2, '{}', $3)", queue, partition, transaction_id)
    assert isinstance(made, uuid.UUID)
    return made


async def take_wakes(pg: Connection) -> int:
    return int(await pg.fetchval("SELECT taken FROM queen.take_wakes()"))
