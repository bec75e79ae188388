"""Takes over a database of the older system: its tables are moved to the schema `queen_before` and their content into ours.

All inside the transaction of the migration: `set_aside` locks the older tables against everybody and renames their schema, the migration
makes ours with its triggers, `fill` carries messages, cursors, subscriptions and dead letters over. Never changes a row of the older
tables. Invariant: either all of it is committed, with as many messages as there were, or the older database is as it was.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

from queenmq.errors import SetupError

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

BEFORE = "queen_before"
_SQL = Path(__file__).parent / "sql" / "adopt"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Adopted:
    """What was taken over, by name, as it is kept in queen.system_state under `adoption`."""

    figures: dict[str, Any]

    def lines(self) -> list[str]:
        """For a person to read."""
        f = self.figures
        found = [
            f"taken over from the older system: messages {f['messages']}, partitions {f['partitions']}, queues {f['queues']}",
            f"  groups {f['groups']}, cursors {f['cursors']}, subscriptions {f['subscriptions']}, dead letters {f['dead_letters']}",
            f"  the older tables are kept in the schema {BEFORE} (`queenmq migrate --back` returns to them, `--forget` drops them)",
        ]
        notes = {
            "leases_ended": "leases ended: {} (their messages are delivered again)",
            "transaction_ids_made": "messages without a transaction id: {} (theirs is now their old message id)",
            "transaction_ids_renamed": "messages with the transaction id of an earlier one beside them: {} (their old id was appended)",
            "messages_without_partition": f"messages that belong to no partition: {{}} (they were left in {BEFORE})",
            "dead_letters_without_partition": f"dead letters that belong to no partition: {{}} (they were left in {BEFORE})",
        }
        found += [f"  {text.format(f[name])}" for name, text in notes.items() if f[name]]
        if f["ttl_left_off"]:
            names = ", ".join(f["ttl_left_off"])
            found.append(f"  ttl is off for {names}: messages older than it still wait there; configure it again to let them expire")
        return found


def sql(name: str) -> str:
    """A statement of postgres/sql/adopt."""
    return (_SQL / f"{name}.sql").read_text(encoding="utf-8")


async def set_aside(connection: Connection) -> bool:
    """Moves the older system's tables out of the way. False: there are none. Inside the migration's transaction, under its lock."""
    found = await connection.fetchrow(sql("examine"))
    assert found is not None
    if found["kind"] == "ours":
        return False
    if found["kind"] == "later":
        raise SetupError(
            "the schema queen of this database belongs to a later generation of the older system, which keeps messages in segments: "
            "it can't be taken over. Rename it (ALTER SCHEMA queen RENAME TO …) or name another database in QUEEN_DATABASE_URL. "
            "Nothing was changed."
        )
    if found["kind"] == "foreign" or found["lacking"]:
        lacks = f" (what is missing: {', '.join(found['lacking'])})" if found["kind"] == "older" else ""
        raise SetupError(
            f"the schema queen of this database holds tables that are neither QueenMQ's nor the older system's{lacks}: "
            f"{', '.join(found['tables'])}. Rename it (ALTER SCHEMA queen RENAME TO …) or name another database in QUEEN_DATABASE_URL."
        )
    if found["before_exists"]:
        raise SetupError(
            f"the tables of an older system are to be taken over, and the schema {BEFORE}, where they would be kept, exists already: "
            f"rename it (ALTER SCHEMA {BEFORE} RENAME TO …) or drop it, and start again. Nothing was changed."
        )
    await lock_out(connection, "lock", "queen", "the older server is still running, or somebody works on its tables")
    try:
        async with connection.transaction():
            await connection.execute(sql("set_aside"))
    except asyncpg.InsufficientPrivilegeError as error:
        raise SetupError(
            "this role may not rename the schema queen, which taking over the older tables needs. As a superuser or its owner, run: "
            f"ALTER SCHEMA queen OWNER TO {found['role']}; GRANT CREATE ON DATABASE {found['database']} TO {found['role']} "
            f"(PostgreSQL said: {error.args[0]}). Nothing was changed."
        ) from error
    return True


async def lock_out(connection: Connection, statement: str, schema: str, who: str) -> None:
    """Locks a schema's tables against everybody, or says who has them. Waits 5 s, or the session's own lock_timeout."""
    try:
        async with connection.transaction():
            await connection.execute(sql(statement))
    except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
        sessions = [row["session"] for row in await connection.fetch(sql("users"), schema)]
        raise SetupError(
            f"the tables of the schema {schema} are in use: {who}. Stop every server of it, end what else is open, and start again; "
            f"nothing was changed. In use by: {'; '.join(sessions) or 'somebody who has just left'}"
        ) from error
    except asyncpg.InsufficientPrivilegeError as error:
        raise SetupError(
            f"this role doesn't own the tables of the schema {schema}, which moving them needs: connect as their owner. "
            f"(PostgreSQL said: {error.args[0]}) Nothing was changed."
        ) from error


async def fill(connection: Connection) -> Adopted:
    """Carries the content over, set by set, and looks that nothing is missing. The tables and triggers are in place."""
    for script in sorted((_SQL / "fill").glob("*.sql")):
        try:
            await connection.execute(script.read_text(encoding="utf-8"))
        except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.RaiseError, asyncpg.CannotCoerceError) as error:
            raise SetupError(
                f"the older system's tables could not be taken over ({script.stem}: {error.args[0]}); nothing was changed. "
                "Mend that row, or set it aside, and start again."
            ) from error
    adopted = Adopted(json.loads(await connection.fetchval(sql("adoption"))))
    for line in adopted.lines():
        log.info(line)
    waiting = [row["session"] for row in await connection.fetch(sql("users"), BEFORE)]
    if waiting:
        log.warning(
            "sessions of the older system are still at work and will fail from now on: stop them", extra={"sessions": "; ".join(waiting)}
        )
    return adopted
