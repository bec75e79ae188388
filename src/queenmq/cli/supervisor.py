"""Runs one server with all it needs: the home's lock, the embedded PostgreSQL (or the one that was named), migrations, then the server.

Alone starts and stops the embedded PostgreSQL. Never leaves anything running: whatever ends the block, the server ends first and PostgreSQL
last, within five seconds. Invariant: inside `running` the server answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from queenmq import config
from queenmq.clock import Clock
from queenmq.config import Settings
from queenmq.errors import SetupError
from queenmq.home import open_home
from queenmq.postgres.embedded import EmbeddedPostgres
from queenmq.postgres.preflight import explain, facts, refuse_unfit

if TYPE_CHECKING:
    from queenmq.postgres.migrate import Applied
    from queenmq.server import ServerInfo

SERVER_STOP_SECONDS = 2.5
SPARE_CONNECTIONS = 40  # for psql, other commands and the users of SQL


@dataclass(frozen=True)
class Running:
    """A server that answers. `ended` is done when it ends by itself."""

    info: ServerInfo
    settings: Settings
    dsn: str
    embedded: bool
    ended: asyncio.Task[None]


def refuse_taken_port(settings: Settings) -> None:
    """Says so before anything is started."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror:
        raise SetupError(f"HOST={settings.host} is no address of this machine: use 127.0.0.1, or one that `ip address` lists.") from None
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise SetupError(_port_trouble(settings, error)) from error


def _port_trouble(settings: Settings, error: OSError) -> str:
    where = f"{settings.host}:{settings.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is taken by another program (perhaps another QueenMQ): stop it, or choose another with --port N or PORT=N."
    if error.errno == errno.EACCES:
        return f"{where} needs more rights than this user has: choose a port above 1023 with --port N or PORT=N."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"HOST={settings.host} is no address of this machine: use 127.0.0.1, or one that `ip address` lists."
    return f"{where} can't be listened on: {error.strerror}"


def free_port() -> int:
    """A port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def database(settings: Settings) -> AsyncIterator[str]:
    """The address of a database that will do: the one that was named, or the embedded one, started for the block. Needs the home's lock."""
    named = settings.database
    if named:
        refuse_unfit(await facts(named), named)
        yield named
        return
    embedded = EmbeddedPostgres(settings.home, options={"max_connections": str(max(100, settings.db_pool_size + SPARE_CONNECTIONS))})
    watching: asyncio.Task[None] | None = None
    try:
        dsn = await embedded.start()
        watching = asyncio.create_task(embedded.watch())
        yield dsn
    finally:
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        await embedded.stop()


@asynccontextmanager
async def tool_database(settings: Settings, *, make: bool = False) -> AsyncIterator[str]:
    """For commands that look into it: the named one, that of a server that runs on this home, or the embedded one started for it."""
    named = settings.database
    if named is not None:
        refuse_unfit(await facts(named), named)
        yield named
        return
    serving = EmbeddedPostgres.running_dsn(settings.home)
    if serving is not None:
        yield serving
        return
    if not make and not (settings.home / "postgres").exists():
        raise SetupError(f"there is no database in {settings.home} yet: start the server once, or name its directory with --data DIR.")
    home = open_home(settings.home)
    try:
        async with database(settings) as dsn:
            yield dsn
    finally:
        home.close()


async def migrated(dsn: str) -> Applied:
    """Brings the schema up to date; failures in clear words."""
    import asyncpg

    from queenmq.postgres.migrate import migrate

    try:
        return await migrate(dsn)
    except (asyncpg.PostgresError, OSError) as error:
        if isinstance(error, asyncpg.InsufficientPrivilegeError | asyncpg.DiskFullError | OSError):
            raise explain(error, dsn) from error
        raise


@asynccontextmanager
async def running(settings: Settings, *, insecure: bool = False) -> AsyncIterator[Running]:
    """Starts everything, gives the block a server that answers, stops everything in order."""
    config.refuse_open_host(settings, insecure)
    refuse_taken_port(settings)
    home = open_home(settings.home)
    try:
        async with database(settings) as dsn:
            await migrated(dsn)
            served = replace(settings, database_url=dsn)
            async with _served(served) as (info, ended):
                yield Running(info, served, dsn, settings.database is None, ended)
    finally:
        home.close()


@asynccontextmanager
async def _served(settings: Settings) -> AsyncIterator[tuple[ServerInfo, asyncio.Task[None]]]:
    from queenmq.server import serve

    ready: asyncio.Future[ServerInfo] = asyncio.get_running_loop().create_future()

    def on_ready(info: ServerInfo) -> None:
        if not ready.done():
            ready.set_result(info)

    task = asyncio.create_task(serve(settings, clock=Clock(), on_ready=on_ready))
    try:
        either: set[asyncio.Future[Any]] = {task, ready}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await task
            raise SetupError("the server ended before it answered: its log says why.")
        yield ready.result(), task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            done, _ = await asyncio.wait({task}, timeout=SERVER_STOP_SECONDS)
            if done and not task.cancelled():
                task.exception()
