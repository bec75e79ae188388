"""`queues`, and what the commands that look into the database itself share: beside a running server or without one.

Never changes anything. Invariant: a database without our schema is said to be one, not shown as an error of SQL.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import queenmq.postgres
from queenmq import config, logs
from queenmq.cli.output import emit, json_option, table
from queenmq.cli.supervisor import tool_database
from queenmq.errors import SetupError
from queenmq.postgres.preflight import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

data_option = click.option("--data", metavar="DIR", help="Where the server keeps everything (QUEENMQ_HOME).")
STATEMENTS = Path(queenmq.postgres.__file__).parent / "sql" / "setup"


def _statement(name: str) -> str:
    return (STATEMENTS / f"{name}.sql").read_text()


def tool_settings(data: str | None) -> config.Settings:
    settings = config.load(options={"home": data})
    logs.configure("warning", settings.log_format)
    return settings


@contextmanager
def schema_expected() -> Iterator[None]:
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
    settings = tool_settings(data)

    async def work() -> list[dict[str, Any]]:
        async with tool_database(settings) as dsn:
            connection = await connect(dsn)
            try:
                with schema_expected():
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
