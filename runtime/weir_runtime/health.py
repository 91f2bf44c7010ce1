"""Liveness, readiness and metrics of a service."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST, Gauge, generate_latest
from pydantic import BaseModel

from .auth import requires
from .clock import Clock
from .problems import AnyText

Ping = Callable[[], Awaitable[object]]
_READY_NOW = Gauge("weir_dependency_ready", "1 where a dependency of this service answers", ["dependency"])


@dataclass
class _Dependency:
    ping: Ping
    timeout_seconds: float
    ok: bool | None = None
    reason: str = "not checked yet"
    since: datetime | None = None


@dataclass
class Health:
    """Dependencies by name, each with a ping. A ping that returns is ready, one that raises gives the reason; a
    returned text is shown."""

    clock: Clock
    _dependencies: dict[str, _Dependency] = field(default_factory=dict, init=False)

    def register(self, name: str, ping: Ping, timeout_seconds: float = 3.0) -> None:
        """Let readiness depend on `ping` from now on."""
        self._dependencies[name] = _Dependency(ping, timeout_seconds)

    async def check(self) -> tuple[bool, dict[str, dict[str, str | bool | None]]]:
        """Ping all dependencies at once; return whether all are ready, and the state, reason and start of each."""
        await asyncio.gather(*(self._check(name, d) for name, d in self._dependencies.items()))
        report = {
            name: {"ok": d.ok, "reason": d.reason, "since": d.since.isoformat() if d.since else None}
            for name, d in self._dependencies.items()
        }
        return all(d.ok for d in self._dependencies.values()), report

    async def _check(self, name: str, dependency: _Dependency) -> None:
        ok, reason = True, "ok"
        try:
            answer = await asyncio.wait_for(dependency.ping(), dependency.timeout_seconds)
            reason = answer if isinstance(answer, str) else reason
        except TimeoutError:
            ok, reason = False, f"no answer within {dependency.timeout_seconds:g} s"
        except Exception as error:  # noqa: BLE001 - any failure is a reason
            ok, reason = False, str(error) or type(error).__name__
        if dependency.ok is not ok:
            dependency.since = self.clock.now()
        dependency.ok, dependency.reason = ok, reason
        _READY_NOW.labels(name).set(ok)


class Life(BaseModel):
    """The process answers; its build, if `WEIR_REVISION` names it."""

    status: Literal["live"] = "live"
    revision: str | None = None


class DependencyReport(BaseModel):
    """`ok` null: not checked yet."""

    ok: bool | None
    reason: str
    since: datetime | None


class Readiness(BaseModel):
    """Every dependency by name."""

    ready: bool
    dependencies: dict[str, DependencyReport]


_GOOD = {"ok": True, "reason": "ok", "since": "2026-06-14T18:00:00Z"}
_BAD = {"ok": False, "reason": "no answer within 3 s", "since": "2026-06-14T18:29:00Z"}


def _example(value: object, media_type: str = "application/json") -> dict[str, Any]:
    return {"content": {media_type: {"example": value}}}


_READY: dict[int | str, dict[str, Any]] = {
    200: _example({"ready": True, "dependencies": {"kafka": _GOOD}}),
    503: {
        "description": "Not ready",
        "model": Readiness,
        **_example({"ready": False, "dependencies": {"kafka": _BAD}}),
    },
}
_METRICS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Prometheus' text format",
        "content": {"text/plain": {"schema": {"type": "string"}, "example": "process_open_fds 12.0\n"}},
    }
}


def router(health: Health, revision: str | None = None) -> APIRouter:
    """Return `/health/live`, `/health/ready` (503 with the reasons) and `/metrics` for the role `metrics`, which pings the
    dependencies as well.

    `revision` names the build; default: `WEIR_REVISION`.
    """
    routes = APIRouter(tags=["health"])
    life = Life(revision=revision or os.environ.get("WEIR_REVISION") or None)

    @routes.get(
        "/health/live",
        summary="The process answers",
        response_model_exclude_none=True,
        responses={200: _example({"status": "live", "revision": "4f2c9d1"})},
    )
    async def live() -> Life:
        return life

    @routes.get("/health/ready", summary="All dependencies answer", response_model=Readiness, responses=_READY)
    async def ready() -> Response:
        ok, report = await health.check()
        return AnyText({"ready": ok, "dependencies": report}, status_code=200 if ok else 503)

    generating: asyncio.Task[bytes] | None = None

    async def generated() -> bytes:
        await health.check()
        # Tens of thousands of series take a while; other requests do not wait for them.
        return await asyncio.to_thread(generate_latest)

    @routes.get(
        "/metrics",
        summary="Prometheus metrics",
        response_class=Response,
        responses=_METRICS,
        dependencies=[Depends(requires("metrics"))],
    )
    async def metrics() -> Response:
        nonlocal generating
        if generating is None or generating.done():
            generating = asyncio.create_task(generated())
        # Requests at the same time share one text. One that is cancelled does not cancel it for the others.
        return Response(await asyncio.shield(generating), media_type=CONTENT_TYPE_LATEST)

    return routes
