"""The planner's composition root."""

import asyncio
import sys
from functools import partial

from weir_runtime.bus import Bus
from weir_runtime.clock import Clock
from weir_runtime.http import application
from weir_runtime.loop import Stop
from weir_runtime.service import Health, Service, run_alone, wait_for_topics
from weir_runtime.settings import load

from .adapters.http import Credentials, PlannerClient
from .api import planner_router
from .calls import Planners
from .remote import Registrations, Remote
from .request_cache import RequestCache
from .service import Planner
from .settings import PlannerSettings
from .workers import Workers


def service(settings: PlannerSettings, bus: Bus, clock: Clock, health: Health) -> Service:
    """Compose the planner."""
    workers = Workers(settings.workers)
    cache = RequestCache(settings.observations_kept, settings.history_kept)
    client = PlannerClient(
        settings.allowed(),
        Credentials(settings.credentials_folder),
        reply_bytes=settings.reply_bytes,
        request_bytes=settings.request_bytes,
        ca_file=settings.plugin_ca_file,
    )
    remote = Remote(client, clock)
    registrations = Registrations(bus, clock, on_removed=remote.forget)
    planners = Planners(workers, registrations, remote)
    planner = Planner(bus, clock, planners, cache, partitions=settings.partitions)
    health.register("outcomes", planner.ping)
    health.register("planners", registrations.ping)
    health.register("installed-planners", planners.ping)

    async def plan(stop: Stop) -> None:
        if await wait_for_topics(bus, settings, stop, health):
            await asyncio.gather(registrations.follow(stop), planner.run(stop))

    async def close() -> None:
        workers.close()
        await client.close()

    return Service({"planner": plan}, close, [planner_router(planners, clock)])


async def run(settings: PlannerSettings) -> int:
    app = application("Weir planner", "Which planners there are, and what one would decide.")
    return await run_alone("planner", settings, app, partial(service, settings))


def main() -> int:
    return asyncio.run(run(load(PlannerSettings, sys.argv[1:])))


if __name__ == "__main__":
    sys.exit(main())
