"""A user of the published `queen-mq` package, in a process of its own (test_queen_mq_compat.py starts it).

Speaks to the server by that client only. Usage: queen_mq_user.py VERSION URL. Each scenario is a coroutine that asserts; the last line
printed is `RESULT {"scenario": null | "traceback"}`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import traceback
import uuid
from collections.abc import Awaitable, Coroutine
from typing import Any, Protocol


class Scenario(Protocol):
    """A coroutine function that asserts."""

    __name__: str

    def __call__(self, client: Any, /) -> Coroutine[Any, Any, None]: ...


COMMON: list[Scenario] = []
NEWER: list[Scenario] = []


def common(scenario: Scenario) -> Scenario:
    """Both versions do it."""
    COMMON.append(scenario)
    return scenario


def newer(scenario: Scenario) -> Scenario:
    """Only 2.6.0 can."""
    NEWER.append(scenario)
    return scenario


async def popped(queue: Any, batch: int = 10) -> list[dict[str, Any]]:
    """What is there now."""
    messages: list[dict[str, Any]] = await queue.batch(batch).wait(False).pop()
    return messages


async def refusal(work: Awaitable[Any]) -> str:
    """How it was refused."""
    try:
        got = await work
    except Exception as error:
        return f"{type(error).__name__} {getattr(getattr(error, 'response', None), 'status_code', '')} {error}"
    raise AssertionError(f"it went through: {got}")


async def seconds_pass(client: Any, seconds: int) -> None:
    """Waits for a message that the queue delays by so much."""
    name = f"clock-{uuid.uuid4()}"
    await client.queue(name).config({"delayedProcessing": seconds}).create()
    await client.queue(name).push({"tick": 1})
    [tick] = await client.queue(name).batch(1).wait(True).pop()
    assert tick["data"] == {"tick": 1}


@common
async def configures_a_queue(client: Any) -> None:
    made = await client.queue("shop.conf.x").config({"leaseTime": 30, "retry_limit": 2}).create()
    assert made["configured"] is True
    assert made["queue"] == "shop.conf.x"
    assert (made["namespace"], made["task"]) == ("shop", "conf")
    assert (made["options"]["leaseTime"], made["options"]["retryLimit"], made["options"]["priority"]) == (30, 2, 0)
    named = await client.queue("conf-2").namespace("ns").task("tk").config({"priority": 5}).create()
    assert (named["namespace"], named["task"], named["options"]["priority"]) == ("ns", "tk", 5)


@common
async def pushes_and_pops_every_kind_of_payload(client: Any) -> None:
    payloads: list[Any] = [{"n": 1, "ü": "é"}, None, "text", 2.5, [1, {"a": []}], True]
    trace = str(uuid.uuid4())
    items = [{"data": payload, "transactionId": f"t{n}", "traceId": trace} for n, payload in enumerate(payloads)]
    results = await client.queue("kinds").partition("customer-1").push(items)
    assert [result["status"] for result in results] == ["queued"] * 6
    assert [result["transaction_id"] for result in results] == [f"t{n}" for n in range(6)]
    messages = await popped(client.queue("kinds").partition("customer-1"))
    assert [message["data"] for message in messages] == payloads
    for message in messages:
        assert (message["queue"], message["partition"], message["retryCount"], message["traceId"]) == ("kinds", "customer-1", 0, trace)
        assert message["partitionId"]
        assert message["leaseId"]
        assert message["createdAt"].endswith("Z")
    assert await popped(client.queue("kinds")) == []


@common
async def is_told_of_duplicates(client: Any) -> None:
    stored: list[Any] = []
    twice: list[Any] = []

    async def on_success(items: Any) -> None:
        stored.extend(items)

    async def on_duplicate(items: Any, error: Exception) -> None:
        twice.extend(items)

    for _ in range(2):
        await client.queue("dups").push([{"data": 1, "transactionId": "same"}]).on_success(on_success).on_duplicate(on_duplicate)
    assert (len(stored), len(twice)) == (1, 1)
    assert stored[0]["result"]["message_id"] == twice[0]["result"]["message_id"]
    assert len(await popped(client.queue("dups"))) == 1


@common
async def acknowledges_one_and_many(client: Any) -> None:
    await client.queue("acks").push([{"n": n} for n in range(4)])
    messages = await popped(client.queue("acks"))
    one = await client.ack(messages[0])
    assert one["success"] is True, one
    many = await client.ack(messages[1:])
    assert many["success"] is True, many
    assert [result["success"] for result in many["results"]] == [True] * 3
    assert await popped(client.queue("acks")) == []


@common
async def fails_a_message_and_gets_it_again(client: Any) -> None:
    await client.queue("fails").config({"retryDelay": 100}).create()
    await client.queue("fails").push([{"n": 0}, {"n": 1}])
    first, second = await popped(client.queue("fails"))
    answers = await client.ack([{**first, "_status": False, "_error": "no stock"}, {**second, "_status": True}])
    assert [answer["success"] for answer in answers["results"]] == [True, True], answers
    [again] = await client.queue("fails").batch(1).wait(True).pop()
    assert (again["data"], again["retryCount"]) == ({"n": 0}, 1)
    failed = await client.ack(again, False, {"error": "still none"})
    assert failed["success"] is True, failed
    [third] = await client.queue("fails").batch(1).wait(True).pop()
    assert third["retryCount"] == 2
    assert (await client.ack(third))["success"] is True


@common
async def is_refused_under_a_foreign_lease(client: Any) -> None:
    await client.queue("foreign").push({"n": 1})
    [message] = await popped(client.queue("foreign"))
    answer = await client.ack({**message, "leaseId": str(uuid.uuid4())})
    assert answer["success"] is False
    assert answer["error"] == "Invalid or expired lease"
    assert (await client.ack(message))["success"] is True


@common
async def acknowledges_for_a_group(client: Any) -> None:
    await client.queue("grouped").push({"n": 1})
    for group in ("billing", "mail & more"):
        [message] = await popped(client.queue("grouped").group(group))
        assert message["consumerGroup"] == group
        assert (await client.ack(message, True, {"group": group}))["success"] is True
        assert await popped(client.queue("grouped").group(group)) == []
    assert len(await popped(client.queue("grouped"))) == 1


@common
async def joins_a_group_for_new_messages_only(client: Any) -> None:
    await client.queue("newcomer").push({"n": "old"})
    late = client.queue("newcomer").group("late").subscription_mode("new")
    assert await popped(late) == []
    await client.queue("newcomer").push({"n": "new"})
    [message] = await client.queue("newcomer").group("late").subscription_mode("new").batch(1).wait(True).pop()
    assert message["data"] == {"n": "new"}
    [first] = await popped(client.queue("newcomer").group("past").subscription_from("2020-01-01T00:00:00+00:00"), 1)
    assert first["data"] == {"n": "old"}


@common
async def pops_a_namespace(client: Any) -> None:
    await client.queue("wild.a.one").push({"n": 1})
    await client.queue("wild.b.two").push({"n": 2})
    [message] = await popped(client.queue().namespace("wild").task("b"))
    assert message["data"] == {"n": 2}
    assert (await client.ack(message))["success"] is True
    [other] = await popped(client.queue().namespace("wild"))
    assert other["data"] == {"n": 1}


@common
async def transacts(client: Any) -> None:
    await client.queue("in").push([{"n": 1}, {"n": 2}])
    messages = await popped(client.queue("in"))
    result = await client.transaction().ack(messages).queue("out").partition("p").push([{"data": 3}, {"data": None}]).commit()
    assert result["success"] is True
    assert await popped(client.queue("in")) == []
    assert [message["data"] for message in await popped(client.queue("out"))] == [3, None]


@common
async def transacts_for_a_group(client: Any) -> None:
    # 0.12 names neither the group nor the lease of an ack; the lease among requiredLeases says both
    await client.queue("in-g").push({"n": 1})
    [message] = await popped(client.queue("in-g").group("ship"))
    await client.transaction().ack(message).queue("out-g").push({"n": 2}).commit()
    assert await popped(client.queue("in-g").group("ship")) == []
    assert len(await popped(client.queue("in-g"))) == 1
    assert len(await popped(client.queue("out-g"))) == 1


@common
async def does_nothing_of_a_transaction_whose_lease_is_gone(client: Any) -> None:
    await client.queue("in-lost").push({"n": 1})
    [message] = await popped(client.queue("in-lost"))
    await client.ack(message)
    said = await refusal(client.transaction().queue("out-lost").push({"n": 2}).ack(message).commit())
    assert "lease" in said.lower(), said
    assert await popped(client.queue("out-lost")) == []


@common
async def consumes_with_groups(client: Any) -> None:
    await client.queue("work").push([{"n": n} for n in range(6)])
    for group in ("one", "two"):
        seen: list[int] = []

        async def handle(message: Any, seen: list[int] = seen) -> None:
            seen.append(message["data"]["n"])

        await client.queue("work").group(group).batch(3).each().limit(6).consume(handle)
        assert seen == list(range(6)), seen
        assert await popped(client.queue("work").group(group)) == []


@common
async def consumes_batches_and_single_messages(client: Any) -> None:
    await client.queue("batches").push([{"n": n} for n in range(5)])
    batches: list[int] = []

    async def handle_batch(messages: Any) -> None:
        batches.append(len(messages))

    await client.queue("batches").batch(4).limit(4).consume(handle_batch)
    singles: list[Any] = []

    async def handle_one(message: Any) -> None:
        singles.append(message["data"])

    await client.queue("batches").batch(1).limit(1).consume(handle_one)
    assert (batches, singles) == ([4], [{"n": 4}])


@common
async def gets_again_what_its_handler_failed_on(client: Any) -> None:
    await client.queue("risky").config({"retryDelay": 100}).create()
    await client.queue("risky").push({"n": 1})
    counts: list[int] = []

    async def handle(message: Any) -> None:
        counts.append(message["retryCount"])
        if len(counts) < 3:
            raise RuntimeError("not yet")

    await client.queue("risky").group("g").batch(1).limit(3).consume(handle)
    assert counts == [0, 1, 2], counts


@common
async def extends_a_lease(client: Any) -> None:
    await client.queue("slow").config({"leaseTime": 2}).create()
    await client.queue("slow").push({"n": 1})
    [message] = await popped(client.queue("slow"))
    answer = await client.renew(message)
    # 0.12 reads an object where the contract has an array: it extends, but its own report says that it failed
    if hasattr(client, "locks"):
        assert answer["success"] is True, answer
        assert answer["newExpiresAt"]
    await seconds_pass(client, 3)
    assert await popped(client.queue("slow")) == []
    assert (await client.ack(message))["success"] is True


@common
async def keeps_a_lease_alive_while_it_handles(client: Any) -> None:
    await client.queue("slower").config({"leaseTime": 2}).create()
    await client.queue("slower").push({"n": 1})
    calls: list[Any] = []

    async def handle(message: Any) -> None:
        calls.append(await popped(client.queue("slower")))
        await seconds_pass(client, 3)
        calls.append(await popped(client.queue("slower")))

    await client.queue("slower").batch(1).limit(1).renew_lease(True, 500).consume(handle)
    assert calls == [[], []], calls
    assert await popped(client.queue("slower")) == []


@common
async def sends_its_buffer(client: Any) -> None:
    for n in range(5):
        await client.queue("buffered").buffer({"message_count": 2, "time_millis": 60_000}).push({"n": n})
    await client.flush_all_buffers()
    assert sorted(message["data"]["n"] for message in await popped(client.queue("buffered"))) == list(range(5))


@newer
async def pops_several_partitions_under_one_lease(client: Any) -> None:
    for name in ("a", "b", "c"):
        await client.queue("wide").partition(name).push([{"n": 1}, {"n": 2}])
    messages = await popped(client.queue("wide").partitions(3), 10)
    assert len(messages) == 6
    assert len({message["leaseId"] for message in messages}) == 1
    [answer] = await client.renew(messages)
    assert answer["success"] is True
    assert (await client.ack(messages))["success"] is True


@newer
async def lets_the_server_choose_the_batch(client: Any) -> None:
    await client.queue("pilot").push([{"n": 1}, {"n": 2}])
    messages = await client.queue("pilot").wait(False).pop()
    assert [message["data"] for message in messages] == [{"n": 1}]


@newer
async def commits_on_delivery(client: Any) -> None:
    await client.queue("once").push({"n": 1})
    [message] = await popped(client.queue("once").commit_on_delivery())
    assert message["leaseId"] == ""
    assert await popped(client.queue("once")) == []


@newer
async def is_told_loudly_what_this_server_does_not_have(client: Any) -> None:
    said = await refusal(client.transaction().once("ns", "key", ttl_seconds=60).queue("gated").push({"n": 1}).commit())
    assert "kv" in said, said
    assert await popped(client.queue("gated")) == []
    await client.queue("newest").push({"n": 1})
    said = await refusal(popped(client.queue("newest").group("g").conflation()))
    assert said.startswith("ConflationUnsupportedError"), said
    async with type(client)(client._config["urls"][0], binary_push=True) as binary:
        said = await refusal(binary.queue("newest").push({"n": 2}))
        assert said.startswith("HTTPStatusError 400"), said


async def main(version: str, url: str) -> dict[str, str | None]:
    """All scenarios side by side, each with a client and queues of its own: name → None or what went wrong."""
    scenarios = COMMON + (NEWER if version != "0.12.0" else [])
    outcomes = await asyncio.gather(*(attempt(scenario, url) for scenario in scenarios))
    return {scenario.__name__: outcome for scenario, outcome in zip(scenarios, outcomes, strict=True)}


async def attempt(scenario: Scenario, url: str) -> str | None:
    try:
        async with asyncio.timeout(60), importlib.import_module("queen").Queen(url) as client:
            await scenario(client)
    except Exception:
        return traceback.format_exc()
    return None


if __name__ == "__main__":
    print("\nRESULT " + json.dumps(asyncio.run(main(*sys.argv[1:3]))))
