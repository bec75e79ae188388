"""Ids: transaction ids made by the server, lease ids, and the address form of message ids.

Pure but for one random start: no clock is read here. Invariant: `message_id` spells exactly what `queen.message_id` spells in SQL.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable

NO_LEASE = uuid.UUID(int=0)
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def base36(number: int) -> str:
    """Digits that sort like the numbers when they are of one length."""
    text = ""
    while number:
        number, rest = divmod(number, 36)
        text = _DIGITS[rest] + text
    return text or "0"


def transaction_ids(session: int) -> Callable[[int], list[str]]:
    """A maker of so many short ids that rise within this process, which keeps the index of transaction ids in order: the server's session
    (the database gives each number once), four random digits (should a database be set back below a running server), a counter.

    Short, because an id is written twice, into its row and into an index."""
    salt = base36(int.from_bytes(os.urandom(4), "big") % 36**4).rjust(4, "0")
    prefix, following = f"{base36(session)}.{salt}", 1 << 28

    def make(count: int) -> list[str]:
        nonlocal following
        first = following
        following += count
        if count == 1:
            return [f"{prefix}{first:x}"]
        return [f"{prefix}{number:x}" for number in range(first, first + count)]

    return make


def lease_id() -> uuid.UUID:
    """A lease id nobody can guess."""
    return uuid.UUID(bytes=os.urandom(16), version=4)


def parse_lease(text: str | None) -> uuid.UUID | None:
    """None for none; NO_LEASE, which no lease has, for what isn't a lease id of ours."""
    if not text:
        return None
    try:
        return uuid.UUID(text)
    except ValueError:
        return NO_LEASE


def id_parts(partition: int, salt: int) -> tuple[str, str]:
    """The parts of a partition's message ids before and between the two halves of the seq."""
    return f"{partition:08x}-", f"-8{salt >> 14:03x}-{8 | ((salt >> 12) & 3):x}{salt & 4095:03x}-"


def message_id(parts: tuple[str, str], seq: int) -> str:
    """The id of the message at an address."""
    return f"{parts[0]}{seq >> 48:04x}{parts[1]}{seq & 0xFFFFFFFFFFFF:012x}"
