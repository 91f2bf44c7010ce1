"""The knowledge service's composition root."""

import asyncio
import sys
from dataclasses import replace
from functools import partial
from socket import gethostname

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from prometheus_client import REGISTRY

from weir_contracts import ActionState, ScalingPolicy
from weir_contracts.topics import ACTIONS, POLICIES
from weir_engines.kubernetes.api import Access, KubernetesApi
from weir_runtime.access import Problem, answer
from weir_runtime.bus import Bus, partition_of
from weir_runtime.clock import Clock
from weir_runtime.http import application
from weir_runtime.loop import Stop, retry_until_ready
from weir_runtime.messages import decode
from weir_runtime.reading import DeadLetters
from weir_runtime.service import Health, Service, run_alone, wait_for_topics
from weir_runtime.settings import load

from .applications_api import applications_router
from .change_log import ChangeLog
from .core import HistoryLimits
from .decider import Decider
from .events_api import EventStreams, events_router
from .gauges import ApplicationGauges, count_dead_letters
from .imports_api import imports_router
from .notifier import Notifier, RefusedPolicies
from .page import PATHS, page_router
from .policies_api import policies_router
from .policy_changes import PlannerCatalogue, PolicyChanges
from .resource_policies import KubernetesResources, ResourcePolicies, resource_exists
from .service import Knowledge
from .settings import KnowledgeSettings
from .store import Store, StoreUnavailable
from .view import View

DESCRIPTION = "Policies, the state of every application, the reasons of decisions, and events."


def api() -> FastAPI:
    """The HTTP application with the page at `/`, without other routes yet."""
    app = application("Weir", DESCRIPTION, public=PATHS, version="v1alpha1", separate_input_output_schemas=False)
    app.include_router(page_router())

    @app.exception_handler(StoreUnavailable)
    async def _away(_request: Request, error: StoreUnavailable) -> JSONResponse:
        return answer(Problem(503, str(error)))

    return app


def service(
    settings: KnowledgeSettings,
    bus: Bus,
    store: Store,
    clock: Clock,
    health: Health,
    *,
    planner_transport: httpx.AsyncBaseTransport | None = None,
) -> Service:
    """Compose the knowledge service. `planner_transport` replaces the network to the planner where both run in one
    process."""
    view = View(store, settings.partitions, settings.prices)
    limits = HistoryLimits(
        history_count=settings.history_count,
        history_age_seconds=settings.history_age_seconds,
        cycles_count=settings.explained_cycles,
    )
    gauges = ApplicationGauges(
        applications=settings.metrics_applications,
        operators=settings.metrics_operators,
        partition=lambda application: partition_of(application, settings.partitions),
    )
    REGISTRY.register(gauges)
    dead_letters = DeadLetters(bus, "knowledge", clock)
    log = ChangeLog(bus, view.shows)
    decider = Decider(bus, clock, dead_letters)
    knowledge = Knowledge(
        bus, view, clock, limits, dead_letters, log.request, gauges, cache_characters=settings.state_cache_bytes
    )
    receivers = settings.receivers
    notifier = Notifier(view, receivers, clock, lambda: knowledge.partitions)
    knowledge.late_after, knowledge.on_notifications = receivers.late_after, notifier.wake
    health.register("view", knowledge.check_complete)
    catalogue = PlannerCatalogue(settings.planner_url, settings.planner_token, transport=planner_transport)
    resources = _resources(settings)
    changes = PolicyChanges(
        view,
        clock,
        catalogue,
        log,
        settings.reach(),
        settings.namespaces,
        None if resources is None else partial(resource_exists, resources),
        RefusedPolicies(view, receivers, clock, notifier.wake),
    )
    streams = EventStreams(settings.event_streams)

    async def prepare(stop: Stop) -> None:
        if not await wait_for_topics(bus, settings, stop, health):
            return
        if not await retry_until_ready("store", store.ping, stop):
            return
        decoders = {
            POLICIES.name: lambda record: decode(record, ScalingPolicy),
            ACTIONS.name: lambda record: decode(record, ActionState),
        }
        await asyncio.gather(
            decider.run(stop),
            log.run(stop),
            knowledge.follow(stop),
            count_dead_letters(bus, stop),
            dead_letters.watch(decoders, stop),
            follow_resources(stop),
            notifier.run(stop),
        )

    async def follow_resources(stop: Stop) -> None:
        if resources is None:
            return

        await ResourcePolicies(resources, changes, lambda: decider.decides).run(stop)

    async def close() -> None:
        REGISTRY.unregister(gauges)
        if resources is not None:
            await resources.close()

    routers = [
        policies_router(changes),
        applications_router(changes, limits, streams),
        imports_router(changes),
        events_router(store, streams, clock),
    ]
    return Service({"knowledge": prepare}, close, routers)


async def run(settings: KnowledgeSettings) -> int:
    from .adapters.redis import RedisStore  # one process keeps its state without Redis and its library

    def compose(bus: Bus, clock: Clock, health: Health) -> Service:
        store = RedisStore(settings.redis_url, connections=settings.event_streams + 100, **settings.kept())
        health.register("redis", store.check_room)
        composed = service(settings, bus, store, clock, health)

        async def close() -> None:
            await composed.close()
            await store.close()

        return replace(composed, close=close)

    return await run_alone("knowledge", settings, api(), compose)


def _resources(settings: KnowledgeSettings) -> KubernetesResources | None:
    """Return the ScalingPolicy resources of the cluster, or None unless a setting lists namespaces."""
    if not settings.uses_kubernetes:
        return None
    access = settings.kubernetes_access(Access.of)
    return KubernetesResources(KubernetesApi(access), instance=gethostname())


def main() -> int:
    return asyncio.run(run(load(KnowledgeSettings, sys.argv[1:])))


if __name__ == "__main__":
    sys.exit(main())
