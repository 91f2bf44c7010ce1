"""Start the executor: settings, adapters, loop."""

import asyncio
import sys
from functools import partial
from uuid import uuid4

import httpx

from weir_engines.kubernetes.api import Access, KubernetesApi
from weir_engines.registry import Engines, Resources
from weir_executor.knowledge import HttpKnowledge
from weir_runtime.bus import Bus
from weir_runtime.clock import Clock
from weir_runtime.http import application
from weir_runtime.http_client import async_client
from weir_runtime.loop import Stop
from weir_runtime.service import Health, Service, run_alone, wait_for_topics
from weir_runtime.settings import load

from .service import Executor
from .settings import Settings


def service(
    settings: Settings,
    bus: Bus,
    clock: Clock,
    health: Health,
    *,
    knowledge_transport: httpx.AsyncBaseTransport | None = None,
) -> Service:
    """Compose the executor. `knowledge_transport` replaces the network to knowledge where both run in one process."""
    engines = Engines(
        Resources(
            clock,
            settings.target_timeout_seconds,
            settings.reach(),
            namespaces=settings.namespaces,
            kubernetes=_kubernetes(settings),
            flink_credentials=settings.flink_credentials,
            broker_credentials=settings.broker_credentials,
            endpoint_credentials=settings.credentials,
        )
    )
    knowledge = HttpKnowledge(
        async_client(
            settings.knowledge_url,
            settings.knowledge_token,
            settings.knowledge_timeout_seconds,
            transport=knowledge_transport,
        )
    )
    executor = Executor(
        bus,
        engines.drivers,
        knowledge,
        clock,
        settings.rules(),
        attempt_id=uuid4(),
        group=settings.group,
        reach=settings.reach(),
    )
    health.register("knowledge", knowledge.ping)
    health.register("plans", executor.ping)

    async def run(stop: Stop) -> None:
        if await wait_for_topics(bus, settings, stop, health):
            await executor.run(stop)

    async def close() -> None:
        await engines.close()
        await knowledge.close()

    return Service({"executor": run, "knowledge-answers": knowledge.until_answered}, close)


async def start(settings: Settings) -> int:
    """Run until stopped; returns the exit code."""
    app = application("Weir executor", "Applies plans, verifies them, rolls back.")
    return await run_alone("executor", settings, app, partial(service, settings))


def _kubernetes(settings: Settings) -> KubernetesApi | None:
    """Return the client of the cluster, or None unless a setting lists namespaces."""
    if not settings.uses_kubernetes:
        return None
    access = settings.kubernetes_access(Access.of)
    return KubernetesApi(access, timeout_seconds=settings.target_timeout_seconds)


def main() -> int:
    """Run the command line."""
    return asyncio.run(start(load(Settings, sys.argv[1:])))


if __name__ == "__main__":
    sys.exit(main())
