"""The laboratory of one run: a PostgreSQL of its own with production settings, fresh databases in it, and our server as a process.

It never touches an existing database or data directory: everything lies in a temporary folder that is removed at the end. Its
invariant: fsync, full_page_writes and synchronous_commit are on, for every side.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
from benchmarks.common import HERE, children, cpu_seconds

from queenmq.postgres.binaries import account_for, binaries_for
from queenmq.postgres.embedded import PORT, ROLE, SUPERUSER, EmbeddedPostgres
from queenmq.postgres.migrate import migrate

# Room for one run without a checkpoint in the middle of one side's turn; durability itself stays as in production.
SETTINGS = {
    "max_connections": "300",
    "shared_buffers": "1GB",
    "max_wal_size": "16GB",
    "min_wal_size": "2GB",
    "checkpoint_timeout": "30min",
}


def queries(name: str, folder: Path = HERE / "sql") -> dict[str, str]:
    """The named statements of `sql/<name>.sql`."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in (folder / f"{name}.sql").read_text().splitlines():
        if line.startswith("-- name: "):
            current = found.setdefault(line.removeprefix("-- name: ").strip(), [])
        elif line.strip():
            current.append(line)
    return {key: "\n".join(lines).rstrip(";") for key, lines in found.items()}


LAB = queries("lab")


@dataclass(slots=True)
class Postgres:
    """A running PostgreSQL: where it listens, which process it is, what fresh databases it can make."""

    embedded: EmbeddedPostgres
    binaries: Path
    directory: Path  # of its socket
    version: str = ""
    port: int = PORT
    user: str = ROLE

    def url(self, database: str) -> str:
        return self.embedded.dsn(database)

    async def connect(self, database: str = "postgres", user: str = ROLE) -> asyncpg.Connection[Any]:
        return await asyncpg.connect(host=str(self.directory), port=self.port, user=user, database=database)

    def create(self, database: str, template: str | None = None) -> str:
        """A fresh database of the plain role; returns its name."""
        self.drop(database)
        self._tool("createdb", "--owner", ROLE, *(["--template", template] if template else []), database)
        return database

    async def migrated(self, database: str) -> str:
        """A fresh database with our schema."""
        await migrate(self.url(self.create(database)))
        return database

    def drop(self, database: str) -> None:
        self._tool("dropdb", "--if-exists", "--force", database)

    async def tidy(self, *databases: str) -> None:
        """VACUUM ANALYZE of every side, then one checkpoint, so that no turn pays for another's."""
        for database in databases:
            await self.execute(database, LAB["tidy"])
        await self.execute("postgres", LAB["checkpoint"])

    async def execute(self, database: str, statement: str) -> None:
        connection = await self.connect(database, SUPERUSER)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    def cpu(self) -> float:
        """Seconds of CPU of all its processes so far."""
        return cpu_seconds(children(self.embedded.pid or 0))

    def _tool(self, name: str, *arguments: str) -> None:
        command = [str(self.binaries / name), "-h", str(self.directory), "-p", str(self.port), "-U", SUPERUSER, *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd="/")


@contextlib.asynccontextmanager
async def postgres() -> AsyncIterator[Postgres]:
    """A PostgreSQL in a temporary folder, gone with everything in it at the end."""
    with tempfile.TemporaryDirectory(prefix="qmb-") as temporary:
        home = Path(temporary)
        home.chmod(0o755)
        embedded = EmbeddedPostgres(home, options=SETTINGS)
        await embedded.start()
        try:
            binaries = binaries_for(account_for(embedded.data), home)
            running = Postgres(embedded, binaries, embedded.data)
            connection = await running.connect()
            running.version = f"PostgreSQL {(await connection.fetchval(LAB['version'])).split()[0]}"
            await connection.close()
            yield running
        finally:
            await embedded.stop()
