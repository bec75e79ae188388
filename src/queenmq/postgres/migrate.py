"""Brings a database to this version's schema: numbered migrations once, functions whenever their text has changed. A database of the
older system is taken over on the way (adopt.py).

Everything happens in one transaction under one advisory lock, so several servers may start at once and a failure leaves the database
as it was. Needs no superuser: a role that may create a schema, or owns the schema `queen`. Never drops data.
Invariant: what is applied is recorded in queen.schema_files in the same transaction.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from importlib import resources

import asyncpg

from queenmq.errors import SetupError
from queenmq.postgres import adopt

LOCK = 7_310_579_612_014
OLDEST_POSTGRES = 150_000


@dataclass(frozen=True)
class Script:
    """One SQL file of the package."""

    name: str
    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass
class Applied:
    """What a run changed."""

    migrations: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    adopted: adopt.Adopted | None = None


def scripts(kind: str) -> list[Script]:
    """The files of one folder under postgres/sql, in their order."""
    folder = resources.files("queenmq.postgres") / "sql" / kind
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [Script(name, (folder / name).read_text(encoding="utf-8")) for name in names]


def statement(name: str) -> str:
    """A named statement of postgres/sql/queries."""
    return (resources.files("queenmq.postgres") / "sql" / "queries" / f"{name}.sql").read_text(encoding="utf-8")


async def migrate(dsn: str) -> Applied:
    """Migrates the database behind the address."""
    connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(dsn)
    try:
        return await migrate_connection(connection)
    finally:
        await connection.close()


async def migrate_connection(connection: asyncpg.Connection[asyncpg.Record]) -> Applied:
    """Migrates through a connection that isn't in a transaction."""
    version = int(await connection.fetchval(statement("server_version")))
    if version < OLDEST_POSTGRES:
        raise SetupError(f"PostgreSQL {version // 10000} is too old: QueenMQ needs 15 or newer")
    applied = Applied()
    # whoever waited for the lock must see what was committed meanwhile, whatever the database's default level is
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(statement("migrate_lock"), LOCK)
        older = await adopt.set_aside(connection)
        try:
            await connection.execute(statement("migrate_bookkeeping"))
        except asyncpg.InsufficientPrivilegeError as error:
            raise SetupError(
                "this role may not create the schema queen: GRANT CREATE ON DATABASE … TO …, "
                "or CREATE SCHEMA queen AUTHORIZATION … as somebody who may"
            ) from error
        known = {row["name"]: row["digest"] for row in await connection.fetch(statement("migrate_known"))}
        for script in scripts("migrations"):
            if script.name not in known:
                await connection.execute(script.text)
                await connection.execute(statement("migrate_record"), "migration", script.name, script.digest)
                applied.migrations.append(script.name)
        for script in scripts("functions"):
            if known.get(script.name) != script.digest:
                await connection.execute(script.text)
                await connection.execute(statement("migrate_record"), "function", script.name, script.digest)
                applied.functions.append(script.name)
        # the triggers are in place and the older tables locked: nothing slips between (P8)
        if older:
            applied.adopted = await adopt.fill(connection)
    return applied
