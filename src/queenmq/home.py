"""QUEENMQ_HOME: the one directory where a server keeps what outlives it (embedded database, spool, made secrets).

Never shared: a lock that dies with its process says who serves from it. Never removed by us.
Invariant: whoever holds a `Home` from `open_home` is the only server on that directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from queenmq.errors import SetupError


def default_home() -> Path:
    """Where a server without QUEENMQ_HOME and --data keeps its things."""
    if os.geteuid() == 0:
        return Path("/var/lib/queenmq")
    return Path.home() / ".local" / "share" / "queenmq"


@dataclass(frozen=True)
class Home:
    """An opened and locked directory; `close` lets the next server in."""

    path: Path
    _lock: int

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._lock)


def make_directory(path: Path, mode: int) -> None:
    """Makes `path` and its missing parents, whatever the umask. Says in clear words when that isn't possible."""
    missing: list[Path] = []
    there = path
    while not there.exists() and there != there.parent:
        missing.append(there)
        there = there.parent
    try:
        for each in reversed(missing):
            each.mkdir()
            each.chmod(mode)
    except OSError as error:
        raise SetupError(cannot_write(path, error)) from error
    if not path.is_dir():
        raise SetupError(f"{path} is not a directory: choose another with --data DIR or QUEENMQ_HOME.")


def cannot_write(path: Path, error: OSError) -> str:
    """What a person does about a directory that refuses."""
    reason = error.strerror or str(error)
    if "space" in reason:
        return f"the disk is full: {path} can't be written to. Free some space, or choose another disk with --data DIR."
    return f"{path} can't be written to ({reason}): choose another directory with --data DIR or QUEENMQ_HOME."


def open_home(path: Path) -> Home:
    """Makes the directory, takes its lock. A second server on it is told so."""
    path = path.expanduser().absolute()
    # root's is open to pass through: the unprivileged user that PostgreSQL runs as must reach its own part
    make_directory(path, 0o755 if os.geteuid() == 0 else 0o700)
    try:
        if os.geteuid() == 0 and path.stat().st_uid == 0:
            path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o111)
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        if os.geteuid() == 0:
            os.fchown(lock, path.stat().st_uid, -1)
    except OSError as error:
        raise SetupError(cannot_write(path, error)) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise SetupError(
            f"another QueenMQ server (process {owner}) already serves from {path}. Stop it first, "
            "or start this one on a directory of its own with --data DIR and on another PORT."
        ) from error
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        os.close(lock)
        raise SetupError(cannot_write(path, error)) from error
    return Home(path, lock)
