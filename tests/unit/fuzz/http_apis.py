"""The HTTP APIs as their services make them, on memory instead of Redis and without processes for planners."""

import asyncio

from fastapi import FastAPI

from tests.unit.knowledge.builders import APP, NOON, action, at, observation, outcome, plan, policy
from tests.unit.knowledge.direct_log import PARTITIONS, add_routes, changes_of, show, show_messages
from tests.unit.knowledge.memory_store import MemoryStore
from tests.unit.planner.build import analysis as known_well
from tests.unit.planner.shelf import FixedRegistrations, RequestsHere
from weir_contracts import PlannerRegistration, PlanReply, PlanRequest, example
from weir_knowledge.__main__ import api
from weir_knowledge.store import FeedEvent, StoreUnavailable
from weir_planner.adapters.http import PlannerClient
from weir_planner.api import planner_router
from weir_planner.calls import Planners
from weir_planner.remote import Remote
from weir_runtime.clock import FakeClock
from weir_runtime.http import application
from weir_runtime.reach import Allowed
from weir_runtime.service import Health, health_router
from weir_sdk.installed import ask

NAME = APP.split("/")[1]
"""Also the name of the registered planner, so that requests find it."""


KEPT = PlannerRegistration.model_validate(example("planner-registration", "minimal") | {"name": NAME})


class Library(MemoryStore):
    """A store that knows one application. Its feed ends for a caller that waits, so that a request for it ends."""

    async def events(self, after: str, count: int = 100, wait_seconds: float = 0.0) -> list[FeedEvent]:
        if wait_seconds:
            raise StoreUnavailable("this feed ends")
        return await super().events(after, count)

    async def fill(self) -> None:
        """Store one cycle of the loop."""
        wanted = plan(1, 4)
        # With a graph, so that what-if has an answer.
        cycle = (observation(1), known_well(at=at(1)), wanted, outcome(wanted, "applying"))
        await show(self, policy())
        if not await self.history(APP):
            await show_messages(self, *cycle)
        if ("action", APP) not in self.documents:
            await self.set_action(APP, action(wanted), 1, PARTITIONS)


async def inside(_host: str, _port: int) -> list[str]:
    """Resolve every name to a forbidden address, so that nothing is requested."""
    return ["127.0.0.1"]


class Desk(RequestsHere):
    """Planners called in this process."""

    async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
        del timeout_seconds
        return PlanReply.model_validate_json(ask(request, planner).model_dump_json())


def knowledge() -> FastAPI:
    app, store, clock = api(), Library(), FakeClock(NOON)
    changes = changes_of(store, clock)
    asyncio.run(store.fill())
    app.include_router(health_router(Health(clock)))
    add_routes(app, changes)
    return app


def planner() -> FastAPI:
    clock = FakeClock(NOON)
    app = application("Weir planner", "Which planners there are, and what one would decide.")
    app.include_router(health_router(Health(clock)))
    client = PlannerClient(Allowed.of("http,https", "*", "public", prefix="WEIR_PLANNER_PLUGIN"), resolve=inside)
    app.include_router(planner_router(Planners(Desk(), FixedRegistrations(clock, KEPT), Remote(client, clock)), clock))
    return app


def health() -> FastAPI:
    """All that monitor, analyzer and executor answer to; one dependency is away."""

    async def away() -> None:
        raise RuntimeError("no answer \udcff")  # as an address may have it that a setting named

    checks = Health(FakeClock(NOON))
    checks.register("kafka", away)
    app = application("Weir monitor", "Watches applications.")
    app.include_router(health_router(checks))
    return app
