"""`queenmq migrate` on a database of the older system: what it prints, the way back, forgetting, and clear words when it can't."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from tests.adopt.older import Older
from tests.cli_tools import queenmq

if TYPE_CHECKING:
    from tests.adopt.older import Connection


async def test_migrate_back_and_forget_on_the_command_line(older: Older, empty_database_url: str, home_dir: Path) -> None:
    (p,) = await older.queue("q")
    rows = await older.messages(p, 3)
    await older.cursor(p, "g", 0, rows[0])
    settings = {"QUEEN_DATABASE_URL": empty_database_url, "QUEENMQ_HOME": str(home_dir)}
    said = await queenmq("migrate", **settings)
    assert said.code == 0, said.err
    assert "taken over from the older system: messages 3, partitions 1, queues 1" in said.out
    assert "kept in the schema queen_before" in said.out
    assert "adopted" not in (await queenmq("migrate", "--json", **settings)).json
    assert (await queenmq("queues", "--json", **settings)).json[0]["stored"] == 3

    await older.pg.execute("SELECT queen.push('q', 'Default', $1::json)", json.dumps({"id": str(uuid.uuid4())}))
    gone_back = await queenmq("migrate", "--back", "--json", **settings)
    assert gone_back.json == {"back": {"pushed": 1, "carried": 1, "cursors": 1, "dead_letters": 0}, "dropped": None}
    assert (await queenmq("migrate", "--forget", **settings)).out == "the schema queen_after was dropped\n"
    again = (await queenmq("migrate", "--json", **settings)).json
    assert again["adopted"]["messages"] == 4
    assert (await queenmq("migrate", "--forget", "--json", **settings)).json == {"back": None, "dropped": "queen_before"}
    nothing = await queenmq("migrate", "--back", **settings)
    assert nothing.code == 1
    assert "nothing to go back to" in nothing.err


async def test_what_stops_the_adoption_is_said_without_a_traceback(before: Connection, empty_database_url: str, home_dir: Path) -> None:
    older = await Older(before).create()
    (p,) = await older.queue("q")
    await before.execute("ALTER TABLE queen.messages ALTER payload TYPE text USING payload::text")
    bad = await older.message(p, 0)
    await before.execute("UPDATE queen.messages SET payload = 'not json' WHERE id = $1", bad)
    settings = {"QUEEN_DATABASE_URL": empty_database_url, "QUEENMQ_HOME": str(home_dir)}
    said = await queenmq("migrate", **settings)
    assert said.code == 1
    assert "nothing was changed" in said.err
    assert "Traceback" not in said.err
    wrong = await queenmq("migrate", "--leave", **settings)
    assert wrong.code == 2
