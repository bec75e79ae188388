"""`queues`, `resync` and `migrate`: what looks into the database itself, beside a running server or without one.

Never changes a message. Invariant: `resync` works partition by partition, each in a transaction of its own: a broken-off run did no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import queenmq.postgres
from queenmq import config, logs
from queenmq.cli.output import emit, json_option, progress, table
from queenmq.cli.serve import Stopped, foreground
from queenmq.cli.supervisor import migrated, tool_database
from queenmq.errors import SetupError
from queenmq.postgres.preflight import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    import asyncpg

    from queenmq.postgres.migrate import Applied

data_option = click.option("--data", metavar="DIR", help="Where the server keeps everything (QUEENMQ_HOME).")
STATEMENTS = Path(queenmq.postgres.__file__).parent / "sql" / "setup"
PAGE = 1000
LOCK_TRIES = 20


def _statement(name: str) -> str:
    return (STATEMENTS / f"{name}.sql").read_text()


def _settings(data: str | None) -> config.Settings:
    settings = config.load(options={"home": data})
    logs.configure("warning", settings.log_format)
    return settings


@contextmanager
def _schema_expected() -> Iterator[None]:
    import asyncpg

    try:
        yield
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError, asyncpg.UndefinedFunctionError):
        raise SetupError("the database has no (or an older) QueenMQ schema: run `queenmq migrate`, or start the server once.") from None


@click.command()
@data_option
@json_option
def queues(data: str | None, as_json: bool) -> int:
    """List the queues with what waits in them.

    WAITING is the largest backlog of any consumer group, STORED what lies in the table, DEAD the dead letters.
    """
    settings = _settings(data)

    async def work() -> list[dict[str, Any]]:
        async with tool_database(settings) as dsn:
            connection = await connect(dsn)
            try:
                with _schema_expected():
                    return [dict(row) for row in await connection.fetch(_statement("queues"))]
            finally:
                await connection.close()

    rows = asyncio.run(work())
    if as_json:
        emit(rows)
        return 0
    if not rows:
        click.echo('There are no queues yet. The first push makes one: queenmq push orders \'{"hello": "world"}\'')
        return 0
    columns = ("name", "namespace", "task", "partitions", "groups", "waiting", "stored", "dead")
    table(columns, ([row[name] for name in columns] for row in rows), right=("partitions", "groups", "waiting", "stored", "dead"))
    return 0


@click.command()
@data_option
@json_option
def resync(data: str | None, as_json: bool) -> int:
    """Compare every partition's counters with its messages and mend what is wrong.

    Safe beside a running server; a second run finds nothing. Prints how many partitions were looked at and what was mended.
    """
    settings = _settings(data)
    found = {"partitions": 0, "stale_lookups": 0, "missing_rows": 0, "stranded": 0, "busy": 0}

    async def work() -> None:
        async with tool_database(settings) as dsn:
            connection = await connect(dsn)
            try:
                with _schema_expected(), progress("partitions", not as_json) as step:
                    await _resync(connection, found, step)
            finally:
                await connection.close()

    if isinstance(foreground(work()), Stopped):
        raise click.Abort
    if as_json:
        emit(found)
    else:
        click.echo(f"{found['partitions']} partitions looked at")
        click.echo(f"  {found['stale_lookups']} counters corrected")
        click.echo(f"  {found['missing_rows']} consumer rows added")
        click.echo(f"  {found['stranded']} stranded consumers made ready")
        if found["busy"]:
            click.echo(f"  {found['busy']} partitions were locked all the time and left out: run it again", err=True)
    return 1 if found["busy"] else 0


async def _resync(connection: asyncpg.Connection[asyncpg.Record], found: dict[str, int], step: Callable[[], None]) -> None:
    import asyncpg

    last = 0
    one = _statement("resync_partition")
    while page := await connection.fetch(_statement("partitions_after"), last, PAGE):
        for (partition,) in page:
            for attempt in range(LOCK_TRIES):
                try:
                    row = await connection.fetchrow(one, partition)
                    assert row is not None
                    found["stale_lookups"] += row["stale"] or 0
                    found["missing_rows"] += row["rows"] or 0
                    found["stranded"] += row["stranded"] or 0
                    break
                except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
                    if attempt == LOCK_TRIES - 1:
                        found["busy"] += 1
            found["partitions"] += 1
            step()
        last = page[-1][0]


@click.command()
@data_option
@json_option
def migrate(data: str | None, as_json: bool) -> int:
    """Bring the database's schema up to date without serving."""
    settings = _settings(data)

    async def work() -> Applied:
        async with tool_database(settings, make=True) as dsn:
            return await migrated(dsn)

    done = foreground(work())
    if isinstance(done, Stopped):
        raise click.Abort
    if as_json:
        emit({"migrations": done.migrations, "functions": done.functions})
    else:
        for name in done.migrations:
            click.echo(f"applied {name}")
        click.echo(f"the schema is up to date; {len(done.functions)} functions were made or renewed")
    return 0
