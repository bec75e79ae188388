"""The published `queen-mq` client, unmodified, works against our server: its oldest and its newest supported version."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Protocol

import pytest

TOP = Path(__file__).resolve().parent.parent
USER = Path(__file__).resolve().parent / "peers" / "queen_mq_user.py"


class Server(Protocol):
    """What the `server` fixture gives."""

    url: str


@pytest.mark.parametrize("version", ["0.12.0", "2.6.0"])
async def test_the_published_client_works_unmodified(version: str, server: Server) -> None:
    package = TOP / ".venv" / "peers" / f"queen-mq-{version}"
    assert (package / "queen" / "__init__.py").exists(), f"{package} is missing: ./test installs it"
    user = await asyncio.create_subprocess_exec(
        sys.executable, str(USER), version, server.url,
        env={**os.environ, "PYTHONPATH": str(package)},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        said, _ = await asyncio.wait_for(user.communicate(), 100)
    finally:
        if user.returncode is None:
            user.kill()
            await user.wait()
    output = said.decode(errors="replace")
    last = output.strip().rpartition("\n")[2]
    assert last.startswith("RESULT "), output
    results = json.loads(last.removeprefix("RESULT "))
    failures = "\n\n".join(f"{name}:\n{trace}" for name, trace in results.items() if trace)
    assert not failures, failures
    assert len(results) >= 18
