"""The composition root: start-up, serve, shutdown, readable from top to bottom.

Wires; decides nothing. Needs a migrated database. Invariant: what was started is stopped in the opposite order, whatever happens between.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass

import uvicorn

import queenmq
from queenmq.clock import Clock
from queenmq.config import Settings
from queenmq.errors import SetupError
from queenmq.http.admin_routes import AdminRoutes
from queenmq.http.app import App
from queenmq.http.hot import HotProtocol
from queenmq.http.protocol import QueenProtocol
from queenmq.http.queue_routes import QueueRoutes
from queenmq.metrics import Metrics
from queenmq.postgres.pool import Database
from queenmq.queen.encryption import Sealer
from queenmq.queen.errands import Errands
from queenmq.queen.manager import Limits, Manager

log = logging.getLogger(__name__)

STOP_SECONDS = 2


@dataclass(frozen=True)
class ServerInfo:
    """What a server tells of itself once it serves."""

    url: str
    server_id: str
    database: str
    session: int


async def serve(settings: Settings, *, clock: Clock, on_ready: Callable[[ServerInfo], None]) -> None:
    """Serves until cancelled. The database is the one that is given, or the one that the settings name."""
    address = settings.database
    if address is None:
        raise SetupError("no database: set QUEEN_DATABASE_URL, or start with `queenmq up`, which brings its own")
    metrics = Metrics()

    def warned(text: str) -> None:
        log.warning("the database warns", extra={"text": text})
        if text.startswith("queen: data loss"):
            metrics.data_loss_warnings += 1

    database = Database(address, settings.db_pool_size, on_warning=warned)
    await database.open()
    try:
        await _say_durability(database)
        salt: int = await database.value("salt")
        session: int = await database.value("register_server", settings.server_id, settings.advertised_url or None, queenmq.__version__)
        limits = Limits(settings.max_message_kb * 1024)
        manager = Manager(database, clock, metrics, sealer=Sealer(settings.keys), salt=salt, session=session, limits=limits)
        errands = Errands(address, database, manager, settings.server_id)
        errands.start()
        try:
            await _listen(settings, database, manager, metrics, session, on_ready)
        finally:
            await errands.stop()
            await manager.close()
    finally:
        await database.close()


async def _say_durability(database: Database) -> None:
    """A server with fsync off loses acknowledged messages in a crash: it is named at every start."""
    row = await database.row("durability")
    if not row["fsync"]:
        log.warning("PostgreSQL runs with fsync off: a crash of its machine loses acknowledged messages; set fsync = on")


async def _listen(
    settings: Settings, database: Database, manager: Manager, metrics: Metrics, session: int, on_ready: Callable[[ServerInfo], None]
) -> None:
    def gauges() -> None:
        metrics.gauges["waiting_pops"] = manager.waits.waiting
        metrics.gauges["known_partitions"] = len(manager.directory.partitions)

    admin = AdminRoutes(database, metrics, server_id=settings.server_id, gauges=gauges)
    routes = QueueRoutes(manager, max_body=settings.max_body_mb << 20, default_mode=settings.default_subscription_mode)
    app = App(routes, admin.app, admin.paths.__contains__, origins=settings.cors_origins)
    config = uvicorn.Config(
        app,
        http=HotProtocol.with_routes(routes) if not settings.cors_origins else QueenProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        proxy_headers=False,
        log_config=None,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=STOP_SECONDS,
        backlog=4096,
        loop="none",
    )
    server = _Server(config)
    listener = _socket(settings)
    port: int = listener.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    config.load()
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if task.done():
                task.result()
                raise SetupError("the HTTP server ended while it was starting")
            await asyncio.sleep(0.005)
        on_ready(ServerInfo(f"http://{host}:{port}", settings.server_id, settings.database or "embedded", session))
        await asyncio.shield(task)
    finally:
        manager.waits.close()
        server.should_exit = True
        await asyncio.wait([task], timeout=STOP_SECONDS + 1)
        listener.close()


def _socket(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise SetupError(
            f"{settings.host}:{settings.port} can't be listened on ({error.strerror}): choose another port with --port N or PORT=N"
        ) from None
    return listener


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: whoever runs us decides when to stop."""

    def capture_signals(self):  # type: ignore[no-untyped-def]  # a context manager whose type uvicorn keeps to itself
        import contextlib

        return contextlib.nullcontext()
