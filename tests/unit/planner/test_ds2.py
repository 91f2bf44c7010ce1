"""The planner `ds2`: the released code's own examples, the paper's properties, the manager's knobs."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.planner.build import SOURCE, WORK, analysis, deployment, known, operator, policy, request, topology
from tests.unit.planner.requests import is_whole, requests
from weir_contracts import Analysis, EdgeAnalysis, PlanReply, PlanRequest
from weir_planners.ds2 import MAX_PARALLELISM, Graph, Rates, corrected, optimal
from weir_sdk import InvalidParameters
from weir_sdk.installed import ask, parse_parameters


def chain(source: float, op1: tuple[float, float], op2: float, *, sources: int = 1) -> dict[str, int]:
    """The topology of the released tests: sources feed Op1, Op1 feeds Op2, one instance each."""
    names = [f"Source{i}" for i in range(sources)]
    return optimal(
        Graph(
            instances=dict.fromkeys([*names, "Op1", "Op2"], 1),
            rates={"Op1": Rates(op1[0], {"Op2": op1[1]}), "Op2": Rates(op2, {})},
            sources={name: {"Op1": source} for name in names},
        )
    )


@pytest.mark.parametrize(
    ("rates", "sources", "wanted"),
    [
        ((100.0, (50.0, 400.0), 100.0), 1, (2, 8)),
        ((200.0, (40.0, 700.0), 99.0), 1, (5, 36)),
        ((200.0, (10.0, 700.0), 201.0), 1, (20, 70)),
        ((100.0, (50.0, 400.0), 100.0), 2, (4, 16)),
        ((200.0, (40.0, 700.0), 99.0), 2, (10, 71)),
        ((200.0, (10.0, 700.0), 201.0), 2, (40, 140)),
    ],
)
def test_the_released_examples(rates: Any, sources: int, wanted: tuple[int, int]) -> None:
    """All six epochs of `controller/tests/scaling_policy_test.rs`."""
    assert chain(*rates, sources=sources) == {"Op1": wanted[0], "Op2": wanted[1]}


def test_the_scaling_factor_comes_before_rounding() -> None:
    """1.9 instances with a quarter more are 2.375, so 3; rounded up first they would be 2.5."""
    graph = Graph({"s": 1, "a": 1}, {"a": Rates(100.0, {})}, {"s": {"a": 190.0}})
    assert optimal(graph) == {"a": 2}
    assert optimal(graph, 0.25) == {"a": 3}


@given(st.integers(1, 50), st.integers(1, 50), st.floats(1, 1e6), st.floats(0, 1e7))
def test_linear_capacity_takes_one_step(before: int, other: int, each: float, arriving: float) -> None:
    """The paper's property: where instances do not slow one another down the answer is the same from any start."""

    def wanted(instances: int) -> int:
        rates = {"a": Rates(each * instances, {})}
        return optimal(Graph({"s": 1, "a": instances}, rates, {"s": {"a": arriving}}))["a"]

    assert abs(wanted(before) - wanted(other)) <= 1  # one: the float quotient may lie on either side of an integer
    assert (wanted(before) + 1) * each >= arriving


def test_a_diamond_adds_up_and_a_join_takes_both() -> None:
    """s feeds a with 1,000/s and b with 500/s; each record of a makes two for the join, each of b one."""
    graph = Graph(
        instances={"s": 1, "a": 2, "b": 2, "join": 4},
        rates={"a": Rates(500.0, {"join": 1000.0}), "b": Rates(500.0, {"join": 500.0}), "join": Rates(1000.0, {})},
        sources={"s": {"a": 1000.0, "b": 500.0}},
    )
    assert optimal(graph) == {"a": 4, "b": 2, "join": 10}


def test_the_target_rate_ratio_catches_what_true_rates_do_not_show() -> None:
    """Nothing goes up, and still a source gets 80 of 100 records/s out: everything by 1.25. Not if anything goes up, or
    below it."""
    now = {"a": 4, "b": 2}
    assert corrected({"a": 4, "b": 1}, now, 1.25, 1.1) == {"a": 5, "b": 2}
    assert corrected({"a": 5, "b": 1}, now, 1.25, 1.1) == {"a": 5, "b": 1}
    assert corrected({"a": 4, "b": 1}, now, 1.1, 1.1) == {"a": 4, "b": 1}
    assert corrected({"a": 4, "b": 1}, now, 1.25, None) == {"a": 4, "b": 1}


def plan_request(
    parameters: dict[str, Any] | None = None, memory: dict[str, Any] | None = None, **of: Any
) -> PlanRequest:
    chosen = policy(planner={"name": "ds2", "parameters": {"warm_up_intervals": 0, **(parameters or {})}})
    return request(analysis(the_policy=chosen, **of), memory=memory or {})


def answer(parameters: dict[str, Any] | None = None, memory: dict[str, Any] | None = None, **of: Any) -> PlanReply:
    """Return the reply of `ds2`, without warm-up, to `analysis(**of)`."""
    return ask(plan_request(parameters, memory, **of), "ds2")


def in_a_row(parameters: dict[str, Any], *cycles: dict[str, Any]) -> list[PlanReply]:
    """Run the cycles in order; memory passes between them as JSON."""
    replies: list[PlanReply] = []
    memory: dict[str, Any] = {}
    for cycle in cycles:
        replies.append(answer(parameters, memory, **cycle))
        memory = json.loads(json.dumps(replies[-1].memory))
    return replies


def test_from_an_analysis() -> None:
    """2,400/s on subtasks of 500/s: 5, whatever the backlog; the source keeps what it has."""
    reply = answer(arrivals=2400, work=2, backlog=1e6)
    assert (reply.kind, reply.code) == ("scale", "under-provisioned")
    assert reply.parallelism == {SOURCE: 1, WORK: 5}
    assert reply.sentence == "work 2 → 5: the optimum by true rates where 2,400 records/s arrive"
    assert reply.evidence["true_processing_rate[work]"] == 1000


@pytest.mark.parametrize("runs", [1, 4])
@pytest.mark.parametrize("minimum", [None, known(1000.0)])
def test_rates_of_another_parallelism_hold(runs: int, minimum: Any) -> None:
    """Work did 1,000/s with 2 subtasks and runs with 1 or 4: dividing by those would give 3 or 10 for 2,400/s."""
    rate = None if minimum else 1000.0
    rates = [operator(SOURCE, 1, 100_000.0, 800.0), operator(WORK, 2, rate, 800.0, min_processing_rate=minimum)]
    reply = answer(arrivals=2400, operators=rates, deployment=deployment({SOURCE: 1, WORK: runs}))
    assert (reply.kind, reply.code) == ("hold", "metric-missing")
    assert reply.sentence == (
        f"the true processing rate of work is unknown: it was analysed at 2 subtasks and runs with {runs}"
    )
    # A source that is not sized is divided by nothing.
    assert answer(arrivals=2400, deployment=deployment({SOURCE: 3, WORK: 2})).kind == "scale"


def test_sources_are_sized_only_if_wanted() -> None:
    """A source subtask does 100,000/s: of 250,000/s it needs 3."""
    many = {"arrivals": 250_000.0, "per_subtask": 100_000.0, "work": 3}
    assert answer(**many).code == "at-optimum"
    assert answer({"scale_sources": True}, **many).parallelism == {SOURCE: 3, WORK: 3}


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ({"arrivals": None}, "the arrival rate of orders is unknown: no reading yet"),
        ({"selectivity": None}, "the selectivity from orders to work is unknown"),
        ({"per_subtask": None}, "the true processing rate of work is unknown"),
    ],
)
def test_a_missing_rate_holds_and_is_named(missing: dict[str, Any], message: str) -> None:
    """The original would compute with NaN."""
    reply = answer(work=8, **missing)
    assert (reply.kind, reply.code) == ("hold", "metric-missing")
    assert message in reply.sentence


@pytest.mark.parametrize(("arriving", "wanted"), [(2.0, 1), (500.0, 8)])
def test_a_lower_bound_takes_away_and_never_adds(arriving: float, wanted: int) -> None:
    """8 nearly idle subtasks do at least 40/s: one is enough for 2/s, and the need of 500/s is unknown."""
    idle = operator(WORK, 8, None, arriving, min_processing_rate=known(40.0))
    reply = answer(arrivals=arriving, work=8, operators=[operator(SOURCE, 1, None, arriving), idle])
    assert (reply.parallelism or {WORK: 8})[WORK] == wanted


def test_it_warms_up_after_every_change() -> None:
    """Two intervals are left out at the start, and again once 5 subtasks run."""
    cycle = {"arrivals": 2400, "work": 2}
    replies = in_a_row(
        {"warm_up_intervals": 2}, cycle, cycle, cycle, {**cycle, "work": 5}, {**cycle, "work": 5, "arrivals": 4000}
    )
    assert [r.code for r in replies] == ["warming-up", "warming-up", "under-provisioned", "warming-up", "warming-up"]


@pytest.mark.parametrize(("activation", "wanted"), [("latest", 5), ("maximum", 8), ("median", 6)])
def test_decisions_in_a_row_are_combined(activation: str, wanted: int) -> None:
    """Three decisions: 6, 8 and 5."""
    cycles = [{"arrivals": rate, "work": 2} for rate in (3000, 4000, 2400)]
    replies = in_a_row({"activation_intervals": 3, "activation": activation}, *cycles)
    assert [r.code for r in replies] == ["activating", "activating", "under-provisioned"]
    assert replies[-1].parallelism == {SOURCE: 1, WORK: wanted}


def test_an_unknown_interval_breaks_the_row() -> None:
    """In a row means without a gap."""
    cycle = {"arrivals": 3000, "work": 2}
    replies = in_a_row({"activation_intervals": 2}, cycle, {**cycle, "per_subtask": None}, cycle, cycle)
    assert [r.code for r in replies] == ["activating", "metric-missing", "activating", "under-provisioned"]


def test_small_changes_are_ignored() -> None:
    """One subtask less does not justify a restart, as in the released code; one more does by default."""
    assert answer(arrivals=1400, work=4).code == "small-change"
    assert answer(arrivals=900, work=4).parallelism == {SOURCE: 1, WORK: 2}
    assert answer(arrivals=2100, work=4).parallelism == {SOURCE: 1, WORK: 5}
    assert answer({"ignored_increase": 1}, arrivals=2100, work=4).code == "small-change"
    assert answer({"ignored_decrease": 0}, arrivals=1400, work=4).parallelism == {SOURCE: 1, WORK: 3}


def test_an_unmet_need_is_reported() -> None:
    """10,000/s would take 20 subtasks; the policy allows 12."""
    reply = answer(arrivals=10_000, work=4)
    assert reply.parallelism == {SOURCE: 1, WORK: 12}
    assert [(i.operator, i.wanted, i.limit) for i in reply.infeasible] == [(WORK, 20, 12)]


def test_its_memory_fits_a_plan() -> None:
    """300 operators and 100 decisions in a row: as many as fit."""
    names = [SOURCE, *(f"operator-{i}" for i in range(299))]
    graph = topology(names)
    found: Analysis = analysis(
        the_policy=policy(planner={"name": "ds2", "parameters": {"warm_up_intervals": 0, "activation_intervals": 100}}),
        graph=graph,
        deployment=request(of={"graph": graph}).deployment.model_copy(update={"observed": dict.fromkeys(names, 12)}),  # type: ignore[union-attr]
        operators=[operator(name, 12, 1200.0, 800.0) for name in names],
        edges=[EdgeAnalysis(source=a, target=b, selectivity=known(1.0)) for a, b in pairwise(names)],
    )
    memory: dict[str, Any] = {}
    codes = []
    for _ in range(5):
        reply = ask(request(found, memory=memory), "ds2")
        codes.append(reply.code)
        memory = reply.memory
    assert codes == [*["activating"] * 4, "over-provisioned"]
    assert len(json.dumps(memory)) < 16_000


def test_wrong_parameters_are_named() -> None:
    """A typo, a ratio below 1."""
    with pytest.raises(InvalidParameters, match=r"warmup: is not a parameter.*target_rate_ratio"):
        parse_parameters("ds2", {"warmup": 3, "target_rate_ratio": 0.5})


@given(requests("ds2", warm_up_intervals=0, scale_sources=True, target_rate_ratio=1.5))
@examples(20)
def test_every_request_is_answered(plan_request: PlanRequest) -> None:
    """For any numbers: a complete vector or a hold, with its reason."""
    assert is_whole(ask(plan_request, "ds2"), plan_request)


def test_next_to_nothing_is_no_division_by_zero() -> None:
    """A rate so small that half of it is no number: as many as there may be for what arrives, one for nothing."""
    graph = Graph(instances={"a": 2, "b": 2}, rates={"b": Rates(5e-324, {})}, sources={"a": {"b": 800.0}})
    assert optimal(graph) == {"b": MAX_PARALLELISM}
    assert optimal(replace(graph, sources={"a": {"b": 0.0}})) == {"b": 0}
