"""A database of the older system is taken over: what was consumed stays consumed, all else is delivered, in order, to each group."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest
from tests.adopt.older import BOTH, QUEUE_MODE, Older, at, delivered

from queenmq.postgres.migrate import migrate, migrate_connection

if TYPE_CHECKING:
    from tests.adopt.older import Connection

ZERO = uuid.UUID(int=0)


@BOTH
async def test_each_group_gets_exactly_what_it_had_not_consumed_in_order(older: Older) -> None:
    a, b, empty = await older.queue("orders", "a", "b", "empty")
    in_a, in_b = await older.messages(a, 10), await older.messages(b, 5)
    await older.cursor(a, QUEUE_MODE, 3, in_a[3])
    await older.cursor(a, "billing", 8, in_a[8])
    await older.cursor(b, "billing", 4, in_b[4])
    await older.cursor(empty, "billing", 100, uuid.uuid4())

    applied = await migrate_connection(older.pg)

    assert applied.adopted is not None
    assert applied.adopted.figures["messages"] == 15
    assert await delivered(older.pg, "orders") == {"a": in_a[4:], "b": in_b}
    assert await delivered(older.pg, "orders", "billing") == {"a": in_a[9:]}
    assert await delivered(older.pg, "orders", "a new group") == {"a": in_a, "b": in_b}


async def test_ties_are_numbered_by_id_and_a_cursor_between_them_holds(older: Older) -> None:
    (p,) = await older.queue("ties")
    ids = [await older.message(p, 0, number=n) for n in (5, 3, 9, 1, 7)]
    in_order = sorted(ids)
    await older.cursor(p, "g", 0, uuid.UUID(int=3))

    await migrate_connection(older.pg)

    assert await delivered(older.pg, "ties", "g") == {"Default": in_order[2:]}
    assert await delivered(older.pg, "ties") == {"Default": in_order}
    rows = await older.pg.fetch("SELECT seq FROM queen.messages ORDER BY created_at, (payload ->> 'id')::uuid")
    assert [row["seq"] for row in rows] == [1, 2, 3, 4, 5]


async def test_a_late_row_behind_the_cursor_is_kept_and_one_before_it_is_delivered(older: Older) -> None:
    (p,) = await older.queue("late")
    rows = await older.messages(p, 4)
    await older.cursor(p, "g", 2, rows[2])
    behind = await older.message(p, 1.5)
    ahead = await older.message(p, 2.5)

    await migrate_connection(older.pg)

    assert await delivered(older.pg, "late", "g") == {"Default": [ahead, rows[3]]}
    assert await older.pg.fetchval("SELECT queen.seek('late', 'g', NULL, 1, NULL, false, true)") == 1
    assert await delivered(older.pg, "late", "g") == {"Default": [*rows[:2], behind, rows[2], ahead, rows[3]]}


@pytest.mark.parametrize(
    ("second", "last", "given"),
    [
        (2, uuid.UUID(int=2**100), 3),  # that message is gone: its position counts
        (2, ZERO, 2),  # without an id: all before the moment
        (2, None, 2),
        (None, None, 0),  # no position: by the subscription, here from the beginning
        (None, ZERO, 0),
        (-5, uuid.UUID(int=2**127), 0),
        (99, uuid.UUID(int=2**127), 6),
    ],
)
async def test_a_cursor_is_a_position_whether_or_not_its_message_exists(
    before: Connection, second: float | None, last: uuid.UUID | None, given: int
) -> None:
    older = await Older(before).create()
    (p,) = await older.queue("q")
    rows = [await older.message(p, n, number=n + 1) for n in range(6)]
    await older.cursor(p, "g", second, last)
    await migrate_connection(before)
    assert await delivered(before, "q", "g") == ({"Default": rows[given:]} if rows[given:] else {})


async def test_a_cursor_with_only_an_id_stands_behind_that_message(before: Connection) -> None:
    older = await Older(before).create()
    (p,) = await older.queue("q")
    rows = await older.messages(p, 3)
    await older.cursor(p, "g", None, rows[1])
    await migrate_connection(before)
    assert await delivered(before, "q", "g") == {"Default": rows[2:]}


async def test_subscriptions_place_groups_where_they_have_no_cursor_and_find_later_queues(older: Older) -> None:
    pay, ship = await older.queue("shop.pay", "p1", "p2", namespace="shop", task="pay")
    (mail,) = await older.queue("mail.out", namespace="mail", task="out")
    in_pay, in_ship, in_mail = await older.messages(pay, 6), await older.messages(ship, 6), await older.messages(mail, 6)
    await older.subscribe("fresh", "new", 3, queue_name="shop.pay")
    await older.subscribe("since", "timestamp", 4, queue_name="shop.pay", partition_name="p2")
    await older.subscribe("all", "all", 5, queue_name="shop.pay")
    await older.subscribe("wild", "new", 2, namespace="shop")
    await older.subscribe("every task", "all", 0, task="out")
    await older.subscribe("early", "new", 0, queue_name="not.yet")
    await older.cursor(pay, "fresh", 1, in_pay[1])

    await migrate_connection(older.pg)

    assert await delivered(older.pg, "shop.pay", "fresh") == {"p1": in_pay[2:], "p2": in_ship[3:]}
    assert await delivered(older.pg, "shop.pay", "since") == {"p1": in_pay, "p2": in_ship[4:]}
    assert await delivered(older.pg, "shop.pay", "all") == {"p1": in_pay, "p2": in_ship}
    assert await delivered(older.pg, "shop.pay", "wild") == {"p1": in_pay[2:], "p2": in_ship[2:]}
    assert await delivered(older.pg, "mail.out", "every task") == {"Default": in_mail}
    await older.pg.execute("""SELECT queen.push('shop.later', 'x', '{"id": "00000000-0000-0000-0000-000000000001"}')""")
    await older.pg.execute("""SELECT queen.push('not.yet', 'x', '{"id": "00000000-0000-0000-0000-000000000002"}')""")
    await older.pg.execute("SELECT queen.take_wakes(1000)")
    groups = await older.pg.fetch(
        "SELECT queue_name, consumer_group FROM queen.consumer_groups_metadata WHERE queue_name IN ('shop.later', 'not.yet')"
    )
    assert {tuple(row) for row in groups} == {("shop.later", "wild"), ("not.yet", "early")}


async def test_dead_letters_keep_their_payload_and_are_settled_for_their_group_alone(older: Older) -> None:
    (p,) = await older.queue("q")
    rows = await older.messages(p, 6)
    await older.cursor(p, "g", 1, rows[1])
    await older.cursor(p, "other", 1, rows[1])
    for message, error in ((rows[2], "next"), (rows[4], "later"), (rows[0], "past")):
        await older.insert(
            "dead_letter_queue",
            message_id=message,
            partition_id=p,
            consumer_group="g",
            error_message=error,
            retry_count=3,
            failed_at=at(60),
        )
    gone = uuid.uuid4()
    await older.insert("dead_letter_queue", message_id=gone, partition_id=p, consumer_group="g", error_message="gone", failed_at=at(61))

    await migrate_connection(older.pg)

    assert await delivered(older.pg, "q", "g") == {"Default": [rows[3], rows[5]]}
    assert await delivered(older.pg, "q", "other") == {"Default": rows[2:]}
    dead = await older.pg.fetch("SELECT * FROM queen.dead_letter_queue ORDER BY seq")
    assert [(d["seq"], d["error_message"], d["retry_count"], d["consumer_group"]) for d in dead] == [
        (0, "gone", 0, "g"), (1, "past", 3, "g"), (3, "next", 3, "g"), (5, "later", 3, "g"),
    ]  # fmt: skip
    assert [d["payload"] and json.loads(d["payload"])["id"] for d in dead] == [None, str(rows[0]), str(rows[2]), str(rows[4])]
    assert dead[0]["transaction_id"] == str(gone)


async def test_leases_end_and_their_messages_are_delivered_again(older: Older) -> None:
    (p,) = await older.queue("q")
    rows = await older.messages(p, 3)
    await older.cursor(p, QUEUE_MODE, 0, rows[0], lease_expires_at=at(10**9), worker_id="somebody")
    applied = await migrate_connection(older.pg)
    assert applied.adopted is not None
    assert applied.adopted.figures["leases_ended"] == 1
    assert await delivered(older.pg, "q") == {"Default": rows[1:]}


async def test_options_come_along_and_a_default_ttl_expires_nothing(older: Older) -> None:
    (one,) = await older.queue("one", priority=7, lease_time=45, retry_limit=9, retry_delay=250, max_queue_size=1000, window_buffer=2,
        delayed_processing=1, dead_letter_queue=True, retention_enabled=True, retention_seconds=86400, namespace="n", task="t")  # fmt: skip
    await older.queue("quiet", ttl=120)
    (strict,) = await older.queue("strict", ttl=60)
    await older.queue("odd", lease_time=0, retry_limit=None, ttl=None, priority=None, namespace="")
    in_one, in_strict = await older.messages(one, 2), await older.messages(strict, 2)

    applied = await migrate_connection(older.pg)

    options = {row["name"]: row for row in await older.pg.fetch("SELECT * FROM queen.queues")}
    q = options["one"]
    assert (q["priority"], q["lease_time"], q["retry_limit"], q["retry_delay"], q["max_size"]) == (7, 45, 9, 250, 1000)
    assert (q["window_buffer"], q["delayed_processing"], q["dead_letter_queue"], q["retention_enabled"], q["retention_seconds"]) == (
        2,
        1,
        True,
        True,
        86400,
    )
    assert (q["namespace"], q["task"], q["ttl"]) == ("n", "t", None)
    assert options["quiet"]["ttl"] == 120
    assert (options["odd"]["lease_time"], options["odd"]["retry_limit"], options["odd"]["priority"], options["odd"]["namespace"]) == (
        300,
        3,
        0,
        None,
    )
    assert applied.adopted is not None
    assert applied.adopted.figures["ttl_left_off"] == ["strict"]
    assert await delivered(older.pg, "one") == {"Default": in_one}
    assert await delivered(older.pg, "strict") == {"Default": in_strict}


async def test_missing_and_repeated_transaction_ids_are_mended_and_reported(older: Older) -> None:
    one, two = await older.queue("q", "one", "two")
    first = await older.message(one, 0, "same")
    second = await older.message(one, 1, "same")
    elsewhere = await older.message(two, 0, "same")
    nothing = await older.message(one, 2, None)
    empty = await older.message(one, 3, None)
    await older.pg.execute("UPDATE queen.messages SET transaction_id = '' WHERE id = $1", empty)

    applied = await migrate_connection(older.pg)

    found = {row[0]: row[1] for row in await older.pg.fetch("SELECT (payload ->> 'id')::uuid, transaction_id FROM queen.messages")}
    assert found == {first: "same", second: f"same#{second}", elsewhere: "same", nothing: str(nothing), empty: str(empty)}
    assert applied.adopted is not None
    assert applied.adopted.figures["transaction_ids_renamed"] == 1
    assert applied.adopted.figures["transaction_ids_made"] == 2
    assert any("transaction id" in line for line in applied.adopted.lines())


async def test_odd_names_sealed_messages_and_traces_come_along(older: Older) -> None:
    queue, partition, group = "größe / 'quoted' \"名\"", "  a%b_c\\d  ", "g'; DROP TABLE x --"
    (p,) = await older.queue(queue, partition)
    trace = uuid.uuid4()
    made = await older.message(p, 0, "tid ü", is_encrypted=True, trace_id=trace)
    await older.cursor(p, group, None, None)
    await migrate_connection(older.pg)
    assert await delivered(older.pg, queue, group) == {partition: [made]}
    row = await older.pg.fetchrow("SELECT * FROM queen.messages")
    assert row is not None
    assert (row["transaction_id"], row["is_encrypted"], row["trace_id"], row["created_at"]) == ("tid ü", True, trace, at(0))


@BOTH
async def test_new_messages_follow_the_old_ones_without_a_gap(older: Older) -> None:
    (p,) = await older.queue("q")
    rows = await older.messages(p, 3)
    await migrate_connection(older.pg)
    made = uuid.uuid4()
    await older.pg.execute("SELECT queen.push('q', 'Default', $1::json)", json.dumps({"id": str(made)}))
    await older.pg.execute(
        "INSERT INTO queen.messages (partition_id, payload) SELECT id, $1 FROM queen.partitions", json.dumps({"id": str(made)})
    )
    assert await delivered(older.pg, "q") == {"Default": [*rows, made, made]}
    assert [row[0] for row in await older.pg.fetch("SELECT seq FROM queen.messages ORDER BY seq")] == [1, 2, 3, 4, 5]


async def test_a_database_with_the_fewest_columns_is_taken_over(before: Connection) -> None:
    await before.execute(
        "CREATE SCHEMA queen; CREATE TABLE queen.queues (id bigint PRIMARY KEY, name text);"
        "CREATE TABLE queen.partitions (id bigint PRIMARY KEY, queue_id bigint, name text);"
        "CREATE TABLE queen.messages (id bigint PRIMARY KEY, partition_id bigint, payload text, created_at timestamp, trace_id text);"
        "INSERT INTO queen.queues VALUES (1, 'q'), (2, '');"
        "INSERT INTO queen.partitions VALUES (10, 1, NULL), (11, 2, 'p'), (12, 99, 'lost');"
        """INSERT INTO queen.messages SELECT n, 10 + n % 2, '{"n":' || n || '}', '2026-01-01'::timestamp + n * interval '1 s', 'no uuid'"""
        " FROM generate_series(1, 10) n; INSERT INTO queen.messages VALUES (11, 12, '{}', NULL), (12, 10, '{}', NULL);"
    )
    applied = await migrate_connection(before)
    assert applied.adopted is not None
    assert (applied.adopted.figures["messages"], applied.adopted.figures["messages_without_partition"]) == (11, 1)
    rows = await before.fetch(
        "SELECT q.name, p.name AS partition, m.seq, m.transaction_id, m.payload FROM queen.messages m"
        " JOIN queen.partitions p ON p.id = m.partition_id JOIN queen.queues q ON q.id = p.queue_id ORDER BY q.name, m.seq"
    )
    assert [tuple(row) for row in rows] == [
        *(("q", "Default", n, str(2 * n), f'{{"n":{2 * n}}}') for n in range(1, 6)),
        ("q", "Default", 6, "12", "{}"),
        *(("unnamed", "p", n, str(2 * n - 1), f'{{"n":{2 * n - 1}}}') for n in range(1, 6)),
    ]


@BOTH
async def test_a_second_migration_changes_nothing_and_the_working_tables_are_gone(older: Older, empty_database_url: str) -> None:
    (p,) = await older.queue("q")
    await older.messages(p, 3)
    await migrate_connection(older.pg)
    stamp = await older.pg.fetch(
        "SELECT relname, relfilenode FROM pg_class WHERE relnamespace IN ('queen'::regnamespace, 'queen_before'::regnamespace)"
    )
    again = await migrate(empty_database_url)
    assert (again.adopted, again.migrations, again.functions) == (None, [], [])
    assert stamp == await older.pg.fetch(
        "SELECT relname, relfilenode FROM pg_class WHERE relnamespace IN ('queen'::regnamespace, 'queen_before'::regnamespace)"
    )
    assert not [row["relname"] for row in stamp if row["relname"].startswith("adopt")]


@BOTH
async def test_an_adopted_schema_is_the_same_as_a_fresh_one(older: Older, pg: Connection) -> None:
    await migrate_connection(older.pg)
    columns = (
        "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns"
        " WHERE table_schema = 'queen' ORDER BY 1, 2"
    )
    functions = "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'queen'::regnamespace ORDER BY 1"
    indexes = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'queen' ORDER BY 1"
    for query in (columns, functions, indexes):
        assert await older.pg.fetch(query) == await pg.fetch(query)


async def test_two_rows_for_one_place_become_one_and_the_earlier_cursor_counts(before: Connection) -> None:
    """Without the older system's unique constraints a database may hold a queue, a partition or a cursor twice."""
    await before.execute(
        "CREATE SCHEMA queen; CREATE TABLE queen.queues (id int PRIMARY KEY, name text);"
        "CREATE TABLE queen.partitions (id int PRIMARY KEY, queue_id int, name text);"
        "CREATE TABLE queen.messages (id int PRIMARY KEY, partition_id int, payload json, created_at timestamptz, transaction_id text);"
        "CREATE TABLE queen.partition_consumers (partition_id int, consumer_group text, last_consumed_id int,"
        " last_consumed_created_at timestamptz);"
        "CREATE TABLE queen.dead_letter_queue (message_id int, partition_id int, consumer_group text, payload json, transaction_id text);"
        "INSERT INTO queen.queues VALUES (1, 'q'), (2, 'q'); INSERT INTO queen.partitions VALUES (10, 1, 'p'), (11, 2, 'p'), (12, 2, 'p');"
        "INSERT INTO queen.messages SELECT n, 10 + n % 3, json_build_object('n', n),"
        " '2026-01-01'::timestamptz + n * interval '1 s', 't' || n % 5"
        " FROM generate_series(1, 9) n;"
        "INSERT INTO queen.partition_consumers SELECT 10 + n % 3, 'g', n,"
        " '2026-01-01'::timestamptz + n * interval '1 s' FROM (VALUES (3), (5), (8)) x(n);"
        """INSERT INTO queen.dead_letter_queue VALUES (99, 11, 'g', '{"gone": 1}', 'was'), (98, 77, 'g', '{}', 'nowhere'),"""
        " (6, NULL, NULL, NULL, NULL)"
    )
    applied = await migrate_connection(before)
    rows = await before.fetch("SELECT seq, (payload ->> 'n')::int, transaction_id FROM queen.messages ORDER BY seq")
    assert [(row[0], row[1]) for row in rows] == [(n, n) for n in range(1, 10)]
    assert [row[2] for row in rows] == ["t1", "t2", "t3", "t4", "t0", "t1#6", "t2#7", "t3#8", "t4#9"]
    assert await before.fetchval("SELECT cursor_seq FROM queen.partition_consumers") == 3
    assert await before.fetchval("SELECT count(*) FROM queen.partitions") == 1
    dead = await before.fetch("SELECT transaction_id, payload, seq, consumer_group FROM queen.dead_letter_queue ORDER BY seq")
    assert [tuple(row) for row in dead] == [("was", '{"gone": 1}', 0, "g"), ("t1#6", '{"n" : 6}', 6, QUEUE_MODE)]
    assert applied.adopted is not None
    assert applied.adopted.figures["dead_letters_without_partition"] == 1
