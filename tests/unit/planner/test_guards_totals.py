"""The policy's totals and budgets, for recommendations and for what runs already."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.planner.build import (
    NOON,
    SOURCE,
    WORK,
    analysis,
    deployment,
    policy,
    request,
    request_at,
    scale,
    topology,
)
from tests.unit.planner.test_guards import NOW, guards, passed, seen_busy
from weir_contracts import Parallelism, PlanReply, Slots
from weir_planner.core.decide import make_plan
from weir_planner.core.guards import Proposal, amend
from weir_planner.core.guards.proposal import cut, raised, subtasks
from weir_planner.core.guards.totals import total_bounds

PER_SLOT = {"cpu": 0.5, "memory": "2Gi"}


def test_the_total_leaves_as_much_growth_as_fits() -> None:
    """10 subtasks in total: 1 and 12 become 1 and 9, reported as infeasible; what fits is not changed."""
    spec = {"bounds": {"max": 12, "total": {"max": 10}}}
    proposal = passed({SOURCE: 1, WORK: 12}, request_at(NOW, spec=spec))
    assert proposal.vector == {SOURCE: 1, WORK: 9}
    assert guards(proposal) == ["total-bounds"]
    assert proposal.amendments[0].because == "13 subtasks exceed the policy's total of 10"
    assert [(i.code, i.wanted, i.limit) for i in proposal.infeasible] == [("total-bounds", 13.0, 10.0)]
    assert passed({SOURCE: 1, WORK: 9}, request_at(NOW, spec=spec)).amendments == ()


def test_growth_is_cut_evenly_and_what_runs_is_kept() -> None:
    """4 and 4 run, 6 and 12 are proposed, 12 are allowed: both get 2 more. With all 12 in use neither grows."""
    spec = {"bounds": {"max": 12, "total": {"max": 12}}}
    current = {SOURCE: 4, WORK: 4}
    proposal = Proposal(request_at(current, spec=spec), {SOURCE: 6, WORK: 12}, "overloaded", "more arrives")
    assert total_bounds(proposal).vector == {SOURCE: 6, WORK: 6}
    full = passed({SOURCE: 4, WORK: 9}, request_at({SOURCE: 4, WORK: 8}, spec=spec))
    assert (full.vector, full.code) == (None, "total-bounds")


def test_what_another_guard_keeps_counts_for_the_total() -> None:
    """The source should give 4 subtasks to `work`; while it may not go down, `work` cannot grow either."""
    spec: dict[str, Any] = {"bounds": {"max": 12, "total": {"max": 10}}}
    spec["behavior"] = {"scaleDown": {"stabilization": "60s"}, "cooldown": "0s"}
    proposal = passed({SOURCE: 2, WORK: 8}, request_at({SOURCE: 6, WORK: 4}, spec=spec))
    assert (proposal.vector, guards(proposal)) == (None, ["stabilisation", "total-bounds", "no-change"])


def test_the_total_has_a_minimum() -> None:
    """At least 4 in total: 1 and 1 become 1 and 3, the busiest operator keeps more; 1 and 3 pass."""
    spec = {"bounds": {"max": 12, "total": {"min": 4}}}
    given_ = request_at(NOW, spec=spec, found=seen_busy())
    proposal = passed({SOURCE: 1, WORK: 1}, given_)
    assert proposal.vector == {SOURCE: 1, WORK: 3}
    assert "total-bounds" in guards(proposal)
    assert "total-bounds" not in guards(passed({SOURCE: 1, WORK: 3}, given_))


def test_what_the_totals_maximum_cuts_stays_above_its_minimum() -> None:
    """Exactly 4 in total: cut from 4 and 1, the source of one partition falls to 1, so `work` grows."""
    spec = {"bounds": {"max": 12, "total": {"min": 4, "max": 4}}}
    given_ = request_at({SOURCE: 2, WORK: 2}, spec=spec, graph=topology(partitions=1), found=seen_busy())
    proposal = passed({SOURCE: 4, WORK: 1}, given_)
    assert proposal.vector is None or subtasks(proposal.vector) == 4


def test_the_budget_counts_slots_cpu_and_memory() -> None:
    """6 slots, or what 3 cores or 12 GiB pay for at half a core and 2 GiB each; 7 are within 4 cores and 14 GiB."""
    for parts in ({"slots": 6}, {"cpu": 3.4, "perSlot": PER_SLOT}, {"memory": "13Gi", "perSlot": PER_SLOT}):
        proposal = passed({SOURCE: 1, WORK: 7}, request_at(NOW, spec={"budget": parts}))
        assert proposal.vector == {SOURCE: 1, WORK: 6}
        assert guards(proposal) == ["budget"]
    assert "exceed the 6 of the budget's memory" in proposal.amendments[0].because
    plenty = {"cpu": 4, "memory": "14Gi", "perSlot": PER_SLOT}
    assert passed({SOURCE: 1, WORK: 7}, request_at(NOW, spec={"budget": plenty})).amendments == ()


def plan(current: Parallelism, reply: PlanReply, **spec: Any) -> Any:
    """Return the plan of a reply for an application that runs at `current`."""
    the_policy = policy(**spec)
    graph = topology(tuple(current))
    found = analysis(
        work=current[WORK], the_policy=the_policy, graph=graph, deployment=deployment(current, graph), arrivals=700.0
    )
    return make_plan(request(found), reply, planner="rate", created_at=NOON)


HOLD = PlanReply(kind="hold", code="objective-held", sentence="all is well")


def test_what_runs_beyond_total_or_budget_is_brought_back_even_by_a_hold() -> None:
    """The user lowered the limits below what runs: stabilisation, cooldown, excluded periods and the hour's actions do
    not delay the change."""
    quiet = {
        "scaleDown": {"stabilization": "10m"},
        "cooldown": "10m",
        "excludedPeriods": [{"cron": "* * * * *", "duration": "1m"}],
    }
    for limits in ({"bounds": {"max": 12, "total": {"max": 6}}}, {"budget": {"slots": 5}}):
        for reply in (HOLD, scale({SOURCE: 1, WORK: 9})):
            made = plan({SOURCE: 1, WORK: 8}, reply, behavior=quiet, **limits)
            assert made.approved == {SOURCE: 1, WORK: 5}, made.sentence
    made = plan({SOURCE: 1, WORK: 8}, HOLD, bounds={"max": 12, "total": {"max": 6}})
    assert (made.code, made.kind) == ("out-of-bounds", "scale")
    assert "9 subtasks exceed the policy's total of 6" in made.sentence


def test_fewer_than_the_total_demands_are_brought_up() -> None:
    """The busiest operator gets the missing subtasks; a vector within the total stays."""
    bounds = {"max": 12, "total": {"min": 6, "max": 20}}
    assert plan({SOURCE: 1, WORK: 2}, HOLD, bounds=bounds).approved == {SOURCE: 1, WORK: 5}
    assert plan({SOURCE: 1, WORK: 5}, HOLD, bounds=bounds).kind == "hold"


def test_a_budget_that_cannot_be_met_takes_what_it_can() -> None:
    """The bounds require 3 of `work`, the budget pays for 2 slots: bounds win, the budget is infeasible."""
    spec = {"bounds": {"operators": {WORK: {"min": 3}}}, "budget": {"slots": 2}}
    proposal = amend(scale({SOURCE: 3, WORK: 9}), request_at(NOW, spec=spec, slots=Slots(total=9, available=9)))
    assert proposal.vector is not None and proposal.vector[WORK] == 3
    assert [i.code for i in proposal.infeasible] == ["budget"]


sizes = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 40), min_size=1)


@examples(40)
@given(sizes, st.integers(1, 100), st.data())
def test_a_cut_fits_and_wastes_nothing(vector: Parallelism, limit: int, data: st.DataObject) -> None:
    """Any cut is within the limit or at the floors, never below them, and no further subtask would fit."""
    floors = {name: data.draw(st.integers(1, p)) for name, p in vector.items()}
    found = cut(vector, floors, subtasks, limit)
    assert all(floors[name] <= p <= vector[name] for name, p in found.items())
    assert subtasks(found) <= limit or found == floors
    if found != vector and subtasks(found) < limit:
        raise AssertionError(found)


@examples(40)
@given(sizes, st.integers(1, 200), st.data())
def test_raising_reaches_the_minimum_or_the_ceilings(vector: Parallelism, minimum: int, data: st.DataObject) -> None:
    """No operator loses a subtask."""
    ceilings = {name: data.draw(st.integers(1, 60)) for name in vector}
    found = raised(vector, ceilings, minimum, dict.fromkeys(vector))
    assert all(vector[name] <= p <= max(vector[name], ceilings[name]) for name, p in found.items())
    ceiling = sum(max(vector[name], ceilings[name]) for name in vector)
    assert subtasks(found) == max(subtasks(vector), min(minimum, ceiling))
