"""Before a server uses a database: can it be reached, and is it one that will do? Also: what a failure of it means, in a person's words.

Never writes anything. Invariant: no text made here carries a password or a row.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from queenmq.errors import SetupError

if TYPE_CHECKING:
    import asyncpg

LEAST_VERSION = 15
CONNECT_SECONDS = 10.0
FACTS = Path(__file__).parent / "sql" / "setup" / "facts.sql"


@dataclass(frozen=True)
class Facts:
    """What a database says of itself."""

    version: str
    version_number: int
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    max_connections: int
    read_only: bool
    role: str
    database: str
    may_create: bool
    has_schema: bool

    @property
    def durable(self) -> bool:
        """Does an acknowledged commit survive a power cut (synchronous_commit aside, which we set ourselves)?"""
        return self.fsync and self.full_page_writes


def place(dsn: str) -> str:
    """host:port/database of an address, without user and password."""
    parts = urlsplit(dsn)
    host = parts.hostname or parse_qs(parts.query).get("host", ["localhost"])[0]
    port = parts.port or parse_qs(parts.query).get("port", ["5432"])[0]
    return f"{host}:{port}{parts.path}"


async def connect(dsn: str) -> asyncpg.Connection[asyncpg.Record]:
    """One connection, or a SetupError that says why not."""
    import asyncpg

    try:
        return await asyncpg.connect(dsn, timeout=CONNECT_SECONDS)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError, ValueError) as error:
        raise explain(error, dsn) from error


async def facts(dsn: str) -> Facts:
    """Asks the database of itself."""
    import asyncpg

    connection = await connect(dsn)
    try:
        row = await connection.fetchrow(FACTS.read_text())
    except asyncpg.PostgresError as error:
        raise explain(error, dsn) from error
    finally:
        await connection.close(timeout=2)
    assert row is not None
    return Facts(**dict(row))


def refuse_unfit(found: Facts, dsn: str) -> None:
    """Raises when a server can't work with that database."""
    if found.version_number < LEAST_VERSION * 10000:
        raise SetupError(
            f"the database at {place(dsn)} is PostgreSQL {found.version}; QueenMQ needs {LEAST_VERSION} or later: upgrade it, name another "
            "in QUEEN_DATABASE_URL, or unset that for the embedded one."
        )
    if found.read_only:
        raise SetupError(f"the database at {place(dsn)} is a read-only standby: name the primary in QUEEN_DATABASE_URL.")
    if not found.may_create and not found.has_schema:
        raise SetupError(_no_right(found.role, found.database))


def _no_right(role: str, database: str) -> str:
    return (
        f"the role {role} has no right to create the schema `queen` in the database {database}. As its owner, run: "
        f'GRANT CREATE ON DATABASE "{database}" TO "{role}"'
    )


def explain(error: BaseException, dsn: str) -> SetupError:
    """The failure of a connection or of a migration as something to act on."""
    import asyncpg

    where, parts = place(dsn), urlsplit(dsn)
    user, database = parts.username or "(none)", parts.path.lstrip("/") or parts.username or ""
    check = "Check QUEEN_DATABASE_URL (or PG_HOST, PG_PORT, PG_DB, PG_USER, PG_PASSWORD)."
    if isinstance(error, SetupError):
        return error
    if isinstance(error, asyncpg.InvalidPasswordError):
        return SetupError(f"the database at {where} refuses the password of {user}. {check}")
    if isinstance(error, asyncpg.InvalidAuthorizationSpecificationError):
        return SetupError(f"the database at {where} doesn't let {user} in: {error.args[0]}. {check}")
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return SetupError(f"the server at {where} has no database {database}. Make it (createdb {database}), or correct the name. {check}")
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return SetupError(f"{_no_right(user, database)} (PostgreSQL said: {error.args[0]})")
    if isinstance(error, asyncpg.DiskFullError) or (isinstance(error, OSError) and error.errno == errno.ENOSPC):
        return SetupError(f"the disk of the database at {where} is full: free some space there and start again.")
    if isinstance(error, asyncpg.TooManyConnectionsError):
        return SetupError(f"the database at {where} has no free connection: raise its max_connections, or lower DB_POOL_SIZE.")
    if isinstance(error, asyncpg.CannotConnectNowError):
        return SetupError(f"the database at {where} is starting up or shutting down: try again in a moment.")
    if isinstance(error, socket.gaierror):
        return SetupError(f"there is no host {parts.hostname}: its name is not known. {check}")
    if isinstance(error, ConnectionRefusedError | FileNotFoundError) or "Connect call failed" in str(error):
        return SetupError(f"nothing answers at {where}: is PostgreSQL running there? {check}")
    if isinstance(error, TimeoutError):
        return SetupError(f"no answer from {where} within {CONNECT_SECONDS:.0f} s: is the host right, is a firewall between? {check}")
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return SetupError(f"the database at {where} can't be used: {text}. {check}")
