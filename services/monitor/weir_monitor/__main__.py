"""The monitor's composition root."""

import asyncio
import sys
from functools import partial

from weir_engines.kubernetes.api import Access, KubernetesApi
from weir_engines.registry import Engines, Resources
from weir_runtime.bus import Bus
from weir_runtime.clock import Clock
from weir_runtime.http import application
from weir_runtime.loop import Stop
from weir_runtime.service import Health, Service, run_alone, wait_for_topics
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
    app = application("Weir monitor", "Watches applications.")
    return await run_alone("monitor", settings, app, partial(service, settings))


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
