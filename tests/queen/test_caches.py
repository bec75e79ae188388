"""The small pieces that need no database: partition ids, waits, ids, seals, reply texts."""

from __future__ import annotations

import asyncio
import json
import uuid
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.ids import NO_LEASE, base36, id_parts, message_id, parse_lease, transaction_ids
from queenmq.queen import replies
from queenmq.queen.encryption import SealBroken, Sealer
from queenmq.queen.waits import Waits
from queenmq.shared_state.partition_id_cache import PartitionIdCache, PartitionRef

TEXT = st.text(alphabet=st.characters(codec="utf-8"))
KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


def test_partition_ids_are_found_both_ways_until_they_are_forgotten() -> None:
    cache = PartitionIdCache()
    first, second = cache.put(PartitionRef(1, "a", "orders", 9)), cache.put(PartitionRef(2, "b", "orders", 9))
    assert cache.get("orders", "a") is first and cache.by_id(2) is second and len(cache) == 2
    cache.forget("orders", "a")
    assert cache.get("orders", "a") is None and cache.by_id(1) is None and len(cache) == 1
    cache.forget("orders", "never there")
    cache.forget_queue("orders")
    assert len(cache) == 0 and cache.get("orders", "b") is None


def test_a_name_that_has_a_new_id_loses_the_old_one() -> None:
    cache = PartitionIdCache()
    cache.put(PartitionRef(1, "a", "orders", 9))
    fresh = cache.put(PartitionRef(7, "a", "orders", 10))
    assert cache.by_id(1) is None and cache.by_id(7) is fresh and len(cache) == 1


def test_an_id_that_has_a_new_name_loses_the_old_one() -> None:
    cache = PartitionIdCache()
    cache.put(PartitionRef(1, "a", "orders", 9))
    cache.put(PartitionRef(1, "b", "orders", 9))
    assert cache.get("orders", "a") is None and len(cache) == 1


def test_the_cache_of_partition_ids_is_bounded() -> None:
    cache = PartitionIdCache(most=10)
    for number in range(100):
        cache.put(PartitionRef(number, str(number), f"queue {number // 4}", 1))
    assert len(cache) <= 10 and cache.by_id(99) is not None
    for number in range(100, 150):
        cache.put(PartitionRef(number, str(number), "one queue", 1))
        assert cache.get("one queue", str(number)) is not None and len(cache) <= 10


async def parked(waits: Waits, queue: str | None) -> asyncio.Task[int]:
    task = asyncio.create_task(waits.park(queue, waits.enter(queue), 20))
    await asyncio.sleep(0)
    return task


async def test_a_notification_wakes_its_queue_and_who_waits_for_any() -> None:
    waits = Waits()
    orders, bills, anything = [await parked(waits, name) for name in ("orders", "bills", None)]
    waits.notify("orders")
    await asyncio.wait({orders, anything}, timeout=5)
    assert orders.done() and anything.done() and not bills.done()
    waits.notify(None)
    assert await bills > 0


@pytest.mark.parametrize("told", ["orders", None])
async def test_a_notification_while_the_claim_runs_is_not_lost(told: str | None) -> None:
    waits = Waits()
    generation = waits.enter("orders")
    waits.notify(told)
    started = asyncio.get_running_loop().time()
    assert await waits.park("orders", generation, 20) != generation
    assert asyncio.get_running_loop().time() - started < 5


async def test_a_wait_ends_in_time_and_leaves_no_trace_however_it_ends() -> None:
    waits = Waits()
    generation = waits.enter("orders")
    assert await waits.park("orders", generation, 0.01) == generation
    cancelled = await parked(waits, "orders")
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    assert waits.waiting == 2
    waits.leave("orders")
    waits.leave("orders")
    assert waits.waiting == 0 and vars(waits)["_parked"] == vars(waits)["_generations"] == vars(waits)["_waiters"] == {}


async def test_one_waiter_that_leaves_takes_nothing_from_another() -> None:
    waits = Waits()
    generation = waits.enter("orders")
    waits.enter("orders")
    waits.leave("orders")
    waits.notify("orders")
    assert waits.generation("orders") != generation


async def test_the_end_answers_every_waiter() -> None:
    waits = Waits()
    tasks = [await parked(waits, name) for name in ("a", "b", None)]
    waits.close()
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert waits.closed and await waits.park("c", waits.enter("c"), 20) == 0


def test_transaction_ids_are_distinct_and_rise_within_a_process() -> None:
    make = transaction_ids(7)
    found = [*make(1), *make(1000), *make(1)]
    assert len(set(found)) == len(found) and sorted(found) == found
    assert max(map(len, found)) <= 16
    assert not set(transaction_ids(5)(100)) & {*transaction_ids(6)(100), *transaction_ids(55)(100)}


def test_a_session_that_is_given_twice_makes_other_ids_all_the_same() -> None:
    # A database set back below a running server gives its number again.
    assert not set(transaction_ids(5)(100)) & set(transaction_ids(5)(100))


@given(st.integers(0, 36**9 - 1), st.integers(0, 36**9 - 1))
def test_base36_of_one_length_sorts_like_numbers(one: int, two: int) -> None:
    assert int(base36(one), 36) == one
    assert (one < two) == (base36(one).rjust(9, "0") < base36(two).rjust(9, "0"))


@given(st.text())
def test_any_text_is_a_lease_id_or_none_that_exists(text: str) -> None:
    found = parse_lease(text)
    assert (found is None) == (text == "")
    assert found is None or isinstance(found, uuid.UUID)


def test_a_lease_id_is_read_back() -> None:
    lease = uuid.uuid4()
    assert parse_lease(str(lease)) == lease and parse_lease("x") == NO_LEASE and parse_lease(None) is None


@given(st.integers(1, 2**31 - 1), st.integers(0, 2**26 - 1), st.integers(1, 2**62))
def test_a_message_id_is_a_uuid_of_version_8_that_differs_with_every_part(partition: int, salt: int, seq: int) -> None:
    text = message_id(id_parts(partition, salt), seq)
    found = uuid.UUID(text)
    assert str(found) == text and found.version == 8 and found.variant == uuid.RFC_4122
    assert text not in (message_id(id_parts(partition, salt), seq + 1), message_id(id_parts(partition + 1, salt), seq))


@given(TEXT, TEXT)
def test_a_sealed_payload_opens_byte_for_byte_and_only_for_its_queue(payload: str, queue: str) -> None:
    sealer = Sealer((("k1", KEY),))
    sealed = sealer.seal(payload, queue)
    assert isinstance(json.loads(sealed), str)
    assert sealer.unseal(sealed, queue) == payload
    with pytest.raises(SealBroken, match="doesn't open"):
        sealer.unseal(sealed, queue + "x")


def test_a_new_first_key_seals_while_the_old_one_still_opens() -> None:
    old, rotated = Sealer((("k1", KEY),)), Sealer((("k2", OTHER), ("k1", KEY)))
    before = old.seal("1", "orders")
    assert rotated.unseal(before, "orders") == "1" and rotated.seal("1", "orders").startswith('"k2.')
    with pytest.raises(SealBroken, match="'k2', unknown here: add it to QUEEN_ENCRYPTION_KEYS"):
        old.unseal(rotated.seal("1", "orders"), "orders")


@pytest.mark.parametrize("stored", ['""', '"k1."', '"k1.AAAA"', '"k1.!!!"', '"k1.\u00e4"', "null", "{}", '"k1.' + "A" * 400 + '"'])
def test_whatever_lies_there_instead_of_a_sealed_payload_is_named_as_broken(stored: str) -> None:
    with pytest.raises(SealBroken):
        Sealer((("k1", KEY),)).unseal(stored, "orders")


def test_the_same_payload_is_never_sealed_twice_alike_and_no_key_is_shown() -> None:
    sealer = Sealer((("k1", KEY),))
    assert sealer.seal("1", "orders") != sealer.seal("1", "orders")
    assert KEY.hex() not in repr(vars(sealer))


@given(st.lists(TEXT))
def test_texts_are_encoded_together_as_each_alone(values: list[str]) -> None:
    assert [json.loads(f'"{text}"') for text in replies.texts(values)] == values


@given(st.one_of(st.none(), TEXT))
def test_a_text_is_a_json_string_or_null(value: str | None) -> None:
    assert json.loads(replies.text(value)) == value


def test_moments_are_utc_with_milliseconds() -> None:
    assert replies.moment(datetime(2026, 11, 19, 1, 2, 3, 4567, UTC)) == '"2026-11-19T01:02:03.004Z"'
    assert replies.moment(datetime(2026, 11, 19, 1, 2, 3, 0, UTC)) == '"2026-11-19T01:02:03.000Z"' and replies.moment(None) == "null"
