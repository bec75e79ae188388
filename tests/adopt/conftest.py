"""An empty database with the older system's tables in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import asyncpg
import pytest
from tests.adopt.older import Older

if TYPE_CHECKING:
    from tests.adopt.older import Connection


@pytest.fixture
async def before(empty_database_url: str) -> AsyncIterator[Connection]:
    """A connection to the empty database, as its plain owner."""
    connection = await asyncpg.connect(empty_database_url)
    yield connection
    await connection.close()


@pytest.fixture
async def older(before: Connection, request: pytest.FixtureRequest) -> Older:
    """The older system's tables, with the lookup and all; a test marked with `BOTH` is run without it too."""
    return await Older(before).create(lookup=getattr(request, "param", True))
