"""./run on machines that lack something: it says what, in a line, and ends with 1. Where nothing changed it starts without pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What ./run needs of the tree, in a place of its own."""
    place = tmp_path / "check out"
    place.mkdir()
    shutil.copy(TOP / "run", place / "run")
    for folder in ("requirements", "src"):
        shutil.copytree(TOP / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return place


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH with a shell's few tools and no Python."""
    place = tmp_path / "bin"
    place.mkdir()
    for name in ("sh", "cat", "cksum", "dirname"):
        found = shutil.which(name)
        assert found
        (place / name).symlink_to(found)
    return place


def python(machine: Path, script: str) -> None:
    file = machine / "python3"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def run(checkout: Path, machine: Path | None, **variables: str) -> tuple[int, str]:
    path = str(machine) if machine else f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [checkout / "run", "config", "--json"],
        env={"PATH": path, "HOME": str(checkout), **variables},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    return done.returncode, done.stdout + done.stderr


def test_no_python_is_said(checkout: Path, machine: Path) -> None:
    code, said = run(checkout, machine)
    assert (code, said.count("\n")) == (1, 1)
    assert "no Python found. Install Python 3.11 or later" in said


def test_a_python_too_old_is_said_with_its_version(checkout: Path, machine: Path) -> None:
    python(machine, 'case "$2" in *print*) echo 3.9 ;; *) exit 1 ;; esac')
    code, said = run(checkout, machine)
    assert (code, said.count("\n")) == (1, 1)
    assert "Python 3.11 or later is needed; python3 is 3.9" in said


def test_a_python_without_venv_is_said(checkout: Path, machine: Path) -> None:
    python(machine, 'case "$2" in *print*) echo 3.12 ;; *ensurepip*) exit 1 ;; esac')
    code, said = run(checkout, machine)
    assert (code, said.count("\n")) == (1, 1)
    assert "python3 (3.12) has no venv module" in said
    assert "python3-venv" in said


def test_no_network_at_the_first_start_is_said(checkout: Path) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": "/dev/null", "PIP_CACHE_DIR": str(checkout / "cache")}
    code, said = run(checkout, None, **nowhere)
    assert code == 1
    assert "the package index can't be reached. The first start needs the network" in said
    assert "Traceback" not in said


def test_where_nothing_changed_it_starts_at_once_from_anywhere() -> None:
    broken = {"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere", "VIRTUAL_ENV": "/nowhere", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    code, said = run(TOP, None, **broken)
    assert code == 0
    assert said.startswith('{"settings":[')
