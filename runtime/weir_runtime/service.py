"""Runs a service: its listener first, so that it can report what it waits for, then its tasks, then an orderly end."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog
from fastapi import FastAPI

from weir_contracts.topics import TOPICS

from . import log
from .bus import Bus, BusError
from .envelope import ENVELOPE_BYTES, MAX_MESSAGE_BYTES
from .followed_files import follow
from .garbage import collect_seldom
from .health import Health
from .http import PortInUse, listen, serve
from .kafka_bus import MIN_INSYNC
from .kafka_lease import TOPIC as LEASES
from .loop import Stop, retry_until_ready
from .records import TopicSpec
from .settings import EXIT_BAD_SETTINGS, ServiceSettings

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
    log.configure(name, settings.log_level)
    logger = structlog.get_logger(name)
    try:
        tokens, tls = settings.callers(), settings.listener_tls()
        bound = listen(settings.http_host, settings.http_port)
    except (PortInUse, ValueError) as error:
        sys.stderr.write(f"{name}: {error}\n")
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
    """Return all topics of the loop, and that of the leases; each accepts the largest message of the envelope."""
    configs = {"max.message.bytes": str(MAX_MESSAGE_BYTES + ENVELOPE_BYTES)}
    if min_insync_replicas is not None:
        configs[MIN_INSYNC] = str(min_insync_replicas)
    specs = [TopicSpec(topic.name, partitions, {**configs, **topic.configs}, replicas) for topic in TOPICS]
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
