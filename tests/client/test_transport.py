"""The transport against a peer that loses answers, cuts connections, is busy or away: what is repeated, what isn't, and how it ends."""

from __future__ import annotations

import asyncio
import socket
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.client.peer import answer, cut, drip, misbehaving, silence

from queenmq.client import Message, NotReachable, OutcomeUnknown, PushFailed, Queen, Unavailable, UsageError
from queenmq.clock import Clock

STORED = [{"index": 0, "status": "queued", "transaction_id": "t"}]
DONE = {"transactionId": "x", "success": True, "results": []}
BUSY = {"error": "too busy", "code": "busy"}


def leased(lease: str | None = "l") -> Message:
    return Message(
        id="i", transaction_id="t", partition_id="p", queue="q", partition="Default", created_at=datetime.now(UTC), lease_id=lease
    )


async def test_a_push_whose_answer_was_lost_is_sent_again_with_the_same_transaction_id() -> None:
    async with misbehaving(cut, answer(201, STORED)) as peer, Queen(peer.url) as q:
        assert (await q.push("orders", {"a": 1})).status == "queued"
        first, second = peer.asked
    assert first.body == second.body
    assert first.json()["items"][0]["transactionId"]


async def test_a_push_whose_answer_never_comes_is_sent_again_within_its_time() -> None:
    async with misbehaving(silence, answer(201, STORED)) as peer, Queen(peer.url, attempt_timeout=0.2) as q:
        await q.push("orders", 1)
    assert len(peer.asked) == 2


async def test_a_push_that_never_gets_an_answer_ends_in_time_and_names_its_ids() -> None:
    async with misbehaving(silence) as peer, Queen(peer.url, timeout=0.5, attempt_timeout=0.2) as q:
        started = Clock().monotonic()
        with pytest.raises(OutcomeUnknown) as caught:
            await q.push("orders", 1, transaction_id="mine")
    assert Clock().monotonic() - started < 2
    assert caught.value.transaction_ids == ("mine",)


async def test_a_pop_whose_answer_was_lost_is_not_repeated() -> None:
    async with misbehaving(cut) as peer, Queen(peer.url) as q:
        with pytest.raises(OutcomeUnknown):
            await q.pop("orders")
    assert len(peer.asked) == 1


@pytest.mark.parametrize(("step", "error"), [(cut, OutcomeUnknown), (answer(503, BUSY), Unavailable), (answer(502), Unavailable)])
async def test_a_transaction_that_may_have_been_done_is_not_repeated(step: Any, error: type[Exception]) -> None:
    async with misbehaving(step, answer(200, DONE)) as peer, Queen(peer.url) as q:
        with pytest.raises(error):
            async with q.transaction() as tx:
                tx.push("orders", 1)
    assert len(peer.asked) == 1


async def test_a_transaction_is_repeated_on_the_servers_word_that_nothing_was_done() -> None:
    async with misbehaving(answer(503, BUSY | {"nothingDone": True}), answer(200, DONE)) as peer, Queen(peer.url) as q:
        async with q.transaction() as tx:
            tx.push("orders", 1)
    assert tx.committed is not None
    assert peer.asked[0].body == peer.asked[1].body


async def test_a_call_waits_for_a_server_that_is_not_there_yet() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    async with Queen(f"http://127.0.0.1:{port}") as q:
        tx = q.new_transaction()
        tx.push("orders", 1)
        call = asyncio.create_task(q.commit(tx))
        async with misbehaving(answer(200, DONE), port=port) as peer:
            assert await call is not None
    assert len(peer.asked) == 1


async def test_a_server_that_stays_away_ends_the_call_with_an_error_that_says_so() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        async with Queen(f"http://127.0.0.1:{held.getsockname()[1]}", timeout=0.3) as q:
            with pytest.raises(NotReachable, match=r"can't be reached.*is the server running"):
                await q.push("orders", 1)


async def test_that_an_earlier_try_may_have_been_done_is_not_hidden_by_the_last_one() -> None:
    async with misbehaving(cut, answer(503, BUSY | {"nothingDone": True})) as peer, Queen(peer.url, timeout=0.5) as q:
        with pytest.raises(OutcomeUnknown):
            await q.push("orders", 1)
    assert len(peer.asked) > 1
    async with misbehaving(cut) as peer, Queen(peer.url, timeout=1) as q:
        call = asyncio.create_task(q.push("orders", 1))
        await peer.until(lambda seen: len(seen.asked) == 1)
        await peer.go_away()
        with pytest.raises(OutcomeUnknown):
            await call


async def test_retry_after_is_honoured() -> None:
    async with misbehaving(answer(503, BUSY, headers={"retry-after": "0.4"}), answer(201, STORED)) as peer, Queen(peer.url) as q:
        started = Clock().monotonic()
        await q.push("orders", 1)
        assert Clock().monotonic() - started >= 0.4


async def test_a_wait_beyond_the_deadline_is_not_begun() -> None:
    async with misbehaving(answer(503, BUSY, headers={"retry-after": "60"})) as peer, Queen(peer.url, timeout=5) as q:
        with pytest.raises(Unavailable, match="too busy") as caught:
            async with asyncio.timeout(2):
                await q.pop("orders")
    assert caught.value.retry_after == 60
    assert len(peer.asked) == 1


@pytest.mark.parametrize(("lease", "status", "tries"), [("l", "failed", 2), ("", "completed", 2), ("", "failed", 1)])
async def test_an_ack_is_repeated_where_repeating_changes_nothing(lease: str, status: Any, tries: int) -> None:
    async with misbehaving(cut, answer(200, [{"success": True}])) as peer, Queen(peer.url) as q:
        try:
            await q.ack(leased(lease), status)
        except OutcomeUnknown:
            assert tries == 1
    assert len(peer.asked) == tries


async def test_a_cancelled_call_closes_its_connection() -> None:
    async with misbehaving(silence) as peer, Queen(peer.url) as q:
        call = asyncio.create_task(q.pop("orders", wait=True))
        await peer.until(lambda seen: len(seen.asked) == 1)
        call.cancel()
        await peer.until(lambda seen: seen.ended == 1)
        assert call.cancelled() or isinstance((await asyncio.gather(call, return_exceptions=True))[0], asyncio.CancelledError)


async def test_calls_share_a_connection() -> None:
    async with misbehaving(answer(204)) as peer, Queen(peer.url, token="secret") as q:
        for _ in range(5):
            assert await q.pop("orders") == []
        assert peer.connections == 1
        assert peer.asked[0].headers["authorization"] == "Bearer secret"


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again() -> None:
    async with misbehaving(answer(204, close=True)) as peer, Queen(peer.url) as q:
        for n in range(5):
            assert await q.pop("orders") == []
            await peer.until(lambda seen, n=n: seen.ended == n + 1)  # type: ignore[misc]


async def test_waiting_pops_do_not_keep_other_calls_from_leaving() -> None:
    async with misbehaving(silence, silence, silence, answer(201, STORED)) as peer, Queen(peer.url, connections=1) as q:
        waiting = [asyncio.create_task(q.pop("orders", wait=True)) for _ in range(3)]
        await peer.until(lambda seen: len(seen.asked) == 3)
        assert (await q.push("orders", 1)).status == "queued"
        for call in waiting:
            call.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_header_that_cannot_be_sent_is_named() -> None:
    with pytest.raises(UsageError, match="header"):
        Queen("http://127.0.0.1:1", token="ü")


async def test_an_answer_in_drops_ends_with_the_deadline() -> None:
    async with misbehaving(drip) as peer, Queen(peer.url, timeout=0.5) as q:
        async with asyncio.timeout(5):
            with pytest.raises(OutcomeUnknown):
                await q.pop("orders")


async def test_items_the_server_could_not_store_yet_are_sent_again_alone() -> None:
    first = [{"status": "queued"}, {"status": "failed", "error": "partition busy"}, {"status": "queued"}]
    async with misbehaving(answer(201, first), answer(201, [{"status": "queued", "index": 0}])) as peer, Queen(peer.url) as q:
        results = await q.push_many("orders", [1, 2, 3])
    assert [result.status for result in results] == ["queued"] * 3
    assert [result.index for result in results] == [0, 1, 2]
    assert peer.asked[1].json()["items"] == [peer.asked[0].json()["items"][1]]


async def test_items_that_stay_unstored_are_named_at_the_deadline() -> None:
    held = {"status": "failed", "error": "partition busy"}
    steps = answer(201, [{"status": "queued"}, held]), answer(201, [held])
    async with misbehaving(*steps) as peer, Queen(peer.url, timeout=0.5) as q:
        with pytest.raises(PushFailed, match="1 of 2 items were not stored: partition busy") as caught:
            await q.push_many("orders", [1, 2])
    assert [result.status for result in caught.value.results] == ["queued", "failed"]
    assert caught.value.transaction_ids[1] == peer.asked[-1].json()["items"][0]["transactionId"]


async def test_a_proxy_in_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with misbehaving(answer(204)) as peer, Queen(peer.url) as q:
        assert await q.pop("orders") == []


async def test_a_closed_client_says_so() -> None:
    q = Queen("http://127.0.0.1:1")
    await q.close()
    with pytest.raises(UsageError, match="closed"):
        await q.pop("orders")
    with pytest.raises(UsageError, match="no address"):
        Queen("localhost:6632")
