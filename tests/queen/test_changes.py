"""What others do to queues that a server remembers: deleted, changed, put to sleep, by another server or by plain SQL.

Nothing here is told by a notification: PostgreSQL alone must be enough (corrections U7, P9; design §5, rule 10)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import msgspec
import pytest
from tests.queen.support import ack, item, messages, push, take, transact

from queenmq.errors import QueueFull, SealRequired
from queenmq.messages import ConfigureBody, PushItem
from queenmq.queen.encryption import SealBroken
from queenmq.queen.manager import Manager
from queenmq.queen.popping import PopRequest

if TYPE_CHECKING:
    from tests.queen.conftest import MakeManager

    Connection = asyncpg.Connection[asyncpg.Record]

KEYS = (("k1", bytes(range(32))),)
NEW_KEYS = (("k2", bytes(range(1, 33))), *KEYS)
PAYLOADS = """SELECT m.payload::text, m.is_encrypted FROM queen.messages m JOIN queen.partitions p ON p.id = m.partition_id
               JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1 ORDER BY p.id, m.seq"""


async def configure(manager: Manager, queue: str, **options: object) -> None:
    await manager.configure(ConfigureBody(queue, options=options))


async def stored(sql: Connection, queue: str) -> list[tuple[str, bool]]:
    return [(row["payload"], bool(row["is_encrypted"])) for row in await sql.fetch(PAYLOADS, queue)]


async def test_a_push_after_a_queue_was_deleted_is_stored_in_the_new_one(manager: Manager, queue: str, sql: Connection) -> None:
    before = await push(manager, item(queue, 1), item(queue, 1, "p"))
    await sql.execute("DELETE FROM queen.queues WHERE name = $1", queue)
    after = await push(manager, item(queue, 2), item(queue, 2, "p"))
    assert [entry["status"] for entry in after] == ["queued"] * 2 and [entry["seq"] for entry in after] == [1, 1]
    assert not {entry["partition_id"] for entry in before} & {entry["partition_id"] for entry in after}
    assert [payload for payload, _ in await stored(sql, queue)] == ["2", "2"]
    assert [m["data"] for m in await take(manager, queue, partitions=5)] == [2, 2]


async def test_pushes_and_transactions_of_many_callers_outlive_deletions(manager: Manager, queue: str, sql: Connection) -> None:
    async def delete() -> None:
        for _ in range(10):
            await sql.execute("DELETE FROM queen.queues WHERE name = $1", queue)

    async def pushing(n: int) -> None:
        for k in range(5):
            assert (await push(manager, item(queue, [n, k], f"p{n % 3}")))[0]["status"] == "queued"

    async def transacting(n: int) -> None:
        pushed = {"queue": queue, "partition": f"p{n % 3}", "payload": msgspec.Raw(b"0")}
        assert (await transact(manager, {"operations": [{"type": "push", "items": [pushed]}]}))["success"]

    await asyncio.gather(delete(), *(pushing(n) for n in range(12)), *(transacting(n) for n in range(12)))
    left = await stored(sql, queue)
    found = await take(manager, queue, batch=1000, partitions=10)
    assert len(found) == len(left)


async def test_a_pop_after_a_queue_was_deleted_finds_the_new_one(manager: Manager, queue: str, sql: Connection) -> None:
    await push(manager, item(queue, 1))
    (message,) = await take(manager, queue, group="g")
    await sql.execute("DELETE FROM queen.queues WHERE name = $1", queue)
    assert await take(manager, queue, group="g") == [] and await take(manager, queue, partition="Default", group="g") == []
    assert (await ack(manager, message))[0]["success"] is False
    await push(manager, item(queue, 2))
    assert [m["data"] for m in await take(manager, queue, group="g")] == [2]
    assert [m["data"] for m in await take(manager, queue, partition="Default", group="h")] == [2]


async def test_a_group_whose_metadata_was_deleted_subscribes_anew_at_its_next_pop(manager: Manager, queue: str, sql: Connection) -> None:
    await push(manager, item(f"{queue}.t.x", 1))
    named = PopRequest(None, namespace=queue, task="t", group="wild", wait=True, timeout=5.0)

    async def wild() -> list[int]:
        popped = await manager.pop(named)
        return [message["data"] for message in messages(popped)] if popped is not None else []

    assert [m["data"] for m in await take(manager, f"{queue}.t.x", group="g")] == [1] and await wild() == [1]
    await sql.execute("DELETE FROM queen.consumer_groups_metadata WHERE consumer_group IN ('g', 'wild')")
    assert [m["data"] for m in await take(manager, f"{queue}.t.x", group="g")] == [1]
    assert await wild() == [1]
    assert await take(manager, f"{queue}.t.x", group="g") == []


async def test_a_partition_that_was_put_to_sleep_is_woken_by_the_next_push(manager: Manager, queue: str, sql: Connection) -> None:
    (entry,) = await push(manager, item(queue, 1))
    await ack(manager, *await take(manager, queue))
    await sql.execute("DELETE FROM queen.messages WHERE partition_id = $1", int(entry["partition_id"]))
    assert await take(manager, queue) == []
    assert await sql.fetchval("SELECT queen.sleep_partition($1)", int(entry["partition_id"]))
    again = await push(manager, item(queue, 2))
    assert again[0]["seq"] == 2 and again[0]["partition_id"] == entry["partition_id"]
    assert [m["data"] for m in await take(manager, queue)] == [2]


@pytest.mark.parametrize("how", ["another server", "SQL"])
@pytest.mark.parametrize("way", ["push", "transaction"])
async def test_encryption_switched_on_elsewhere_seals_the_next_push(
    make_manager: MakeManager, queue: str, sql: Connection, how: str, way: str
) -> None:
    here, there = await make_manager(keys=KEYS), await make_manager(keys=KEYS)
    await push(here, item(queue, "plain"))
    if how == "SQL":
        await sql.execute("UPDATE queen.queues SET encryption_enabled = true WHERE name = $1", queue)
    else:
        await configure(there, queue, encryptionEnabled=True)
    if way == "push":
        await push(here, item(queue, "secret"), item(queue, "secret"))
    else:
        pushed = [{"queue": queue, "payload": msgspec.Raw(b'"secret"')}] * 2
        assert (await transact(here, {"operations": [{"type": "push", "items": pushed}]}))["success"]
    rows = await stored(sql, queue)
    assert [sealed for _, sealed in rows] == [False, True, True] and "secret" not in str(rows)
    assert [m["data"] for m in await take(there, queue)] == ["plain", "secret", "secret"]


async def test_a_server_without_a_key_refuses_a_push_once_the_queue_demands_sealing_and_its_neighbours_are_stored(
    make_manager: MakeManager, queue: str, sql: Connection
) -> None:
    keyless, keyed = await make_manager(), await make_manager(keys=KEYS)
    await push(keyless, item(queue, "plain"), item(f"{queue}.open", "plain"))
    await configure(keyed, queue, encryptionEnabled=True)
    both = [asyncio.create_task(push(keyless, item(name, "secret"))) for name in (queue, f"{queue}.open")]
    await asyncio.wait(both)
    refused = both[0].exception()
    assert isinstance(refused, SealRequired) and refused.status == 400 and both[1].exception() is None
    assert await stored(sql, queue) == [('"plain"', False)] and len(await stored(sql, f"{queue}.open")) == 2
    with pytest.raises(SealRequired):
        await push(keyless, item(queue, "secret"))
    with pytest.raises(SealRequired):
        await transact(keyless, {"operations": [{"type": "push", "items": [{"queue": queue, "payload": msgspec.Raw(b"1")}]}]})
    assert (await push(keyed, item(queue, "secret")))[0]["status"] == "queued"


async def test_a_size_limit_set_elsewhere_holds_for_the_next_push_and_for_nobody_else(make_manager: MakeManager, queue: str) -> None:
    here, there = await make_manager(), await make_manager()
    await push(here, item(queue, 1), item(queue, 2), item(f"{queue}.free", 1))
    await configure(there, queue, maxSize=2)
    pushes = [asyncio.create_task(push(here, item(name, 3))) for name in (queue, f"{queue}.free")]
    await asyncio.wait(pushes)
    assert isinstance(pushes[0].exception(), QueueFull) and pushes[1].result()[0]["status"] == "queued"
    with pytest.raises(QueueFull):
        await transact(here, {"operations": [{"type": "push", "items": [{"queue": queue, "payload": msgspec.Raw(b"1")}]}]})
    assert [m["data"] for m in await take(here, queue)] == [1, 2]


async def test_encryption_switched_off_elsewhere_leaves_the_next_push_plain(make_manager: MakeManager, queue: str, sql: Connection) -> None:
    here, there = await make_manager(keys=KEYS), await make_manager(keys=KEYS)
    await configure(here, queue, encryptionEnabled=True)
    await push(here, item(queue, 1))
    await configure(there, queue, encryptionEnabled=False)
    await push(here, item(queue, 2))
    await push(here, item(queue, 3))
    assert [sealed for _, sealed in await stored(sql, queue)][-1] is False
    assert [m["data"] for m in await take(here, queue)] == [1, 2, 3]


async def test_a_queue_made_anew_with_encryption_gets_no_plain_payload_from_a_push_that_remembers_the_old_one(
    make_manager: MakeManager, queue: str, sql: Connection
) -> None:
    here, there = await make_manager(keys=KEYS), await make_manager(keys=KEYS)
    await push(here, item(queue, 1))
    await sql.execute("DELETE FROM queen.queues WHERE name = $1", queue)
    await configure(there, queue, encryptionEnabled=True)
    await push(here, item(queue, "secret"))
    assert [sealed for _, sealed in await stored(sql, queue)] == [True]


async def test_the_outbox_refuses_a_plain_payload_where_sealing_is_demanded(make_manager: MakeManager, queue: str, sql: Connection) -> None:
    manager = await make_manager(keys=KEYS)
    await configure(manager, queue, encryptionEnabled=True)
    with pytest.raises(asyncpg.PostgresError, match="push through the API") as refused:
        await sql.execute("SELECT queen.push($1, 'p', '1')", queue)
    assert refused.value.sqlstate == "QM006"


async def test_a_sealed_payload_comes_back_byte_for_byte(make_manager: MakeManager, queue: str, sql: Connection) -> None:
    manager = await make_manager(keys=KEYS)
    await configure(manager, queue, encryptionEnabled=True)
    payloads = [b'{"b": 1.50,  "a":"\\u00e4\xc3\xa4", "a":[1e400]}', b'""', b"null", b'"' + b"x" * 100_000 + b'"']
    await manager.push(
        [PushItem(queue, msgspec.Raw(payload), headers={"h": "v"}, transactionId=f"t{n}") for n, payload in enumerate(payloads)]
    )
    assert (await push(manager, item(queue, 1, transactionId="t0")))[0]["status"] == "duplicate"
    assert all(sealed and payload.startswith('"k1.') for payload, sealed in await stored(sql, queue))
    popped = await manager.pop(PopRequest(queue, batch=10))
    assert popped is not None and all(b'"data":' + payload + b',"createdAt"' in popped.body for payload in payloads)
    # A dead letter stays sealed too.
    for message in messages(popped):
        await ack(manager, message, status="dlq")
    rows = await sql.fetch("SELECT d.payload::text, d.is_encrypted FROM queen.dead_letter_queue d JOIN queen.queues q ON q.id = d.queue_id "
                           "WHERE q.name = $1", queue)  # fmt: skip
    assert len(rows) == 4 and all(row["is_encrypted"] and row["payload"].startswith('"k1.') for row in rows)


async def test_keys_are_rotated_without_a_message_lost(make_manager: MakeManager, queue: str, sql: Connection) -> None:
    old, new = await make_manager(keys=KEYS), await make_manager(keys=NEW_KEYS)
    await configure(old, queue, encryptionEnabled=True)
    await push(old, item(queue, "old"))
    await push(new, item(queue, "new"))
    assert [payload[:4] for payload, _ in await stored(sql, queue)] == ['"k1.', '"k2.']
    assert [m["data"] for m in await take(new, queue, group="g")] == ["old", "new"]


async def test_what_does_not_open_is_said_clearly_counts_nothing_and_is_delivered_once_the_key_is_there(
    make_manager: MakeManager, queue: str, sql: Connection
) -> None:
    old, new = await make_manager(keys=KEYS), await make_manager(keys=NEW_KEYS)
    await configure(new, queue, encryptionEnabled=True)
    await push(new, item(queue, "secret"))
    for more in ({}, {"auto_ack": True}, {"wait": True}):
        with pytest.raises(SealBroken, match="QUEEN_ENCRYPTION_KEYS") as broken:
            await take(old, queue, **more)
        assert broken.value.status == 500 and broken.value.code == "seal_broken" and "secret" not in str(broken.value)
    (message,) = await take(new, queue, wait=True)
    assert message["data"] == "secret" and message["retryCount"] == 0


@pytest.mark.parametrize("auto", [False, True])
async def test_what_does_not_open_holds_up_its_own_partition_only(
    make_manager: MakeManager, queue: str, sql: Connection, auto: bool
) -> None:
    old, new = await make_manager(keys=KEYS), await make_manager(keys=NEW_KEYS)
    await configure(old, queue, encryptionEnabled=True)
    await push(old, item(queue, 1, "good"), item(queue, 2, "mixed"))
    await push(new, item(queue, 3, "mixed"), item(queue, 4, "mixed"))
    await push(old, item(queue, 5, "good"))
    found = await take(old, queue, partitions=5, auto_ack=auto)
    assert [m["data"] for m in found if m["partition"] == "good"] == [1, 5]
    assert [m["data"] for m in found if m["partition"] == "mixed"] == ([] if auto else [2])
    if not auto:
        assert all(answer["success"] for answer in await ack(old, *found))
    left = await take(new, queue, partitions=5, wait=True)
    assert [(m["data"], m["retryCount"]) for m in left] == ([(2, 0)] if auto else []) + [(3, 0), (4, 0)]


async def test_two_servers_share_queues_partitions_groups_and_leases(make_manager: MakeManager, queue: str) -> None:
    servers = [await make_manager() for _ in range(2)]
    await asyncio.gather(*(push(servers[n % 2], item(queue, n, f"p{n % 7}", transactionId=f"t{n}")) for n in range(140)))
    again = await asyncio.gather(*(push(servers[(n + 1) % 2], item(queue, n, f"p{n % 7}", transactionId=f"t{n}")) for n in range(140)))
    assert {entry["status"] for reply in again for entry in reply} == {"duplicate"}

    async def consume(server: Manager, other: Manager) -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []
        while found := await take(server, queue, batch=5, group="g"):
            seen += [(m["partition"], m["seq"]) for m in found]
            assert all(answer["success"] for answer in await ack(other, *found))
        return seen

    parts = await asyncio.gather(*(consume(servers[n % 2], servers[(n + 1) % 2]) for n in range(6)))
    seen = [each for part in parts for each in part]
    while len(seen) < 140:
        seen += await consume(servers[0], servers[1])
    assert sorted(seen) == sorted((f"p{p}", seq) for p in range(7) for seq in range(1, 21))
