"""The planner's composition root."""

import asyncio
import sys

from runtime import health
from runtime.clock import SystemClock
from runtime.http import application
from runtime.kafka_bus import KafkaBus
from runtime.loop import Stop
from runtime.service import run_service, wait_for_topics
from runtime.settings import load

from .api import planner_router
from .memory import Applications
from .service import Planner
from .settings import PlannerSettings
from .workers import Workers


async def run(settings: PlannerSettings) -> int:
    clock = SystemClock()
    bus = KafkaBus(settings.kafka_bootstrap_servers, clock=clock)
    workers = Workers(settings.workers)
    applications = Applications(settings.observations_kept, settings.history_kept)
    planner = Planner(bus, clock, workers, applications, partitions=settings.partitions)
    app = application("Weir planner", "Which planners there are, and what one would decide.")
    checks = health.Health(clock)
    checks.register("kafka", bus.ping)
    checks.register("outcomes", planner.ping)
    app.include_router(health.router(checks))
    app.include_router(planner_router(workers, clock))

    async def plan(stop: Stop) -> None:
        if await wait_for_topics(bus, settings.partitions, stop, checks):
            await planner.run(stop)

    async def close() -> None:
        workers.close()
        await bus.close()

    return await run_service("planner", settings, app=app, tasks={"planner": plan}, on_stopped=close)


def main() -> int:
    return asyncio.run(run(load(PlannerSettings, sys.argv[1:])))


if __name__ == "__main__":
    sys.exit(main())
