"""Every Python block of docs/client.md and every script in examples/ runs against the real server and prints what it says it prints."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
import sys
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Protocol

import pytest
from tests.client.names import own

from queenmq.client import Queen
from queenmq.client.settings import ConnectionSettings, ConsumerSettings, ConsumeSettings, PopSettings, PushSettings

TOP = Path(__file__).resolve().parent.parent.parent
PAGE = (TOP / "docs" / "client.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
ADDRESS = "http://127.0.0.1:6632"
PRINTS = {"orders": "12 mails, 12 parcels\n", "plain": "popped a\nsent b\nsent c\n"}


class Server(Protocol):
    """What the `server` fixture gives."""

    url: str


@pytest.fixture
def server_url(server: Server) -> str:
    return server.url


def compiled(block: str, url: str) -> CodeType:
    """The block with the test's address and queues; `await` stands at the top of it as in a page."""
    text = re.sub(r'"(orders|parcels|mails)"', lambda found: repr(own(found[1])), block.replace(ADDRESS, url))
    code: CodeType = compile(text, "docs/client.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return code


@pytest.mark.parametrize("number", range(len(BLOCKS)))
async def test_a_block_of_the_page_prints_what_it_says(number: int, server_url: str) -> None:
    block = BLOCKS[number]
    wanted = re.findall(r"# → (.*)$", block, re.MULTILINE)
    names: dict[str, Any] = {"__name__": "docs_client"}
    run = FunctionType(compiled(block, server_url), names)
    said = io.StringIO()
    async with asyncio.timeout(30):
        with contextlib.redirect_stdout(said):
            # a block without await is plain code, which must not stand in the way of this loop
            work = await asyncio.to_thread(run)
            if work is not None:
                await work
    assert said.getvalue().splitlines() == wanted


def test_the_page_has_its_blocks() -> None:
    assert len(BLOCKS) >= 9
    assert PAGE.count("```python") == len(BLOCKS)


@pytest.mark.parametrize("path", sorted((TOP / "examples").glob("*.py")), ids=lambda path: path.stem)
async def test_an_example_runs_and_prints_what_it_should(path: Path, server_url: str) -> None:
    script = await asyncio.create_subprocess_exec(
        sys.executable,
        str(path),
        server_url,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        said, complaints = await asyncio.wait_for(script.communicate(), 40)
    finally:
        if script.returncode is None:
            script.kill()
            await script.wait()
    assert (script.returncode, said.decode()) == (0, PRINTS[path.stem]), complaints.decode()


async def test_importing_the_client_imports_nothing_of_the_server() -> None:
    words = "import sys, queenmq.client; print('\\n'.join(sys.modules))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", words, stdout=asyncio.subprocess.PIPE)
    said, _ = await asyncio.wait_for(process.communicate(), 30)
    loaded = set(said.decode().split())
    ours = {name for name in loaded if name.startswith("queenmq.") and not name.startswith("queenmq.client")}
    assert ours <= {"queenmq.clock", "queenmq.errors", "queenmq.messages"}
    assert not {"asyncpg", "uvicorn", "starlette", "pyspark"} & loaded


async def test_the_page_names_every_error_of_the_client() -> None:
    from queenmq.client import errors

    named = [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.QueenClientError)]
    missing = [name for name in named if name not in PAGE and name != "Refused"]
    assert not missing


async def test_the_page_describes_the_defaults_as_they_are() -> None:
    async with Queen() as q:
        assert q.url == ADDRESS


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (Queen.__init__, ConnectionSettings),
        (Queen.push, PushSettings),
        (Queen.pop, PopSettings),
        (Queen.consume, ConsumeSettings),
        (Queen.consumer, ConsumerSettings),
    ],
)
def test_the_typed_settings_are_the_arguments(method: Any, settings: Any) -> None:
    takes = {name for name, one in inspect.signature(method).parameters.items() if one.kind is inspect.Parameter.KEYWORD_ONLY}
    assert takes == set(settings.__annotations__)
