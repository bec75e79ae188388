"""The client against the real server: each call does what it says, also when answers are lost on the way."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from typing import Protocol

import msgspec
import pytest
from tests.client.names import own
from tests.client.relay import relay_to

from queenmq.client import AckRefused, BadRequest, Item, LeaseLost, Message, Queen, SyncQueen, TransactionFailed, UsageError


class Server(Protocol):
    """What the `server` fixture gives."""

    url: str


@pytest.fixture
async def q(server: Server) -> object:
    async with Queen(server.url) as queen:
        yield queen


async def test_what_is_pushed_is_popped_with_everything_it_carried(q: Queen) -> None:
    trace = str(uuid.uuid4())
    done = await q.push(
        own("orders"), {"naïve": [1, 2.5, None]}, partition="customer-1", transaction_id="t1", headers={"kind": "new"}, trace_id=trace
    )
    assert (done.status, done.transaction_id, done.seq) == ("queued", "t1", 1)
    [message] = await q.pop(own("orders"))
    assert message.data == {"naïve": [1, 2.5, None]}
    assert (message.queue, message.partition, message.seq) == (own("orders"), "customer-1", 1)
    assert (message.transaction_id, message.trace_id, message.headers) == ("t1", trace, {"kind": "new"})
    assert message.retry_count == 0
    assert message.created_at.tzinfo is not None
    assert (await q.ack(message)).success
    assert await q.pop(own("orders")) == []


async def test_the_same_transaction_id_is_stored_once(q: Queen) -> None:
    first = await q.push(own("orders"), 1, transaction_id="same")
    second = await q.push(own("orders"), 2, transaction_id="same")
    assert (first.status, second.status) == ("queued", "duplicate")
    assert first.message_id == second.message_id
    assert [message.data for message in await q.pop(own("orders"), batch=10)] == [1]


async def test_a_push_whose_answer_is_lost_is_stored_once(server: Server) -> None:
    async with relay_to(server.url) as relay, Queen(relay.url) as q:
        relay.lose_answers = 2
        assert (await q.push(own("orders"), "once")).status == "duplicate"
        assert relay.lost == 2
        assert [message.data for message in await q.pop(own("orders"), batch=10)] == ["once"]


async def test_an_ack_whose_answer_is_lost_succeeds(server: Server) -> None:
    async with relay_to(server.url) as relay, Queen(relay.url) as q:
        await q.push_many(own("orders"), [1, 2])
        messages = await q.pop(own("orders"), batch=2)
        relay.lose_answers = 1
        assert all(answer.success for answer in await q.ack(messages))
        assert await q.pop(own("orders")) == []


async def test_many_items_keep_their_order_and_their_own_settings(q: Queen) -> None:
    items = [1, Item(payload=2, partition="b", transaction_id="mine"), 3]
    results = await q.push_many(own("orders"), items, partition="a")
    assert [result.index for result in results] == [0, 1, 2]
    assert results[1].transaction_id == "mine"
    assert [message.data for message in await q.pop(own("orders"), partition="a", batch=10)] == [1, 3]
    assert [message.data for message in await q.pop(own("orders"), partition="b", batch=10)] == [2]
    assert await q.push_many(own("orders"), []) == []


async def test_several_partitions_come_in_one_pop_under_one_lease(q: Queen) -> None:
    for name in ("a", "b", "c"):
        await q.push_many(own("orders"), [1, 2], partition=name)
    messages = await q.pop(own("orders"), batch=10, partitions=3)
    assert len(messages) == 6
    assert len({message.lease_id for message in messages}) == 1
    assert all(answer.success for answer in await q.ack(messages))


async def test_a_failed_message_comes_again_with_its_count(q: Queen) -> None:
    await q.configure(own("orders"), retry_delay=1)
    await q.push(own("orders"), 1)
    [message] = await q.pop(own("orders"))
    await q.ack(message, "failed", "no stock")
    [again] = await q.pop(own("orders"), wait=True, timeout=5)
    assert (again.transaction_id, again.retry_count) == (message.transaction_id, 1)


async def test_groups_get_everything_each(q: Queen) -> None:
    await q.push(own("orders"), 1)
    for group in ("billing", "mail"):
        [message] = await q.pop(own("orders"), group=group)
        assert message.consumer_group == group
        await q.ack(message)
        assert await q.pop(own("orders"), group=group) == []


async def test_a_group_that_asks_for_new_messages_gets_none_of_before(q: Queen) -> None:
    await q.push(own("orders"), "old")
    assert await q.pop(own("orders"), group="late", subscription_mode="new") == []
    await q.push(own("orders"), "new")
    [message] = await q.pop(own("orders"), group="late", wait=True, timeout=5)
    assert message.data == "new"
    [all_of_it] = await q.pop(own("orders"), group="from", subscription_from=datetime(2020, 1, 1, tzinfo=UTC))
    assert all_of_it.data == "old"


async def test_auto_ack_needs_no_answer(q: Queen) -> None:
    await q.push(own("orders"), 1)
    [message] = await q.pop(own("orders"), auto_ack=True)
    assert not message.lease_id
    assert await q.pop(own("orders"), wait=True, timeout=0.3) == []
    with pytest.raises(UsageError, match="no lease"):
        await q.extend(message)


async def test_a_long_poll_gets_what_is_pushed_meanwhile(q: Queen) -> None:
    waiting = asyncio.create_task(q.pop(own("orders"), wait=True, timeout=10))
    await q.push(own("orders"), 1)
    assert [message.data for message in await waiting] == [1]


async def test_names_of_any_characters(q: Queen) -> None:
    for name in ("a/b c", "ü?#%2F", "x+y&z=1"):
        await q.push(name, name, partition=name)
        [message] = await q.pop(name, partition=name, group=name)
        assert (message.queue, message.partition, message.consumer_group, message.data) == (name, name, name, name)
        await q.ack(message)


async def test_a_namespace_is_popped_as_a_whole(q: Queen) -> None:
    await q.push(f"{own('shop')}.orders.new", 1)
    await q.configure(own("other"), namespace=own("shop"), task="mail")
    await q.push(own("other"), 2)
    messages = await q.pop(namespace=own("shop"), batch=10, partitions=10)
    assert sorted(message.data for message in messages) == [1, 2]
    await q.ack(messages)


async def test_options_are_merged_and_answered_whole(q: Queen) -> None:
    await q.configure(own("orders"), lease_time=30)
    made = await q.configure(own("orders"), retry_limit=7)
    assert (made.queue, made.options["leaseTime"], made.options["retryLimit"], made.options["priority"]) == (own("orders"), 30, 7, 0)


async def test_a_lease_can_be_extended_until_it_has_ended(q: Queen) -> None:
    await q.push(own("orders"), 1)
    [message] = await q.pop(own("orders"), lease_time=5)
    later = await q.extend(message, 120)
    assert later is not None
    assert (later - message.created_at).total_seconds() > 100
    await q.ack(message)
    with pytest.raises(LeaseLost):
        await q.extend(message)


async def test_an_ack_under_a_foreign_lease_is_refused_loudly(q: Queen) -> None:
    await q.push(own("orders"), 1)
    [message] = await q.pop(own("orders"))
    with pytest.raises(AckRefused, match="Invalid or expired lease") as caught:
        await q.ack(msgspec.structs.replace(message, lease_id=str(uuid.uuid4())))
    assert [answer.success for answer in caught.value.results] == [False]


async def test_a_transaction_acknowledges_and_pushes_together(q: Queen) -> None:
    await q.push(own("orders"), {"n": 1})
    [message] = await q.pop(own("orders"), group="ship")
    async with q.transaction() as tx:
        tx.ack(message)
        tx.push(own("parcels"), {"for": message.data["n"]})
        tx.push_many(own("audit"), [1, 2], partition="x")
    assert tx.committed is not None
    assert await q.pop(own("orders"), group="ship") == []
    assert [got.data for got in await q.pop(own("parcels"))] == [{"for": 1}]
    assert [got.data for got in await q.pop(own("audit"), batch=5)] == [1, 2]


async def test_a_transaction_under_a_lost_lease_does_nothing(q: Queen) -> None:
    await q.push(own("orders"), 1)
    [message] = await q.pop(own("orders"))
    await q.ack(message)
    tx = q.new_transaction()
    tx.push(own("parcels"), 1)
    tx.ack(message)
    with pytest.raises(TransactionFailed):
        await q.commit(tx)
    assert await q.pop(own("parcels")) == []


async def test_an_exception_in_the_block_sends_nothing(q: Queen) -> None:
    with pytest.raises(ZeroDivisionError):
        async with q.transaction() as tx:
            tx.push(own("parcels"), 1 // 0)
    async with q.transaction() as tx:
        pass
    assert tx.committed is None


async def test_a_queue_handle_fills_in_the_name(q: Queen) -> None:
    orders = q.queue(own("orders"))
    await orders.configure(priority=3)
    await orders.push(1)
    await orders.push_many([2, 3])
    assert [message.data for message in await orders.pop(batch=10)] == [1, 2, 3]


async def test_what_the_server_refuses_is_an_error_with_its_words(q: Queen) -> None:
    with pytest.raises(BadRequest) as caught:
        await q.push(own("orders"), 1, trace_id="no uuid")
    assert caught.value.status == 400
    assert "traceId" in caught.value.text
    assert len(caught.value.transaction_ids) == 1


def test_plain_code_does_the_same_without_asyncio(server: Server) -> None:
    with SyncQueen(server.url) as q:
        q.configure(own("orders"), lease_time=30)
        assert q.push(own("orders"), {"n": 1}).status == "queued"
        q.push_many(own("orders"), [2, 3])
        messages = q.pop(own("orders"), batch=10)
        assert isinstance(messages[0], Message)
        assert q.extend(messages[0], 60) is not None
        assert q.ack(messages[0]).success
        with q.transaction() as tx:
            tx.ack(messages[1:])
            tx.push(own("done"), "all")
        assert [message.data for message in q.pop(own("done"))] == ["all"]
    with pytest.raises(UsageError, match="closed"):
        q.pop(own("orders"))
    q.close()
