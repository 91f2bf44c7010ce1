"""The planner's HTTP API: trial requests do not affect the loop."""

import json

import httpx
import pytest

from tests.unit.planner.build import NOON, analysis, policy, request
from tests.unit.planner.plugin import LOOPBACK, Plugin, good, json_answer
from tests.unit.planner.shelf import FixedRegistrations, RequestsHere
from weir_planner.adapters.http import PlannerClient
from weir_planner.api import planner_router
from weir_planner.calls import Planners
from weir_planner.core.breaker import FAILURES_TO_OPEN
from weir_planner.remote import Remote
from weir_runtime.clock import FakeClock
from weir_runtime.http import application
from weir_sdk import installed


async def test_trial_requests_do_not_open_the_loops_circuit() -> None:
    """A user requests a plan five times while the planner fails: its circuit in the loop stays closed."""
    clock, client = FakeClock(NOON), PlannerClient(LOOPBACK, reply_bytes=20_000)
    app, remote = application("Weir planner", "Of a test."), Remote(client, clock)
    question = request(analysis(the_policy=policy(planner={"name": "mine"})))
    async with Plugin(lambda _: json_answer({"detail": "ill"}, 503)) as plugin:
        registration = plugin.registered("mine")
        app.include_router(
            planner_router(Planners(RequestsHere(), FixedRegistrations(clock, registration), remote), clock)
        )
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://planner") as http:
            for _ in range(FAILURES_TO_OPEN):
                answer = await http.post("/v1/plan", json=question.model_dump(mode="json"))
                assert answer.json()["code"] == "planner-failed", answer.text
            shown = (await http.get("/v1/planners/mine")).json()["breaker"]
        assert (shown["state"], shown["failures_in_a_row"]) == ("closed", 0)
        plugin.respond = good
        assert (await remote.ask(question, registration, 5.0)).kind == "scale"
    await client.close()


async def test_a_broken_package_is_listed_and_named_in_readiness(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service stays ready and every other planner replies."""
    broken = installed.Problem("theirs", "their-package", "theirs:plan: ModuleNotFoundError: No module named 'x'")
    found = installed.installed()
    monkeypatch.setattr(installed, "_found", lambda: (found, (broken,)))
    clock, client = FakeClock(NOON), PlannerClient(LOOPBACK, reply_bytes=20_000)
    app, planners = (
        application("Weir planner", "Of a test."),
        Planners(RequestsHere(), FixedRegistrations(clock), Remote(client, clock)),
    )
    app.include_router(planner_router(planners, clock))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://planner") as http:
        listed = {each["name"]: each for each in (await http.get("/v1/planners")).json()["planners"]}
        choice = {"choices": [{"name": "theirs"}, {"name": "rate"}]}
        [problem] = (await http.post("/v1/planners/validate", json=choice)).json()["problems"]
    assert (listed["theirs"]["package"], listed["theirs"]["problem"]) == ("their-package", broken.reason)
    assert listed["rate"]["problem"] is None
    assert str(broken) in problem["message"]
    assert await planners.ping() == str(broken)
    await client.close()


@pytest.mark.parametrize(
    ("place", "number"),
    [
        (("operators", 1, "true_processing_rate", "value"), 1e306),
        (("sources", 0, "lag_records", "value"), -1e306),
        (("sources", 0, "lag_seconds", "value"), 10**400),
        (("operators", 1, "parallelism"), 10**30),
    ],
)
async def test_a_number_out_of_bounds_is_refused_with_its_field(place: tuple[str | int, ...], number: float) -> None:
    """The error is one line that names the field; no planner is called."""
    clock, client = FakeClock(NOON), PlannerClient(LOOPBACK, reply_bytes=20_000)
    app = application("Weir planner", "Of a test.")
    remote = Remote(client, clock)
    app.include_router(planner_router(Planners(RequestsHere(), FixedRegistrations(clock), remote), clock))
    question = request(analysis()).model_dump(mode="json")
    inner = question["analysis"]
    for each in place[:-1]:
        inner = inner[each]
    inner[place[-1]] = number
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://planner") as http:
        answer = await http.post("/v1/plan", content=json.dumps(question), headers={"content-type": "application/json"})
    await client.close()
    assert answer.status_code == 422
    assert len(answer.json()["detail"].splitlines()) == 1
    (error,) = answer.json()["errors"]
    assert error["field"] == ".".join(["body", "analysis", *map(str, place)])


async def test_a_rate_next_to_nothing_is_answered() -> None:
    """1e-310 records/s is no rate: the planner holds as it does for an unknown rate, with that reason."""
    clock, client = FakeClock(NOON), PlannerClient(LOOPBACK, reply_bytes=20_000)
    app, workers = application("Weir planner", "Of a test."), RequestsHere()
    app.include_router(planner_router(Planners(workers, FixedRegistrations(clock), Remote(client, clock)), clock))
    question = request(analysis()).model_dump(mode="json")
    question["analysis"]["operators"][1]["true_processing_rate"]["value"] = 1e-310
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://planner") as http:
        answer = await http.post("/v1/plan", json=question)
    workers.close()
    await client.close()
    assert answer.status_code == 200, answer.text
    assert answer.json()["kind"] == "hold"
    assert answer.json()["code"] not in ("planner-failed", "planner-timeout")
