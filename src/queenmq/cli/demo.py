"""`queenmq demo`: shows push, pop and ack on a server that runs, or on one that it starts for the purpose and stops again.

Uses queues of its own name only. Invariant: what it started is stopped; what was running goes on.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from queenmq import config, logs
from queenmq.cli.output import console, emit, json_option
from queenmq.cli.serve import Stopped, foreground
from queenmq.config import Settings

if TYPE_CHECKING:
    from queenmq.client import Message, Queen

QUEUE = "demo"
CUSTOMERS = ("ada", "grace", "linus")
ORDERS = 4


@click.command()
@click.option("--url", metavar="URL", help="Show it on this server; else on the one that runs here, or on one started for the demo.")
@click.option("--data", metavar="DIR", help="Where a server started for the demo keeps its data (QUEENMQ_HOME).")
@json_option
def demo(url: str | None, data: str | None, as_json: bool) -> int:
    """Push, pop and ack some messages and show what happens."""
    settings = config.load(options={"url": url, "home": data})
    logs.configure("warning", settings.log_format)

    async def work() -> bool:
        async with _server(settings, bool(url or settings.url)) as (address, started):
            from queenmq.client import Queen

            show = _Show(as_json)
            show.say(f"A QueenMQ server {'was started for this demo' if started else 'runs'} at {address}")
            async with Queen(address) as queen:
                await _tour(queen, show)
            show.end(started)
            facts = show.facts
            return bool(facts["in_order"]) and facts["left"] == 0

    done = foreground(work())
    if isinstance(done, Stopped):
        raise click.Abort
    return 0 if done else 1


@asynccontextmanager
async def _server(settings: Settings, named: bool) -> AsyncIterator[tuple[str, bool]]:
    """An address that answers, and whether the server was started here."""
    if named or await _answers(settings.server_url):
        yield settings.server_url, False
        return
    from queenmq.cli.supervisor import free_port, running

    port = free_port()
    chosen = config.load(options={"home": str(settings.home), "port": port, "host": "127.0.0.1"})
    async with running(chosen):
        yield f"http://127.0.0.1:{port}", True


async def _answers(url: str) -> bool:
    import httpx

    try:
        async with httpx.AsyncClient(timeout=2, trust_env=False) as client:
            return (await client.get(f"{url}/livez")).status_code == 200
    except httpx.HTTPError:
        return False


@dataclass
class _Show:
    """What is told to a person as it happens, or to a program at the end."""

    as_json: bool
    facts: dict[str, Any] = field(default_factory=dict)

    def say(self, text: str, *, mark: str = "") -> None:
        if not self.as_json:
            from rich.markup import escape

            console().print(f"[green]{mark}[/green] {escape(text)}" if mark else escape(text))
            sys.stdout.flush()

    def step(self, title: str) -> None:
        if not self.as_json:
            console().print(f"\n[bold cyan]{title}[/bold cyan]")

    def end(self, started: bool) -> None:
        if self.as_json:
            emit(self.facts)
            return
        self.say("")
        self.say("Each order was stored on disk, delivered in its customer's order, and acknowledged once.")
        self.say("Now a server of your own: ./run        its commands: ./run --help")
        if started:
            self.say("The demo's server is stopped; its data stays for the next start.")


async def _tour(queen: Queen, show: _Show) -> None:
    from queenmq.client import Item

    run = secrets.token_hex(4)
    show.step(f"1. Push: {len(CUSTOMERS) * ORDERS} orders of {len(CUSTOMERS)} customers, one partition for each")
    items = [
        Item(payload={"order": number, "customer": name}, partition=name, transaction_id=f"{run}-{name}-{number}")
        for number in range(1, ORDERS + 1)
        for name in CUSTOMERS
    ]
    began = time.perf_counter()
    answers = await queen.push_many(QUEUE, items)
    took = (time.perf_counter() - began) * 1000
    show.facts["pushed"] = sum(answer.status == "queued" for answer in answers)
    show.say(f"{show.facts['pushed']} stored and synced to disk in {took:.1f} ms", mark="✓")

    show.step("2. Push one of them again: the same transaction id is never stored twice")
    again = await queen.push_many(QUEUE, items[:1])
    show.facts["repeated"] = again[0].status
    show.say(f"answer: {again[0].status}, message {again[0].message_id}", mark="✓")

    show.step("3. Pop: a lease on each partition, so that each customer's orders stay in order")
    taken = await _pop_all(queen, show)
    show.facts["popped"], show.facts["in_order"] = len(taken), _in_order(taken)
    show.say(
        f"{len(taken)} delivered, in order within each partition: {'yes' if show.facts['in_order'] else 'NO'}",
        mark=_mark(show.facts["in_order"]),
    )

    show.step("4. What is acknowledged doesn't come again")
    rest = await queen.pop(QUEUE, batch=100, partitions=len(CUSTOMERS))
    show.facts["left"] = len(rest)
    show.say(f"another pop finds {len(rest)} messages", mark=_mark(not rest))


def _mark(good: bool) -> str:
    return "✓" if good else "✗"


async def _pop_all(queen: Queen, show: _Show) -> list[Message]:
    taken: list[Message] = []
    while batch := await queen.pop(QUEUE, batch=6, partitions=len(CUSTOMERS)):
        for message in batch:
            show.say(f"  {message.partition:<6} seq {message.seq}  {bytes(message.raw).decode()}")
        await queen.ack(batch)
        show.say(f"  … {len(batch)} acknowledged")
        taken += batch
    return taken


def _in_order(messages: Sequence[Message]) -> bool:
    last: dict[str, int] = {}
    for message in messages:
        seq = message.seq or 0
        if seq <= last.get(message.partition, 0):
            return False
        last[message.partition] = seq
    return True
