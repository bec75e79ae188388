"""After an adoption: the way back to the older system's tables, and their end.

`back` puts the older schema in its place again, carries what happened since into it unless told not to, and keeps ours as `queen_after`.
`forget` drops what either left behind. Never drops anything that something outside hangs on. Invariant: each is one transaction.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from queenmq.errors import SetupError
from queenmq.postgres.adopt import lock_out, sql
from queenmq.postgres.migrate import LOCK, statement

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]


@dataclass(frozen=True)
class Back:
    """What a way back did. `pushed` messages had come since the adoption; `carried` of them are in the older tables now."""

    pushed: int
    carried: int
    cursors: int
    dead_letters: int


async def back(connection: Connection, *, carry: bool = True) -> Back:
    """Goes back to the older system. Every server must be stopped."""
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(statement("migrate_lock"), LOCK)
        state = await connection.fetchrow(sql("state"))
        assert state is not None
        if not (state["ours"] and state["has_before"]):
            raise SetupError(
                "there is nothing to go back to: the tables of an older system are not, or no longer, in the schema queen_before."
            )
        if state["after_exists"]:
            raise SetupError("the schema queen_after of an earlier way back is still there: rename it or drop it first.")
        await _refuse_servers(connection)
        await lock_out(connection, "lock_back", "queen", "a QueenMQ server or client is still at work")
        for script in ("fill/10_views", "back/20_collect", "back/30_rename"):
            await connection.execute(sql(script))
        if carry:
            await _carry(connection)
        found = await connection.fetchrow(sql("since"))
        assert found is not None
        carried = json.loads(found["carried"] or "{}")
        await connection.execute(sql("back/50_tidy"))
    return Back(found["messages"], carried.get("messages", 0), carried.get("cursors", 0), carried.get("dead_letters", 0))


async def _refuse_servers(connection: Connection) -> None:
    servers = [row["session"] for row in await connection.fetch(sql("servers"))]
    if servers:
        raise SetupError(
            f"QueenMQ servers are connected to this database: stop them first; nothing was changed. Sessions: {'; '.join(servers)}"
        )


async def _carry(connection: Connection) -> None:
    try:
        async with connection.transaction():
            await connection.execute(sql("back/40_carry"))
    except asyncpg.PostgresError as error:
        raise SetupError(
            f"what was pushed since can't be put into the older tables ({error.args[0]}); nothing was changed. "
            "`queenmq migrate --back --leave` goes back without it and keeps it in queen_after."
        ) from error


async def forget(connection: Connection) -> str | None:
    """Drops the older tables after an adoption, or ours after a way back; gives the schema's name, None when there is none."""
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(statement("migrate_lock"), LOCK)
        state = await connection.fetchrow(sql("state"))
        assert state is not None
        if state["ours"] and state["has_before"]:
            schema, drop = "queen_before", "drop_before"
        elif state["has_after"]:
            schema, drop = "queen_after", "drop_after"
        else:
            return None
        outside = [row["what"] for row in await connection.fetch(sql("outside"), schema)]
        if outside:
            raise SetupError(
                f"these depend on the schema {schema} and would be lost with it; drop or change them first: {'; '.join(outside)}"
            )
        await connection.execute(sql(drop))
    return schema
