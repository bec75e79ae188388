"""Calls the command line as a person does: a process of its own, a clean environment, its exit code and what it printed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Said:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as one JSON value."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Standard output as one JSON value a line."""
        return [json.loads(line) for line in self.out.splitlines()]


def environment(**variables: str) -> dict[str, str]:
    """Only what is named, and what a process needs to start."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    return {**kept, **variables}


async def queenmq(*words: str, stdin: str = "", **variables: str) -> Said:
    """Runs `queenmq WORDS…` to its end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "queenmq", *words,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(**variables), cwd="/",
    )  # fmt: skip
    try:
        out, err = await asyncio.wait_for(process.communicate(stdin.encode()), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = Said(process.returncode or 0, out.decode(), err.decode())
    assert "Traceback" not in said.err, said.err
    return said
