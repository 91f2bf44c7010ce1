"""The planner `dhalion`: the worked numbers of its rule, and why it holds."""

from typing import Any

import pytest
from hypothesis import given
from weir_contracts import Analysis, PlanReply, PlanRequest, SourceAnalysis
from weir_planner import InvalidParameters
from weir_planner.installed import ask, parse_parameters

from tests.effort import examples
from tests.unit.planner.build import (
    SOURCE,
    WORK,
    action,
    after,
    analysis,
    deployment,
    known,
    operator,
    outcome,
    policy,
    request,
    topology,
)
from tests.unit.planner.requests import is_whole, requests

SINK = "sink"


def symptoms(
    *,
    backpressure: float | None = 0.0,
    busy: float | None = 0.7,
    growth: float | None = 0.0,
    taken: float = 800.0,
    waiting: float | None = 0.0,
    work: int = 4,
    source: int = 1,
    skew: float = 1.0,
    parameters: dict[str, Any] | None = None,
) -> Analysis:
    """`orders` → `work` → `sink`; `backpressure` is of the source, `busy` of everybody."""
    graph = topology((SOURCE, WORK, SINK))
    return analysis(
        the_policy=policy(planner={"name": "dhalion", "parameters": parameters or {}}),
        graph=graph,
        deployment=deployment({SOURCE: source, WORK: work, SINK: 1}, graph),
        operators=[
            operator(SOURCE, source, None, taken, backpressure=known(backpressure), utilization=known(busy)),
            operator(WORK, work, None, taken, utilization=known(busy), skew=known(skew)),
            operator(SINK, 1, None, taken, utilization=known(busy)),
        ],
        sources=[
            SourceAnalysis(
                operator=SOURCE,
                arrival_rate=known(taken),
                arrival_rate_trend=known(0.0),
                lag_records=known(waiting),
                lag_growth=known(growth),
                lag_seconds=known(0.0),
                expected_latency_seconds=known(0.0),
            )
        ],
    )


def answer(**of: Any) -> PlanReply:
    return ask(request(symptoms(**of)), "dhalion")


@pytest.mark.parametrize(("share", "wanted"), [(0.5, 8), (0.75, 12), (0.2, 5), (0.333, 6)])
def test_the_operator_behind_a_backpressured_one_grows_by_the_formula(share: float, wanted: int) -> None:
    """p · (1 + bp / (1 − bp)): 4 at half of the time are 8. Only `work` is the cause: the sink behind it is not held
    back by anybody."""
    reply = answer(backpressure=share)
    assert (reply.kind, reply.code) == ("scale", "under-provisioned")
    assert reply.parallelism == {SOURCE: 1, WORK: wanted, SINK: 1}
    assert reply.sentence.startswith(f"work 4 → {wanted}: orders is backpressured for {share:.0%} of the time by work")
    assert reply.evidence["backpressured_share[orders]"] == share


def test_backpressure_counts_up_to_nine_tenths_and_the_bounds_say_where_it_ends() -> None:
    """At 0.99 the factor is that of 0.9, 10 times; of 40 subtasks the policy allows 12, which is reported."""
    reply = answer(backpressure=0.99)
    assert reply.parallelism == {SOURCE: 1, WORK: 12, SINK: 1}
    assert [(i.operator, i.wanted, i.limit) for i in reply.infeasible] == [(WORK, 40.0, 12.0)]


def test_a_source_grows_by_what_waits() -> None:
    """Nothing holds it back, and its lag grows by half of what it takes in: 2 → 3. It never grows more than tenfold."""
    assert answer(growth=400.0, taken=800.0, source=2).parallelism == {SOURCE: 3, WORK: 4, SINK: 1}
    assert answer(growth=400.0, taken=0.0).parallelism == {SOURCE: 10, WORK: 4, SINK: 1}


def test_skewed_data_is_reported_and_not_scaled() -> None:
    """More subtasks would not help the one that is hot."""
    reply = answer(backpressure=0.5, skew=2.0)
    assert (reply.kind, reply.code) == ("hold", "skewed")
    assert [(i.operator, i.code) for i in reply.infeasible] == [(WORK, "skewed")]


def test_what_idles_gives_up_a_fifth() -> None:
    """⌊4 · 0.8⌋ = 3, and 1 stays 1; not while anything is backpressured or waits."""
    assert answer(busy=0.2).parallelism == {SOURCE: 1, WORK: 3, SINK: 1}
    assert answer(busy=0.2, source=5).parallelism == {SOURCE: 4, WORK: 3, SINK: 1}
    assert answer(busy=0.2, source=5, waiting=5000.0).parallelism == {SOURCE: 5, WORK: 3, SINK: 1}
    assert answer(busy=0.6).code == "no-symptom"


@pytest.mark.parametrize(
    ("of", "message"),
    [
        ({"backpressure": None}, "backpressure of orders"),
        ({"growth": None}, "growth of orders's lag"),
        ({"busy": None}, "what waits at orders"),
    ],
)
def test_an_unknown_reading_holds_and_is_named(of: dict[str, Any], message: str) -> None:
    """An unknown queue is not an empty one."""
    reply = answer(**of)
    assert (reply.kind, reply.code) == ("hold", "metric-missing")
    assert message in reply.sentence


def test_nothing_is_diagnosed_for_a_while_after_an_action() -> None:
    """Symptoms in the two minutes after an action may be caused by it."""
    acted = action(before={SOURCE: 1, WORK: 2, SINK: 1}, wanted={SOURCE: 1, WORK: 4, SINK: 1}, running_at=after(-60))
    plan_request = request(symptoms(backpressure=0.5), outcomes=[outcome(acted)])
    assert ask(plan_request, "dhalion").code == "cooldown"
    later = plan_request.model_copy(update={"now": after(61)})
    assert ask(later, "dhalion").kind == "scale"


def test_wrong_parameters_are_named() -> None:
    """Field and what is wrong with it."""
    with pytest.raises(InvalidParameters, match=r"scale_down_factor.*less than 1"):
        parse_parameters("dhalion", {"scale_down_factor": 2})


@examples(40)
@given(requests("dhalion"))
def test_every_request_is_answered(plan_request: PlanRequest) -> None:
    """For any numbers: a complete vector or a hold, with its reason."""
    reply = ask(plan_request, "dhalion")
    assert is_whole(reply, plan_request)
