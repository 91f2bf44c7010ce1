"""The chaos campaign's accounts: what it calls lost, unended or done twice."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from weir_contracts.topics import ANALYSES, DEAD_LETTERS, OBSERVATIONS, OUTCOMES, PLANS

from bench.chaos import kubernetes
from bench.chaos.campaign import MOMENTS, VICTIMS, plan_of, right
from bench.chaos.ledger import Ledger
from bench.kubernetes.load import Sample


def plan(id: str, kind: str = "scale") -> dict[str, Any]:
    return {"id": id, "kind": kind, "mode": "act", "created_at": "08:00"}


def outcome(plan_id: str, phase: str, action: str | None = None, requested_at: str | None = None) -> dict[str, Any]:
    return {
        "plan_id": plan_id,
        "phase": phase,
        "action": None if action is None else {"id": action, "requested_at": requested_at},
    }


@pytest.fixture
def ledger() -> Ledger:
    """One observation, analysed, planned for and acted on."""
    made = Ledger()
    made.add(OBSERVATIONS.name, {"id": "o1"})
    made.add(ANALYSES.name, {"id": "a1", "observation_id": "o1"})
    made.add(PLANS.name, plan("p1"))
    made.add(PLANS.name, plan("p2", kind="hold"))
    for phase, at in (("intended", None), ("verifying", "08:00"), ("verified", "08:00")):
        made.add(OUTCOMES.name, outcome("p1", phase, "x1", at))
    return made


def test_a_cycle_that_ended_is_clean(ledger: Ledger) -> None:
    """A hold needs no end; a plan to scale has one."""
    summary = ledger.summary()
    assert summary.clean
    assert (summary.plans, summary.plans_to_scale, summary.requests) == (2, 1, 1)


def test_a_plan_without_an_end_is_named(ledger: Ledger) -> None:
    """Neither verified nor refused."""
    ledger.add(PLANS.name, plan("p3"))
    ledger.add(OUTCOMES.name, outcome("p3", "applying", "x3"))
    assert ledger.summary().plans_without_end == ["p3 of 08:00: applying"]
    assert not ledger.summary().clean


def test_a_refusal_ends_a_plan(ledger: Ledger) -> None:
    """It has no action."""
    ledger.add(PLANS.name, plan("p3"))
    ledger.add(OUTCOMES.name, outcome("p3", "refused"))
    assert ledger.summary().clean


def test_a_second_request_for_one_plan_is_named(ledger: Ledger) -> None:
    """Whether by a second action or by the first one again."""
    ledger.add(OUTCOMES.name, outcome("p1", "verifying", "x1", "08:01"))
    assert ledger.summary().plans_requested_twice == ["p1"]


def test_a_lost_observation_is_named_but_not_one_on_its_way(ledger: Ledger) -> None:
    """An observation after the last settled one may still be analysed."""
    ledger.add(OBSERVATIONS.name, {"id": "o2"})
    assert ledger.summary(settled_observation="o1").clean
    assert ledger.summary().observations_without_analysis == ["o2"]


def test_a_dead_letter_is_not_clean(ledger: Ledger) -> None:
    """No kill makes a message unreadable."""
    ledger.add(DEAD_LETTERS.name, {"id": "d1"})
    assert not ledger.summary().clean


def test_a_campaign_strikes_everybody_at_every_moment() -> None:
    """In an order that the seed decides."""
    pairs = plan_of(70, seed=3)
    assert len(pairs) == 70
    assert {(victim, moment) for victim in VICTIMS for moment in MOMENTS} == set(pairs[:66])
    assert pairs == plan_of(70, seed=3) != plan_of(70, seed=4)


def test_a_short_campaign_strikes_each_part_as_often_as_any_other() -> None:
    """Twice here, at different moments."""
    pairs = plan_of(2 * len(VICTIMS), seed=3)
    assert len(set(pairs)) == len(pairs)
    assert Counter(victim for victim, _ in pairs) == dict.fromkeys(VICTIMS, 2)


def test_right_is_enough_and_little_more() -> None:
    """One subtask does 485 records/s, three 1,373."""
    assert right(400.0) == range(1, 3)
    assert right(1200.0) == range(3, 6)


def test_right_replicas_of_a_service_are_enough_and_little_more() -> None:
    """One replica does 100 records/s."""
    assert kubernetes.right(200.0) == range(2, 5)
    assert kubernetes.right(600.0) == range(6, 11)


class _Samples(kubernetes.KubernetesCampaign):
    """A campaign whose workload was sampled once."""

    def __init__(self, *samples: Sample, code: str = "objective-held") -> None:
        self.rate = 200.0
        plans = [SimpleNamespace(kind="plan", data={"code": code})] if code else []
        self.events = SimpleNamespace(events=lambda: plans)  # type: ignore[assignment]
        self.stack = SimpleNamespace(simulation=SimpleNamespace(samples={kubernetes.NAME: samples}))  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([], "has not begun"),
        ([Sample(1.0, 200.0, 0.0, 3, 3, 3)], None),
        ([Sample(1.0, 200.0, 0.0, 3, 3, 2)], "2 of 3 replicas are ready"),
        ([Sample(1.0, 200.0, 0.0, 9, 9, 9)], "9 of 9 replicas are ready, right for 200/s"),
        ([Sample(1.0, 200.0, 31.0, 3, 3, 3)], "waits for 31 s"),
    ],
)
def test_a_workload_is_well_when_its_replicas_are_ready_right_and_in_time(
    samples: list[Sample], words: str | None
) -> None:
    troubles = _Samples(*samples).target_troubles()
    assert (troubles == []) if words is None else (words in troubles[0])
    assert samples == [] or _Samples(*samples, code="").target_troubles() == ["no plan was made yet"]


def test_a_workload_that_rides_the_rounds_out_may_keep_what_the_high_load_needs() -> None:
    kept = [Sample(1.0, 200.0, 0.0, 9, 9, 9)]
    assert _Samples(*kept, code="swings-ridden").target_troubles() == []
    assert _Samples(Sample(1.0, 200.0, 0.0, 1, 1, 1), code="swings-ridden").target_troubles() != []
