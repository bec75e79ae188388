"""`queenmq up`: the server in the foreground, until Ctrl-C.

Logs go to standard error, what it serves and a first command to standard output. Invariant: when the process ends, nothing of it runs on.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import click

import queenmq
from queenmq import config, logs
from queenmq.cli.output import emit, json_option
from queenmq.cli.supervisor import Running, running

T = TypeVar("T")


@dataclass(frozen=True)
class Stopped:
    """What `foreground` gives instead of a result when a signal ended it."""

    signal: str


def foreground(work: Coroutine[Any, Any, T]) -> T | Stopped:
    """Runs to the end, or until SIGINT, SIGTERM or SIGHUP: then the work is cancelled, once, and may clean up after itself."""
    import uvloop

    caught: list[str] = []

    async def watched() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work)

        def stop(name: str) -> None:
            if not caught:
                caught.append(name)
                task.cancel()

        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(each, stop, each.name)
        return await task

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        collect_seldom()
        try:
            return runner.run(watched())
        except asyncio.CancelledError:
            if caught:
                return Stopped(caught[0])
            raise


def collect_seldom() -> None:
    """A server makes few cycles and many objects: with Python's defaults the cycle collector took a seventh of its time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)


@click.command()
@click.option("--data", metavar="DIR", help="Where everything is kept (QUEENMQ_HOME).")
@click.option("--port", metavar="N", help="The HTTP port (PORT, 6632).")
@click.option("--host", metavar="ADDRESS", help="The address to listen on (HOST, 127.0.0.1).")
@click.option("--insecure", is_flag=True, help="Let other machines in, without access control.")
@json_option
def up(data: str | None, port: str | None, host: str | None, insecure: bool, as_json: bool) -> int:
    """Start the server and serve until Ctrl-C.

    Without QUEEN_DATABASE_URL or PG_* it starts a PostgreSQL of its own and keeps the data in QUEENMQ_HOME.
    """
    settings = config.load(options={"home": data, "port": port, "host": host})
    logs.configure(settings.log_level, settings.log_format)

    async def work() -> None:
        async with running(settings, insecure=insecure) as server:
            _announce(server, as_json)
            await server.ended

    ended = foreground(work())
    if isinstance(ended, Stopped) and not as_json:
        click.echo("stopped")
    return 0


def _announce(server: Running, as_json: bool) -> None:
    url = f"http://{_reachable(server.settings)}:{server.settings.port}"
    if as_json:
        emit({"url": url, "database": config.masked_address(server.dsn), "embedded": server.embedded, "home": str(server.settings.home)})
        return
    kind = "embedded PostgreSQL" if server.embedded else "PostgreSQL"
    click.echo(f"QueenMQ {queenmq.__version__} serves {url}")
    click.echo(f"  data      {server.settings.home}")
    click.echo(f"  database  {config.masked_address(server.dsn)} ({kind})")
    click.echo("Push and pop a first message:")
    payload = '{"items":[{"queue":"orders","payload":{"hello":"world"}}]}'
    click.echo(f"  curl -s {url}/api/v1/push -H 'content-type: application/json' -d '{payload}'")
    click.echo(f"  curl -s '{url}/api/v1/pop/queue/orders?autoAck=true'")
    click.echo("Ctrl-C stops it.")


def _reachable(settings: config.Settings) -> str:
    """An address that a client on this machine can use."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return f"[{host}]" if ":" in host else host
