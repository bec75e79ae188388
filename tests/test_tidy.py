"""The house's order, checked: who imports whom, SQL in .sql files only, sizes, no sleeps, no mocks, no trace of a machine in the tree."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
LINES_OF_A_FILE, LINES_OF_A_FUNCTION = 600, 70

BASE = {"clock", "config", "errors", "home", "ids", "logs", "messages", "metrics"}
PLANES = {"queen", "flash", "coordinator"}
# who may import which parts of queenmq, besides itself; server, cli and testing stand above all
BELOW: dict[str, set[str]] = {
    **dict.fromkeys(BASE, BASE),
    "postgres": BASE,
    "shared_state": BASE | {"postgres"},
    "coordinator": BASE | {"postgres", "shared_state"},
    "queen": BASE | {"postgres", "shared_state", "coordinator"},
    "flash": BASE | {"postgres", "shared_state", "coordinator"},
    "http": BASE | PLANES | {"postgres", "shared_state", "auth"},
    "client": {"errors", "messages", "clock"},
    "server": BASE | PLANES | {"postgres", "shared_state", "http", "auth"},
    "cli": BASE | PLANES | {"postgres", "shared_state", "http", "server", "client", "testing"},
    "testing": BASE | PLANES | {"postgres", "shared_state", "http", "server", "client", "cli"},
    "__main__": {"cli"},
    "__init__": set(),
}
SQL = re.compile(
    r"\s*(SELECT\s|INSERT\s+INTO\s|UPDATE\s+[\w.]+\s+SET\s|DELETE\s+FROM\s|TRUNCATE\s|CREATE\s+(OR|TABLE|INDEX|UNIQUE|SCHEMA|ROLE|DATABASE)"
    r"|ALTER\s+\w+\s|DROP\s+\w+\s|WITH\s+\w+\s+AS\s|CALL\s+\w+\.|LISTEN\s|NOTIFY\s|BEGIN;|COMMIT;)"
)


@cache
def tracked() -> tuple[Path, ...]:
    """What git keeps; without git (a source archive, a checkout of another user) what lies in the folders that it would keep."""
    done = subprocess.run(["git", "-C", str(TOP), "ls-files", "-z"], capture_output=True, check=False)
    if done.returncode == 0 and done.stdout:
        names = done.stdout.decode().split("\0")
        return tuple(path for name in names if name and (path := TOP / name).is_file())
    folders = ("src", "tests", "docs", "requirements", "benchmarks", "drills")
    found = [path for folder in folders for path in (TOP / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return (*found, TOP / "run", TOP / "test", TOP / "pyproject.toml")


def python_files(*folders: str) -> list[Path]:
    """Tracked .py files below the folders (without any, all)."""
    return [path for path in tracked() if path.suffix == ".py" and (not folders or path.relative_to(TOP).parts[0] in folders)]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def short(path: Path) -> str:
    return str(path.relative_to(TOP))


def imported_parts(path: Path) -> Iterator[str]:
    """The parts of queenmq (its first-level modules) that a file imports, wherever in it."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[1] for name in node.names if name.name.startswith("queenmq."))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{short(path)}:{node.lineno}: write the import in full"
            if node.module == "queenmq":
                yield from (name.name for name in node.names)
            elif node.module and node.module.startswith("queenmq."):
                yield node.module.split(".")[1]


def test_imports_point_one_way() -> None:
    wrong = []
    for path in python_files("src"):
        part = path.relative_to(TOP / "src" / "queenmq").parts[0].removesuffix(".py")
        assert part in BELOW, f"{short(path)}: say in test_tidy.py what {part} may import"
        wrong += [f"{short(path)} imports {other}" for other in imported_parts(path) if other != part and other not in BELOW[part]]
    assert not wrong


def test_queen_and_flash_never_import_each_other() -> None:
    assert "flash" not in BELOW["queen"]
    assert "queen" not in BELOW["flash"]


def docstrings(module: ast.Module) -> set[ast.Constant]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = (node.body for node in ast.walk(module) if isinstance(node, kinds))
    firsts = (body[0].value for body in bodies if body and isinstance(body[0], ast.Expr))
    return {first for first in firsts if isinstance(first, ast.Constant)}


def test_sql_lies_in_sql_files() -> None:
    wrong = []
    for path in python_files("src"):
        documented = docstrings(tree(path))
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documented and SQL.match(node.value):
                wrong.append(f"{short(path)}:{node.lineno}: {node.value[:50]!r}")
    assert not wrong


def test_the_look_for_sql_finds_some() -> None:
    for text in ("SELECT 1", " INSERT INTO x", "UPDATE queen.messages SET a = 1", "CREATE TABLE x", "WITH a AS (", "LISTEN queen_wake"):
        assert SQL.match(text)
    for text in ("select a queue", "Selected", "GRANT it", "UPDATE", "with care"):
        assert not SQL.match(text)


def test_files_are_not_too_long() -> None:
    kinds = {".py", ".sql", ".sh", ""}
    sizes = {
        short(path): path.read_text(encoding="utf-8").count("\n") for path in tracked() if path.suffix in kinds and path.name != "LICENSE"
    }
    assert not {name: size for name, size in sizes.items() if size > LINES_OF_A_FILE}


def test_functions_are_not_too_long() -> None:
    wrong = []
    for path in python_files():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > LINES_OF_A_FUNCTION:
                    wrong.append(f"{short(path)}:{node.lineno} {node.name}: {size} lines")
    assert not wrong


def test_every_module_says_what_it_is() -> None:
    silent = [short(path) for path in python_files() if tree(path).body and not ast.get_docstring(tree(path))]
    assert not silent


def sleeps(call: ast.Call) -> bool:
    """time.sleep, asyncio.sleep or a bare sleep for longer than nothing; a queue's partition may sleep."""
    function = call.func
    named = ast.unparse(function) in ("sleep", "time.sleep", "asyncio.sleep", "anyio.sleep")
    zero = len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0
    return named and not zero


def test_no_test_sleeps_to_wait() -> None:
    calls = ((path, node) for path in python_files("tests") for node in ast.walk(tree(path)) if isinstance(node, ast.Call))
    assert not [f"{short(path)}:{call.lineno}" for path, call in calls if sleeps(call)]


def test_the_look_for_sleeps_finds_some() -> None:
    def call(text: str) -> ast.Call:
        found = ast.parse(text, mode="eval").body
        assert isinstance(found, ast.Call)
        return found

    assert all(sleeps(call(text)) for text in ("time.sleep(1)", "asyncio.sleep(0.1)", "sleep(seconds)"))
    assert not any(sleeps(call(text)) for text in ("asyncio.sleep(0)", "model.sleep(name)", "self.model.sleep(name)", "wait(1)"))


def test_nothing_is_mocked_skipped_or_expected_to_fail() -> None:
    words = re.compile(
        "unittest" + r"\.mock|Magic" + r"Mock|\bmock" + r"er\b|pytest\.mark\.(skip|xf" + r"ail)|pytest\.(skip|xf" + r"ail)\("
    )
    wrong = [
        f"{short(path)}: {found.group()}" for path in python_files("tests") if (found := words.search(path.read_text(encoding="utf-8")))
    ]
    assert not wrong


def test_every_ignored_type_names_its_code() -> None:
    bare = re.compile(r"#\s*type:\s*" + r"ignore(?!\[)")
    assert not [short(path) for path in python_files() if bare.search(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("folder", ["src", "benchmarks", "drills"])
def test_nothing_is_left_to_do_later(folder: str) -> None:
    words = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b|raise NotImplemented" + "Error")
    assert not [short(path) for path in python_files(folder) if words.search(path.read_text(encoding="utf-8"))]


def test_no_host_and_no_path_of_a_machine_is_in_the_tree() -> None:
    """Written in pieces, so that this file isn't one that it finds."""
    traces = re.compile(
        r"(?<![\w.}$-])/(work|root|opt|home/[a-z]|Users/[a-z])" + r"/|file:" + r"//|(?<!no-emit-)(index" + r"-url|find" + r"-links)\b|"
        r"py" + r"pi\.org|python" + r"hosted|registry\." + r"npmjs"
    )
    wrong = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        wrong += [
            f"{short(path)}:{number}: {line.strip()[:100]}" for number, line in enumerate(text.splitlines(), 1) if traces.search(line)
        ]
    assert not wrong


def test_the_lock_files_pin_every_package_with_hashes() -> None:
    locks = list((TOP / "requirements").glob("*.txt"))
    assert len(locks) == 4
    for lock in locks:
        for block in re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8").strip()):
            assert re.match(r"[a-z0-9-]+==\S+", block), f"{lock.name}: {block[:60]}"
            assert "--hash=sha256:" in block, f"{lock.name}: {block[:60]}"
