"""Connections to PostgreSQL and calls by name.

Every session reads committed, gives up on a lock after 20 ms (a stuck row stops one partition, never the server), and commits for
sure. A connection isn't reset between calls (that costs a round trip): nothing here leaves anything behind in a session. Never retries:
who knows whether a call may be repeated is who makes it. Invariant: what escapes is a QueenError, or an asyncpg error that is a defect.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import asyncpg

from queenmq.errors import BadRequest, Busy, QueenError, Unavailable, from_sqlstate
from queenmq.postgres.migrate import statement

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

log = logging.getLogger(__name__)

LOCK_WAIT_MS = 20
CALL_SECONDS = 30.0
CONNECT_SECONDS = 10.0


class LostConnection(Unavailable):
    """The connection broke while a call was under way: whether it was done is not known."""

    code = "connection_lost"


_AWAY = (
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InvalidAuthorizationSpecificationError,
)
_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # an idle connection that was told FATAL and isn't closed yet: "another operation is in progress"
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    OSError,
)

_STALE = (asyncpg.InvalidCachedStatementError, asyncpg.OutdatedSchemaCacheError, asyncpg.UndefinedFunctionError)


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
    if isinstance(error, asyncpg.QueryCanceledError):
        return Unavailable("the database cancelled the call: send again later")
    if isinstance(error, TimeoutError):
        return LostConnection("the database did not answer in time")
    if isinstance(error, asyncpg.DiskFullError):
        return Unavailable("the database's disk is full: free some space there")
    if isinstance(error, (asyncpg.DataError, asyncpg.StatementTooComplexError)) and error.severity is not None:
        return BadRequest(f"the database refuses a value: {error}")
    if isinstance(error, asyncpg.PostgresError):
        return from_sqlstate(error.sqlstate, error.args[0] if error.args else str(error))
    return None


def _listening(heard: Callable[[str], None] | None) -> type[asyncpg.Connection[asyncpg.Record]]:
    """Connections whose warnings are heard for as long as they live (the pool takes a listener off with every call)."""

    class Connection(asyncpg.Connection):
        def _process_log_message(self, fields: dict[str, str], last_query: str) -> None:
            if heard is not None and fields.get("V") == "WARNING":
                heard(fields.get("M", ""))

    return Connection


class _Held:
    """A connection with its prepared statements."""

    __slots__ = ("connection", "prepared")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.prepared: dict[str, asyncpg.prepared_stmt.PreparedStatement[asyncpg.Record]] = {}

    async def statement(self, name: str) -> asyncpg.prepared_stmt.PreparedStatement[asyncpg.Record]:
        found = self.prepared.get(name)
        if found is None:
            found = self.prepared[name] = await self.connection.prepare(statement(name))
        return found


class Database:
    """Connections that run named statements of postgres/sql/queries. asyncpg's own pool costs as much as a small call does."""

    def __init__(self, dsn: str, size: int, *, on_warning: Callable[[str], None] | None = None) -> None:
        self._dsn = dsn
        self._size = size
        self._class = _listening(on_warning)
        self._idle: list[_Held] = []
        self._all: set[_Held] = set()
        self._connecting = 0
        self._waiters: deque[asyncio.Future[_Held | None]] = deque()
        self._closed = False

    async def open(self) -> None:
        """Connects once, so that a database that is away is known at the start."""
        self._release(await self._connect())

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

    async def _connect(self) -> _Held:
        self._connecting += 1
        try:
            connection = await asyncpg.connect(
                self._dsn, timeout=CONNECT_SECONDS, connection_class=self._class, server_settings=self.session_settings()
            )
            try:
                if await connection.fetchval(statement("synchronous_commit")) == "off":
                    await connection.execute(statement("commit_for_sure"))
            except BaseException:
                # cancelled meanwhile, say: nobody else knows of it yet
                connection.terminate()
                raise
        except (*_AWAY, *_LOST, TimeoutError) as error:
            # Whoever waits for a connection would wait for one that nobody makes.
            self._pass_on()
            raise Unavailable(f"the database can't be reached: {str(error) or type(error).__name__}") from error
        finally:
            self._connecting -= 1
        held = _Held(connection)
        self._all.add(held)
        return held

    async def _acquire(self) -> _Held:
        while self._idle:
            held = self._idle.pop()
            if not held.connection.is_closed():
                return held
            self._all.discard(held)
        if self._closed:
            raise Unavailable("the server is stopping")
        if len(self._all) + self._connecting < self._size:
            return await self._connect()
        waiter: asyncio.Future[_Held | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(CALL_SECONDS):
                got = await waiter
        except (TimeoutError, asyncio.CancelledError) as error:
            if waiter.done() and not waiter.cancelled() and (lent := waiter.result()) is not None:
                self._release(lent)
            if isinstance(error, TimeoutError):
                raise Unavailable("every connection to the database is busy: send again later") from None
            raise
        return got if got is not None else await self._acquire()

    def _release(self, held: _Held) -> None:
        if held.connection.is_closed() or self._closed:
            self._discard(held)
            return
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(held)
                return
        self._idle.append(held)

    def _discard(self, held: _Held) -> None:
        """A connection that is of no more use; whoever waits may make a new one."""
        self._all.discard(held)
        if not held.connection.is_closed():
            held.connection.terminate()
        self._pass_on()

    def _pass_on(self) -> None:
        """The next one who waits tries to connect."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def close(self) -> None:
        """Closes every connection; calls under way are cut off."""
        self._closed = True
        for held in list(self._all):
            if held in self._idle:
                with contextlib.suppress(Exception):
                    await held.connection.close(timeout=1)
            else:
                held.connection.terminate()
        self._all.clear()
        self._idle.clear()

    async def row(self, name: str, *args: object) -> asyncpg.Record:
        """The one row of a named statement."""
        return (await self.rows(name, *args))[0]

    async def value(self, name: str, *args: object) -> Any:
        """The first column of the first row; None where there is no row."""
        found = await self.rows(name, *args)
        return found[0][0] if found else None

    async def rows(self, name: str, *args: object) -> list[asyncpg.Record]:
        """All rows of a named statement."""
        held = await self._acquire()
        try:
            prepared = held.prepared.get(name) or await held.statement(name)
            found = await prepared.fetch(*args, timeout=CALL_SECONDS)
        except asyncpg.PostgresError as error:
            if isinstance(error, _STALE):
                held.prepared.clear()
            if isinstance(error, _LOST):
                self._discard(held)
            else:
                self._release(held)
            known = translate(error)
            if known is None:
                raise
            raise known from error
        except BaseException as error:
            # Cancelled, timed out or broken in mid-call: what the session is doing now is not known.
            self._discard(held)
            known = translate(error)
            if known is None:
                raise
            raise known from error
        self._release(held)
        return found
