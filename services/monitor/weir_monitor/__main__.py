"""The monitor's composition root."""

import asyncio
import sys

from weir_engines.kubernetes.api import Access, KubernetesApi
from weir_engines.registry import Engines, Resources
from weir_runtime.clock import SystemClock
from weir_runtime.http import application
from weir_runtime.loop import Stop
from weir_runtime.service import Health, health_router, run_service, wait_for_topics
from weir_runtime.settings import load

from .applications import Collectors
from .service import Monitor
from .settings import MonitorSettings


async def run(settings: MonitorSettings) -> int:
    """Compose and run until stopped; returns the exit code."""
    clock = SystemClock()
    bus = settings.bus(clock)
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
    checks = Health(clock)
    checks.register("kafka", bus.ping)
    checks.register("policies", monitor.ping)
    app = application("Weir monitor", "Watches applications.")
    app.include_router(health_router(checks))

    async def watch(stop: Stop) -> None:
        if await wait_for_topics(bus, settings, stop, checks):
            await monitor.run(stop)

    async def close() -> None:
        await engines.close()
        await bus.close()

    return await run_service("monitor", settings, app=app, tasks={"monitor": watch}, on_stopped=close)


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
