"""The planner called for a name, and its fallback."""

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from tests.unit.planner.build import NOON, SOURCE, WORK, analysis, policy, request, scale
from weir_contracts import PlanReply, PlanRequest
from weir_planner.calls import decide
from weir_planner.core.decide import make_plan
from weir_sdk import InvalidParameters
from weir_sdk.installed import parse_parameters

SLOW = PlanReply(kind="hold", code="planner-timeout", sentence="planner mine gave no answer within 2 s")


class FakePlanners:
    """Planners by name."""

    def __init__(self, **planners: Callable[[PlanRequest], PlanReply]) -> None:
        self.planners = planners
        self.calls: list[tuple[str, PlanRequest, float]] = []

    async def start(self) -> None:
        return

    async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
        self.calls.append((planner, request, timeout_seconds))
        return self.planners[planner](request)


def question(**planner: Any) -> PlanRequest:
    chosen = policy(planner={"name": "mine", "parameters": {"speed": 3}, "timeout": "1500ms", **planner})
    return request(analysis(the_policy=chosen), memory={"turn": 7})


FALLBACK = {"name": "rate", "parameters": {"drain_seconds": 90}}


async def test_the_fallback_is_not_called_if_the_planner_replies() -> None:
    """A hold is a reply too."""
    fakes = FakePlanners(mine=lambda _: PlanReply(kind="hold", code="well", sentence="all is well"))
    assert (await decide(fakes, question(fallback=FALLBACK))).code == "well"
    assert [name for name, *_ in fakes.calls] == ["mine"]


@pytest.mark.parametrize("code", ["planner-timeout", "planner-failed", "planner-invalid", "invalid-reply"])
async def test_the_fallback_decides_and_the_plan_names_it(code: str) -> None:
    """It gets its own parameters and no memory; the chosen planner's memory is kept."""
    fakes = FakePlanners(
        mine=lambda _: SLOW.model_copy(update={"code": code}),
        rate=lambda _: scale({SOURCE: 1, WORK: 4}).model_copy(update={"memory": {"own": 1}, "evidence": {"rate": 5.0}}),
    )
    plan_request = question(fallback=FALLBACK)
    reply = await decide(fakes, plan_request)
    assert reply.parallelism == {SOURCE: 1, WORK: 4}
    assert reply.sentence == f"the planner wants it; by the fallback rate, as {SLOW.sentence}"
    assert reply.evidence == {"rate": 5.0, "planner_failure": code, "answered_by": "rate"}
    assert reply.memory == {"turn": 7}
    (_, first, seconds), (name, second, more_seconds) = fakes.calls
    assert first is plan_request
    assert (name, second.memory, seconds, more_seconds) == ("rate", {}, 1.5, 1.5)
    assert second.policy.spec.planner.parameters == {"drain_seconds": 90}
    plan = make_plan(plan_request, reply, planner="mine", created_at=NOON)
    assert (plan.kind, plan.planner, plan.state.memory) == ("scale", "mine", {"turn": 7})
    assert plan.evidence["answered_by"] == "rate"


async def test_without_a_fallback_nothing_changes() -> None:
    """A hold with the reason."""
    reply = await decide(FakePlanners(mine=lambda _: SLOW), question())
    assert reply == SLOW


async def test_a_failure_of_the_fallback_is_reported_with_the_first() -> None:
    """Both reasons, with the code of the first."""
    failed = PlanReply(kind="hold", code="planner-failed", sentence="planner rate ended its process")
    reply = await decide(FakePlanners(mine=lambda _: SLOW, rate=lambda _: failed), question(fallback=FALLBACK))
    assert (reply.kind, reply.code) == ("hold", "planner-timeout")
    assert reply.sentence == f"{SLOW.sentence}; its fallback: {failed.sentence}"


async def test_a_fallback_with_full_evidence_is_still_named() -> None:
    """The contract limits the number of entries."""
    full = scale({SOURCE: 1, WORK: 4}).model_copy(update={"evidence": {f"n{i}": i for i in range(200)}})
    reply = await decide(FakePlanners(mine=lambda _: SLOW, rate=lambda _: full), question(fallback=FALLBACK))
    assert PlanReply.model_validate_json(reply.model_dump_json()).evidence["answered_by"] == "rate"


@pytest.mark.parametrize(
    ("planner", "parameters", "message"),
    [
        ("static", {"parallelism": True}, "parallelism"),
        ("static", {"parallelism": date(2026, 1, 1)}, "parallelism"),
        ("rate", {"target_utilization": "0.7"}, "target_utilization: must be a number, without quotes"),
        ("responsive", {"diagnosers": "x"}, "diagnosers: must be a list"),
        ("keda-kafka", {"nonsense": 1}, "lagThreshold"),
    ],
)
def test_parameters_are_read_as_strictly_as_replies(planner: str, parameters: dict[str, Any], message: str) -> None:
    """No boolean or text for a number; the message uses the terms of a policy's author."""
    with pytest.raises(InvalidParameters, match=message):
        parse_parameters(planner, parameters)
