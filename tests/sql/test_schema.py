"""The schema that the migrations end in, compared with tests/sql/schema.snapshot.

A change on purpose: `SCHEMA_SNAPSHOT=write ./test tests/sql/test_schema.py` writes it anew; the difference is reviewed with the change.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.sql.support import Connection

from queenmq.postgres.migrate import migrate, scripts

HERE = Path(__file__).parent
SNAPSHOT = HERE / "schema.snapshot"


async def schema(pg: Connection) -> str:
    rows = await pg.fetch((HERE / "schema.sql").read_text(encoding="utf-8"))
    return "".join(f"{row['line']}\n" for row in rows)


async def test_the_schema_is_the_one_that_was_reviewed(pg: Connection) -> None:
    found = await schema(pg)
    if os.environ.get("SCHEMA_SNAPSHOT") == "write":
        SNAPSHOT.write_text(found, encoding="utf-8")
    assert found == SNAPSHOT.read_text(encoding="utf-8"), "SCHEMA_SNAPSHOT=write ./test tests/sql/test_schema.py writes it anew"


async def test_functions_applied_once_more_change_nothing(pg: Connection, database_url: str) -> None:
    before = await schema(pg)
    for script in scripts("functions"):
        await pg.execute(script.text)
    assert await schema(pg) == before
    assert (await migrate(database_url)).functions == []
