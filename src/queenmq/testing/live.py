"""A real server in a thread of its own, for tests: real sockets, a real PostgreSQL, this process.

Never fakes anything. Invariant: `stop` (or the end of the block) leaves no thread and no connection behind.
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType

import uvloop

from queenmq.clock import Clock
from queenmq.config import load
from queenmq.server import ServerInfo, serve

START_SECONDS = 20.0


class LiveServer:
    """Serves the database at the address until stopped; more settings by their environment names."""

    def __init__(self, dsn: str, environment: dict[str, str] | None = None) -> None:
        values = {"QUEEN_DATABASE_URL": dsn, "DB_POOL_SIZE": "8", "QUEEN_SERVER_ID": "test", **(environment or {})}
        self._settings = load({"PORT": "1", **values})
        object.__setattr__(self._settings, "port", 0)
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._info: ServerInfo | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="queenmq server", daemon=True)

    @property
    def url(self) -> str:
        assert self._info is not None, "start() comes first"
        return self._info.url

    def start(self) -> LiveServer:
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            raise TimeoutError("the server did not start")
        if self._error is not None:
            raise self._error
        return self

    def stop(self) -> None:
        if self._loop is not None and self._task is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(START_SECONDS)
        assert not self._thread.is_alive(), "the server did not stop"

    def __enter__(self) -> LiveServer:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(self._serve())
            except asyncio.CancelledError:
                pass
            except BaseException as error:
                self._error = error
            finally:
                self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        await serve(self._settings, clock=Clock(), on_ready=self._on_ready)

    def _on_ready(self, info: ServerInfo) -> None:
        self._info = info
        self._ready.set()
