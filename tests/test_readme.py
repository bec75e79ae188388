"""Every command in README.md is run: the shell ones by sh, the Python ones as a program, the SQL ones by PostgreSQL."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import asyncpg
import pytest

from queenmq.testing.live import LiveServer

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


async def run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, out.decode()
    return out.decode()


async def test_the_curl_commands_push_and_pop(server: LiveServer) -> None:
    shell = next(block for block in blocks("sh") if "curl" in block)
    said = await run("sh", "-c", shell.replace("http://127.0.0.1:6632", server.url))
    assert '"status":"queued"' in said
    assert '"data":{"total":42}' in said


async def test_the_python_example_prints_what_it_pushed(server: LiveServer) -> None:
    (program,) = blocks("python")
    said = await run(sys.executable, "-c", program.replace("http://127.0.0.1:6632", server.url))
    assert said == "customer-1 1 {'total': 42}\n"


async def test_the_sql_example_is_an_outbox(server: LiveServer, pg: asyncpg.Connection[asyncpg.Record]) -> None:
    (statement,) = blocks("sql")
    async with pg.transaction():
        await pg.execute(statement)
    assert await pg.fetchval("SELECT count(*) FROM queen.messages") == 1


@pytest.mark.parametrize("command", ["./run", "./test"])
def test_the_two_commands_are_there_and_may_be_run(command: str) -> None:
    assert any(command in block for block in blocks("sh"))
    assert (ROOT / command).stat().st_mode & 0o111


def test_every_link_leads_to_a_file() -> None:
    for page in [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
