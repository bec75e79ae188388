"""Connections to PostgreSQL and calls by name.

Every session reads committed, gives up on a lock after 20 ms (a stuck row stops one partition, never the server), and commits for
sure. A connection isn't reset between calls: nothing here leaves anything behind in a session. Never retries: who knows whether a call
may be repeated is who makes it. Invariant: what escapes is a QueenError, or an asyncpg error that is a defect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg

from queenmq.errors import Busy, QueenError, Unavailable, from_sqlstate
from queenmq.postgres.migrate import statement

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
    Pool = asyncpg.Pool[asyncpg.Record]

log = logging.getLogger(__name__)

LOCK_WAIT_MS = 20
CALL_SECONDS = 30.0


class LostConnection(Unavailable):
    """The connection broke while a call was under way: whether it was done is not known."""

    code = "connection_lost"


_AWAY = (
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InvalidAuthorizationSpecificationError,
)
_LOST = (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.AdminShutdownError, asyncpg.CrashShutdownError, OSError)


def translate(error: BaseException) -> QueenError | None:
    """The one place where the database's errors become ours; None for what is a defect."""
    if isinstance(error, QueenError):
        return error
    if isinstance(error, _AWAY):
        return Unavailable(f"the database can't be reached: {error}")
    if isinstance(error, _LOST):
        return LostConnection("the connection to the database was lost")
    if isinstance(error, (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError, asyncpg.SerializationError)):
        return Busy("somebody holds a row that this call needs")
    if isinstance(error, TimeoutError):
        return LostConnection("the database did not answer in time")
    if isinstance(error, asyncpg.DiskFullError):
        return Unavailable("the database's disk is full: free some space there")
    if isinstance(error, asyncpg.PostgresError):
        return from_sqlstate(error.sqlstate, error.args[0] if error.args else str(error))
    return None


async def _no_reset(connection: Any) -> None:
    """The sessions keep nothing, so there is nothing to reset (the default costs a round trip a call)."""


def _listening(heard: Callable[[str], None] | None) -> type[asyncpg.Connection[asyncpg.Record]]:
    """Connections whose warnings are heard for as long as they live (the pool takes a listener off with every call)."""

    class Connection(asyncpg.Connection):
        def _process_log_message(self, fields: dict[str, str], last_query: str) -> None:
            if heard is not None and fields.get("V") == "WARNING":
                heard(fields.get("M", ""))

    return Connection


class Database:
    """A pool whose calls are named statements of postgres/sql/queries."""

    def __init__(self, dsn: str, size: int, *, on_warning: Callable[[str], None] | None = None) -> None:
        self._dsn = dsn
        self._size = size
        self._pool: Pool | None = None
        self._statements: dict[str, str] = {}
        self._on_warning = on_warning

    async def open(self) -> None:
        """Connects, or raises Unavailable."""
        try:
            self._pool = await asyncpg.create_pool(
                self._dsn,
                min_size=min(4, self._size),
                max_size=self._size,
                max_inactive_connection_lifetime=0,
                reset=_no_reset,
                connection_class=_listening(self._on_warning),
                init=self._prepare,
                server_settings=self.session_settings(),
            )
        except (*_AWAY, *_LOST) as error:
            raise Unavailable(f"the database can't be reached: {error}") from error

    @staticmethod
    def session_settings() -> dict[str, str]:
        """What every session of a server sets."""
        return {
            "application_name": "queenmq",
            "default_transaction_isolation": "read committed",
            "lock_timeout": f"{LOCK_WAIT_MS}ms",
            "jit": "off",
            "plan_cache_mode": "force_generic_plan",
        }

    async def _prepare(self, connection: Connection) -> None:
        if await connection.fetchval(statement("synchronous_commit")) == "off":
            await connection.execute(statement("commit_for_sure"))

    async def close(self) -> None:
        """Waits for running calls a moment, then closes every connection."""
        if self._pool is None:
            return
        try:
            await asyncio.wait_for(self._pool.close(), 3)
        except TimeoutError:
            self._pool.terminate()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection for several statements."""
        assert self._pool is not None, "open() comes first"
        try:
            async with self._pool.acquire(timeout=CALL_SECONDS) as connection:
                yield connection
        except QueenError:
            raise
        except Exception as error:
            known = translate(error)
            if known is None:
                raise
            raise known from error

    async def row(self, name: str, *args: object) -> asyncpg.Record:
        """The one row of a named statement."""
        async with self.connection() as connection:
            found = await connection.fetchrow(self._text(name), *args, timeout=CALL_SECONDS)
            assert found is not None, name
            return found

    async def rows(self, name: str, *args: object) -> list[asyncpg.Record]:
        """All rows of a named statement."""
        async with self.connection() as connection:
            return await connection.fetch(self._text(name), *args, timeout=CALL_SECONDS)

    async def value(self, name: str, *args: object) -> Any:
        """The first column of the first row; None where there is no row."""
        async with self.connection() as connection:
            return await connection.fetchval(self._text(name), *args, timeout=CALL_SECONDS)

    def _text(self, name: str) -> str:
        text = self._statements.get(name)
        if text is None:
            text = self._statements[name] = statement(name)
        return text
