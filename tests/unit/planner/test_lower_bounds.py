"""Arrivals and lag that are known in part: enough to grow, never to shrink."""

from typing import Any

import pytest

from tests.unit.planner.build import analysis, known, policy, request
from weir_contracts import Estimate, Plan
from weir_planner.core.decide import plan_offline
from weir_sdk import Request


def _at_least(bound: float) -> Estimate:
    return Estimate(
        lower_bound=bound, basis="the position in 1 of 12 partitions is unknown", confidence=0.6, samples=11
    )


def _planned(*, arrivals: float, work: int, lag: float | None = None, rate: float | None = None, **spec: Any) -> Plan:
    """Plan where `lag` records, or `rate` records/s of the arrivals, are only lower bounds."""
    found = analysis(arrivals=arrivals, work=work, the_policy=policy(**spec))
    (source,) = found.sources
    changes: dict[str, Estimate] = {}
    if lag is not None:
        seconds = _at_least(lag / arrivals)
        changes |= {"lag_records": _at_least(lag), "lag_growth": _at_least(100.0), "lag_seconds": seconds}
        changes |= {"expected_latency_seconds": seconds}
    if rate is not None:
        changes |= {"arrival_rate": _at_least(rate)}
        operators = [o.model_copy(update={"target_input_rate": _at_least(rate)}) for o in found.operators]
        found = found.model_copy(update={"operators": operators})
    found = found.model_copy(update={"sources": [source.model_copy(update=changes)], **changes})
    return plan_offline(request(found))


PLANNERS = [
    {"name": "rate"},
    {"name": "ds2", "parameters": {"warm_up_intervals": 0}},
    {"name": "threshold", "parameters": {"measure": "backlog", "up_above": 5_000, "down_below": 100, "step": 2}},
    {
        "name": "hpa",
        "parameters": {
            "scope": "application",
            "behavior": {},
            "metrics": [{"name": "lag_records", "target": {"type": "AverageValue", "averageValue": 2_000}}],
        },
    },
]


@pytest.mark.parametrize("planner", PLANNERS, ids=lambda each: each["name"])
def test_growth_that_the_known_part_requires_goes_on_and_says_so(planner: dict[str, Any]) -> None:
    """1,500 records/s arrive where 1,000 are possible, and at least 12,000 wait: whatever the twelfth partition holds,
    `work` needs more. The sentence names the lower bound."""
    plan = _planned(arrivals=1500.0, work=2, lag=12_000.0, planner=planner)
    assert plan.kind == "scale"
    assert plan.approved is not None and plan.approved["work"] > 2
    assert "known in part: at least" in plan.sentence


@pytest.mark.parametrize("planner", PLANNERS, ids=lambda each: each["name"])
def test_nothing_shrinks_on_a_part(planner: dict[str, Any]) -> None:
    """A tenth of the capacity is used, and nothing is known to wait: what is unknown may need the rest."""
    plan = _planned(arrivals=300.0, work=8, lag=0.0, planner=planner)
    assert plan.kind == "hold", plan.sentence


def test_the_hold_names_what_is_known_in_part() -> None:
    """A reader learns which value, and how much of it is known."""
    plan = _planned(arrivals=300.0, work=8, lag=450.0)
    assert plan.code == "metric-missing"
    assert "the lag of orders is known in part: at least 450 records" in plan.sentence
    assert len(plan.sentence) <= 160
    assert plan.prediction is None


def test_arrivals_of_the_readable_partitions_are_enough_to_grow() -> None:
    """At least 1,400 records/s arrive where 1,000 are possible."""
    plan = _planned(arrivals=1400.0, work=2, rate=1400.0)
    assert plan.kind == "scale", plan.sentence
    assert "its arrival rate is known in part: at least 1,400 records/s" in plan.sentence


def test_arrivals_of_the_readable_partitions_shrink_nothing() -> None:
    """At least 300 records/s arrive where 4,000 are possible: nobody knows how many more."""
    assert _planned(arrivals=300.0, work=8, rate=300.0).kind == "hold"


def test_an_unknown_lag_shrinks_nothing_under_a_utilization_objective() -> None:
    """Such an objective needs no lag to grow; without one nobody knows what waits."""
    spec = {"objective": {"utilization": 0.7}}
    found = analysis(arrivals=300.0, work=8, backlog=None, lag_seconds=None, the_policy=policy(**spec))
    assert plan_offline(request(found)).kind == "hold"


def test_a_planner_of_a_user_may_ask_for_the_lower_bound() -> None:
    """`needed` refuses a value that is known in part, unless told that more is no harm."""
    asked = Request.of(request(analysis()))
    assert asked.needed(_at_least(7.0), "the lag", or_more=True) == 7.0
    assert asked.needed(known(3.0), "the lag", or_more=True) == 3.0
    with pytest.raises(Exception, match="the lag is unknown: the position in 1 of 12"):
        asked.needed(_at_least(7.0), "the lag")
