"""The command line without a server: help, settings, doctor, the database commands, refusals in clear words with their exit codes."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import asyncpg
from tests.cli_tools import queenmq

import queenmq as package
from queenmq.cli import COMMANDS
from queenmq.postgres.embedded import EmbeddedPostgres


async def test_the_help_names_every_command_and_every_command_has_its_own() -> None:
    said = await queenmq("--help")
    assert said.code == 0
    for name in COMMANDS:
        assert f"  {name} " in said.out
        own = await queenmq(name, "--help")
        assert (own.code, own.err) == (0, "")
        assert "--json" in own.out
    assert (await queenmq("--version")).out == f"queenmq, version {package.__version__}\n"


async def test_wrong_usage_ends_with_two() -> None:
    for words in (["nonsense"], ["push"], ["pop", "orders", "--batch", "0"], ["push", "q", "1", "2", "--transaction-id", "x"]):
        said = await queenmq(*words)
        assert said.code == 2
        assert said.out == ""
        assert "Usage" in said.err or "Error" in said.err


async def test_config_prints_all_with_value_source_and_meaning(home_dir: Path) -> None:
    said = await queenmq("config", "--json", PORT="7000", QUEENMQ_HOME=str(home_dir), QUEEN_ENCRYPTION_KEY="ab" * 32, QUEEN_MAX_BODY="3")
    rows = {row["name"]: row for row in said.json["settings"]}
    assert (rows["PORT"]["value"], rows["PORT"]["default"], rows["PORT"]["source"]) == ("7000", "6632", "environment")
    assert rows["QUEENMQ_HOME"]["value"] == str(home_dir)
    assert rows["QUEEN_ENCRYPTION_KEY"]["value"] == "***"
    assert said.json["unknown"] == ["QUEEN_MAX_BODY is no setting; QUEEN_MAX_BODY_MB is meant?"]
    plain = await queenmq("config", PORT="7000")
    assert "PORT = 7000 (environment)" in plain.out
    assert "Default: 6632." in plain.out


async def test_config_markdown_is_the_documentation() -> None:
    said = await queenmq("config", "--markdown")
    assert said.out == (Path(__file__).parent.parent / "docs" / "configuration.md").read_text()


async def test_a_bad_setting_stops_every_command_with_its_name() -> None:
    for words in (["up"], ["config"], ["queues"], ["push", "q", "1"]):
        said = await queenmq(*words, PORT="high")
        assert (said.code, said.out) == (1, "")
        assert said.err == (
            "queenmq: PORT is 'high'; allowed is a whole number from 1 to 65535. Correct it, or unset it for the default.\n"
        )


async def test_an_open_host_is_refused_before_anything_is_made(home_dir: Path) -> None:
    said = await queenmq("up", "--host", "0.0.0.0", "--data", str(home_dir / "new"))
    assert said.code == 1
    assert "--insecure" in said.err
    assert not (home_dir / "new").exists()


async def test_a_taken_port_is_said_before_anything_is_made(home_dir: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        said = await queenmq("up", "--port", port, "--data", str(home_dir / "new"))
    assert said.code == 1
    assert f"127.0.0.1:{port} is taken by another program" in said.err
    assert not (home_dir / "new").exists()


async def test_a_database_that_cant_be_used_is_said_by_every_command(home_dir: Path) -> None:
    for words in (["up", "--port", "1"], ["migrate"], ["queues"], ["resync"]):
        said = await queenmq(*words, QUEEN_DATABASE_URL="postgresql://u:secret@nowhere.invalid/db", QUEENMQ_HOME=str(home_dir))
        assert said.code == 1
        assert "nowhere.invalid" in said.err or words[0] == "up"
        assert "secret" not in said.err


async def test_migrate_makes_the_schema_once_and_queues_reads_it(empty_database_url: str, home_dir: Path) -> None:
    settings = {"QUEEN_DATABASE_URL": empty_database_url, "QUEENMQ_HOME": str(home_dir)}
    before = await queenmq("queues", **settings)
    assert before.code == 1
    assert "run `queenmq migrate`" in before.err
    first = await queenmq("migrate", "--json", **settings)
    assert first.json["migrations"]
    assert first.json["functions"]
    again = await queenmq("migrate", "--json", **settings)
    assert again.json == {"migrations": [], "functions": []}
    assert "There are no queues yet" in (await queenmq("queues", **settings)).out


async def test_queues_counts_what_waits_and_what_is_stored(
    pg: asyncpg.Connection[asyncpg.Record], database_url: str, home_dir: Path
) -> None:
    await pg.execute("SELECT queen.push('a.b', 'one', '1'), queen.push('a.b', 'two', '2')")
    settings = {"QUEEN_DATABASE_URL": database_url, "QUEENMQ_HOME": str(home_dir)}
    (row,) = (await queenmq("queues", "--json", **settings)).json
    assert (row["name"], row["partitions"], row["stored"], row["waiting"], row["dead"]) == ("a.b", 2, 2, 2, 0)
    plain = (await queenmq("queues", **settings)).out.splitlines()
    assert [line.split("\t")[0] for line in plain] == ["name", "a.b"]


async def test_resync_mends_once_and_finds_nothing_then(pg: asyncpg.Connection[asyncpg.Record], database_url: str, home_dir: Path) -> None:
    await pg.execute("SELECT queen.push('orders', 'one', '1')")
    await pg.execute("SELECT queen.push('orders', 'one', '2')")
    await pg.execute("UPDATE queen.partition_lookup SET next_seq = 1")
    settings = {"QUEEN_DATABASE_URL": database_url, "QUEENMQ_HOME": str(home_dir)}
    first = (await queenmq("resync", "--json", **settings)).json
    assert (first["partitions"], first["stale_lookups"], first["busy"]) == (1, 1, 0)
    assert await pg.fetchval("SELECT next_seq FROM queen.partition_lookup") == 3
    again = (await queenmq("resync", "--json", **settings)).json
    assert again == {"partitions": 1, "stale_lookups": 0, "missing_rows": 0, "stranded": 0, "busy": 0}


async def test_doctor_passes_where_a_server_would_start_and_fails_where_not(home_dir: Path, database_url: str) -> None:
    good = await queenmq("doctor", "--json", QUEENMQ_HOME=str(home_dir), PORT="1234")
    assert (good.code, good.json["healthy"]) == (0, True)
    assert {finding["check"] for finding in good.json["findings"]} == {"python", "settings", "disk", "port", "database"}
    bad = await queenmq("doctor", "--json", QUEENMQ_HOME=str(home_dir), QUEEN_DATABASE_URL="postgresql://nowhere.invalid/db", PORT="1234")
    assert (bad.code, bad.json["healthy"]) == (1, False)
    # the run's own PostgreSQL has fsync off: named, and a failure
    unsafe = await queenmq("doctor", "--json", QUEENMQ_HOME=str(home_dir), QUEEN_DATABASE_URL=database_url, PORT="1234")
    assert unsafe.code == 1
    durable = next(found["text"] for found in unsafe.json["findings"] if found["check"] == "durable")
    assert durable.startswith("fsync and full_page_writes off")


async def test_without_a_database_the_commands_say_to_start_once(home_dir: Path) -> None:
    said = await queenmq("queues", "--data", str(home_dir))
    assert said.code == 1
    assert "start the server once" in said.err


async def test_commands_find_the_database_of_a_server_that_runs_and_start_one_that_doesnt(home_dir: Path) -> None:
    server = EmbeddedPostgres(home_dir)
    await server.start()
    try:
        # nobody holds the home's lock here, so this one only looks
        said = await queenmq("queues", "--data", str(home_dir))
        assert "run `queenmq migrate`" in said.err
    finally:
        await server.stop()
    assert (await queenmq("migrate", "--data", str(home_dir))).code == 0
    assert "There are no queues yet" in (await queenmq("queues", "--data", str(home_dir))).out
    assert EmbeddedPostgres.running_dsn(home_dir) is None


async def test_no_server_is_said_with_its_address() -> None:
    for words in (["push", "q", "1"], ["pop", "q"]):
        said = await queenmq(*words, "--url", "http://127.0.0.1:9")
        assert said.code == 1
        assert "no server answers at http://127.0.0.1:9" in said.err


async def test_a_payload_that_is_no_json_is_named_and_text_is_offered() -> None:
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        said = await queenmq("push", "q", "{bad", "--url", url)
        piped = await queenmq("push", "q", "--url", url, stdin='{"a":1}\n\nbad\n')
    assert said.code == 1
    assert "payload 1 is not JSON" in said.err
    assert "--text" in said.err
    assert "line 3 is not JSON" in piped.err
