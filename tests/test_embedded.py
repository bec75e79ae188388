"""The embedded PostgreSQL: unprivileged, durable, back after any kill, gone after stop; the home's lock; set-up failures in clear words."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncpg
import pytest

from queenmq.errors import SetupError
from queenmq.home import open_home
from queenmq.postgres import preflight
from queenmq.postgres.binaries import Account, binaries_for, first_closed
from queenmq.postgres.embedded import SUPERUSER, EmbeddedPostgres

STARTER = """
import asyncio, sys
from pathlib import Path
from queenmq.postgres.embedded import EmbeddedPostgres

async def main():
    server = EmbeddedPostgres(Path(sys.argv[1]))
    await server.start()
    print(server.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def _until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def _ask(dsn: str, question: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


async def test_it_serves_a_plain_role_on_its_own_database_with_every_safety_on(durable_postgres: EmbeddedPostgres) -> None:
    connection = await asyncpg.connect(durable_postgres.dsn())
    row = await connection.fetchrow(
        "SELECT rolsuper, rolcreatedb, current_user, current_database(), (SELECT pg_get_userbyid(datdba) FROM pg_database "
        "WHERE datname = current_database()) AS owner FROM pg_roles WHERE rolname = current_user"
    )
    assert row is not None
    assert tuple(row) == (False, False, "queenmq", "queenmq", "queenmq")
    for name, value in {
        "fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "listen_addresses": "", "jit": "off",
        "server_encoding": "UTF8", "data_checksums": "on",
    }.items():  # fmt: skip
        assert await connection.fetchval("SELECT current_setting($1)", name) == value
    await connection.close()
    found = await preflight.facts(durable_postgres.dsn())
    assert found.durable
    assert found.may_create


async def test_it_never_runs_as_root_and_only_its_user_enters_the_data(durable_postgres: EmbeddedPostgres) -> None:
    assert durable_postgres.pid is not None
    assert os.stat(f"/proc/{durable_postgres.pid}").st_uid != 0
    assert durable_postgres.data.stat().st_mode & 0o777 == 0o700


async def test_stop_leaves_nothing_running_and_start_finds_what_was_stored(made_home: Path) -> None:
    server = EmbeddedPostgres(made_home)
    dsn = await server.start()
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    await connection.close()
    pid = server.pid
    assert pid is not None
    await server.stop()
    assert not _alive(pid)
    assert await _ask(await server.start(), "SELECT answer FROM kept") == 42
    await server.stop()


async def test_a_killed_postgres_is_started_again_with_all_that_was_committed(durable_postgres: EmbeddedPostgres) -> None:
    connection = await asyncpg.connect(durable_postgres.dsn())
    await connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    pid = durable_postgres.pid
    assert pid is not None
    watching = asyncio.create_task(durable_postgres.watch())
    os.kill(pid, signal.SIGKILL)
    answer: object = None
    async with asyncio.timeout(30):
        while answer is None:
            await asyncio.sleep(0)
            with contextlib.suppress(OSError, asyncpg.PostgresError):
                answer = await _ask(durable_postgres.dsn(), "SELECT answer FROM kept")
    assert answer == 42
    assert durable_postgres.pid != pid
    await durable_postgres.stop()
    await watching
    connection.terminate()


async def _start_elsewhere(home: Path) -> tuple[asyncio.subprocess.Process, int]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", STARTER, str(home), stdout=subprocess.PIPE)
    assert process.stdout is not None
    return process, int(await asyncio.wait_for(process.stdout.readline(), 30))


async def test_a_killed_server_takes_its_postgres_along(made_home: Path) -> None:
    process, pid = await _start_elsewhere(made_home)
    process.kill()
    await process.wait()
    await _until(lambda: not _alive(pid))


async def test_a_postgres_that_outlived_its_server_is_replaced(made_home: Path) -> None:
    process, pid = await _start_elsewhere(made_home)
    assert EmbeddedPostgres.running_dsn(made_home) is not None
    server = EmbeddedPostgres(made_home)
    try:
        assert await _ask(await server.start(), "SELECT 1") == 1
        assert not _alive(pid)
        assert server.pid != pid
    finally:
        await server.stop()
        process.kill()
        await process.wait()
    assert EmbeddedPostgres.running_dsn(made_home) is None


async def test_a_pid_file_that_names_a_stranger_doesnt_keep_it_from_starting(made_home: Path) -> None:
    server = EmbeddedPostgres(made_home)
    await server.start()
    lines = (server.data / "postmaster.pid").read_text().splitlines()
    await server.stop()
    stranger = await asyncio.create_subprocess_exec("sleep", "60")
    (server.data / "postmaster.pid").write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
    try:
        assert await _ask(await server.start(), "SELECT 1") == 1
        assert stranger.returncode is None
    finally:
        await server.stop()
        stranger.kill()
        await stranger.wait()


async def test_a_half_made_database_is_made_anew(home_dir: Path) -> None:
    beside = home_dir / "postgres.new"
    beside.mkdir()
    (beside / "PG_VERSION").write_text("18\n")
    server = EmbeddedPostgres(home_dir)
    try:
        assert await _ask(await server.start(), "SELECT 1") == 1
    finally:
        await server.stop()


async def test_a_long_path_still_gets_a_socket(home_dir: Path) -> None:
    deep = home_dir / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True, mode=0o755)
    server = EmbeddedPostgres(deep, options={"fsync": "off"})
    dsn = await server.start()
    assert await _ask(dsn, "SELECT 1") == 1
    assert EmbeddedPostgres.running_dsn(deep) == dsn
    place = Path(dsn.partition("host=")[2].partition("&")[0])
    await server.stop()
    assert not place.exists()


async def test_what_lies_in_the_way_of_the_database_is_not_touched(home_dir: Path) -> None:
    (home_dir / "postgres").mkdir()
    (home_dir / "postgres" / "letter.txt").write_text("dear")
    with pytest.raises(SetupError, match="neither empty nor a PostgreSQL database"):
        await EmbeddedPostgres(home_dir).start()
    assert (home_dir / "postgres" / "letter.txt").read_text() == "dear"


async def test_a_database_of_another_version_is_refused(home_dir: Path) -> None:
    (home_dir / "postgres").mkdir()
    (home_dir / "postgres" / "PG_VERSION").write_text("16\n")
    with pytest.raises(SetupError, match="made by PostgreSQL 16"):
        await EmbeddedPostgres(home_dir).start()


def test_binaries_that_the_user_cant_reach_are_copied(home_dir: Path) -> None:
    stranger = Account("nobody", 65534, 65534, switch=True)
    site = binaries_for(stranger, home_dir, dry=True)
    found = binaries_for(stranger, home_dir)
    assert first_closed(found, stranger) is None
    done = subprocess.run([found / "postgres", "--version"], capture_output=True, text=True, check=True)
    assert "PostgreSQL) 18" in done.stdout
    assert (found == site) == (first_closed(site, stranger) is None)


# ---------------------------------------------------------------------- the home


def test_a_second_server_on_a_home_is_told_who_is_there(home_dir: Path) -> None:
    first = open_home(home_dir)
    with pytest.raises(SetupError, match=rf"process {os.getpid()}\) already serves from {home_dir}"):
        open_home(home_dir)
    first.close()
    open_home(home_dir).close()


def test_a_home_that_is_a_file_or_below_one_is_refused_in_clear_words(home_dir: Path) -> None:
    (home_dir / "file").write_text("")
    for path in (home_dir / "file", home_dir / "file" / "below"):
        with pytest.raises(SetupError, match="--data DIR"):
            open_home(path)


# ---------------------------------------------------------------------- a database that can't be used


@pytest.fixture
async def over_tcp(home_dir: Path, unused_port: int) -> AsyncIterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(home_dir, options={"fsync": "off", "listen_addresses": "127.0.0.1", "port": str(unused_port)})
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _refusal(dsn: str) -> str:
    with pytest.raises(SetupError) as refused:
        preflight.refuse_unfit(await preflight.facts(dsn), dsn)
    assert "secret" not in str(refused.value)
    return str(refused.value)


async def test_an_unknown_host_is_named() -> None:
    assert "there is no host nowhere.invalid" in await _refusal("postgresql://u:secret@nowhere.invalid/db")


async def test_a_port_where_nobody_listens_is_named(unused_port: int) -> None:
    assert f"nothing answers at 127.0.0.1:{unused_port}" in await _refusal(f"postgresql://u:secret@127.0.0.1:{unused_port}/db")


async def test_a_missing_socket_is_named(home_dir: Path) -> None:
    assert f"nothing answers at {home_dir}" in await _refusal(f"postgresql://u@/db?host={home_dir}")


async def test_a_wrong_password_is_said(over_tcp: EmbeddedPostgres, unused_port: int) -> None:
    text = await _refusal(f"postgresql://queenmq:secret@127.0.0.1:{unused_port}/queenmq")
    assert "refuses the password of queenmq" in text


async def test_a_missing_database_is_said(postgres: EmbeddedPostgres) -> None:
    assert "has no database nothere" in await _refusal(postgres.dsn("nothere"))


async def test_a_missing_role_is_said(postgres: EmbeddedPostgres) -> None:
    assert "doesn't let stranger in" in await _refusal(postgres.dsn("queenmq", "stranger"))


async def test_a_role_without_the_right_to_create_is_told_what_to_grant(postgres: EmbeddedPostgres) -> None:
    text = await _refusal(postgres.dsn("postgres"))
    assert 'GRANT CREATE ON DATABASE "postgres" TO "queenmq"' in text


async def test_an_old_postgres_and_a_standby_are_refused(postgres: EmbeddedPostgres) -> None:
    found = await preflight.facts(postgres.dsn("postgres", SUPERUSER))
    dsn = "postgresql://db:5432/queue"
    preflight.refuse_unfit(found, dsn)
    old = preflight.Facts(**{**vars(found), "version": "14.9", "version_number": 140009})
    with pytest.raises(SetupError, match=r"at db:5432/queue is PostgreSQL 14.9; QueenMQ needs 15"):
        preflight.refuse_unfit(old, dsn)
    with pytest.raises(SetupError, match="read-only standby"):
        preflight.refuse_unfit(preflight.Facts(**{**vars(found), "read_only": True}), dsn)


def test_a_full_disk_is_said() -> None:
    assert "disk" in str(preflight.explain(asyncpg.DiskFullError("could not extend file"), "postgresql://db/queue"))
