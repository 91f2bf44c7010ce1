"""An operator follows what can reach it: others that cannot grow let no more through."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.planner.build import (
    SOURCE,
    analysis,
    deployment,
    operator,
    point,
    policy,
    request,
    request_at,
    scale,
)
from weir_contracts import Edge, Operator, Parallelism, PlanReply, PlanRequest, Slots, Topology
from weir_planner.core.decide import plan_offline
from weir_planner.core.guards import Proposal, amend
from weir_sdk.installed import ask

REQUEST = Path(__file__).parents[2] / "golden" / "plans" / "backlog_behind_6_key_groups.json"
NAMES = (SOURCE, "a", "b")
NOW: Parallelism = {SOURCE: 1, "a": 4, "b": 4}


def graph(first: str = "a", second: str = "b", *, groups: int = 128) -> Topology:
    """Return source → first → second; `a` has so many key groups."""
    return Topology(
        operators=[
            Operator(name=n, id=n, max_parallelism=groups if n == "a" else 128, slot_sharing_group="all")
            for n in (SOURCE, first, second)
        ],
        edges=[
            Edge(source=SOURCE, target=first, ship_strategy="REBALANCE"),
            Edge(source=first, target=second, ship_strategy="REBALANCE"),
        ],
    )


def late(the_graph: Topology, *, a: list[Any] | None = None, arriving: float = 360.0, **spec: Any) -> dict[str, Any]:
    """Return an analysis in which 648,000 records wait; `a` does 100 records/s a subtask and `b` 300."""
    capacities = {SOURCE: (1, 20_000.0), "a": (4, 400.0), "b": (4, 1200.0)}
    found = [
        operator(n, p, rate, arriving, capacities=a if a and n == "a" else [point(p, rate)])
        for n, (p, rate) in capacities.items()
    ]
    return {
        "arrivals": arriving,
        "backlog": 648_000.0,
        "lag_seconds": 1800.0,
        "graph": the_graph,
        "operators": found,
        "deployment": deployment(NOW, the_graph, slots=spec.pop("slots", Slots(total=200, available=190))),
        "the_policy": policy(**{"bounds": {"min": 1, "max": 64}, **spec}),
        "edges": [
            {"source": e.source, "target": e.target, "selectivity": {"value": 1.0, "basis": "known", "confidence": 0.9}}
            for e in the_graph.edges
        ],
    }


def rate(of: dict[str, Any]) -> PlanReply:
    return ask(request(of=of), "rate")


def test_a_backlog_behind_key_groups_moves_one_operator() -> None:
    """`a` grows to its 6; `b` does twice what those let through, and stays."""
    plan = plan_offline(PlanRequest.model_validate_json(REQUEST.read_text()), "rate")
    assert plan.approved == {"src": 1, "a": 6, "b": 4}
    assert "b" not in [each.operator for each in plan.infeasible]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")], ids=["upstream", "downstream"])
@pytest.mark.parametrize("bound", ["key groups", "policy", "capacity"])
def test_whatever_bounds_one_operator_the_others_follow_it(bound: str, order: tuple[str, str]) -> None:
    """6 key groups, 6 in the policy, or 4 subtasks that did more than 12 do: `b` with 4 does what can pass there, in
    front of it or behind."""
    fell = [point(4, 400.0), point(12, 300.0)]
    given_ = late(
        graph(*order, groups=6 if bound == "key groups" else 128),
        a=fell if bound == "capacity" else None,
        bounds={"min": 1, "max": 64, **({"operators": {"a": {"max": 6}}} if bound == "policy" else {})},
    )
    vector = rate(given_).parallelism or NOW
    assert vector["b"] == 4
    assert vector["a"] <= 6


def test_what_is_let_through_gets_all_that_it_needs() -> None:
    """`a` may have 24 and lets some 2,000 records/s through, with which `b` at 300 each has to keep up."""
    vector = rate(late(graph(groups=24))).parallelism
    assert vector is not None
    assert vector["a"] > 12
    assert 6 <= vector["b"] <= 11


def test_without_a_bound_nothing_changes() -> None:
    """`a` and `b` may both have all that works the backlog off."""
    vector = rate(late(graph(), arriving=900.0)).parallelism
    assert vector is not None
    assert vector["a"] > 12
    assert vector["b"] >= vector["a"] // 4


def guarded(wanted: Parallelism, **spec: Any) -> Proposal:
    """Return the proposal after all guards."""
    of = late(graph(), **spec)
    slots = of["deployment"].slots
    found = analysis(**of)
    made = request_at(NOW, found=found, graph=graph(), slots=slots, spec={"bounds": {"min": 1, "max": 64}, **spec})
    return amend(scale(wanted), made)


def test_a_step_limit_of_one_operator_limits_those_that_follow() -> None:
    """The policy lets each grow by half; `a` gets 6 of 20, and `b` does more than those let through."""
    step = {"behavior": {"scaleUp": {"stabilization": "0s", "maxFactor": 1.5}}}
    proposal = guarded({SOURCE: 1, "a": 20, "b": 6}, **step)
    assert proposal.vector == {SOURCE: 1, "a": 6, "b": 4}
    assert proposal.amendments[-1].guard == "upstream-bound"
    assert proposal.amendments[-1].because.startswith("a is limited to 6 subtasks, so at most ")
    assert ("upstream-bound", "b", 6.0, 4.0) in [(i.code, i.operator, i.wanted, i.limit) for i in proposal.infeasible]


@pytest.mark.parametrize(
    "limit", [{"budget": {"slots": 6}}, {"bounds": {"min": 1, "max": 64, "total": {"max": 13}}}, {"free": 2}]
)
def test_a_limit_on_all_operators_leaves_none_that_waits(limit: dict[str, Any]) -> None:
    """Six slots, in a budget, in all subtasks together or free: `a` gets them, and `b` needs no more than it has."""
    free = limit.pop("free", 190) if "free" in limit else 190
    proposal = guarded({SOURCE: 1, "a": 20, "b": 7}, slots=Slots(total=200, available=free), **limit)
    assert proposal.vector == {SOURCE: 1, "a": 6, "b": 4}


def test_a_planner_that_sizes_all_by_one_number_is_not_judged() -> None:
    """No guard limits what it wants: it keeps it."""
    assert guarded({SOURCE: 1, "a": 8, "b": 8}).vector == {SOURCE: 1, "a": 8, "b": 8}
