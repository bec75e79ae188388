"""What a server does besides answering: hears the database's notifications, takes wakes, adds up what was consumed, shows it is alive.

All of it is advisory but the wakes, which a server also takes every second without being told. Never holds a request up. Invariant: after
a break in the notifications nothing that was remembered is believed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import asyncpg

from queenmq.errors import QueenError
from queenmq.postgres.pool import Database
from queenmq.queen.manager import Manager

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

log = logging.getLogger(__name__)

WAKES_SECONDS = 1.0
HEARTBEAT_SECONDS = 10.0
RECONNECT_SECONDS = 0.5
STOP_SECONDS = 1.0


class Errands:
    """Background work of one server."""

    def __init__(self, dsn: str, database: Database, manager: Manager, server_id: str) -> None:
        self._dsn = dsn
        self._database = database
        self._manager = manager
        self._server_id = server_id
        self._wakes = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._listener: Connection | None = None

    def start(self) -> None:
        self._tasks = [asyncio.create_task(work) for work in (self._listen(), self._take_wakes(), self._report())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(QueenError, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._add_consumed()

    async def _listen(self) -> None:
        """One connection that only listens; after a break everything remembered is forgotten."""
        while True:
            lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            try:
                connection = await asyncpg.connect(self._dsn, server_settings={"application_name": "queenmq listener"})
            except (OSError, asyncpg.PostgresError) as error:
                log.warning("can't listen for notifications", extra={"error": str(error)})
                await asyncio.sleep(RECONNECT_SECONDS)
                continue
            try:
                connection.add_termination_listener(lambda _, lost=lost: lost.done() or lost.set_result(None))
                await connection.add_listener("queen_wake", self._on_wake)
                await connection.add_listener("queen_config", self._on_config)
                await connection.add_listener("queen_gone", self._on_gone)
                self._manager.directory.clear()
                self._wakes.set()
                await lost
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await asyncio.sleep(RECONNECT_SECONDS)
            finally:
                connection.terminate()

    def _on_wake(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        self._manager.queue_woken(int(str(payload)))
        self._wakes.set()

    def _on_config(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        self._manager.queue_changed(int(str(payload)))

    def _on_gone(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        self._manager.queue_gone(int(str(payload)))

    async def _take_wakes(self) -> None:
        while True:
            # Not wait_for: on Python 3.11 it can swallow the cancellation that stops us.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAKES_SECONDS):
                    await self._wakes.wait()
            self._wakes.clear()
            try:
                row = await self._database.row("take_wakes")
            except QueenError as error:
                log.debug("wakes wait", extra={"error": str(error)})
                continue
            except Exception:
                log.exception("wakes could not be taken")
                continue
            for queue_id in row["queues"] or ():
                self._manager.queue_woken(queue_id)
            if row["taken"]:
                self._manager.waits.notify(None)

    async def _report(self) -> None:
        loop = asyncio.get_running_loop()
        beat = loop.time()
        while True:
            await asyncio.sleep(WAKES_SECONDS)
            try:
                await self._add_consumed()
                if loop.time() - beat >= HEARTBEAT_SECONDS:
                    beat = loop.time()
                    await self._database.rows("heartbeat", self._server_id)
                    self._manager.metrics.stale_lookups = await self._database.value("stale_lookups")
            except QueenError as error:
                log.debug("the report waits", extra={"error": str(error)})
            except Exception:
                log.exception("the report failed")

    async def _add_consumed(self) -> None:
        """Adds what was settled since the last time; kept when the database is away."""
        counts = self._manager.consumed
        if not counts:
            return
        self._manager.consumed = type(counts)()
        keys = sorted({key[:2] for key in counts})
        try:
            await self._database.value(
                "add_consumed",
                self._server_id,
                [key[0] for key in keys],
                [key[1] for key in keys],
                *([counts[(*key, kind)] for key in keys] for kind in ("completed", "failed", "dead")),
            )
        except QueenError:
            self._manager.consumed.update(counts)
            raise
