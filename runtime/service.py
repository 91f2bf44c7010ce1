"""Runs a service: its listener first, so that it can say what it waits for, then its tasks, then an orderly end."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping

import structlog
from fastapi import FastAPI
from weir_contracts.topics import TOPICS

from . import log
from .bus import Bus
from .http import PortInUse, listen, serve
from .loop import Stop, retry_until_ready
from .records import TopicSpec
from .settings import EXIT_BAD_SETTINGS, ServiceSettings

Task = Callable[[Stop], Awaitable[None]]
GRACE_SECONDS = 8.0
"""What tasks get to finish what they hold; with the listener's grace it stays below the 10 s of a container's stop."""


async def run_service(
    name: str,
    settings: ServiceSettings,
    *,
    app: FastAPI,
    tasks: Mapping[str, Task],
    on_stopped: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """Run until a signal or until a task ends with an error; returns the exit code.

    Tasks get the `Stop` and return soon after it was requested. `on_stopped` closes what they shared.
    """
    log.configure(name, settings.log_level)
    logger = structlog.get_logger(name)
    try:
        bound = listen(settings.http_host, settings.http_port)
    except PortInUse as error:
        sys.stderr.write(f"{name}: {error}\n")
        return EXIT_BAD_SETTINGS
    logger.info("starting", settings=settings.describe(), port=bound.getsockname()[1])
    stop = Stop()
    stop.on_signals()
    running = {asyncio.create_task(serve(app, bound, stop), name="http")}
    running |= {asyncio.create_task(_run(task, stop), name=label) for label, task in tasks.items()}
    failed = await _until_stopped(running, stop, logger)
    _, late = await asyncio.wait(running, timeout=GRACE_SECONDS)
    for task in late:
        logger.warning("task-cancelled", task=task.get_name(), after_seconds=GRACE_SECONDS)
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    if on_stopped is not None:
        try:
            await asyncio.wait_for(on_stopped(), 5.0)
        except Exception as error:  # noqa: BLE001 - the end must come
            logger.warning("close-failed", error=str(error) or type(error).__name__)
    logger.info("stopped", reason=stop.reason)
    return 1 if failed else 0


async def _run(task: Task, stop: Stop) -> None:
    await task(stop)


async def _until_stopped(running: set[asyncio.Task[None]], stop: Stop, logger: structlog.stdlib.BoundLogger) -> bool:
    stopping = asyncio.create_task(stop.wait())
    waiting: set[asyncio.Task[object]] = {*running, stopping}
    while not stop.requested:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                logger.error("task-failed", task=task.get_name(), error=repr(error), exc_info=error)
                stop.request(f"{task.get_name()} failed: {error}")
                stopping.cancel()
                return True
    stopping.cancel()
    return False


def topic_specs(partitions: int) -> list[TopicSpec]:
    """All topics of the loop, as they should be."""
    return [TopicSpec(topic.name, partitions, topic.configs) for topic in TOPICS]


async def wait_for_topics(bus: Bus, partitions: int, stop: Stop) -> bool:
    """Wait for the brokers, create what is missing and check the rest; False when stopped first."""

    async def ensured() -> None:
        await bus.start()
        await bus.ensure_topics(topic_specs(partitions))

    return await retry_until_ready("kafka", ensured, stop, timeout_seconds=60.0)
