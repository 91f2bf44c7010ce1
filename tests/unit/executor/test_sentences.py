"""Sentences of refusals and transitions fit a line, with names and reasons of 20 characters and four operators."""

from dataclasses import replace
from typing import Any

import pytest

from tests.sentences import assert_reads_well
from tests.unit.executor.builders import (
    ATTEMPT,
    NOON,
    RULES,
    absent,
    action,
    after,
    away,
    deployment,
    observed,
    plan,
    reading,
    snapshot,
)
from weir_contracts import MAX_SENTENCE, DeploymentRef, InstanceRef, Parallelism, QuarantinedVector, ScaleAction
from weir_engines.driver import Accepted, DepartedMember, Evicted, Progress, Refusal, Rejected
from weir_executor.core.gate import Context, admit
from weir_executor.core.history import ActionHistory
from weir_executor.core.limits import Fleet, Recommendation
from weir_executor.core.observed import Conflict, PolicyReading, Recorded
from weir_executor.core.steps import next_step, supersede

NAME = "enrich-with-customer"
BEFORE: Parallelism = {"orders": 120, "parse-json-payload": 1200, NAME: 400, "total-by-country-day": 12}
WANTED: Parallelism = {"orders": 130, "parse-json-payload": 1300, NAME: 500, "total-by-country-day": 13}
WIDER: Parallelism = {**BEFORE, NAME: 500}
FOREIGN = dict.fromkeys(BEFORE, 777)
INSTANCE = InstanceRef(id=NAME, members=["a"])
THERE = DeploymentRef(job_id="a" * 32, graph_hash=deployment().graph_hash, requested=BEFORE, observed=BEFORE)


def moving(phase: str, **changes: Any) -> Any:
    return action(
        phase,
        **{
            "deployment": THERE,
            "before": BEFORE,
            "wanted": WANTED,
            "baselines": [],
            "checked_at": after(199),
            **changes,
        },
    )


def runs(parallelism: Parallelism = BEFORE, **changes: Any) -> Any:
    return snapshot(parallelism, **{"requested": parallelism, **changes})


LATE, UNOBSERVED = after(200), after(20_000)
STARTED = {"running_at": after(5)}
MEMBERS = tuple(DepartedMember(str(i), f"{name}-long") for i, name in enumerate(BEFORE))
STUCK = Progress("out-of-memory", NAME)
RESTART = {"instance": INSTANCE, "wanted": BEFORE}
STEPS = [
    ("intended", {}, observed(runs(), answer=Recorded()), NOON, "recorded"),
    ("intended", {"instance": INSTANCE}, observed(runs(), answer=Recorded()), NOON, "recorded"),
    ("intended", {}, observed(runs(), answer=Conflict(None)), NOON, "in-flight"),
    ("intended", {}, observed(runs()), LATE, "expired"),
    ("intended", {}, observed(runs(job_id="b" * 32)), NOON, "other-deployment"),
    ("intended", {}, observed(runs(FOREIGN)), NOON, "other-deployment"),
    ("applying", {}, observed(runs(), answer=Accepted(NOON)), NOON, "accepted"),
    ("applying", {"instance": INSTANCE}, observed(runs(), answer=Accepted(NOON)), NOON, "accepted"),
    ("applying", {}, observed(runs(), answer=Rejected(NAME)), NOON, "rejected"),
    ("applying", {}, observed(runs(requested=FOREIGN)), NOON, "contested"),
    ("applying", {}, observed(away(reason=NAME)), LATE, "unreachable"),
    ("applying", {}, observed(absent()), NOON, "job-gone"),
    ("verifying", {}, observed(runs(WANTED, job_id="b" * 32)), NOON, "job-gone"),
    ("verifying", {}, observed(away(reason=NAME)), UNOBSERVED, "unreachable"),
    ("verifying", {}, observed(runs(WANTED, restarts=9, all_running=False)), LATE, "restart-loop"),
    ("verifying", {}, observed(runs(BEFORE, requested=WANTED), answer=Evicted(MEMBERS)), NOON, "evicted"),
    ("verifying", {"wanted": WIDER}, observed(runs(BEFORE, requested=WIDER)), LATE, "below-requested"),
    ("verifying", {}, observed(runs(BEFORE, requested=WANTED, all_running=False)), LATE, "not-running"),
    ("verifying", {}, observed(replace(runs(BEFORE, requested=WANTED), progress=STUCK)), NOON, "out-of-memory"),
    (
        "verifying",
        {},
        observed(replace(runs(WANTED, restarts=9), refusal=Refusal("x", NAME), all_running=False)),
        LATE,
        "x",
    ),
    ("verifying", {}, observed(runs(WANTED)), LATE, "running"),
    ("verifying", STARTED, observed(runs(WANTED)), LATE, "verified"),
    ("verifying", RESTART, observed(runs()), LATE, "running"),
    ("verifying", {**RESTART, **STARTED}, observed(runs()), LATE, "verified"),
    ("verifying", RESTART, observed(runs(all_running=False)), LATE, "restart-failed"),
    ("rolling-back", {}, observed(runs(WANTED), answer=Rejected(NAME)), NOON, "rollback-rejected"),
    ("rolling-back", {}, observed(runs(WANTED), answer=Accepted(NOON)), NOON, "rollback-requested"),
    ("rolling-back", {}, observed(runs(WANTED)), LATE, "rollback-unreachable"),
    ("rolling-back", {"rollback_requested_at": NOON}, observed(runs(BEFORE)), NOON, "rolled-back"),
    (
        "rolling-back",
        {"rollback_requested_at": NOON},
        observed(runs(FOREIGN, requested=BEFORE)),
        LATE,
        "rollback-stuck",
    ),
]


@pytest.mark.parametrize(("phase", "changes", "found", "now", "code"), STEPS)
def test_a_transition_fits_a_line(phase: str, changes: Any, found: Any, now: Any, code: str) -> None:
    """Nothing of it is cut when it is published."""
    event = next_step(moving(phase, **changes), found, now, RULES).event
    assert event is not None
    assert event.code or event.name
    assert (event.code or event.name) == code
    assert len(event.sentence) <= MAX_SENTENCE, event.sentence
    assert_reads_well(event.sentence)


def test_a_plan_that_is_followed_by_a_newer_one_fits_a_line() -> None:
    """The change, and the seconds it took to run."""
    event = supersede(moving("verifying", running_at=after(12_345)), LATE).event
    assert event is not None
    assert len(event.sentence) <= MAX_SENTENCE, event.sentence
    assert_reads_well(event.sentence)


PLANNED = plan(WANTED, deployment=THERE, current=BEFORE)
WROTE = ActionHistory(action=moving("verified", finished_at=NOON), last_written=BEFORE)
SHRINKING = Recommendation(NOON, NOON, after(600))
APPLICATIONS = [f"shop/application-{i}" for i in range(123)]
FEWER = {name: p - 1 for name, p in BEFORE.items()}
ROLLED_BACK = QuarantinedVector(parallelism=WANTED, until=after(600), strikes=1, because=NAME)
GATE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"mode": "advise"}, {}, "not-act"),
    ({}, {"now": after(12_345)}, "expired"),
    ({}, {"history": ActionHistory(action=moving("applying", sentence=NAME))}, "in-flight"),
    ({}, {"policy": PolicyReading(reachable=False, reason=NAME)}, "unreachable"),
    ({}, {"policy": PolicyReading(reachable=True)}, "policy-changed"),
    ({}, {"policy": reading(mode="paused")}, "not-act"),
    ({}, {"policy": reading(version=1_800_000_000_000)}, "policy-changed"),
    ({}, {"fleet": Fleet({f"app-{i}": NAME for i in range(12)})}, "too-many-actions"),
    ({}, {"snapshot": away(reason=NAME)}, "unreachable"),
    ({}, {"snapshot": absent()}, "other-deployment"),
    ({"deployment": None}, {}, "other-deployment"),
    ({}, {"snapshot": runs(job_id="b" * 32)}, "other-deployment"),
    ({}, {"snapshot": runs(graph_hash="b" * 16)}, "other-deployment"),
    ({}, {"snapshot": runs(health="failed", state="FAILED")}, "other-deployment"),
    ({}, {"snapshot": runs(FOREIGN)}, "other-deployment"),
    ({}, {"snapshot": runs(BEFORE, requested=FOREIGN)}, "other-deployment"),
    ({}, {"snapshot": runs(BEFORE, requested=FOREIGN), "history": WROTE}, "contested"),
    ({}, {"snapshot": runs(WANTED, requested=WANTED)}, "other-deployment"),
    ({}, {"history": ActionHistory(quarantine=(ROLLED_BACK,))}, "quarantined"),
    ({}, {"policy": reading(bounds={"min": 1, "max": 2})}, "out-of-bounds"),
    ({}, {"policy": reading(bounds={"max": 2000, "total": {"max": 1}})}, "out-of-bounds"),
    (
        {"action": ScaleAction(parallelism=FEWER)},
        {"fleet": Fleet({}, dict.fromkeys(APPLICATIONS, SHRINKING))},
        "fleet-shrinking",
    ),
]


@pytest.mark.parametrize(("planned", "found", "code"), GATE)
def test_a_refusal_fits_a_line(planned: dict[str, Any], found: dict[str, Any], code: str) -> None:
    """The outcome of a refused plan carries the whole sentence."""
    context = {
        "now": after(1),
        "history": ActionHistory(),
        "policy": reading(),
        "snapshot": runs(),
        "attempt_id": ATTEMPT,
    }
    refusal = admit(PLANNED.model_copy(update=planned), Context(**{**context, **found}))
    assert isinstance(refusal, Refusal), refusal
    assert refusal.code == code
    assert len(refusal.sentence) <= MAX_SENTENCE, refusal.sentence
    assert_reads_well(refusal.sentence)
