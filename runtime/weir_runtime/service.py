"""Runs a service: its listener first, so that it can report what it waits for, then its tasks, then an orderly end.
Readiness, liveness and metrics are its routes."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

import structlog
from fastapi import APIRouter, Depends, FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, Gauge, generate_latest
from pydantic import BaseModel

from weir_contracts.topics import TOPICS

from .access import AnyText, requires
from .bus import Bus, BusError, TopicSpec
from .clock import Clock, SystemClock
from .files import follow
from .http import PortInUse, listen, serve
from .kafka_client import MIN_INSYNC
from .lease import LEASES
from .loop import Stop, collect_seldom, configure_logs, retry_until_ready
from .messages import ENVELOPE_BYTES, MAX_MESSAGE_BYTES
from .settings import EXIT_BAD_SETTINGS, ServiceSettings

Ping = Callable[[], Awaitable[object]]
_READY_NOW = Gauge("weir_dependency_ready", "1 where a dependency of this service answers", ["dependency"])
_GOOD = {"ok": True, "reason": "ok", "since": "2026-06-14T18:00:00Z"}
_BAD = {"ok": False, "reason": "no answer within 3 s", "since": "2026-06-14T18:29:00Z"}
Task = Callable[[Stop], Coroutine[Any, Any, None]]
GRACE_SECONDS = 5.0
"""For tasks to finish after a stop was requested; then they are cancelled."""
CANCEL_SECONDS = 1.0
CLOSE_SECONDS = 4.0
"""For shared clients. The three together are the 10 s that a container gets to stop."""
WARNING_SECONDS = 60.0
"""Between two checks whether a warning about the topics still holds."""
AGAIN_SECONDS = 2.0
"""For such a check: readiness waits for it."""


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


@dataclass(frozen=True)
class Service:
    """The work of a service on a bus, alone in a process or with the other services."""

    tasks: Mapping[str, Task]
    close: Callable[[], Awaitable[None]]
    """Closes what the service has opened itself; the bus is closed by the process that made it."""
    routers: Sequence[APIRouter] = ()
    """Routes of its API."""


def health_router(health: Health, revision: str | None = None) -> APIRouter:
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


async def run_service(
    name: str,
    settings: ServiceSettings,
    *,
    app: FastAPI,
    tasks: Mapping[str, Task],
    on_stopped: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """Run until a signal, or until a task fails; return the exit code.

    Tasks get the `Stop` and return soon after it was requested. `on_stopped` closes shared clients. The settings'
    tokens protect the API.
    """
    configure_logs(name, settings.log_level)
    logger = structlog.get_logger(name)
    try:
        tokens, tls = settings.callers(), settings.listener_tls()
        bound = listen(settings.http_host, settings.http_port)
    except (PortInUse, ValueError) as error:
        remedy = ": set WEIR_HTTP_PORT to a free one" if isinstance(error, PortInUse) else ""
        sys.stderr.write(f"{name}: {error}{remedy}\n")
        return EXIT_BAD_SETTINGS
    app.state.tokens = tokens
    logger.info("starting", settings=settings.describe(), port=bound.getsockname()[1])
    collect_seldom()
    stop = Stop()
    stop.on_signals()
    serving = serve(app, bound, stop, allowed_hosts=settings.hosts(), tls=tls)
    running = {asyncio.create_task(_listener(serving, stop), name="http")}
    running |= {asyncio.create_task(task(stop), name=label) for label, task in tasks.items()}
    files = settings.followed_files if tls is None else [*settings.followed_files, tls.files]
    running.add(asyncio.create_task(follow(files, stop), name="files"))
    await _until_stopped(running, stop)
    logger.info("stopping", reason=stop.reason)
    failed = await _end(running, logger)
    if on_stopped is not None:
        try:
            await asyncio.wait_for(on_stopped(), CLOSE_SECONDS)
        except Exception as error:  # noqa: BLE001 - the end must come
            logger.warning("close-failed", error=str(error) or type(error).__name__)
    logger.info("stopped", reason=stop.reason, failed=failed)
    return 1 if failed else 0


async def run_alone(
    name: str, settings: ServiceSettings, app: FastAPI, compose: Callable[[Bus, Clock, Health], Service]
) -> int:
    """Run one service in its own process, on its own bus, until a signal; return the exit code."""
    clock = SystemClock()
    bus, health = settings.bus(clock), Health(clock)
    health.register("kafka", bus.ping)
    service = compose(bus, clock, health)
    for router in (health_router(health), *service.routers):
        app.include_router(router)

    async def close() -> None:
        await service.close()
        await bus.close()

    return await run_service(name, settings, app=app, tasks=service.tasks, on_stopped=close)


async def _listener(serving: Awaitable[None], stop: Stop) -> None:
    await serving
    if not stop.requested:
        # uvicorn returns without an error when the application does not start.
        raise RuntimeError("the HTTP server ended by itself")


async def _until_stopped(running: set[asyncio.Task[None]], stop: Stop) -> None:
    """Wait for the stop; the first task that fails asks for it."""
    stopping: asyncio.Task[object] = asyncio.create_task(stop.wait(), name="stop")
    waiting: set[asyncio.Task[object]] = {*running, stopping}
    while not stop.requested:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            if task.cancelled() or task.exception() is not None:
                stop.request(f"{task.get_name()} failed")
    stopping.cancel()


async def _end(running: set[asyncio.Task[None]], logger: structlog.stdlib.BoundLogger) -> list[str]:
    """End the tasks; return the names of those that failed."""
    _, late = await asyncio.wait(running, timeout=GRACE_SECONDS)
    for task in late:
        logger.warning("task-cancelled", task=task.get_name(), after_seconds=GRACE_SECONDS)
        task.cancel()
    stuck: set[asyncio.Task[None]] = set()
    if late:
        _, stuck = await asyncio.wait(late, timeout=CANCEL_SECONDS)
    failed = [task.get_name() for task in stuck]
    for task in running - stuck:
        if task.cancelled():
            failed += [] if task in late else [task.get_name()]
        elif (error := task.exception()) is not None:
            failed.append(task.get_name())
            logger.error("task-failed", task=task.get_name(), error=str(error) or repr(error), exc_info=error)
    return sorted(failed)


def topic_specs(
    partitions: int, replicas: int | None = None, min_insync_replicas: int | None = None
) -> list[TopicSpec]:
    """Return all topics of the loop, and that of the leases; each accepts the largest message of the envelope.

    The brokers write records uncompressed, whatever a producer sends: their limit of a batch counts what is written, and
    8 MB of compressed records can take gigabytes of each reader.
    """
    configs = {"max.message.bytes": str(MAX_MESSAGE_BYTES + ENVELOPE_BYTES), "compression.type": "uncompressed"}
    if min_insync_replicas is not None:
        configs[MIN_INSYNC] = str(min_insync_replicas)
    specs = [
        TopicSpec(topic.name, topic.partitions or partitions, {**configs, **topic.configs}, replicas)
        for topic in TOPICS
    ]
    return [*specs, replace(LEASES, configs={**configs, **LEASES.configs}, replicas=replicas)]


async def wait_for_topics(bus: Bus, settings: ServiceSettings, stop: Stop, health: Health | None = None) -> bool:
    """Wait for the brokers, create missing topics and check the others; False when stopped first.

    With `health`, readiness reports problems of the topics meanwhile, and from then on those that stop nothing: fewer
    replicas than the settings ask for.
    """
    specs = topic_specs(settings.partitions, settings.replication_factor, settings.min_insync_replicas)
    problem: str | None = "not checked yet"
    warnings: list[str] = []
    checked_at = float("-inf")

    async def ensured() -> None:
        nonlocal problem, warnings
        try:
            await bus.start()
            warnings = await bus.ensure_topics(specs)
        except BusError as error:
            problem = str(error)
            raise
        problem = None
        if warnings:
            structlog.get_logger("kafka").warning("fewer-replicas", reason="; ".join(warnings))

    async def ping() -> str | None:
        nonlocal warnings, checked_at
        if problem is not None:
            raise BusError(problem)
        if warnings and health is not None and health.clock.monotonic() - checked_at >= WARNING_SECONDS:
            checked_at = health.clock.monotonic()
            with suppress(BusError, TimeoutError):  # the check of Kafka itself says it
                warnings = await asyncio.wait_for(bus.ensure_topics(specs), AGAIN_SECONDS)
        return "; ".join(warnings) or None

    if health is not None:
        health.register("topics", ping)
    return await retry_until_ready("kafka", ensured, stop, timeout_seconds=60.0)
