"""Whether a service lives, whether it is ready, and its metrics."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from .clock import Clock

Ping = Callable[[], Awaitable[object]]


@dataclass
class _Dependency:
    ping: Ping
    timeout_seconds: float
    ok: bool | None = None
    reason: str = "not asked yet"
    since: datetime | None = None


class Health:
    """Dependencies by name, each with its own ping. A ping that returns is good, one that raises says why not."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._dependencies: dict[str, _Dependency] = {}

    def register(self, name: str, ping: Ping, timeout_seconds: float = 3.0) -> None:
        """Readiness depends on `ping` from now on."""
        self._dependencies[name] = _Dependency(ping, timeout_seconds)

    async def check(self) -> tuple[bool, dict[str, dict[str, str | bool | None]]]:
        """Ask all dependencies at once: whether all are good, and each one's state, reason and since when."""
        await asyncio.gather(*(self._ask(d) for d in self._dependencies.values()))
        report = {
            name: {"ok": d.ok, "reason": d.reason, "since": d.since.isoformat() if d.since else None}
            for name, d in self._dependencies.items()
        }
        return all(d.ok for d in self._dependencies.values()), report

    async def _ask(self, dependency: _Dependency) -> None:
        ok, reason = True, "ok"
        try:
            await asyncio.wait_for(dependency.ping(), dependency.timeout_seconds)
        except TimeoutError:
            ok, reason = False, f"no answer within {dependency.timeout_seconds:g} s"
        except Exception as error:  # noqa: BLE001 - any failure is the answer
            ok, reason = False, str(error) or type(error).__name__
        if dependency.ok is not ok:
            dependency.since = self._clock.now()
        dependency.ok, dependency.reason = ok, reason


def router(health: Health, revision: str = "") -> APIRouter:
    """`/health/live`, `/health/ready` (503 with the reasons) and `/metrics`; none needs a token."""
    routes = APIRouter(tags=["health"])

    @routes.get("/health/live", summary="The process answers")
    async def live() -> dict[str, str]:
        return {"status": "live", "revision": revision}

    @routes.get("/health/ready", summary="All dependencies answer", responses={503: {"description": "Not ready"}})
    async def ready() -> JSONResponse:
        ok, report = await health.check()
        return JSONResponse({"ready": ok, "dependencies": report}, status_code=200 if ok else 503)

    @routes.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return routes
