"""`POST /v1/judge`: the judgement of any parallelism, and errors that name field and place."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.unit.planner.build import NOON, WORK, action, after, analysis, outcome
from tests.unit.planner.plugin import LOOPBACK
from tests.unit.planner.shelf import FixedRegistrations, RequestsHere
from weir_contracts import Judgement
from weir_planner.adapters.http import PlannerClient
from weir_planner.api import planner_router
from weir_planner.calls import Planners
from weir_planner.remote import Remote
from weir_predictor import judged
from weir_runtime.clock import FakeClock
from weir_runtime.http import application

PATH = "/v1/judge"


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    clock, client = FakeClock(NOON), PlannerClient(LOOPBACK, reply_bytes=20_000)
    app = application("Weir planner", "Of a test.", body_bytes=100_000)
    planners = Planners(RequestsHere(), FixedRegistrations(clock), Remote(client, clock))
    app.include_router(planner_router(planners, clock))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://planner") as found:
        yield found
    await client.close()


def proposal(**changes: Any) -> dict[str, Any]:
    return {"analysis": analysis().model_dump(mode="json"), "parallelism": {WORK: 4}, **changes}


async def test_a_proposal_is_judged_as_by_the_predictor(http: httpx.AsyncClient) -> None:
    """The response is the predictor's, over the horizon of the request, with the restart that outcomes show."""
    answer = await http.post(PATH, json=proposal(horizon_seconds=120))
    assert answer.status_code == 200, answer.text
    assert Judgement.model_validate(answer.json()) == judged(analysis(), {WORK: 4}, horizon_seconds=120)
    slow = action(before={WORK: 2}, wanted={WORK: 3}, requested_at=NOON, running_at=after(9))
    past = outcome(slow, restart_seconds=9.0)
    unmeasured = analysis(restart_seconds=None).model_dump(mode="json")
    told = proposal(analysis=unmeasured, outcomes=[past.model_dump(mode="json")])
    assert (await http.post(PATH, json=told)).json()["restart"]["seconds"] == 9


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [
        ({"parallelism": {"wrok": 4}}, 422, "body.parallelism"),
        ({"parallelism": {WORK: 0}}, 422, f"body.parallelism.{WORK}"),
        ({"parallelism": {WORK: 40_000}}, 422, f"body.parallelism.{WORK}"),
        ({"horizon_seconds": 5}, 422, "body.horizon_seconds"),
        ({"horizon_seconds": 1e9}, 422, "body.horizon_seconds"),
        ({"horizon": 60}, 422, "body.horizon"),
        ({"outcomes": [{}]}, 422, "body.outcomes.0.id"),
        ({"analysis": {}}, 422, "body.analysis.id"),
    ],
)
async def test_a_wrong_field_is_named(
    http: httpx.AsyncClient, changes: dict[str, Any], status: int, field: str
) -> None:
    """A misspelled field is an error, not ignored."""
    answer = await http.post(PATH, json=proposal(**changes))
    assert answer.status_code == status, answer.text
    assert field in [error["field"] for error in answer.json()["errors"]]


async def test_what_cannot_be_judged_says_what_is_missing(http: httpx.AsyncClient) -> None:
    """409, as for a what-if: the reader waits, nothing is wrong with the request."""
    nothing = analysis(topology=None, deployment=None).model_dump(mode="json")
    answer = await http.post(PATH, json=proposal(analysis=nothing, parallelism={}))
    assert answer.status_code == 409
    assert answer.json()["detail"].startswith("shop/orders cannot be judged yet: the application's graph")


async def test_raw_bytes_are_bounded_and_keys_are_unique(http: httpx.AsyncClient) -> None:
    """A larger body is refused before it is read; of two equal keys none is taken."""
    assert (await http.post(PATH, content=b"{" + b" " * 100_001 + b"}")).status_code == 413
    twice = '{"parallelism": {"work": 2, "work": 4}, "analysis": ' + analysis().model_dump_json() + "}"
    answer = await http.post(PATH, content=twice, headers={"content-type": "application/json"})
    assert answer.status_code == 422 and "work" in answer.json()["detail"]
