"""Admitted plans keep the policy's bounds, total and budget."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.executor.builders import BEFORE, TOPOLOGY, deployment, plan, policy, snapshot
from tests.unit.executor.test_gate import context
from tests.unit.planner.build import scale
from tests.unit.planner.test_guards import situations, vectors
from weir_contracts import ActionState, Parallelism, PolicySpec, Topology
from weir_engines.driver import Refusal, Snapshot
from weir_executor.core.gate import admit
from weir_executor.core.limits import out_of_bounds
from weir_executor.core.observed import PolicyReading
from weir_planner.core.guards import amend
from weir_sdk import Request


def spec(**changes: Any) -> PolicySpec:
    """The policy's, with other limits."""
    base = policy().spec
    return type(base).model_validate({**base.model_dump(mode="json", by_alias=True, exclude_unset=True), **changes})


def running_with(topology: Topology, running: Parallelism, **changes: Any) -> Snapshot:
    """The job as a driver reports it, with its graph."""
    return replace(snapshot(running, graph_hash=topology.graph_hash(), **changes), topology=topology)


def decision(wanted: Parallelism, running: Parallelism = BEFORE, *, found: Any = None, **changes: Any) -> Any:
    """Return the decision of the gate on a plan for a job at this parallelism."""
    the_policy = policy().model_copy(update={"spec": spec(**changes)})
    there = found or running_with(TOPOLOGY, running)
    assert there.deployment is not None
    made = plan(wanted, deployment=there.deployment.ref(), current=there.deployment.observed)
    return admit(made, context(policy=PolicyReading(True, the_policy), snapshot=there))


def reason(*args: Any, **changes: Any) -> str:
    refused = decision(*args, **changes)
    assert isinstance(refused, Refusal) and refused.code == "out-of-bounds", refused
    assert len(refused.sentence) <= 160
    return refused.sentence


def test_a_plan_far_beyond_its_policys_bounds_is_refused() -> None:
    """The sentence names the operator and the bounds."""
    result = reason({**BEFORE, "enrich": 32_000}, bounds={"max": 32})
    assert result == "enrich 1 → 32000 is outside the policy's bounds of 1 to 32"
    assert "sink 4 → 1 is outside" in reason(
        {**BEFORE, "sink": 1}, {**BEFORE, "sink": 4}, bounds={"min": 1, "operators": {"sink": {"min": 2}}}
    )


def test_bounds_of_single_operators_count() -> None:
    """Tighter bounds refuse, wider ones admit."""
    bounds = {"max": 4, "operators": {"sink": {"max": 2}, "enrich": {"max": 8}}}
    assert reason({**BEFORE, "sink": 3}, bounds=bounds)
    assert isinstance(decision({**BEFORE, "enrich": 8}, bounds=bounds), ActionState)


@pytest.mark.parametrize(("wanted", "admitted"), [(32, True), (36, True), (40, True), (41, False)])
def test_an_operator_outside_new_bounds_may_move_towards_them(wanted: int, admitted: bool) -> None:
    """Forty run and the policy allows 32 now: into the bounds, nearer, or unchanged while another operator moves."""
    made = decision({"orders": 2, "enrich": wanted, "sink": 1}, {**BEFORE, "enrich": 40}, bounds={"max": 32})
    assert isinstance(made, ActionState) == admitted, made


def test_lost_subtasks_do_not_widen_the_bounds() -> None:
    """After a TaskManager was lost two of eight subtasks run: requirements still must not fall below the minimum."""
    found = running_with(TOPOLOGY, {**BEFORE, "enrich": 2}, requested={**BEFORE, "enrich": 8})
    assert reason({**BEFORE, "enrich": 3}, found=found, bounds={"operators": {"enrich": {"min": 4}}})


def test_a_minimum_above_the_key_groups_counts_as_the_key_groups() -> None:
    """An operator cannot have more subtasks than key groups."""
    small = Topology(operators=[o.model_copy(update={"max_parallelism": 3}) for o in TOPOLOGY.operators])
    found = running_with(small, dict.fromkeys(BEFORE, 4))
    assert isinstance(decision(dict.fromkeys(BEFORE, 3), found=found, bounds={"min": 5}), ActionState)
    assert reason(dict.fromkeys(BEFORE, 2), found=found, bounds={"min": 5})


def test_the_total_counts_all_subtasks() -> None:
    """Between its minimum and maximum; a sum outside it may come nearer."""
    twelve = dict.fromkeys(BEFORE, 4)
    assert "13 subtasks exceed the policy's total of 12" in reason(
        {**twelve, "sink": 5}, twelve, bounds={"total": {"max": 12}}
    )
    assert "11 subtasks are fewer than the policy's total minimum of 12" in reason(
        {**twelve, "sink": 3}, twelve, bounds={"total": {"min": 12}}
    )
    assert isinstance(decision({**twelve, "sink": 3}, twelve, bounds={"total": {"max": 6}}), ActionState)
    assert isinstance(decision({**twelve, "sink": 5}, twelve, bounds={"total": {"min": 20}}), ActionState)


def test_a_minimum_total_gives_way_to_the_maximum_of_each_operator() -> None:
    """Forty run where at most five are allowed: the bounds allow fifteen, fewer than the total demands."""
    bounds = {"max": 5, "total": {"min": 20}}
    assert isinstance(decision(dict.fromkeys(BEFORE, 5), {**BEFORE, "enrich": 40}, bounds=bounds), ActionState)


def test_the_budget_counts_slots() -> None:
    """In one slot sharing group the largest operator decides; the slots of an unknown graph are unknown."""
    budget = {"slots": 4}
    assert isinstance(decision({"orders": 1, "enrich": 4, "sink": 4}, budget=budget), ActionState)
    assert reason({**BEFORE, "enrich": 5}, budget=budget) == "5 slots exceed the 4 of the budget's slots"
    assert "graph is unknown" in reason({**BEFORE, "enrich": 2}, found=snapshot(), budget=budget)
    running = {**BEFORE, "enrich": 9}
    assert isinstance(decision({**BEFORE, "enrich": 7}, running, budget=budget), ActionState)


def test_a_pod_may_be_more_than_the_maximum() -> None:
    """With two slots each, no fewer than two subtasks of each operator run."""
    scaled = {
        "application": {"flink": {"url": "http://127.0.0.1:8081", "job": "orders"}},
        "target": {"kubernetes": {"kind": "Deployment", "name": "taskmanager", "slots": 2}},
    }
    base = spec(**scaled, bounds={"max": 2, "total": {"max": 4}})
    two = dict.fromkeys(BEFORE, 2)
    assert out_of_bounds(two, deployment(dict.fromkeys(BEFORE, 4)), base, TOPOLOGY) is None
    assert out_of_bounds(dict.fromkeys(BEFORE, 4), deployment(two), base, TOPOLOGY) is not None


names = st.fixed_dictionaries(dict.fromkeys(BEFORE, st.integers(1, 12)))


@st.composite
def limits(draw: st.DrawFn) -> dict[str, Any]:
    low, minimum = draw(st.integers(1, 8)), draw(st.integers(1, 30))
    total = {"min": minimum, "max": draw(st.integers(minimum, 40))}
    bounds = {"min": low, "max": draw(st.integers(low, 10)), **draw(st.sampled_from([{}, {"total": total}]))}
    return {"bounds": bounds, "budget": draw(st.sampled_from([{}, {"slots": draw(st.integers(1, 12))}]))}


@examples(200)
@given(names, names, limits())
def test_admitted_plans_keep_the_bounds(wanted: Parallelism, running: Parallelism, given_: Any) -> None:
    """Each operator, and total and budget if the running parallelism keeps them; a plan within all of them is admitted."""
    refused = out_of_bounds(wanted, deployment(running), base := spec(**given_), TOPOLOGY)
    bounds, total, budget = base.bounds, base.bounds.total, base.budget.slots

    def within(vector: Parallelism) -> bool:
        size, slots = sum(vector.values()), max(vector.values())
        return (
            all(bounds.min <= p <= bounds.max for p in vector.values())
            and (total is None or (total.min or 0) <= size <= (total.max or size))
            and (budget is None or slots <= budget)
        )

    if within(wanted):
        assert refused is None
    elif within(running):
        assert refused is not None
    elif refused is None:
        for name, p in wanted.items():
            assert min(bounds.min, running[name]) <= p <= max(bounds.max, running[name])


@examples(100)
@given(vectors, situations())
def test_plans_that_pass_the_guards_are_admitted(wanted: Parallelism, given_: Request) -> None:
    """Otherwise an application would wait forever.

    The exception shrinks below the total's minimum: a guard behind that for totals has taken back another operator's
    growth.
    """
    vector = amend(scale(wanted), given_).vector
    refused = vector and out_of_bounds(vector, given_.deployment, given_.policy.spec, given_.topology)
    if vector and refused:
        assert "subtasks are fewer than" in refused.sentence
        assert sum(vector.values()) < sum(given_.deployment.observed.values())
