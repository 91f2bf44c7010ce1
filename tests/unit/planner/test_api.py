"""The planner's HTTP API: what is only tried there is nothing to the loop."""

import httpx

from runtime.clock import FakeClock
from runtime.http import application
from services.planner.adapters.http import PlannerClient
from services.planner.api import planner_router
from services.planner.core.breaker import FAILURES_TO_OPEN
from services.planner.planners import Planners
from services.planner.remote import Remote
from services.planner.workers import Workers
from tests.unit.planner.build import NOON, analysis, policy, request
from tests.unit.planner.plugin import LOOPBACK, Plugin, good, says
from tests.unit.planner.shelf import Shelf


async def test_what_is_only_tried_keeps_the_loop_from_nothing() -> None:
    """Somebody asks what a planner would decide while it is ill, five times: its circuit in the loop stays closed."""
    clock, client = FakeClock(NOON), PlannerClient(LOOPBACK, reply_bytes=20_000)
    app, remote = application("Weir planner", "Of a test."), Remote(client, clock, {})
    question = request(analysis(the_policy=policy(planner={"name": "mine"})))
    async with Plugin(lambda _: says({"detail": "ill"}, 503)) as plugin:
        registration = plugin.registered("mine")
        app.include_router(planner_router(Planners(Workers(1), Shelf(clock, registration), remote), clock))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://planner") as http:
            for _ in range(FAILURES_TO_OPEN):
                answer = await http.post("/v1/plan", json=question.model_dump(mode="json"))
                assert answer.json()["code"] == "planner-failed", answer.text
            shown = (await http.get("/v1/planners/mine")).json()["breaker"]
        assert (shown["state"], shown["failures_in_a_row"]) == ("closed", 0)
        plugin.says = good
        assert (await remote.ask(question, registration, 5.0)).kind == "scale"
    await client.close()
