"""Partitions and key groups are not divided: capacity has steps, and no decision lands between two of them."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.planner.build import (
    SOURCE,
    WORK,
    after,
    analysis,
    deployment,
    known,
    operator,
    point,
    policy,
    request,
    request_at,
    scale,
    topology,
)
from weir_contracts import PastAction, PlanRequest, Symptom
from weir_planner.core.decide import plan_offline
from weir_planner.core.guards import Proposal, amend
from weir_sdk.installed import ask
from weir_sdk.request import Request

REQUESTS = Path(__file__).parents[2] / "golden" / "plans"


@pytest.mark.parametrize(
    ("name", "approved"),
    [("overloaded_at_6_of_12", 12), ("overloaded_at_8_of_12", 12), ("half_busy_at_12_of_12", None)],
)
def test_a_source_grows_over_the_next_step_and_does_not_shrink_below_its_load(name: str, approved: int | None) -> None:
    """12 partitions: 7 to 11 subtasks do what 6 do, so that 640 and 824 records/s need 12, and 660 keep them."""
    plan = plan_offline(PlanRequest.model_validate_json((REQUESTS / f"{name}.json").read_text()), "rate")
    assert (None if plan.approved is None else plan.approved["src"]) == approved
    assert "useful-parallelism" not in [amendment.guard for amendment in plan.amendments]


def at(subtasks: int, arriving: float, *, rate: float | None = 600.0, **of: Any) -> Request:
    """Return a source of 12 partitions with `subtasks` of them, at which `rate` records/s are possible."""
    spec = of.pop("spec", {})
    busy = None if rate is None else min(1.0, arriving / rate)
    source = operator(
        SOURCE,
        subtasks,
        rate,
        min(arriving, rate or arriving),
        target_input_rate=known(arriving),
        capacities=[] if rate is None else [point(subtasks, rate)],
        utilization=known(of.pop("busy", busy)),
        **of.pop("source", {}),
    )
    now = {SOURCE: subtasks, WORK: 1}
    found = analysis(
        arrivals=arriving,
        operators=[source, operator(WORK, 1, 100_000.0, arriving)],
        deployment=deployment(now),
        the_policy=policy(**spec),
        symptoms=of.pop("symptoms", []),
    )
    return request_at(now, found=found, spec=spec, **of)


def passed(source: int, given_: Request) -> Proposal:
    """Return a proposed size of the source after all guards."""
    return amend(scale({SOURCE: source, WORK: 1}), given_)


def size(proposal: Proposal) -> int | None:
    """Return the source's size; None for a hold."""
    return None if proposal.vector is None else proposal.vector[SOURCE]


@pytest.mark.parametrize("wanted", [7, 8, 11])
def test_a_growth_that_does_nothing_goes_on_to_the_next_that_does_more_if_the_load_needs_it(wanted: int) -> None:
    """6 of 12 do 600 and 640 arrive. A planner that counts subtasks wants one to five more, which do nothing."""
    proposal = passed(wanted, at(6, 640))
    assert size(proposal) == 12
    assert proposal.amendments[0].because == f"orders gains nothing from {wanted} over 6; 12 is the next that does more"


def test_a_growth_that_does_nothing_and_is_not_needed_is_refused() -> None:
    """500 arrive and 6 of 12 do 600."""
    proposal = passed(8, at(6, 500))
    assert (size(proposal), proposal.amendments[0].guard) == (None, "useful-parallelism")


def test_a_growth_from_between_two_steps_never_becomes_a_shrink() -> None:
    """8 of 12 do what 6 do: for 824 records/s a planner wants 11, and 6 would be even less."""
    assert size(passed(11, at(8, 824, rate=800.0))) == 12
    assert size(passed(11, at(8, 500, rate=800.0))) is None


def test_a_growth_beyond_the_last_partition_never_becomes_a_shrink() -> None:
    """14 subtasks run for 12 partitions, and more arrives than they do: 16 would do no more, and 12 no more than 14."""
    proposal = passed(16, at(14, 1500, rate=1200.0, spec={"bounds": {"max": 16}}))
    assert (size(proposal), proposal.amendments[-1].code) == (None, "useful-parallelism")


def test_a_saturated_operator_of_unknown_capacity_grows_over_the_step() -> None:
    """Nothing says what 6 of 12 can do, and they are busy all the time: one more would do nothing. Of 8 the busiest is full
    where the mean is 75 % busy. What is nearly idle stays."""
    assert size(passed(7, at(6, 640, rate=None, busy=1.0))) == 12
    assert size(passed(9, at(8, 640, rate=None, busy=0.75))) == 12
    assert size(passed(7, at(6, 640, rate=None, busy=0.02))) is None


def test_a_shrink_counts_the_step() -> None:
    """720 records/s at 12 of 12, which do 1,200: 8 would do what 6 do, less than 700. With 500 arriving, 8 become 6."""
    assert size(passed(8, at(12, 720, rate=1200.0))) is None
    assert size(passed(8, at(12, 500, rate=1200.0))) == 6


def test_a_shrink_by_busy_time_counts_the_step() -> None:
    """At 12 of 12 the source is 55 % busy and its capacity is no longer known: 8, like 6, would be 110 % busy."""
    sustained = {"max_input_rate": 1200.0, "confidence": 0.01}
    seen = [point(12, 1200.0).model_copy(update=sustained)]
    source = operator(SOURCE, 12, None, 660.0, utilization=known(0.55), capacities=seen)
    now = {SOURCE: 12, WORK: 1}
    found = analysis(arrivals=660.0, operators=[source, operator(WORK, 1, 1e5, 660.0)], deployment=deployment(now))
    assert size(passed(8, request_at(now, found=found))) is None


def test_a_policys_short_step_gets_over_the_step_in_several() -> None:
    """One subtask at a time: 7 do nothing yet, but the way to 12 leads over them. The policy's maximum ends it at once."""
    short = {"behavior": {"scaleUp": {"stabilization": "0s", "maxStep": 1}}}
    assert size(passed(7, at(6, 640, spec=short))) == 7
    assert size(passed(8, at(6, 640, spec={"bounds": {"max": 11}}))) is None


def test_a_step_that_adds_nothing_is_no_external_limit() -> None:
    """6 → 8 of 12 added no capacity, as it had to be, and does not hold the growth to 12 back for ten minutes."""
    grown = PastAction(id=request().id, at=after(-60), before={SOURCE: 6}, after={SOURCE: 8})
    points = [point(6, 600.0).model_copy(update={"measured_at": after(-120)}), point(8, 590.0)]
    given_ = at(8, 640, source={}, actions=[grown])
    operators = [given_.analyses[SOURCE].model_copy(update={"capacities": points})]
    given_ = given_.model_copy(update={"analysis": given_.analysis.model_copy(update={"operators": operators})})
    proposal = passed(12, given_)
    assert (size(proposal), proposal.infeasible) == (12, ())


@pytest.mark.parametrize(("skew", "approved"), [(2.2, 12), (4.5, None)])
def test_a_hot_partition_is_one_beyond_the_step(skew: float, approved: int | None) -> None:
    """At 7 of 12 the busiest subtask has 1.2 times the mean by the step alone. 2.2 times is little more than what counts as
    even; 4.5 are a hot partition, which more subtasks do not relieve."""
    hot = [Symptom(code="skewed", operator=SOURCE, evidence="it is seen")]
    assert size(passed(12, at(7, 620, busy=0.45, source={"skew": known(skew)}, symptoms=hot))) == approved


def test_rate_grows_to_a_size_that_does_more_where_capacity_is_unknown() -> None:
    """A keyed operator with 12 key groups is saturated at 6 while lag grows: half as many more would be 9, which do
    nothing."""
    graph, now = topology(groups=12, keyed=True), {SOURCE: 1, WORK: 6}
    saturated = operator(WORK, 6, None, None, utilization=known(1.0))
    found = analysis(
        arrivals=640.0,
        graph=graph,
        operators=[operator(SOURCE, 1, 100_000.0, 640.0), saturated],
        deployment=deployment(now, graph),
    )
    reply = ask(request(found), "rate")
    assert reply.parallelism == {SOURCE: 1, WORK: 12}


def test_the_largest_size_is_one_that_does_more_than_a_smaller_one() -> None:
    """The policy allows 11 of 12 partitions, which do what 6 do: overloaded at 3, `rate` takes 6."""
    spec: dict[str, Any] = {"bounds": {"min": 1, "max": 11}, "planner": {"name": "rate"}}
    now = {SOURCE: 3, WORK: 1}
    source = operator(SOURCE, 3, 300.0, 900.0, capacities=[point(3, 300.0)])
    found = analysis(
        arrivals=900.0,
        operators=[source, operator(WORK, 1, 100_000.0, 900.0)],
        deployment=deployment(now),
        the_policy=policy(**spec),
    )
    reply = ask(request(found), "rate")
    assert reply.parallelism == {SOURCE: 6, WORK: 1}
    assert [(each.code, each.limit) for each in reply.infeasible] == [("bounds", 6.0)]
