"""`migrate` and `resync`: the schema brought up to date, an older system taken over or gone back to, derived rows checked and mended.

Never changes a message. Invariant: whatever fails or is broken off leaves the database as it was (`resync`: partition by partition).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

import click

from queenmq.cli.database import data_option, schema_expected, tool_settings
from queenmq.cli.output import emit, json_option, progress
from queenmq.cli.serve import Stopped, foreground
from queenmq.cli.supervisor import migrated, tool_database
from queenmq.config import Settings
from queenmq.postgres.preflight import connect

if TYPE_CHECKING:
    import asyncpg

    from queenmq.postgres.migrate import Applied
    from queenmq.postgres.resync import Resynced
    from queenmq.postgres.way_back import Back

T = TypeVar("T")


def _through_connection(settings: Settings, work: Callable[[asyncpg.Connection[asyncpg.Record]], Awaitable[T]]) -> T:
    """Does the work on one connection to the commands' database; Ctrl-C ends it."""

    async def connected() -> T:
        async with tool_database(settings) as dsn:
            connection = await connect(dsn)
            try:
                with schema_expected():
                    return await work(connection)
            finally:
                await connection.close()

    done = foreground(connected())
    if isinstance(done, Stopped):
        raise click.Abort
    return done


@click.command()
@data_option
@json_option
def resync(data: str | None, as_json: bool) -> int:
    """Compare every partition's counters with its messages and mend what is wrong.

    Safe beside a running server; a second run finds nothing. Prints how many partitions were looked at and what was mended.
    """

    async def work(connection: asyncpg.Connection[asyncpg.Record]) -> Resynced:
        from queenmq.postgres.resync import partitions
        from queenmq.postgres.resync import resync as run

        with progress("partitions", not as_json, await partitions(connection)) as step:
            return await run(connection, step)

    found = _through_connection(tool_settings(data), work)
    if as_json:
        emit(asdict(found))
    else:
        click.echo(f"{found.partitions} partitions looked at")
        click.echo(f"  {found.stale_lookups} counters corrected")
        click.echo(f"  {found.missing_rows} missing rows added")
        click.echo(f"  {found.stranded} stranded consumers made ready")
        if found.busy:
            click.echo(f"  {found.busy} partitions were locked all the time and left out: run it again", err=True)
    return 1 if found.busy else 0


@click.command()
@click.option("--back", is_flag=True, help="Go back to the older system's tables; what happened since is carried into them.")
@click.option("--leave", is_flag=True, help="With --back: carry nothing; what happened since stays in the schema queen_after only.")
@click.option("--forget", is_flag=True, help="Drop what an adoption (queen_before) or --back (queen_after) has kept.")
@data_option
@json_option
def migrate(back: bool, leave: bool, forget: bool, data: str | None, as_json: bool) -> int:
    """Bring the database's schema up to date without serving.

    A database of the older system is taken over on the way: messages, cursors, subscriptions and dead letters, in one transaction;
    its own tables are kept in the schema queen_before until --forget. Its servers must be stopped, and for --back ours.
    """
    if leave and not back:
        raise click.UsageError("--leave belongs to --back")
    settings = tool_settings(data)
    if not back and not forget:
        return _migrate(settings, as_json)
    gone = _through_connection(settings, lambda connection: _back_and_forget(connection, back, leave, forget))
    if as_json:
        emit({"back": asdict(gone[0]) if gone[0] else None, "dropped": gone[1]})
        return 0
    if gone[0]:
        click.echo("the older system's tables are the schema queen again; ours are kept as queen_after" + (" (dropped)" if gone[1] else ""))
        click.echo(f"  {gone[0].pushed} messages were pushed since, {gone[0].carried} of them are in the older tables now")
        click.echo(f"  {gone[0].cursors} cursors and {gone[0].dead_letters} dead letters were carried")
    if forget:
        click.echo(f"the schema {gone[1]} was dropped" if gone[1] else "there was nothing to forget")
    return 0


async def _back_and_forget(
    connection: asyncpg.Connection[asyncpg.Record], go_back: bool, leave: bool, drop: bool
) -> tuple[Back | None, str | None]:
    from queenmq.postgres.way_back import back, forget

    done = await back(connection, carry=not leave) if go_back else None
    return done, await forget(connection) if drop else None


def _migrate(settings: Settings, as_json: bool) -> int:
    async def work() -> Applied:
        async with tool_database(settings, make=True) as dsn:
            return await migrated(dsn)

    done = foreground(work())
    if isinstance(done, Stopped):
        raise click.Abort
    if as_json:
        adopted = {"adopted": done.adopted.figures} if done.adopted else {}
        emit({"migrations": done.migrations, "functions": done.functions, **adopted})
        return 0
    for name in done.migrations:
        click.echo(f"applied {name}")
    for line in done.adopted.lines() if done.adopted else ():
        click.echo(line)
    click.echo(f"the schema is up to date; {len(done.functions)} functions were made or renewed")
    return 0
