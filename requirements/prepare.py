"""Makes or refreshes `.venv` from a hashed lock file; called by ./run and ./test with the newest Python they found.

Never touches anything outside the checkout (but pip's own cache). Invariant: `.venv/ready-<lock>` holds the stamp of what is installed,
and is written last, so a broken-off install is made again. Two callers at once: the second waits, then finds the work done.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
VENV = TOP / ".venv"
PEERS = ("0.12.0", "2.6.0")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def fail(text: str, output: str = "") -> None:
    tail = "\n".join(f"  {line}" for line in output.strip().splitlines()[-8:])
    sys.exit(f"queenmq: {text}" + (f"\nThe last lines of what failed:\n{tail}" if tail else ""))


def call(*words: str) -> str | None:
    """The output when the command failed, else None."""
    environment = {**os.environ, "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}
    done = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout if done.returncode else None


def pip(*words: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input", "--retries", "2", "--root-user-action=ignore", "--require-hashes")
    said = call(str(VENV / "bin" / "python"), "-m", "pip", "install", *quiet, *words)
    if said is None:
        return
    low = said.lower()
    if "no space left" in low:
        fail(f"the disk is full: free some space for {VENV} (about 250 MB) and start again.", said)
    if any(word in low for word in ("connection", "name resolution", "timed out", "could not find a version", "no matching distribution")):
        fail(
            "the package index can't be reached. The first start needs the network (or a pip configured for a mirror); later ones don't.",
            said,
        )
    fail("installing the pinned packages failed.", said)


def make_venv(python: str) -> None:
    say("queenmq: making .venv (once)")
    said = call(python, "-m", "venv", "--clear", str(VENV))
    if said is not None:
        if "ensurepip" in said or ("venv" in said.lower() and "no module" in said.lower()):
            fail("this Python has no venv module. Install it (on Debian and Ubuntu: apt install python3-venv) and start again.", said)
        fail(f"{VENV} can't be made: is the directory writable, and is there space?", said)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # the source is used where it lies, without building a package; -P keeps the current directory out of sys.path
    (VENV / "lib" / version / "site-packages" / "queenmq-source.pth").write_text(f"{TOP / 'src'}\n")
    (VENV / "made").write_text(str(TOP))


def usable() -> bool:
    """The virtual environment belongs to this very directory and its Python still works."""
    made = VENV / "made"
    if not made.exists() or made.read_text() != str(TOP):
        return False
    return call(str(VENV / "bin" / "python"), "-c", "import pip") is None


def install_peers() -> None:
    """The published clients that the compatibility test runs unmodified; without their dependencies, which the locks already have."""
    for version in PEERS:
        target = VENV / "peers" / f"queen-mq-{version}"
        if not target.exists():
            pip("--no-deps", "--target", str(target), "-r", str(TOP / "requirements" / f"queen-mq-{version}.txt"))


def main(lock: str, stamp: str) -> None:
    try:
        guard = open(TOP / ".venv.lock", "w")  # noqa: SIM115  (held until the process ends)
    except OSError as error:
        fail(f"{TOP} can't be written to ({error.strerror}): the environment is made there. Use a checkout that you own.")
    fcntl.flock(guard, fcntl.LOCK_EX)
    ready = VENV / f"ready-{lock}"
    if ready.exists() and ready.read_text().strip() == stamp and usable():
        return
    if not usable():
        make_venv(sys.executable)
    say(f"queenmq: installing the pinned packages ({lock})")
    pip("-r", str(TOP / "requirements" / f"{lock}.txt"))
    if lock == "dev":
        install_peers()
        (VENV / "ready-base").write_text(stamp + "\n")  # dev holds all of base
    ready.write_text(stamp + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
