"""A server collects cycles seldom, so a request must leave none behind: memory would grow by every body until the collector comes."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import httpx
import pytest

from queenmq.http.wire import Request
from queenmq.queen.push_lane import PushUnit, Ticket


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("items", [1, 3, 2000])
async def test_a_push_leaves_nothing_for_the_cycle_collector(http: httpx.AsyncClient, items: int) -> None:
    body = {"items": [{"queue": "orders", "partition": f"p{n % 3}", "payload": "x" * 100} for n in range(items)]}
    for _ in range(5):
        assert (await http.post("/api/v1/push", json=body)).status_code == 201
    left = [each for each in gc.get_objects() if isinstance(each, PushUnit | Ticket | Request)]
    assert left == []
