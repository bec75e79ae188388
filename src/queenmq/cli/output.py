"""What the commands print: tables and coloured lines on a terminal, plain text in a pipe, JSON where asked.

Never prints both. rich is imported when something is drawn. Invariant: with --json standard output holds JSON alone, one value a line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


def emit(value: Any) -> None:
    """One JSON value on one line."""
    import msgspec

    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def one_line(text: str) -> str:
    """In JSON these can only stand between the values, so nothing of a payload is lost."""
    return text.translate({9: " ", 10: " ", 13: " "})


def console() -> Console:
    """rich's console; without a terminal it writes plain text, never cut."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 4000)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """A table on a terminal, else columns separated by tabs."""
    if not sys.stdout.isatty():
        click.echo("\t".join(columns))
        for row in rows:
            click.echo("\t".join(one_line(str(cell)) for cell in row))
        return
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        drawn.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(escape(str(cell)) for cell in row))
    console().print(drawn)


@contextmanager
def progress(what: str, wanted: bool, total: int | None = None) -> Iterator[Callable[[], None]]:
    """A bar (or a counter when the total isn't known) on standard error, drawn only on a terminal; call what it gives once per piece."""
    if not wanted or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task(what, total=total)
        yield lambda: drawn.advance(task)
