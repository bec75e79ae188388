"""Servers, users and consumers at work at once, with backends killed in between; the drill does the same for longer."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.sql.crowd import Crowd

if TYPE_CHECKING:
    from tests.sql.conftest import Connect


async def test_a_crowd_loses_nothing_and_is_given_nothing_twice(connect: Connect) -> None:
    crowd = Crowd(connect, random.Random(3))
    await crowd.run(2.5)
    assert crowd.pushed
    assert crowd.kills
    assert dict(crowd.faults) == {}
