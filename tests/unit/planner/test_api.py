"""The planner's HTTP API: what is only tried there is nothing to the loop."""

from collections.abc import AsyncIterator

import httpx
import pytest
from weir_contracts import PlannerRegistration

from runtime.clock import FakeClock
from runtime.http import application
from runtime.memory_bus import MemoryBus
from services.planner.adapters.http import PlannerClient
from services.planner.api import planner_router
from services.planner.core.breaker import FAILURES_TO_OPEN
from services.planner.planners import Planners
from services.planner.registrations import Registrations
from services.planner.remote import Remote
from services.planner.workers import Workers
from tests.unit.planner.build import NOON, analysis, policy, request
from tests.unit.planner.plugin import LOOPBACK, Plugin, good, says


class Known(Registrations):
    """One planner is registered."""

    def __init__(self, clock: FakeClock, registration: PlannerRegistration) -> None:
        super().__init__(MemoryBus(partitions=1, clock=clock), clock)
        self._one = registration

    @property
    def ready(self) -> bool:
        return True

    @property
    def latest(self) -> dict[str, PlannerRegistration]:
        return {self._one.name: self._one}


@pytest.fixture
async def plugin() -> AsyncIterator[Plugin]:
    async with Plugin() as made:
        yield made


async def test_what_is_only_tried_keeps_the_loop_from_nothing(plugin: Plugin) -> None:
    """Somebody asks what a planner would decide while it is ill, five times: its circuit in the loop stays closed."""
    clock, client = FakeClock(NOON), PlannerClient(LOOPBACK, reply_bytes=20_000)
    remote, registration = Remote(client, clock, {}), plugin.registered("mine")
    planners = Planners(Workers(1), Known(clock, registration), remote)
    app = application("Weir planner", "Of a test.")
    app.include_router(planner_router(planners, clock))
    question = request(analysis(the_policy=policy(planner={"name": "mine"})))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://planner") as http:
        plugin.says = lambda _: says({"detail": "ill"}, 503)
        for _ in range(FAILURES_TO_OPEN):
            answer = await http.post("/v1/plan", json=question.model_dump(mode="json"))
            assert answer.json()["code"] == "planner-failed", answer.text
        shown = (await http.get("/v1/planners/mine")).json()["breaker"]
    assert (shown["state"], shown["failures_in_a_row"]) == ("closed", 0)
    plugin.says = good
    assert (await remote.ask(question, registration, 5.0)).kind == "scale"
    await client.close()
