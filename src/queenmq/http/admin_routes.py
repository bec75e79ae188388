"""What operators and probes read: health, metrics, the list of queues.

Never changes anything. Invariant: `/livez` answers while the process lives, `/readyz` only while the database answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import queenmq
from queenmq.errors import QueenError
from queenmq.http.wire import error_body
from queenmq.metrics import Metrics
from queenmq.postgres.pool import Database


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, QueenError)
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return Response(error_body(error), error.status, headers, "application/json")


class AdminRoutes:
    """Read-only routes over Starlette."""

    def __init__(self, database: Database, metrics: Metrics, *, server_id: str, gauges: Callable[[], None]) -> None:
        self._database = database
        self._metrics = metrics
        self._server_id = server_id
        self._gauges = gauges
        self._registry = CollectorRegistry()
        self._registry.register(metrics)
        routes: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/health": self.ready,
            "/readyz": self.ready,
            "/livez": self.live,
            "/metrics": self.figures,
            "/metrics/prometheus": self.prometheus,
            "/api/v1/resources/queues": self.queues,
        }
        self.paths = frozenset(routes)
        self.app = Starlette(
            routes=[Route(path, handler, methods=["GET"]) for path, handler in routes.items()], exception_handlers={QueenError: _refuse}
        )

    async def live(self, request: Request) -> Response:
        return JSONResponse({"status": "alive", "server": self._server_id, "version": queenmq.__version__})

    async def ready(self, request: Request) -> Response:
        try:
            await self._database.value("ping")
        except QueenError as error:
            return JSONResponse({"status": "unhealthy", "database": "unreachable", "error": str(error)}, 503, {"Retry-After": "1"})
        return JSONResponse({"status": "healthy", "database": "connected", "server": self._server_id, "version": queenmq.__version__})

    async def figures(self, request: Request) -> Response:
        self._gauges()
        told: dict[str, object] = {}
        for family in self._metrics.collect():
            for sample in family.samples:
                labels = ",".join(f"{name}={value}" for name, value in sample.labels.items())
                told[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return JSONResponse(told)

    async def prometheus(self, request: Request) -> Response:
        self._gauges()
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def queues(self, request: Request) -> Response:
        rows = await self._database.rows("list_queues")
        return JSONResponse({"queues": [dict(row) for row in rows]})
