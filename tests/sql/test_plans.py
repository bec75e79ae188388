"""Guards on the hot statements: among 10,000 partitions and a backlog, a call reads what it needs and nothing else.

Counted by PostgreSQL itself: rows read by scans of the queue's tables and entries read from each index. A scan or a sort over the backlog
would read tens of thousands. Once on tables that were never analysed, once analysed: plans must not depend on it.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.sql.support import Ack, Connection, Item, Popped, ack, ack_all, group, named, outbox, partitions, pop, push
from tests.sql.transactions import Transaction, execute

from queenmq.postgres.migrate import statement

if TYPE_CHECKING:
    from tests.sql.conftest import Connect

BACKLOG = 10_000
MOST = 400

FILL = """
WITH q AS (INSERT INTO queen.queues (name) VALUES ('q') RETURNING id),
     p AS (INSERT INTO queen.partitions (queue_id, name) SELECT q.id, 'p' || n FROM q, generate_series(1, 10000) n RETURNING id),
     l AS (INSERT INTO queen.partition_lookup (partition_id, next_seq) SELECT id, 3 FROM p),
     g AS (INSERT INTO queen.consumer_groups_metadata (consumer_group, queue_id, queue_name)
           SELECT name, q.id, 'q' FROM q, unnest('{g,h}'::text[]) name RETURNING id),
     c AS (INSERT INTO queen.partition_consumers (partition_id, group_id, cursor_seq, ready_at)
           SELECT p.id, g.id, 2, CASE WHEN n % 2 = 0 THEN clock_timestamp() + interval '1 hour' END
             FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM p) p, g)
INSERT INTO queen.messages (partition_id, seq, payload) SELECT p.id, s, '{}' FROM p, generate_series(1, 2) s
"""

LATE = """
UPDATE queen.partition_consumers SET lease_until = 'epoch', ready_at = 'epoch', attempts = NULL WHERE partition_id = $1 AND group_id = $2
"""


async def reads(pg: Connection) -> dict[str, int]:
    """Rows read by sequential scans of each table, entries read from each index."""
    await pg.fetchval("SELECT pg_stat_force_next_flush()")
    rows = await pg.fetch(
        "SELECT relname AS name, seq_tup_read AS n FROM pg_stat_user_tables WHERE schemaname = 'queen'"
        " UNION ALL SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = 'queen'"
    )
    return {row["name"]: row["n"] for row in rows}


async def cost(pg: Connection, call: Callable[[], Awaitable[Any]]) -> dict[str, int]:
    before = await reads(pg)
    await call()
    after = await reads(pg)
    return {name: after[name] - before[name] for name in after if after[name] - before[name] > MOST}


async def fill(pg: Connection) -> tuple[list[int], int, int]:
    async with pg.transaction():
        await pg.execute("SET LOCAL queen.lookup_maintained = 'on'")
        await pg.execute(FILL)
    ids = [
        row["id"]
        for row in await pg.fetch(
            "SELECT p.id FROM queen.partitions p JOIN queen.queues q ON q.id = queue_id WHERE q.name = 'q' ORDER BY p.id"
        )
    ]
    for start in range(0, BACKLOG, 2_500):
        await push(pg, *named(ids[0], *(f"b{number}" for number in range(start, start + 2_500))))
    return ids, await group(pg, "q", "g"), await group(pg, "q", "h")


class Calls:
    """Every hot call once, in an order in which each has something to do."""

    def __init__(self, pg: Connection, queue: str, ids: list[int], groups: list[int]) -> None:
        self.pg, self.queue = pg, queue
        self.far, self.some = ids[0], ids[1:21:2]
        self.g, self.h = groups
        self.got = Popped(uuid.uuid4(), [])

    async def claim(self) -> None:
        self.got = await pop(self.pg, self.g, batch=10)
        assert self.got.rows

    async def claim_one(self) -> None:
        self.got = await pop(self.pg, self.h, batch=10, partition=self.far)
        assert len(self.got.rows) == 10

    async def partly(self) -> None:
        acks = [Ack(self.far, one, "failed" if at == 2 else "completed", self.got.lease, "h") for at, one in enumerate(self.got.ids)]
        await ack(self.pg, *acks[::2])

    async def late(self) -> None:
        await self.pg.execute(LATE, self.far, self.h)
        assert (await pop(self.pg, self.h, batch=10)).rows

    async def prolong(self) -> None:
        await self.pg.fetchrow("SELECT * FROM queen.extend_leases(ARRAY[$1::uuid], '{600}')", self.got.lease)

    async def release(self) -> None:
        await self.pg.fetchrow("SELECT * FROM queen.release_leases(ARRAY[$1::uuid], '{f}')", self.got.lease)

    def all(self) -> list[tuple[str, Callable[[], Awaitable[Any]]]]:
        pg, far, some = self.pg, self.far, self.some
        seek = "SELECT queen.seek($1, 'g', 'p1', p_timestamp => now(), p_force => true)"
        transaction = Transaction([Item(far, "t"), Item(some[0], "t")], [Ack(far, "b9", group="h")], [uuid.uuid4()])
        return [
            ("push", lambda: push(pg, *named(far, "n1"))),
            ("push to many", lambda: push(pg, *(Item(p, "n1") for p in some))),
            ("push again", lambda: push(pg, *(Item(p, "n1") for p in some))),
            ("set aside", lambda: push(pg, *(Item(p, "n2") for p in some), skip=True)),
            ("claim", self.claim),
            ("extend", self.prolong),
            ("ack", lambda: ack_all(pg, self.got)),
            ("claim again", self.claim),
            ("release", self.release),
            ("claim of a partition", self.claim_one),
            ("ack a part", self.partly),
            ("late claim", self.late),
            ("transaction", lambda: execute(pg, transaction)),
            ("outbox", lambda: outbox(pg, self.queue, "p1", "o")),
            ("insert", lambda: pg.execute("INSERT INTO queen.messages (partition_id, payload) VALUES ($1, '1')", far)),
            ("names", lambda: partitions(pg, *(f"{self.queue}/p{number}" for number in range(1, 50)))),
            ("new names", lambda: partitions(pg, f"{self.queue}/new", f"{self.queue}-new/new")),
            ("wildcard", lambda: pg.fetch(statement("wildcard_walks"), None, None, "g")),
            ("which partitions", lambda: pg.fetch(statement("partition_names"), [far, *some])),
            ("which queue", lambda: pg.fetch(statement("queue_config"), self.queue)),
            ("wakes", lambda: pg.fetchrow("SELECT * FROM queen.take_wakes()")),
            ("remove", lambda: pg.fetchval("SELECT queen.remove_messages($1, 100, 110, 'x')", far)),
            ("sleep", lambda: pg.fetchval("SELECT queen.sleep_partition($1)", far)),
            ("seek", lambda: pg.fetchval(seek, self.queue)),
        ]


@pytest.mark.parametrize("tables", ["filled after the plans were made", "not analysed", "analysed"])
async def test_hot_calls_read_what_they_need(pg: Connection, connect: Connect, tables: str) -> None:
    if tables.startswith("filled"):
        small = await partitions(pg, *(f"small/p{number}" for number in range(1, 22)))
        groups = [await group(pg, "small", one) for one in "gh"]
        await push(pg, *named(small[0], *(f"b{number}" for number in range(30))))
        for _, call in Calls(pg, "small", small, groups).all():
            await call()
    ids, g, h = await fill(await connect())
    if tables == "analysed":
        await pg.execute("ANALYZE queen.messages, queen.partition_consumers, queen.partition_lookup, queen.partitions")
    found = {}
    for name, call in Calls(pg, "q", ids, [g, h]).all():
        over = await cost(pg, call)
        if over:
            found[name] = over
    assert not found


async def test_the_claims_walk_is_one_range_of_the_index_in_its_order(pg: Connection) -> None:
    await fill(pg)
    await pg.execute("ANALYZE queen.partition_consumers")
    source = await pg.fetchval("SELECT prosrc FROM pg_proc WHERE proname = 'pop_messages'")
    match = re.search(r"OPEN v_walk FOR\s+(SELECT.*?LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED);", source, re.DOTALL)
    assert match is not None
    statement = match[1]
    for variable, parameter in (("v_group", "$1"), ("v_now", "$2"), ("v_after", "$3"), ("p_walk_partition[w]", "$4")):
        statement = statement.replace(variable, parameter)
    for setting in await pg.fetchval("SELECT proconfig FROM pg_proc WHERE proname = 'pop_messages'"):
        await pg.execute("SELECT set_config($1, $2, false)", *setting.split("="))
    await pg.execute(f"PREPARE walk (int, timestamptz, timestamptz, int) AS {statement}")
    [plan] = json.loads(await pg.fetchval("EXPLAIN (FORMAT JSON) EXECUTE walk (1, now(), 'epoch', 0)"))
    nodes, todo = [], [plan["Plan"]]
    while todo:
        node = todo.pop()
        nodes.append(node)
        todo += node.get("Plans", [])
    assert [node["Node Type"] for node in nodes] == ["Limit", "LockRows", "Index Scan"]
    assert nodes[-1]["Index Name"] == "partition_consumers_ready"
    assert "ready_at <=" in nodes[-1]["Index Cond"]
    assert "Filter" not in nodes[-1]
