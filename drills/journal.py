"""A consumer's journal: one line for each thing that it knows, written before it acts on it, so that the file survives its kill -9.

Never buffers: a line is in the kernel when `write` returns. Invariant: only the last line of a file can be incomplete, and only when its
writer was killed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from drills.checker import Group, Ledger, Part, packed

DELIVERED, RETURNING, COMPLETED = "d", "r", "c"
PUSHING, PUSHED, REFUSED = "p", "y", "n"
TROUBLE = "x"


class Journal:
    """Appends to one file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)

    def delivered(self, lease: str, partitions: Sequence[int], seqs: Sequence[int], ids: Sequence[int]) -> None:
        self._write((DELIVERED, lease, partitions, seqs, ids))

    def returning(self, lease: str, ids: Sequence[int]) -> None:
        """About to be given back."""
        self._write((RETURNING, lease, ids))

    def completed(self, lease: str, ids: Sequence[int]) -> None:
        """The server said that these are settled."""
        self._write((COMPLETED, lease, ids))

    def pushing(self, ids: Sequence[int]) -> None:
        """A transaction with these is about to be sent."""
        self._write((PUSHING, "", ids))

    def pushed(self, ids: Sequence[int], done: bool) -> None:
        """What the server said of it, when that is certain."""
        self._write((PUSHED if done else REFUSED, "", ids))

    def trouble(self, route: str, status: int) -> None:
        """A reply that was no success."""
        self._write((TROUBLE, f"{route}_{status}", ()))

    def _write(self, line: tuple[object, ...]) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")


def lines(path: Path) -> Iterator[list[Any]]:
    """All complete lines."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield msgspec.json.decode(line)


def read(path: Path, group: Group, ledger: Ledger) -> Counter[str]:
    """Adds one consumer's journal to what is known of its group, and its own pushes to the ledger; answers what troubles it met."""
    troubles: Counter[str] = Counter()
    for kind, lease, *columns in lines(path):
        ids = columns[-1]
        if kind == DELIVERED:
            rows = zip(*columns, strict=True)
            for partition, some in groupby(rows, key=lambda row: int(row[0])):
                found = list(some)
                group.parts.append(
                    Part(path.stem, partition, lease, packed(row[1] for row in found), packed(row[2] for row in found)),
                )
        elif kind == RETURNING:
            group.returned.update((lease, message) for message in ids)
        elif kind == COMPLETED:
            group.completed.append((lease, packed(ids)))
        elif kind == PUSHING:
            ledger.note(ids)
            ledger.together.append(tuple(ids))
        elif kind == PUSHED:
            ledger.acknowledged.update(ids)
        elif kind == REFUSED:
            ledger.refused.update(ids)
        elif kind == TROUBLE:
            troubles[lease] += 1
    return troubles
