"""Taking over is all or nothing: with writers at work, with an error planted midway, with two servers at once, with too few rights."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import asyncpg
import pytest
from tests.adopt.older import BOTH, Older, at, delivered

from queenmq.errors import SetupError
from queenmq.postgres import adopt
from queenmq.postgres.embedded import SUPERUSER, EmbeddedPostgres
from queenmq.postgres.migrate import migrate, migrate_connection

if TYPE_CHECKING:
    from tests.adopt.older import Connection

EVERYTHING = """
SELECT 'table ' || c.relname || ' ' || c.relkind::text || ' ' || pg_relation_filenode(c.oid) FROM pg_class c
 WHERE c.relnamespace = $1::regnamespace
UNION ALL SELECT 'column ' || c.relname || ' ' || a.attname || ' ' || a.atttypid FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
 WHERE c.relnamespace = $1::regnamespace AND a.attnum > 0
UNION ALL SELECT 'function ' || p.oid || ' ' || p.prosrc FROM pg_proc p WHERE p.pronamespace = $1::regnamespace
UNION ALL SELECT 'trigger ' || t.oid || t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
 WHERE c.relnamespace = $1::regnamespace
ORDER BY 1
"""


async def picture(pg: Connection, schema: str = "queen") -> list[str]:
    """What there is in a schema, and every row of its main tables."""
    found = [row[0] for row in await pg.fetch(EVERYTHING, schema)]
    for table in ("queues", "partitions", "messages", "partition_consumers", "consumer_groups_metadata", "dead_letter_queue"):
        found += [str(row[0]) for row in await pg.fetch(f"SELECT t::text FROM {schema}.{table} t ORDER BY 1")]
    return found


async def waits_for_a_lock(watcher: Connection, backend: int) -> None:
    """Until that backend waits for somebody's lock."""
    async with asyncio.timeout(20):
        while not await watcher.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", backend):
            pass


@BOTH
async def test_an_error_midway_leaves_the_older_database_as_it_was(older: Older) -> None:
    (p,) = await older.queue("q")
    await older.messages(p, 5)
    # jsonb that can't be had as we need it: found only when half of the work is done
    await older.pg.execute("ALTER TABLE queen.messages ALTER payload TYPE text USING payload::text")
    bad = await older.message(p, 9)
    await older.pg.execute("UPDATE queen.messages SET payload = 'not json' WHERE id = $1", bad)
    before = await picture(older.pg)
    with pytest.raises(SetupError, match=r"(?s)invalid input syntax for type json.*nothing was changed"):
        await migrate_connection(older.pg)
    assert await picture(older.pg) == before
    assert await older.pg.fetchval("SELECT to_regnamespace('queen_before') IS NULL")
    await older.pg.execute(
        """UPDATE queen.messages SET payload = '{"id":"00000000-0000-0000-0000-000000000000"}' WHERE payload = 'not json'"""
    )
    assert (await migrate_connection(older.pg)).adopted is not None
    assert len((await delivered(older.pg, "q"))["Default"]) == 6


async def test_an_open_transaction_of_the_older_server_ends_the_attempt_and_is_named(older: Older, empty_database_url: str) -> None:
    (p,) = await older.queue("q")
    server = await asyncpg.connect(empty_database_url, server_settings={"application_name": "the older server"})
    try:
        transaction = server.transaction()
        await transaction.start()
        made = await Older(server).message(p, 0)
        await older.pg.execute("SET lock_timeout = '100ms'")
        before = await picture(older.pg)
        with pytest.raises(SetupError, match=r"(?s)in use.*Stop every server.*the older server"):
            await migrate_connection(older.pg)
        assert await picture(older.pg) == before
        await transaction.commit()
        await migrate_connection(older.pg)
        assert await delivered(older.pg, "q") == {"Default": [made]}
    finally:
        await server.close()


async def test_what_commits_while_the_migration_waits_is_taken_along(older: Older, empty_database_url: str) -> None:
    """P8: the row that was not committed when the migration began is not missed."""
    (p,) = await older.queue("q")
    first = await older.message(p, 0)
    server, watcher = await asyncpg.connect(empty_database_url), await asyncpg.connect(empty_database_url)
    try:
        transaction = server.transaction()
        await transaction.start()
        late = await Older(server).message(p, -1)
        migration = asyncio.create_task(migrate_connection(older.pg))
        await waits_for_a_lock(watcher, older.pg.get_server_pid())
        await transaction.commit()
        await migration
        assert await delivered(watcher, "q") == {"Default": [late, first]}
    finally:
        await server.close()
        await watcher.close()


@BOTH
async def test_who_writes_during_the_migration_is_told_and_nothing_is_lost_in_silence(older: Older, empty_database_url: str) -> None:
    """P8: an older server that goes on pushing: each of its messages was either refused or is there."""
    (p,) = await older.queue("q")
    kept: list[uuid.UUID] = []
    server = await asyncpg.connect(empty_database_url)
    under_way = asyncio.Event()

    async def push() -> None:
        second = 0
        while True:
            kept.append(await Older(server).message(p, second))
            second += 1
            if second == 20:
                under_way.set()

    try:
        pushing = asyncio.create_task(push())
        async with asyncio.timeout(20):
            await under_way.wait()
        await migrate_connection(older.pg)
        with pytest.raises(asyncpg.PostgresError):
            await pushing
        assert len(kept) >= 20
        assert await delivered(older.pg, "q") == {"Default": kept}
    finally:
        await server.close()


async def test_two_servers_that_start_at_once_take_over_once(older: Older, empty_database_url: str) -> None:
    (p,) = await older.queue("q")
    rows = await older.messages(p, 50)
    done = await asyncio.gather(*(migrate(empty_database_url) for _ in range(3)))
    assert sum(applied.adopted is not None for applied in done) == 1
    assert await delivered(older.pg, "q") == {"Default": rows}


async def test_a_database_whose_default_level_is_serializable_is_taken_over_once(older: Older, empty_database_url: str) -> None:
    (p,) = await older.queue("q")
    rows = await older.messages(p, 3)
    await older.pg.execute(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database()); END $$"
    )
    done = await asyncio.gather(migrate(empty_database_url), migrate(empty_database_url))
    assert sum(applied.adopted is not None for applied in done) == 1
    assert await delivered(older.pg, "q") == {"Default": rows}


async def test_a_role_with_a_short_statement_timeout_and_a_search_path_of_its_own_takes_over(older: Older, empty_database_url: str) -> None:
    partitions = await older.queue("q", *(f"p{n}" for n in range(50)))
    await older.pg.execute(
        "INSERT INTO queen.messages (transaction_id, partition_id, payload) SELECT gen_random_uuid()::text, p, '{}'"
        " FROM unnest($1::uuid[]) p, generate_series(1, 400)",
        partitions,
    )
    narrow = await asyncpg.connect(empty_database_url, server_settings={"statement_timeout": "150ms", "search_path": "nowhere"})
    try:
        applied = await migrate_connection(narrow)
        assert applied.adopted is not None
        assert applied.adopted.figures["messages"] == 20_000
        assert await narrow.fetchval("SELECT count(*) FROM queen.messages") == 20_000
    finally:
        await narrow.close()


async def test_a_role_that_may_not_rename_the_schema_is_told_what_to_run(
    older: Older, postgres: EmbeddedPostgres, empty_database_url: str
) -> None:
    name = await older.pg.fetchval("SELECT current_database()")
    above = await asyncpg.connect(postgres.dsn(name, SUPERUSER))
    try:
        await above.execute("ALTER SCHEMA queen OWNER TO CURRENT_USER")
        await above.execute("GRANT USAGE, CREATE ON SCHEMA queen TO PUBLIC")
        with pytest.raises(SetupError, match="ALTER SCHEMA queen OWNER TO"):
            await migrate(empty_database_url)
        await above.execute("ALTER TABLE queen.messages OWNER TO CURRENT_USER")
        with pytest.raises(SetupError, match="connect as their owner"):
            await migrate(empty_database_url)
    finally:
        await above.close()


async def test_an_unknown_schema_queen_is_refused_untouched(before: Connection) -> None:
    await before.execute("CREATE SCHEMA queen; CREATE TABLE queen.messages (seq bigint, body text)")
    with pytest.raises(SetupError, match="neither QueenMQ's nor the older system's"):
        await migrate_connection(before)
    await before.execute(
        "DROP TABLE queen.messages; CREATE TABLE queen.messages (id uuid, body text); CREATE TABLE queen.queues (id uuid, name text)"
    )
    with pytest.raises(SetupError, match=r"missing: messages\.created_at, messages\.partition_id, messages\.payload, partitions\.id"):
        await migrate_connection(before)
    assert await before.fetchval("SELECT count(*) FROM pg_class WHERE relnamespace = 'queen'::regnamespace AND relkind = 'r'") == 2


async def test_a_later_generation_that_keeps_messages_elsewhere_is_refused_untouched(older: Older) -> None:
    await older.pg.execute("ALTER TABLE queen.queues ADD storage text DEFAULT 'segments'; CREATE TABLE queen.log_segments (blob bytea)")
    before = await picture(older.pg)
    with pytest.raises(SetupError, match="later generation"):
        await migrate_connection(older.pg)
    assert await picture(older.pg) == before


async def test_a_role_without_the_right_to_make_schemas_migrates_in_one_made_for_it(
    postgres: EmbeddedPostgres, before: Connection, empty_database_url: str
) -> None:
    name = await before.fetchval("SELECT current_database()")
    above = await asyncpg.connect(postgres.dsn(name, SUPERUSER))
    role = f"guest_{name}"
    try:
        await above.execute(f"CREATE ROLE {role} LOGIN; CREATE SCHEMA queen AUTHORIZATION {role}")
        guest = await asyncpg.connect(postgres.dsn(name, role))
        try:
            assert not await guest.fetchval("SELECT has_database_privilege(current_database(), 'CREATE')")
            assert (await migrate_connection(guest)).migrations
        finally:
            await guest.close()
    finally:
        await above.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await above.close()


async def test_an_earlier_queen_before_is_never_overwritten(older: Older) -> None:
    await older.pg.execute("CREATE SCHEMA queen_before")
    with pytest.raises(SetupError, match="queen_before"):
        await migrate_connection(older.pg)
    assert await older.pg.fetchval("SELECT to_regclass('queen.schema_files') IS NULL")


@BOTH
async def test_the_older_tables_and_all_that_lies_beside_them_are_kept_unchanged(older: Older) -> None:
    (p,) = await older.queue("q")
    rows = await older.messages(p, 4)
    await older.cursor(p, "g", 1, rows[1], lease_expires_at=at(10**9))
    before = await picture(older.pg)
    await migrate_connection(older.pg)
    assert await picture(older.pg, adopt.BEFORE) == before
