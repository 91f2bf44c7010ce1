"""Properties of what `rate`, and the guards around every planner, decide: over random applications, and on some that once
contradicted them."""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.planner.build import point, topology
from tests.unit.planner.situations import Situation, situations
from weir_contracts import Edge, Operator, Parallelism, Plan, Topology
from weir_planner.core.decide import plan_offline
from weir_planners.rate.tuning import RateParameters
from weir_sdk.installed import built_in

MAX_OVER_LINEAR = 3.0
"""Subtasks over those that would do if each did what one does now, from which nobody would believe a plan."""
PLANNERS = tuple(built_in())
READINGS = ("lag", "busy", "arrivals", "capacity", "selectivity", "restart", "skew", "backpressure")


def planned(situation: Situation, planner: str = "rate") -> Plan:
    """Return the plan after all guards."""
    return plan_offline(situation.request(planner))


def after(situation: Situation, planner: str = "rate") -> Parallelism:
    """Return what runs after the plan."""
    return planned(situation, planner).approved or situation.now


def fewer(situation: Situation, few: Parallelism, many: Parallelism) -> dict[str, tuple[int, int]]:
    """Return the operators that have fewer subtasks in the second, by more than the predictor's steps round (2 %).

    Subtasks beyond the partitions or key groups do nothing: without them an operator has no less.
    """
    useful = situation.graph.smallest_useful
    return {
        name: (p, many[name]) for name, p in few.items() if useful(name, many[name]) < useful(name, p) - round(0.02 * p)
    }


def is_growth(situation: Situation, plan: Plan) -> bool:
    return plan.approved is not None and all(p >= situation.now[name] for name, p in plan.approved.items())


def chain(now: Parallelism, capacities: Mapping[str, float], arrivals: float, **given_: Any) -> Situation:
    """Return a chain of operators, of which only the present capacity is known unless `measured` has more."""
    names, share = tuple(now), given_.pop("selectivity", 1.0)
    return Situation(
        **{
            "graph": topology(names, partitions=given_.pop("partitions", None), groups=None),
            "now": now,
            "capacities": capacities,
            "measured": {name: [point(p, capacities[name])] for name, p in now.items()},
            "selectivities": dict.fromkeys(pairwise(names), share),
            "arrivals": {names[0]: arrivals},
            "lags": {names[0]: given_.pop("lag", 0.0)},
            "restart_seconds": 8.0,
            "objective": {"maxLag": "30s"},
            "bounds": {"min": 1, "max": 500},
            **given_,
        }
    )


def meeting(
    now: Parallelism,
    capacities: Mapping[str, float],
    bounds: Mapping[str, Any],
    lags: Mapping[str, float] | None = None,
) -> Situation:
    """Return sources of 10 records/s each that meet at `join`."""
    sources = tuple(name for name in now if name != "join")
    graph = Topology(
        operators=[Operator(name=n, id=n, slot_sharing_group="all") for n in now],
        edges=[Edge(source=n, target="join", ship_strategy="HASH") for n in sources],
    )
    return Situation(
        graph=graph,
        now=now,
        capacities=capacities,
        measured={name: [point(p, capacities[name], confidence=1.0, saturated=False)] for name, p in now.items()},
        selectivities={(n, "join"): 1.0 for n in sources},
        arrivals=dict.fromkeys(sources, 10.0),
        lags={**dict.fromkeys(sources, 0.0), **(lags or {})},
        restart_seconds=None,
        objective={"maxLag": "10s"},
        bounds=bounds,
    )


@examples(500)
# 10 records/s use 75 % of 200 subtasks of `c`, 15 all of them: a load beyond the target that was a share higher was as good.
@example(
    chain(
        {"a": 1, "b": 1, "c": 13, "d": 1},
        {"a": 10.0, "b": 10.0, "c": 4.0, "d": 10.0},
        10.0,
        lag=20.0,
        objective={"utilization": 0.7},
        bounds={"min": 1, "max": 200},
    ),
    1.5,
)
# `a` may not grow, the join may not (twice), or only the join may. With more load no growth relieved the busiest operator, so
# the others did not grow either; and a growth that lets 0.5 % more through was worth a restart as long as the load was low.
@example(
    meeting(
        {"a": 1, "b": 1, "join": 1},
        {"a": 10.2, "b": 10.2, "join": 20.4},
        {"min": 1, "max": 8, "operators": {"a": {"min": 1, "max": 1}}},
        lags={"b": 20.0},
    ),
    2.0,
)
@example(
    meeting(
        {"a": 1, "b": 1, "join": 1},
        {"a": 11.0, "b": 15.0, "join": 26.0},
        {"min": 1, "max": 8, "operators": {"join": {"min": 1, "max": 1}}},
        lags={"a": 15.0},
    ),
    3.0,
)
@example(
    replace(
        meeting(
            {"a": 1, "b": 1, "join": 1},
            {"a": 10.2, "b": 13.3, "join": 20.4},
            {"min": 1, "max": 8, "operators": {"join": {"min": 1, "max": 1}}},
            lags={"a": 15.0},
        ),
        restart_seconds=2.0,
    ),
    2.0,
)
@example(
    replace(
        meeting(
            {"a": 1, "b": 1, "join": 1},
            {"a": 10.1, "b": 10.0, "join": 20.0},
            {"min": 1, "max": 8, "operators": {"a": {"min": 1, "max": 1}, "b": {"min": 1, "max": 1}}},
            lags={"a": 20.0},
        ),
        restart_seconds=2.0,
    ),
    2.0,
)
# The longest of three sources' late times grows with the load, and with it did what counted as late for about as long.
@example(
    replace(
        meeting(
            {"a": 1, "b": 1, "c": 1, "join": 9},
            {"a": 10.0, "b": 5361.0, "c": 1159.0, "join": 2864.1},
            {"min": 1, "max": 64},
            lags={"b": 1000.0},
        ),
        measured={
            "a": [point(1, 10.0, confidence=1.0, saturated=False)],
            "b": [point(1, 5361.0, confidence=1.0, saturated=False)],
            "c": [point(1, 1159.0, confidence=1.0, saturated=False)],
            "join": [
                point(9, 2953.603125, confidence=1.0, saturated=False),
                point(27, 4094.7679687500004, confidence=0.5, saturated=False),
            ],
        },
        selectivities={("a", "join"): 1.0, ("b", "join"): 0.1, ("c", "join"): 2.0},
        arrivals={"a": 10.0, "b": 5361.0, "c": 1159.0},
        restart_seconds=2.0,
        objective={"maxLag": "2m"},
    ),
    1.125,
)
@given(situations(), st.floats(1.01, 3.0))
def test_more_arrivals_never_give_fewer_subtasks(situation: Situation, times: float) -> None:
    """To no operator, with the lag in seconds and everything else equal."""
    assert fewer(situation, after(situation), after(situation.with_more(arrivals=times))) == {}


@examples(500)
# The join, which may not grow, has 3 % left for the backlog. From 199 s of it on, growth of `a` ended it no sooner within what
# counts as equal, though it did with less of it.
@example(
    replace(
        meeting(
            {"a": 1, "b": 1, "join": 8}, {"a": 31.25, "b": 234.0, "join": 267.35}, {"min": 1, "max": 8}, {"b": 100.0}
        ),
        arrivals={"a": 25.0, "b": 117.0},
        selectivities={("a", "join"): 1.0, ("b", "join"): 2.0},
        objective={"maxLag": "30s"},
    ),
    99.0,
)
# What waits at `a` alone showed the growth, but no longer from 158 s of it on.
@example(
    replace(
        meeting(
            {"a": 1, "b": 1, "join": 8}, {"a": 20.0, "b": 20.0, "join": 6.1935}, {"min": 1, "max": 8}, {"b": 100.0}
        ),
        selectivities={("a", "join"): 0.1, ("b", "join"): 0.5},
        objective={"maxLag": "30s"},
    ),
    58.0,
)
@given(situations(), st.floats(1.0, 2000.0))
def test_more_lag_never_gives_fewer_subtasks(situation: Situation, seconds: float) -> None:
    """To no operator; nor does it turn a growth into a hold. All sources wait for as long: more of it at those that wait
    already changes which of them the growth is for."""
    situation = replace(situation, lags=dict.fromkeys(situation.lags, max(situation.lags.values())))
    assert fewer(situation, after(situation), after(situation.with_more(lag_seconds=seconds))) == {}


@examples(500)
# All is 92 % used, and `c` is predicted to wait a little too long as `a` has a backlog: from 3 s on with these subtasks, and
# for the whole horizon of 98 s with more of them, as a restart comes first.
@example(
    Situation(
        graph=Topology(
            operators=[
                Operator(name=n, id=n, slot_sharing_group="all", source_partitions=8 if n == "a" else None)
                for n in ("a", "b", "c", "join", "out")
            ],
            edges=[
                *[Edge(source=n, target="join", ship_strategy="HASH") for n in ("a", "b", "c")],
                Edge(source="join", target="out", ship_strategy="HASH"),
            ],
        ),
        now={"a": 1, "b": 1, "c": 1, "join": 12, "out": 3},
        capacities={
            "a": 9268.817910881435,
            "b": 10.855171682508036,
            "c": 10.855171682508036,
            "join": 11082.835601097338,
            "out": 12111.098207883555,
        },
        measured={
            "a": [
                point(1, 8855.967874542872, confidence=0.9742477, saturated=False),
                point(7, 61637.63910736154, confidence=0.6444594, saturated=False),
                point(12, 105664.52418404835, confidence=0.64144161, saturated=False),
            ],
            "b": [point(1, 11.003650025447158, confidence=0.75762591, saturated=False)],
            "c": [point(1, 11.103842981693514, confidence=0.73370964, saturated=False)],
            "join": [
                point(12, 10795.629399343674, confidence=0.8775629, saturated=False),
                point(5, 4508.769445144233, confidence=0.5025226, saturated=False),
            ],
            "out": [
                point(3, 11505.543297489377, confidence=0.1, saturated=False),
                point(1, 3835.1810991631255, confidence=0.8, saturated=False),
                point(2, 8313.547987996284, confidence=0.67098165, saturated=False),
            ],
        },
        selectivities={("a", "join"): 1.0, ("b", "join"): 1.0, ("c", "join"): 1.0, ("join", "out"): 1.0},
        arrivals={"a": 9668.878566306845, "b": 10.0, "c": 10.0},
        lags={"a": 23.9, "b": 0.0, "c": 23.9},
        restart_seconds=None,
        objective={"maxLag": "30s"},
        bounds={"min": 1, "max": 12},
    )
)
@given(situations())
def test_no_growth_is_predicted_to_be_worse_than_holding(situation: Situation) -> None:
    """Unless the application has less room than it needs, for which it grows before lag is seen."""
    plan = planned(situation)
    if is_growth(situation, plan) and plan.prediction is not None and plan.hold_prediction is not None:
        has_room = (plan.hold_prediction.max_utilization or 0.0) <= 0.92
        assert not has_room or plan.prediction.violation_seconds <= plan.hold_prediction.violation_seconds


@examples(500)
# The join's capacity at 8 is hardly known, and 27 were sure to process 25.5 records/s.
@example(
    replace(
        meeting({"a": 1, "b": 1, "join": 8}, {"a": 10.0, "b": 10.0, "join": 16.0}, {"min": 1, "max": 64}),
        measured={
            **{name: [point(1, 10.0, confidence=1.0, saturated=False)] for name in "ab"},
            "join": [
                point(8, 16.0, confidence=0.125, saturated=False),
                point(27, 25.5, confidence=1.0, saturated=False),
            ],
        },
        objective={"utilization": 0.7},
    )
)
@given(situations())
def test_without_a_backlog_no_step_is_a_leap(situation: Situation) -> None:
    """However flat the curve, or the lower edge of its interval, and however large the policy's maximum. What a measurement
    of more subtasks says is needed is none: nothing is extrapolated. Of two readings of the present capacity the lower may
    be right."""
    situation = replace(situation, lags=dict.fromkeys(situation.lags, 0.0))
    utilization = situation.objective.get("utilization", RateParameters().target_utilization)
    for name, p in after(situation).items():
        load, now = situation.loads[name], situation.now[name]
        points = situation.measured.get(name, ())
        capacity = min([situation.capacities[name], *(m.records_per_second for m in points if m.parallelism == now)])
        linear = load * now / capacity
        measured = [load / utilization * m.parallelism / m.records_per_second for m in points if m.parallelism > now]
        most = max(now, MAX_OVER_LINEAR * max(1.0, linear), *measured)
        assert p <= math.ceil(most)  # rounded up to a subtask


@examples(500)
# 80 % busy, and measured to do 3 % less than that says: 4 subtasks of `b` would be at 100 % or above.
@example(
    chain(
        {"a": 2, "b": 5},
        {"a": 100.0, "b": 37.65},
        30.0,
        measured={"a": [point(2, 100.0)], "b": [point(5, 36.47)]},
    ),
    "capacity",
    "static",
)
@given(situations(), st.sampled_from(READINGS), st.sampled_from(PLANNERS))
def test_a_reading_that_goes_missing_shrinks_nothing(situation: Situation, reading: str, planner: str) -> None:
    """Whichever the planner: what would not shrink with the reading does not shrink without it. A restart that was never
    measured is taken for a usual one."""
    known = replace(situation, restart_seconds=8.0) if reading == "restart" else situation
    left = {name: min(p, known.now[name]) for name, p in after(known, planner).items()}
    assert fewer(known, left, after(replace(known, unknown=frozenset([reading])), planner)) == {}


@pytest.mark.parametrize(("busy", "most"), [(1.1, 50), (1.5, 75), (2.0, 120)])
def test_an_overload_does_not_lead_to_the_policys_maximum(busy: float, most: int) -> None:
    """30 subtasks do 3,000 records/s, and 500 are allowed: beyond 30 the lower edge of what more would do is flat, and no
    number of them is sure to be enough. Another step costs a restart of 4 s, and the next measurement shows it."""
    found = chain({"in": 2, "work": 30}, {"in": 120_000.0, "work": 3000.0}, 3000.0 * busy, restart_seconds=4.0)
    assert 30 * busy <= after(found)["work"] <= most


def test_no_growth_for_a_lag_that_holding_clears_sooner() -> None:
    """30 s of lag and a restart of 8 s, which is an estimate: holding is late for 12 s, growing for 20 s."""
    found = chain({"a": 2, "b": 5}, {"a": 25.4, "b": 14.3}, 16.8, selectivity=0.5, lag=30.0, restart_seconds=None)
    plan = planned(found)
    assert (plan.kind, plan.code) == ("hold", "no-gain")


def test_twice_the_lag_is_no_reason_to_stay() -> None:
    """8 of 8 subtasks would work off a lag of 17 min a little sooner than 7: not by enough for a restart, and not with twice
    the lag either."""
    found = chain(
        {"a": 7, "b": 7},
        {"a": 72_328.0, "b": 66_001.0},
        6022.0,
        lag=1045.0,
        restart_seconds=None,
        objective={"maxLatency": "30s"},
        bounds={"min": 1, "max": 8},
    )
    assert fewer(found, after(found), after(found.with_more(lag_seconds=1045.0))) == {}


def test_half_as_many_arrivals_again_get_no_fewer() -> None:
    """With the same lag of 696 s: another vector became the cheapest of those that work it off, with fewer subtasks."""
    found = chain(
        {"a": 1, "b": 2},
        {"a": 3085.8, "b": 167.9},
        1357.4,
        selectivity=0.1,
        lag=696.4,
        objective={"maxLag": "2m"},
        bounds={"min": 1, "max": 64},
    )
    assert fewer(found, after(found), after(found.with_more(arrivals=1.5))) == {}


def test_other_sources_at_a_bound_take_nothing_from_one() -> None:
    """The join may not grow. With twice the load the other two sources bring it more, which was taken for less that is left
    for the third; with three times, the busiest source was not to grow, so none did."""
    found = meeting(
        {"a": 1, "b": 1, "c": 5, "join": 1},
        {"a": 10.0, "b": 10.0, "c": 10.0, "join": 60.0},
        {"min": 1, "max": 8, "operators": {"a": {"min": 1, "max": 4}, "join": {"min": 1, "max": 1}}},
    )
    sizes = [after(found.with_more(arrivals=times)) for times in (1.0, 1.2, 1.5, 1.8, 2.0, 3.0)]
    assert [fewer(found, few, many) for few, many in pairwise(sizes)] == [{}] * 5


def test_a_backlog_of_other_sources_takes_nothing_from_one() -> None:
    """The join cannot work off 450 s of lag in time: what comes of it from two sources left less for the third."""
    found = meeting(
        {"a": 1, "b": 1, "c": 1, "join": 1},
        {"a": 10.0, "b": 160.0, "c": 160.0, "join": 24.0},
        {"min": 1, "max": 8},
    )
    sizes = [after(found.with_more(lag_seconds=lag)) for lag in (0.0, 10.0, 100.0, 450.0, 1000.0)]
    assert [fewer(found, few, many) for few, many in pairwise(sizes)] == [{}] * 4


@pytest.mark.parametrize("planner", PLANNERS)
def test_nothing_shrinks_while_it_is_unknown_what_waits(planner: str) -> None:
    """9 % used, and no lag is known: 818 s of it would keep what there is."""
    found = chain(
        {"a": 2, "b": 1, "c": 3}, {"a": 1278.0, "b": 1278.0, "c": 456.0}, 40.0, objective={"utilization": 0.7}
    )
    unknown = replace(found, unknown=frozenset(["lag"]))
    assert fewer(found, found.now, after(unknown, planner)) == {}


def test_a_restart_that_was_never_measured_shrinks_nothing_that_a_measured_one_keeps() -> None:
    """8 s of restart and 10 s of lag allowed, of which 8 s may be used: 30 % used stays."""
    found = chain({"a": 4, "b": 6}, {"a": 13_194.0, "b": 15_455.0}, 2289.0, objective={"maxLag": "10s"})
    for seconds in (8.0, None):
        assert planned(replace(found, restart_seconds=seconds)).code == "restart-too-costly"
