"""`push`, `pop` and `tail`: a running server's queues from the shell, through the Python client.

Never touches the database. Payloads are JSON, passed on as they are; `--text` sends plain words as a JSON string.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

import click

from queenmq import config
from queenmq.cli import EXIT_NOTHING
from queenmq.cli.output import emit, json_option, one_line, table
from queenmq.errors import SetupError

if TYPE_CHECKING:
    from queenmq.client import Message, Queen

T = TypeVar("T")
BATCH = 500
REACH_SECONDS = 5.0
url_option = click.option("--url", metavar="URL", help="The server (QUEENMQ_URL, http://127.0.0.1:6632).")


@asynccontextmanager
async def client(url: str | None) -> AsyncIterator[Queen]:
    """A client of the named server; at once, and not after its repetitions, it says when nobody is there."""
    from queenmq.client import Queen

    address = config.load(options={"url": url}).server_url
    parts = urlsplit(address)
    try:
        async with asyncio.timeout(REACH_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
        writer.close()
    except OSError as error:
        hint = "Start one with `queenmq up`, or name another with --url or QUEENMQ_URL."
        raise SetupError(f"no server answers at {address}. {hint}") from error
    async with Queen(address) as queen:
        yield queen


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a command's work; Ctrl-C ends it as an interruption."""
    return asyncio.run(work)


def _payloads(words: tuple[str, ...], text: bool) -> Iterator[tuple[str, Any]]:
    """Each payload with where it came from: the arguments, or the lines of standard input."""
    import msgspec

    if words:
        named: Iterable[tuple[str, str]] = ((f"payload {number}", word) for number, word in enumerate(words, 1))
    else:
        if sys.stdin.isatty():
            click.echo("One payload a line; Ctrl-D ends.", err=True)
        named = ((f"line {number}", line.rstrip("\n")) for number, line in enumerate(sys.stdin, 1) if line.strip())
    for where, word in named:
        if text:
            yield where, word
            continue
        try:
            msgspec.json.decode(word)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise SetupError(f"{where} is not JSON ({error}): {word[:60]!r}. To send plain words, add --text.") from None
        yield where, msgspec.Raw(word.encode())


@click.command()
@click.argument("queue")
@click.argument("payload", nargs=-1)
@click.option("--partition", metavar="NAME", help="Messages of one partition are delivered in order (Default).")
@click.option("--transaction-id", metavar="ID", help="Pushed twice with the same id, a message is stored once. Needs a single payload.")
@click.option("--delay", type=click.FloatRange(min=0), metavar="SECONDS", help="Hold the messages, and what follows in their partition.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header to carry along; may be repeated.")
@click.option("--text", is_flag=True, help="The payloads are plain words, not JSON.")
@url_option
@json_option
def push(queue: str, payload: tuple[str, ...], url: str | None, as_json: bool, text: bool, **settings: Any) -> int:
    """Store messages in QUEUE: each PAYLOAD is one, without any each line of standard input.

    queenmq push orders '{"id": 1}' '{"id": 2}'
    """
    if settings["transaction_id"] and len(payload) != 1:
        raise click.UsageError("--transaction-id needs exactly one payload")
    given = _headers(settings["headers"])

    async def work() -> None:
        from queenmq.client import Item

        stored = 0
        async with client(url) as queen:
            source = _payloads(payload, text)
            while batch := list(itertools.islice(source, BATCH)):
                items = [
                    Item(
                        payload=body, partition=settings["partition"], transaction_id=settings["transaction_id"], headers=given,
                        delay_seconds=settings["delay"],
                    )
                    for _, body in batch
                ]  # fmt: skip
                for answer in await queen.push_many(queue, items):
                    stored += 1
                    if as_json:
                        emit(answer)
                    elif stored <= 20:
                        click.echo(f"{answer.status}  {answer.transaction_id}  seq {answer.seq if answer.seq is not None else '-'}")
        if stored > 20 and not as_json:
            click.echo(f"… {stored} messages")

    run(work())
    return 0


def _headers(pairs: tuple[str, ...]) -> dict[str, str] | None:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.UsageError(f"--header {pair!r}: write NAME=VALUE")
        found[name] = value
    return found or None


def _show(messages: list[Message], as_json: bool) -> None:
    if as_json:
        for message in messages:
            emit(message)
        return
    rows = [(m.queue, m.partition, "" if m.seq is None else m.seq, m.transaction_id, bytes(m.raw).decode()) for m in messages]
    table(("queue", "partition", "seq", "transaction id", "payload"), rows, right=("seq",))


@click.command()
@click.argument("queue")
@click.option("--partition", metavar="NAME", help="Of this partition only.")
@click.option("--group", metavar="NAME", help="The consumer group; each group is given every message.")
@click.option("--batch", type=click.IntRange(1, 10000), default=1, show_default=True, help="The most messages.")
@click.option("--partitions", type=click.IntRange(1, 1000), default=1, show_default=True, help="The most partitions.")
@click.option("--wait", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait so long for a message.")
@click.option("--ack/--no-ack", default=True, show_default=True, help="Acknowledge what was printed; else its lease runs on.")
@url_option
@json_option
def pop(queue: str, wait: float | None, ack: bool, url: str | None, as_json: bool, **settings: Any) -> int:
    """Take messages from QUEUE, print them, acknowledge them. Exit code 3 when there is none."""

    async def work() -> int:
        async with client(url) as queen:
            found = await queen.pop(queue, wait=wait is not None, timeout=wait or 0.0, **settings)
            if not found:
                if not as_json:
                    click.echo(f"nothing to pop in {queue}", err=True)
                return EXIT_NOTHING
            _show(found, as_json)
            sys.stdout.flush()
            if ack:
                await queen.ack(found)
            elif not as_json:
                click.echo(f"lease {found[0].lease_id}", err=True)
            return 0

    return run(work())


@click.command()
@click.argument("queue")
@click.option("--group", metavar="NAME", default="tail", show_default=True, help="The consumer group that follows; two on one group share.")
@click.option("--all", "from_start", is_flag=True, help="Begin with what is already there, when the group is new.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after so many messages.")
@url_option
@json_option
def tail(queue: str, group: str, from_start: bool, count: int | None, url: str | None, as_json: bool) -> int:
    """Follow QUEUE: print messages as they arrive, until Ctrl-C.

    It reads as a consumer group of its own, so no other consumer misses a message. The first call makes the group; it then goes on where it
    stopped.
    """

    mode: Literal["all", "new"] = "all" if from_start else "new"

    async def work() -> None:
        left = count
        async with client(url) as queen:
            while left is None or left > 0:
                batch = min(100, left or 100)
                found = await queen.pop(
                    queue, group=group, batch=batch, partitions=100, wait=True, timeout=30.0, subscription_mode=mode
                )  # fmt: skip
                for message in found:
                    if as_json:
                        emit(message)
                    else:
                        moment = message.created_at.strftime("%H:%M:%S.%f")[:-3]
                        click.echo(f"{moment}  {message.partition}  {one_line(bytes(message.raw).decode())}")
                sys.stdout.flush()
                if found:
                    await queen.ack(found)
                    left = None if left is None else left - len(found)

    run(work())
    return 0
