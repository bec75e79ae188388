"""The embedded PostgreSQL: makes, starts, watches and stops one server in QUEENMQ_HOME/postgres, for whoever holds the home's lock.

Never listens on the network, never runs as root, never deletes data, never weakens durability unless its caller passes `options` for
a test. Invariants: at most one postmaster runs on the directory (one left by a killed server is shut down before ours starts); it ends
with us, by `stop` or, on Linux, by the kernel when we are killed; what is half made (initdb) is made beside and renamed. Start it in a
thread that lives as long as the server is to live: the kernel ends it with that thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypedDict
from urllib.parse import quote

from queenmq.errors import SetupError
from queenmq.home import cannot_write
from queenmq.postgres.binaries import MAJOR, Account, account_for, binaries_for, first_closed

log = logging.getLogger("queenmq.postgres.embedded")

ROLE = "queenmq"
DATABASE = "queenmq"
SUPERUSER = "postgres"
PORT = 5432  # only part of the socket's name
SOCKET_BYTES = 100  # a Unix socket's path may have 107
START_SECONDS = 600.0  # recovery after a crash replays up to max_wal_size
STOP_SECONDS = 2.0  # then hard: with the server's own 2.5 s everything has ended within five
BOOTSTRAP = Path(__file__).parent / "sql" / "embedded" / "bootstrap.sql"

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "port": str(PORT),
    "max_connections": "100",
    "shared_buffers": "256MB",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "max_wal_size": "2GB",
    "min_wal_size": "256MB",
    "wal_compression": "on",
    "checkpoint_timeout": "15min",
    "autovacuum_naptime": "10s",
    "autovacuum_vacuum_cost_limit": "1000",
    "jit": "off",
    "timezone": "UTC",
    "logging_collector": "on",
    "log_directory": "log",
    "log_filename": "postgres-%a.log",  # a week, then written over
    "log_truncate_on_rotation": "on",
    "log_rotation_age": "1d",
    "log_rotation_size": "0",
    "log_error_verbosity": "terse",  # details carry rows, rows carry payloads
    "log_parameter_max_length_on_error": "0",
}


class _Launch(TypedDict, total=False):
    env: dict[str, str]
    cwd: str
    umask: int
    user: int
    group: int
    extra_groups: list[int]


class EmbeddedPostgres:
    """One PostgreSQL 18 on `home`/postgres. `start` answers the address of the plain role; `watch` starts it again when it dies."""

    def __init__(self, home: Path, *, options: Mapping[str, str] | None = None) -> None:
        self.home = home.absolute()  # PostgreSQL is started with / as its directory
        self.data = self.home / "postgres"
        self._options = {**SETTINGS, **(options or {})}
        self._account: Account = account_for(self.data)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket_dir: Path | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """The postmaster's process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def dsn(self, database: str = DATABASE, role: str = ROLE) -> str:
        """An address for asyncpg and psql, over the Unix socket."""
        return f"postgresql://{role}@/{database}?host={quote(str(self._socket_directory()), safe='/')}&port={self._options['port']}"

    @staticmethod
    def running_dsn(home: Path) -> str | None:
        """The address of the PostgreSQL that a server in another process runs on this home; None when none does."""
        other = EmbeddedPostgres(home)
        lines = other._pidfile()
        if len(lines) < 8 or lines[7].strip() != "ready" or not _is_postmaster(int(lines[0]), other.data):
            return None
        other._socket_dir = Path(lines[4].strip())
        return other.dsn()

    async def start(self) -> str:
        """Makes the database when there is none, ends a postmaster that a killed server left, starts ours, waits until it answers."""
        self._stopping = False
        try:
            binaries = binaries_for(self._account, self.home)
            await self._end_leftover()
            if not (self.data / "PG_VERSION").exists():
                await self._initialise(binaries)
            self._check_version()
            self._configure()
        except OSError as error:
            raise SetupError(cannot_write(self.data, error)) from error
        await self._launch_until_ready(binaries)
        return self.dsn()

    async def stop(self) -> None:
        """Fast shutdown; what hasn't ended after two seconds is ended hard and recovers at the next start."""
        self._stopping = True
        process = self._process
        if process is None:
            return
        for sign, seconds in ((signal.SIGINT, STOP_SECONDS), (signal.SIGQUIT, 0.4), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(sign)
            if await _until(lambda: process.poll() is not None, seconds):
                break
            log.warning("PostgreSQL is slow to stop", extra={"signal": sign.name})
        self._process = None
        if self._socket_dir and self._socket_dir != self.data:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
        self._socket_dir = None

    async def watch(self) -> None:
        """Starts PostgreSQL again whenever it ends by itself; returns once `stop` was called."""
        while not self._stopping:
            process = self._process
            if process is None or process.poll() is None:
                await asyncio.sleep(0.2)
                continue
            log.error("PostgreSQL ended by itself and is started again", extra={"status": process.returncode})
            try:
                await self.start()
            except SetupError as error:
                log.error("PostgreSQL can't be started again; next try in a second", extra={"reason": str(error)})
                await asyncio.sleep(1.0)

    # ------------------------------------------------------------------ making

    async def _initialise(self, binaries: Path) -> None:
        """initdb beside, then role and database in single-user mode, then one rename: there is a whole database or none."""
        for old in self.home.glob("postgres.new*"):
            shutil.rmtree(old, ignore_errors=True)
        beside = self.home / f"postgres.new-{os.getpid()}"  # an initdb whose server was killed may still write into its own
        if self.data.exists() and any(self.data.iterdir()):
            raise SetupError(f"{self.data} is neither empty nor a PostgreSQL database: move it away, or choose another with --data DIR.")
        beside.mkdir(mode=0o700)
        if self._account.switch:
            os.chown(beside, self._account.uid, self._account.gid)
            closed = first_closed(beside, self._account)
            if closed:
                raise SetupError(
                    f"PostgreSQL refuses to run as root, and the user {self._account.name} that runs it can't enter {closed}: "
                    "choose another directory with --data DIR or QUEENMQ_HOME, or start as a plain user."
                )
        log.info("making the database (once)", extra={"directory": str(self.data)})
        words = [
            "--pgdata",
            str(beside),
            "--username",
            SUPERUSER,
            "--auth-local",
            "trust",
            "--auth-host",
            "scram-sha-256",
            "--encoding",
            "UTF8",
            "--locale",
            "C",
        ]
        await self._run_tool([str(binaries / "initdb"), *words, "--no-instructions"], b"", "PostgreSQL's initdb failed")
        single = [str(binaries / "postgres"), "--single", "-D", str(beside), "-c", "log_min_messages=error", "postgres"]
        await self._run_tool(single, BOOTSTRAP.read_bytes(), "making the role and the database failed")
        with (beside / "postgresql.conf").open("a") as file:
            file.write("include 'queenmq.conf'  # written at every start\ninclude_if_exists 'local.conf'  # yours\n")
        if self.data.exists():
            self.data.rmdir()
        beside.rename(self.data)

    async def _run_tool(self, words: list[str], stdin: bytes, failure: str) -> None:
        def run() -> subprocess.CompletedProcess[bytes]:
            return subprocess.run(words, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **self._as_account())

        done = await asyncio.to_thread(run)
        said = done.stdout.decode(errors="replace")
        if done.returncode or "FATAL" in said or "ERROR" in said:
            raise SetupError(_explained(failure, said, self.data))

    def _check_version(self) -> None:
        made_by = (self.data / "PG_VERSION").read_text().strip()
        if made_by != str(MAJOR):
            raise SetupError(
                f"{self.data} was made by PostgreSQL {made_by}, the embedded one is {MAJOR}: dump it with the old, load it here."
            )

    def _configure(self) -> None:
        settings = {**self._options, "unix_socket_directories": str(self._socket_directory())}
        lines = [f"{name} = '{value.replace(chr(39), chr(39) * 2)}'" for name, value in settings.items()]
        file = self.data / "queenmq.conf"
        file.write_text("# Written at every start; put your own settings into local.conf beside it.\n" + "\n".join(lines) + "\n")
        file.chmod(0o600)
        if self._account.switch:
            os.chown(file, self._account.uid, self._account.gid)

    def _socket_directory(self) -> Path:
        if self._socket_dir is None:
            name = f".s.PGSQL.{self._options['port']}"
            if len(os.fsencode(self.data / name)) <= SOCKET_BYTES:
                self._socket_dir = self.data
            else:
                self._socket_dir = Path(tempfile.mkdtemp(prefix="queenmq-"))
                if self._account.switch:
                    os.chown(self._socket_dir, self._account.uid, self._account.gid)
        return self._socket_dir

    # ------------------------------------------------------------------ running

    def _as_account(self) -> _Launch:
        environment = {name: os.environ[name] for name in ("PATH", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
        words: _Launch = {"env": {**environment, "LC_ALL": "C"}, "cwd": "/", "umask": 0o077}
        if self._account.switch:
            words |= {"user": self._account.uid, "group": self._account.gid, "extra_groups": []}
        return words

    async def _launch_until_ready(self, binaries: Path) -> None:
        """Children of a killed postmaster may hold its shared memory for a moment: that start is repeated."""
        output = self.home / "postgres-start.log"
        patience = time.monotonic() + 15.0
        while True:
            self._process = self._launch(binaries, output)
            if await self._ready():
                return
            said = output.read_text(errors="replace") + self._newest_log()
            if not ("shared memory block" in said or "is starting up" in said) or time.monotonic() > patience:
                raise SetupError(_explained("PostgreSQL can't be started", said, self.data))
            await asyncio.sleep(0.1)

    def _launch(self, binaries: Path, output: Path) -> subprocess.Popen[bytes]:
        try:
            with output.open("wb") as file:
                return subprocess.Popen(
                    [str(binaries / "postgres"), "-D", str(self.data)],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,  # Ctrl-C is ours to pass on, in order
                    preexec_fn=_end_with_parent(),
                    **self._as_account(),
                )
        except OSError as error:
            raise SetupError(f"PostgreSQL can't be started ({error.strerror}): {binaries / 'postgres'}") from error

    async def _ready(self) -> bool:
        """True once connections are taken, False when it ended instead."""
        process = self._process
        assert process is not None
        deadline = time.monotonic() + START_SECONDS
        while process.poll() is None:
            lines = self._pidfile()
            if len(lines) > 7 and lines[0] == str(process.pid) and lines[7].strip() == "ready":
                return True
            if time.monotonic() > deadline:
                await self.stop()
                raise SetupError(f"PostgreSQL did not get ready within {START_SECONDS:.0f} s: see {self.data / 'log'}")
            await asyncio.sleep(0.01)
        return False

    def _pidfile(self) -> list[str]:
        try:
            return (self.data / "postmaster.pid").read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return []

    def _newest_log(self) -> str:
        files = sorted((self.data / "log").glob("*.log"), key=lambda file: file.stat().st_mtime)
        return "".join(files[-1].read_text(errors="replace").splitlines(keepends=True)[-15:]) if files else ""

    async def _end_leftover(self) -> None:
        """A postmaster that outlived its server is shut down; a pid file that names a stranger (after a reboot) is removed."""
        lines = self._pidfile()
        if not lines or not lines[0].strip().isdigit():
            return
        pid = int(lines[0])
        if not _is_postmaster(pid, self.data):
            with contextlib.suppress(FileNotFoundError):
                (self.data / "postmaster.pid").unlink()
            return
        log.warning("shutting down a PostgreSQL that a killed server left running", extra={"pid": pid})
        for sign, seconds in ((signal.SIGINT, 20.0), (signal.SIGQUIT, 10.0)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
            if await _until(lambda: not _is_postmaster(pid, self.data), seconds):
                break
        else:
            raise SetupError(f"a PostgreSQL (process {pid}) still runs on {self.data} and does not stop: end it first.")
        place = Path(lines[4].strip()) if len(lines) > 4 else self.data
        if place.name.startswith("queenmq-") and place != self._socket_dir:
            shutil.rmtree(place, ignore_errors=True)


async def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


def _is_postmaster(pid: int, data: Path) -> bool:
    """Is that living process a PostgreSQL of this very directory (a postmaster's working directory is its data)?"""
    process = Path("/proc") / str(pid)
    if Path("/proc/self").exists():
        try:
            ended = process.joinpath("stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            return not ended and process.joinpath("cwd").resolve() == data.resolve() and pid != os.getpid()
        except OSError:
            return False
    done = subprocess.run(["ps", "-p", str(pid), "-o", "command="], capture_output=True, text=True, check=False)
    return "postgres" in done.stdout and str(data) in done.stdout


def _end_with_parent() -> Callable[[], None] | None:
    """On Linux: the kernel asks PostgreSQL for a fast shutdown when we are killed."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def before_exec() -> None:
        prctl(1, int(signal.SIGINT), 0, 0, 0)  # 1: PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)

    return before_exec


def _explained(failure: str, said: str, data: Path) -> str:
    if "No space left on device" in said or "Check free disk space" in said:
        return f"the disk is full: {data} can't be written to. Free some space, or choose another disk with --data DIR."
    tail = "\n".join(f"  {line}" for line in said.strip().splitlines()[-6:])
    advice = ""
    if "ermission denied" in said or "not permitted" in said:
        advice = f" Does something below {data} belong to another user? Start as that user, or choose another directory with --data DIR."
    return f"{failure}.{advice} What it said:\n{tail}"
