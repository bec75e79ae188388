"""`queenmq bench`: what a running server does on this machine, through HTTP, with the Python client on the same machine.

A first look, not the project's benchmarks (these lie in benchmarks/ and compare with peers): the client's own work is in the figures.
Never touches a queue but its own. Invariant: every message pushed is popped and acknowledged before it ends.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from queenmq.cli.messages import client, url_option
from queenmq.cli.output import emit, json_option, progress, table
from queenmq.cli.serve import Stopped, foreground

if TYPE_CHECKING:
    from queenmq.client import Queen

PARTITIONS = 64


@click.command()
@click.option("--messages", type=click.IntRange(1, 10_000_000), default=20_000, show_default=True, help="How many.")
@click.option("--batch", type=click.IntRange(1, 1000), default=100, show_default=True, help="Messages of one request.")
@click.option("--connections", type=click.IntRange(1, 256), default=16, show_default=True, help="Requests at a time.")
@click.option("--size", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="Bytes of a payload.")
@url_option
@json_option
def bench(messages: int, batch: int, connections: int, size: int, url: str | None, as_json: bool) -> int:
    """Measure a running server: push, then pop and ack, each message once."""

    async def work() -> list[dict[str, Any]]:
        async with client(url) as queen:
            queue = f"bench-{time.time_ns():x}"
            await queen.configure(queue, lease_time=300)
            pushed = await _phase("push", _pusher(queen, queue, messages, batch, size), messages, connections, as_json)
            popped = await _phase("pop+ack", _popper(queen, queue, batch), messages, connections, as_json)
            return [pushed, popped]

    rows = foreground(work())
    if isinstance(rows, Stopped):
        raise click.Abort
    if as_json:
        emit({"messages": messages, "batch": batch, "connections": connections, "size": size, "phases": rows})
        return 0
    columns = ("phase", "messages", "seconds", "messages/s", "requests/s", "p50 ms", "p99 ms")
    table(columns, ([row[name] for name in columns] for row in rows), right=columns[1:])
    return 0


def _pusher(queen: Queen, queue: str, messages: int, batch: int, size: int) -> Callable[[], Awaitable[int]]:
    from queenmq.client import Item

    numbers = itertools.count()
    left = [messages]
    filler = "x" * max(0, size - 2)

    async def push() -> int:
        count = min(batch, left[0])
        left[0] -= count
        if count:
            partition = f"p{next(numbers) % PARTITIONS}"
            await queen.push_many(queue, [Item(payload=filler, partition=partition) for _ in range(count)])
        return count

    return push


def _popper(queen: Queen, queue: str, batch: int) -> Callable[[], Awaitable[int]]:
    async def pop() -> int:
        found = await queen.pop(queue, batch=batch, wait=True, timeout=1.0)
        if found:
            await queen.ack(found)
        return len(found)

    return pop


async def _phase(name: str, call: Callable[[], Awaitable[int]], messages: int, connections: int, quiet: bool) -> dict[str, Any]:
    """Calls until all messages went through, so many calls at a time."""
    times: list[float] = []
    done = 0
    with progress(name, not quiet, messages) as step:

        async def worker() -> None:
            nonlocal done
            while done < messages:
                began = time.perf_counter()
                count = await call()
                times.append(time.perf_counter() - began)
                done += count
                for _ in range(count):
                    step()
                if count == 0:
                    return

        began = time.perf_counter()
        while done < messages:
            await asyncio.gather(*(worker() for _ in range(connections)))
        seconds = time.perf_counter() - began
    times.sort()
    return {
        "phase": name,
        "messages": done,
        "seconds": round(seconds, 2),
        "messages/s": round(done / seconds),
        "requests/s": round(len(times) / seconds),
        "p50 ms": round(times[len(times) // 2] * 1000, 2),
        "p99 ms": round(times[min(len(times) - 1, len(times) * 99 // 100)] * 1000, 2),
    }
