"""The status of a ScalingPolicy resource: what holds, why, since when, and the figures."""

import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.knowledge.builders import APP, NOON, action, analysis, observation, outcome, plan, policy
from weir_contracts import Deployment, ScalingPolicy
from weir_contracts.analysis import OperatorAnalysis
from weir_contracts.base import Estimate, unknown
from weir_contracts.planning import Infeasible
from weir_contracts.resource import Condition
from weir_knowledge.core import HistoryLimits, State, remember
from weir_knowledge.newest import Newest
from weir_knowledge.resource_conditions import InForce, Refusal, camel_case
from weir_knowledge.resource_status import Resource, differs, merge_patch, status_of
from weir_knowledge.summary import summarise

NOW = NOON + timedelta(seconds=7)
CODE = r"[a-z][a-z0-9-]{0,63}"


def resource(generation: int = 1, status: dict[str, Any] | None = None) -> Resource:
    return Resource(APP, "uid-1", generation, {"status": status or {}})


def in_force(*, of: ScalingPolicy | None = None, **messages: Any) -> InForce:
    """Return a policy that acts, of generation 1, and the newest messages about it; without one nothing is known."""
    messages = {"analysis": measured(1.0), **messages} if messages else {}
    stored = of or policy(mode="act")
    stored = stored.model_copy(update={"metadata": stored.metadata.model_copy(update={"generation": 1})})
    moving = messages.pop("action", None)
    state = State(application=APP)
    for each in messages.values():
        state = remember(state, each, HistoryLimits())
    return InForce(stored, Newest(application=APP, **messages), summarise(state, stored, moving, NOW))


def conditions(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["type"]: each for each in status["conditions"]}


def running(**changes: Any) -> Any:
    """Return an observation of a job whose operators run."""
    deployment = Deployment(
        engine="flink",
        health="running",
        job_id="a" * 32,
        job_name="orders",
        graph_hash="b" * 16,
        state="RUNNING",
        observed={"source": 1, "work": 3},
        requested={"source": 1, "work": 4},
    )
    return observation(1, deployment=deployment, **changes)


def measured(seconds: float | None, **changes: Any) -> Any:
    """Return an analysis with this lag."""
    lag = Estimate(value=seconds, basis="measured", confidence=1.0) if seconds is not None else unknown("no offsets")
    return analysis(1, **{"lag_seconds": lag, **changes})


def test_wanted_requested_and_running_are_three_numbers() -> None:
    """Of all operators together and of each; the last decision and the last action are beside them."""
    made = plan(1, approved := 6, current={"source": 1, "work": 3})
    made = made.model_copy(
        update={"action": made.action.model_copy(update={"parallelism": {"source": 1, "work": approved}})}  # type: ignore[union-attr]
    )
    found = in_force(observation=running(), plan=made, action=action(made, phase="verifying"))
    status = status_of(resource(), None, found, NOW)
    assert status["parallelism"] == {"wanted": 7, "requested": 5, "running": 4}
    assert status["operators"] == [
        {"name": "source", "wanted": 1, "requested": 1, "running": 1},
        {"name": "work", "wanted": 6, "requested": 4, "running": 3},
    ]
    assert (status["decision"]["kind"], status["decision"]["sentence"]) == ("scale", "work needs 6")
    assert status["action"] == {"phase": "verifying", "sentence": "will set work"}
    shown = conditions(status)
    assert (shown["Acting"]["status"], shown["Acting"]["reason"]) == ("True", "Verifying")
    assert (shown["Planned"]["status"], shown["Planned"]["reason"]) == ("True", "CapacityShort")
    assert (shown["Ready"]["status"], shown["Degraded"]["status"], shown["Degraded"]["reason"]) == (
        "True",
        "False",
        "AsExpected",
    )


def test_a_transition_is_a_change_of_the_status_alone() -> None:
    """Another reason or sentence, and another generation, keep its time."""
    first = status_of(resource(), None, in_force(observation=running(), plan=plan(1)), NOW)
    later = NOW + timedelta(seconds=5)
    second = status_of(resource(status=first), None, in_force(observation=running(), plan=plan(1, 4)), later)
    before, after = conditions(first)["Planned"], conditions(second)["Planned"]
    assert (before["reason"], after["reason"]) == ("WithinObjective", "CapacityShort")
    assert after["lastTransitionTime"] == before["lastTransitionTime"]
    failed = plan(1, code="planner-timeout", sentence="rate gave no reply within 2 s")
    third = conditions(
        status_of(resource(2, second), None, in_force(observation=running(), plan=failed), NOW + timedelta(seconds=9))
    )
    assert (third["Planned"]["status"], third["Planned"]["lastTransitionTime"]) == ("False", "2026-01-01T12:00:16Z")
    assert third["Accepted"]["lastTransitionTime"] == conditions(first)["Accepted"]["lastTransitionTime"]
    assert (third["Degraded"]["reason"], third["Degraded"]["message"]) == (
        "PlannerTimeout",
        "rate gave no reply within 2 s",
    )


def test_a_refused_generation_is_judged_and_an_earlier_one_is_reported_on() -> None:
    """`kubectl wait` does not take the old objective for the new one: it compares the generations."""
    found = in_force(observation=running(), plan=plan(1))
    shown = conditions(status_of(resource(2), Refusal("Invalid", "spec.interval: is wrong"), found, NOW))
    generations = {name: each["observedGeneration"] for name, each in shown.items()}
    assert generations == {
        **dict.fromkeys(("Accepted", "Degraded", "Ready"), 2),
        **dict.fromkeys(("Observed", "Planned", "Acting", "ObjectiveMet"), 1),
    }
    assert (shown["ObjectiveMet"]["status"], shown["Degraded"]["status"]) == ("True", "True")
    assert shown["Degraded"]["message"].endswith("Generation 1 of this resource stays in force")


def test_all_conditions_are_there_from_the_start() -> None:
    """Unknown, not absent: also of a document that was never in force."""
    names = {"Accepted", "Observed", "Planned", "Acting", "ObjectiveMet", "Degraded", "Ready"}
    refused = conditions(status_of(resource(), Refusal("Conflict", "it is taken"), None, NOW))
    new = conditions(status_of(resource(), None, in_force(), NOW))
    assert refused.keys() == new.keys() == names
    assert {name for name in names if new[name]["status"] == "Unknown"} == names - {"Accepted"}
    assert (refused["Acting"]["reason"], refused["Ready"]["status"]) == ("NotAccepted", "False")


@pytest.mark.parametrize(
    ("objective", "found", "status", "reason", "message"),
    [
        ({"maxLag": "30s"}, {"seconds": 12.34}, "True", "WithinMaxLag", "lag is 12.3 s, maxLag is 30s"),
        ({"maxLag": "30s"}, {"seconds": 31.0}, "False", "AboveMaxLag", "lag is 31.0 s, maxLag is 30s"),
        ({"maxLag": "30s"}, {"seconds": None}, "Unknown", "LagUnknown", "lag is unknown, maxLag is 30s"),
        (
            {"maxLatency": "10s"},
            {"seconds": 1.0, "expected_latency_seconds": Estimate(value=11.0, basis="lag ÷ rate")},
            "False",
            "AboveMaxLatency",
            "latency is 11.0 s, maxLatency is 10s",
        ),
        (
            {"maxLatency": "10s"},
            {"seconds": 1.0, "expected_latency_seconds": Estimate(lower_bound=12.0, basis="some partitions")},
            "False",
            "AboveMaxLatency",
            "latency is at least 12.0 s, maxLatency is 10s",
        ),
        ({"utilization": 0.7}, {"seconds": 1.0}, "Unknown", "UtilizationUnknown", "utilization is unknown, its objective is 70%"),
        (
            {"utilization": 0.7},
            {"seconds": 1.0, "operators": [0.6, 0.65]},
            "True",
            "WithinUtilization",
            "work-1 is busy 65% of the time, the objective is 70%",
        ),
        (
            {"utilization": 0.7},
            {"seconds": 1.0, "operators": [0.9, 0.65]},
            "False",
            "AboveUtilization",
            "work-0 is busy 90% of the time, the objective is 70%",
        ),
    ],
)  # fmt: skip
def test_every_kind_of_objective_is_judged(
    objective: dict[str, Any], found: dict[str, Any], status: str, reason: str, message: str
) -> None:
    """Lag, latency and utilization; a lower bound above the limit misses it, and what is unknown is neither."""
    shares = found.pop("operators", [])
    names = [f"work-{i}" for i in range(len(shares))]
    nothing = dict.fromkeys(
        ("input_rate", "output_rate", "true_processing_rate", "true_processing_rate_per_subtask"), unknown("no data")
    ) | dict.fromkeys(("backpressure", "skew", "target_input_rate"), unknown("no data"))
    operators = [
        OperatorAnalysis(operator=name, parallelism=1, utilization=Estimate(value=share, basis="measured"), **nothing)
        for name, share in zip(names, shares, strict=True)
    ]
    seen = in_force(
        of=policy(objective=objective), observation=running(), analysis=measured(**found, operators=operators)
    )
    shown = conditions(status_of(resource(), None, seen, NOW))["ObjectiveMet"]
    assert (shown["status"], shown["reason"], shown["message"]) == (status, reason, message)


def test_a_limit_that_keeps_a_missed_objective_from_being_met_degrades() -> None:
    """The limit is named; while the objective is met it is no trouble."""
    limit = Infeasible(operator="work", code="bounds-max", because="work needs 40, bounds.max is 32")
    for lag, status in ((99.0, "True"), (1.0, "False")):
        found = in_force(observation=running(), analysis=measured(lag), plan=plan(1, infeasible=[limit]))
        shown = conditions(status_of(resource(), None, found, NOW))["Degraded"]
        assert shown["status"] == status
    assert shown["reason"] == "AsExpected"


@pytest.mark.parametrize(("mode", "reason"), [("advise", "Advising"), ("paused", "Paused")])
def test_a_policy_that_does_not_act_says_why_and_is_not_degraded(mode: str, reason: str) -> None:
    """Both are the user's wish."""
    made = plan(1, code="paused", sentence="the policy is paused") if mode == "paused" else plan(1, 4)
    found = in_force(of=policy(mode=mode), observation=running(), plan=made)
    shown = conditions(status_of(resource(), None, found, NOW))
    assert (shown["Acting"]["status"], shown["Acting"]["reason"]) == ("False", reason)
    assert (shown["Degraded"]["status"], shown["Ready"]["status"]) == ("False", "True")


def test_a_plan_for_an_earlier_version_says_nothing_of_this_one() -> None:
    """It is unknown until the planner has seen the change."""
    found = in_force(of=policy(version=8), observation=running(), plan=plan(1, policy_version=7))
    shown = conditions(status_of(resource(), None, found, NOW))["Planned"]
    assert (shown["status"], shown["reason"]) == ("Unknown", "PolicyChanged")


def test_figures_and_sentences_alone_are_no_reason_to_write() -> None:
    """Until their time comes; a reason is."""
    first = status_of(resource(), None, in_force(observation=running(), plan=plan(1)), NOW)
    other = plan(1, sentence="lag is 2.0 s and stays so")
    second = status_of(
        resource(status=first), None, in_force(observation=running(), analysis=measured(2.0), plan=other), NOW
    )
    assert not differs(second, first, in_figures=False)
    assert differs(second, first, in_figures=True)
    third = status_of(resource(status=first), None, in_force(observation=running(), plan=plan(1, 4)), NOW)
    assert differs(third, first, in_figures=False)


def test_a_refusal_of_the_executor_names_the_target() -> None:
    """The same reason keeps it from acting and degrades it."""
    refused = outcome(plan(1, 4), "refused", code="other-autoscaler", sentence="an HPA scales it, too")
    found = in_force(observation=running(), plan=plan(1, 4), outcome=refused)
    shown = conditions(status_of(resource(), None, found, NOW))
    assert {shown[each]["reason"] for each in ("Acting", "Degraded", "Ready")} == {"OtherAutoscaler"}
    assert shown["Degraded"]["message"] == "an HPA scales it, too"


def test_a_merge_patch_removes_what_became_unknown() -> None:
    """At any depth: the API server keeps what a patch does not name."""
    present = {"mode": "act", "parallelism": {"wanted": 4, "running": 3}, "lagSeconds": 1.0}
    wanted = {"mode": "act", "parallelism": {"wanted": 5}, "decision": {"code": "held"}}
    assert merge_patch(wanted, present) == {
        "mode": "act",
        "lagSeconds": None,
        "parallelism": {"wanted": 5, "running": None},
        "decision": {"code": "held"},
    }


@given(st.from_regex(CODE, fullmatch=True))
def test_every_code_is_a_reason_of_kubernetes(code: str) -> None:
    """CamelCase by the pattern of its conditions, also the codes of foreign planners."""
    pattern = next(each.pattern for each in Condition.model_fields["reason"].metadata if hasattr(each, "pattern"))
    assert re.fullmatch(str(pattern), camel_case(code))
