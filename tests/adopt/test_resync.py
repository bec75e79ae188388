"""Resync finds what is derived and wrong, mends it once, and finds nothing then; it harms nobody who is at work."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import TYPE_CHECKING

import asyncpg
from tests.adopt.older import delivered

from queenmq.postgres import resync as module
from queenmq.postgres.resync import Resynced, partitions, resync

if TYPE_CHECKING:
    import pytest
    from tests.adopt.older import Connection


async def push(pg: Connection, queue: str, partition: str, count: int = 1) -> list[uuid.UUID]:
    made = [uuid.uuid4() for _ in range(count)]
    for each in made:
        await pg.execute("SELECT queen.push($1, $2, $3::json)", queue, partition, json.dumps({"id": str(each)}))
    await pg.execute("SELECT queen.take_wakes(1000)")
    return made


async def test_a_sound_database_has_nothing_to_mend_and_every_partition_is_examined(pg: Connection) -> None:
    for number in range(25):
        await push(pg, "q", f"p{number}")
    await pg.execute("SELECT queen.make_group('q', 'g', 'all', NULL)")
    steps: list[None] = []
    assert await partitions(pg) == 25
    assert await resync(pg, lambda: steps.append(None)) == Resynced(partitions=25)
    assert len(steps) == 25


async def test_a_counter_behind_its_messages_is_corrected_once(pg: Connection) -> None:
    rows = await push(pg, "q", "p", 3)
    await pg.execute("UPDATE queen.partition_lookup SET next_seq = 2, last_message_created_at = NULL")
    assert (await resync(pg)).stale_lookups == 1
    assert (await resync(pg)).mended == 0
    assert await delivered(pg, "q") == {"p": [*rows]}
    again = await push(pg, "q", "p")
    assert await pg.fetchval("SELECT seq FROM queen.messages WHERE payload ->> 'id' = $1", str(again[0])) == 4


async def test_a_lost_counter_row_is_made_again_behind_everything_known(pg: Connection) -> None:
    rows = await push(pg, "q", "full", 2)
    await push(pg, "q", "empty", 3)
    await pg.execute("SELECT queen.make_group('q', 'g', 'all', NULL)")
    await pg.execute("SELECT queen.seek('q', 'g', 'empty', NULL, NULL, true)")
    await pg.execute("SELECT queen.remove_messages(id, 1, 3, 'purged') FROM queen.partitions WHERE name = 'empty'")
    await pg.execute("DELETE FROM queen.partition_lookup")
    found = await resync(pg)
    assert found.stale_lookups == 2
    assert (await resync(pg)).mended == 0
    assert await delivered(pg, "q", "g") == {"full": rows}
    new = await push(pg, "q", "empty")
    assert await delivered(pg, "q", "g") == {"empty": new}


async def test_missing_consumer_rows_and_stranded_ones_are_mended(pg: Connection) -> None:
    one, two = await push(pg, "q", "one", 2), await push(pg, "q", "two", 2)
    await pg.execute("SELECT queen.make_group('q', 'g', 'all', NULL)")
    await pg.execute("DELETE FROM queen.partition_consumers WHERE partition_id = (SELECT id FROM queen.partitions WHERE name = 'one')")
    await pg.execute("UPDATE queen.partition_consumers SET ready_at = NULL")
    found = await resync(pg)
    assert (found.missing_rows, found.stranded) == (1, 1)
    assert (await resync(pg)).mended == 0
    assert await delivered(pg, "q", "g") == {"one": one, "two": two}


async def test_a_sleeping_partition_stays_asleep(pg: Connection) -> None:
    await push(pg, "q", "p")
    await pg.execute("DELETE FROM queen.messages")
    assert await pg.fetchval("SELECT queen.sleep_partition(id) FROM queen.partitions")
    assert await resync(pg) == Resynced(partitions=1)
    assert await pg.fetchval("SELECT asleep_next_seq FROM queen.partitions") == 2


async def test_a_locked_partition_is_left_out_and_said(pg: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await push(pg, "q", "held")
    await push(pg, "q", "free")
    await pg.execute("UPDATE queen.partition_lookup SET next_seq = 1")
    monkeypatch.setattr(module, "TRIES", 1)
    holder = await asyncpg.connect(database_url)
    try:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute(
            "SELECT FROM queen.partition_lookup WHERE partition_id = (SELECT id FROM queen.partitions WHERE name = 'held') FOR UPDATE"
        )
        found = await resync(pg)
        assert (found.partitions, found.stale_lookups, found.busy) == (2, 1, 1)
        await transaction.rollback()
        found = await resync(pg)
        assert (found.stale_lookups, found.busy) == (1, 0)
    finally:
        await holder.close()


async def test_resync_beside_pushes_loses_and_disorders_nothing(pg: Connection, database_url: str) -> None:
    await push(pg, "q", "p0")
    pusher = await asyncpg.connect(database_url)
    made: dict[str, list[uuid.UUID]] = {"p0": [], "p1": [], "p2": []}
    done = asyncio.Event()

    async def pushing() -> None:
        for number in range(150):
            made[f"p{number % 3}"] += await push(pusher, "q", f"p{number % 3}")
        done.set()

    try:
        work = asyncio.create_task(pushing())
        while not done.is_set():
            await resync(pg)
        await work
    finally:
        await pusher.close()
    found = await delivered(pg, "q")
    assert {name: ids[-50:] for name, ids in found.items()} == made
    assert await pg.fetchval("SELECT bool_and(n = top) FROM (SELECT count(*) n, max(seq) top FROM queen.messages GROUP BY partition_id) x")


async def test_the_last_run_is_kept_for_metrics(pg: Connection) -> None:
    await push(pg, "q", "p")
    await pg.execute("UPDATE queen.partition_lookup SET next_seq = 1")
    await resync(pg)
    kept = json.loads(await pg.fetchval("SELECT value::text FROM queen.system_state WHERE key = 'resync'"))
    assert (kept["partitions"], kept["stale_lookups"], kept["busy"], kept["stale_lookups_total"]) == (1, 1, 0, 1)
    await resync(pg)
    kept = json.loads(await pg.fetchval("SELECT value::text FROM queen.system_state WHERE key = 'resync'"))
    assert (kept["stale_lookups"], kept["stale_lookups_total"]) == (0, 1)


async def test_a_counter_that_fell_behind_a_cursor_is_lifted_so_that_no_new_message_is_stepped_over(pg: Connection) -> None:
    await push(pg, "q", "p", 5)
    await pg.execute("SELECT queen.make_group('q', 'g', 'all', NULL)")
    await pg.execute("SELECT queen.seek('q', 'g', NULL, NULL, NULL, true)")
    # a restored table: the newest messages are gone, and the counter with them
    await pg.execute("SELECT set_config('queen.lookup_maintained', 'on', false)")
    await pg.execute("DELETE FROM queen.messages WHERE seq > 2")
    await pg.execute("SELECT set_config('queen.lookup_maintained', '', false)")
    await pg.execute("UPDATE queen.partition_lookup SET next_seq = 3")
    assert (await resync(pg)).stale_lookups == 1
    assert (await resync(pg)).mended == 0
    new = await push(pg, "q", "p")
    assert await delivered(pg, "q", "g") == {"p": new}
