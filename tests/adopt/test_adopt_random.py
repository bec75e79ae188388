"""Random databases of the older system: what the older server would have delivered before is what ours delivers after, to every group."""

from __future__ import annotations

import json
import random
import uuid
from datetime import datetime
from typing import Any

import pytest
from tests.adopt.older import BOTH, QUEUE_MODE, Older, at, delivered
from tests.adopt.test_way_back import older_pop

from queenmq.postgres.migrate import migrate_connection
from queenmq.postgres.resync import resync
from queenmq.postgres.way_back import back

GROUPS = (QUEUE_MODE, "a", "b", "c")


async def fill(older: Older, dice: random.Random) -> list[str]:
    """Queues, partitions, messages with many ties and late rows, cursors on, between and beyond them."""
    queues = [f"queue {n}" for n in range(3)]
    for queue in queues:
        partitions = await older.queue(queue, *(f"p{n}" for n in range(dice.randint(1, 5))))
        for partition in partitions:
            rows: list[tuple[Any, ...]] = []
            for _ in range(dice.choice((0, 1, 5, 60))):
                made = uuid.UUID(int=dice.getrandbits(128))
                rows.append((made, str(made), partition, json.dumps({"id": str(made)}), at(dice.randint(0, 12))))
            await older.pg.executemany(
                "INSERT INTO queen.messages (id, transaction_id, partition_id, payload, created_at) VALUES ($1, $2, $3, $4, $5)", rows
            )
            for group in GROUPS:
                place = position(dice, rows)
                if place is not None:
                    await older.insert(
                        "partition_consumers",
                        partition_id=partition,
                        consumer_group=group,
                        last_consumed_created_at=place[0],
                        last_consumed_id=place[1],
                        lease_expires_at=at(dice.choice((-1, 10**9))),
                    )
    return queues


def position(dice: random.Random, rows: list[tuple[Any, ...]]) -> tuple[datetime, uuid.UUID] | None:
    """Nothing, a message's own place, or one where no message is."""
    kind = dice.choice(("none", "message", "message", "between"))
    if kind == "message" and rows:
        row = dice.choice(rows)
        return row[4], row[0]
    return (at(dice.randint(-1, 13)), uuid.UUID(int=dice.getrandbits(128))) if kind == "between" else None


@pytest.mark.parametrize("seed", range(4))
@BOTH
async def test_what_the_older_server_would_deliver_is_what_ours_delivers(older: Older, seed: int) -> None:
    queues = await fill(older, random.Random(seed))
    expected = {(queue, group): await older_pop(older.pg, queue, group) for queue in queues for group in GROUPS}
    await migrate_connection(older.pg)
    assert (await resync(older.pg)).mended == 0
    assert {(queue, group): await delivered(older.pg, queue, group) for queue in queues for group in GROUPS} == expected
    await back(older.pg)
    assert {(queue, group): await older_pop(older.pg, queue, group) for queue in queues for group in GROUPS} == expected
