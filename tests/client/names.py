"""Names of the running test's own, for tests that share a server."""

from __future__ import annotations

import os
import zlib


def own(name: str) -> str:
    """`name` with a mark of the running test: the same all through a test, another one in each."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    return f"{name}-{zlib.crc32(test.encode()):08x}"
