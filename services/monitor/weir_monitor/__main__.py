"""The monitor's composition root."""

import asyncio
import sys

from weir_engines.kubernetes.api import Access, KubernetesApi
from weir_engines.registry import Engines, Resources
from weir_runtime.bus import Bus
from weir_runtime.clock import Clock, SystemClock
from weir_runtime.http import application
from weir_runtime.loop import Stop
from weir_runtime.service import Health, Service, health_router, run_service, wait_for_topics
from weir_runtime.settings import load

from .applications import Collectors
from .service import Monitor
from .settings import MonitorSettings


def service(settings: MonitorSettings, bus: Bus, clock: Clock, health: Health) -> Service:
    """Compose the monitor."""
    engines = Engines(
        Resources(
            clock,
            settings.call_timeout_seconds,
            settings.reach(),
            namespaces=settings.namespaces,
            kubernetes=_kubernetes(settings),
            flink_credentials=settings.flink_credentials,
            broker_credentials=settings.broker_credentials,
        )
    )
    monitor = Monitor(bus, clock, Collectors(engines).new, scrape_timeout_seconds=settings.scrape_timeout_seconds)
    health.register("policies", monitor.ping)

    async def watch(stop: Stop) -> None:
        if await wait_for_topics(bus, settings, stop, health):
            await monitor.run(stop)

    return Service({"monitor": watch}, engines.close)


async def run(settings: MonitorSettings) -> int:
    """Run until stopped; returns the exit code."""
    clock = SystemClock()
    bus, health = settings.bus(clock), Health(clock)
    health.register("kafka", bus.ping)
    monitor = service(settings, bus, clock, health)
    app = application("Weir monitor", "Watches applications.")
    app.include_router(health_router(health))

    async def close() -> None:
        await monitor.close()
        await bus.close()

    return await run_service("monitor", settings, app=app, tasks=monitor.tasks, on_stopped=close)


def _kubernetes(settings: MonitorSettings) -> KubernetesApi | None:
    """Return the client of the cluster, or None unless a setting lists namespaces."""
    if not settings.uses_kubernetes:
        return None
    access = settings.kubernetes_access(Access.of)
    return KubernetesApi(access, timeout_seconds=settings.scrape_timeout_seconds)


def main() -> int:
    """The entry point."""
    return asyncio.run(run(load(MonitorSettings, sys.argv[1:])))


if __name__ == "__main__":
    sys.exit(main())
