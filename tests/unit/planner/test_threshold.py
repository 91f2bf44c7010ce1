"""The planner `threshold`."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.planner.build import SOURCE, WORK, analysis, known, operator, policy, request
from tests.unit.planner.requests import is_whole, requests
from weir_contracts import PlanReply
from weir_sdk import InvalidParameters
from weir_sdk.installed import ask, parse_parameters

BUSY = {"up_above": 0.8, "down_below": 0.3}
LAG = {"measure": "lag_seconds", "up_above": 30, "down_below": 2}


def answer(parameters: dict[str, Any], **of: Any) -> PlanReply:
    chosen = policy(planner={"name": "threshold", "parameters": parameters})
    return ask(request(analysis(the_policy=chosen, **of)), "threshold")


def test_a_busy_operator_gets_one_more() -> None:
    """Work is at 90 %; the source at next to nothing has one subtask, and keeps it."""
    reply = answer(BUSY, arrivals=900, work=2)
    assert (reply.kind, reply.code, reply.parallelism) == ("scale", "above-threshold", {SOURCE: 1, WORK: 3})
    assert reply.sentence == "work 2 → 3: utilization[work] is 0.9, above 0.8"


def test_an_idle_operator_gets_one_less() -> None:
    """20 % of 4 subtasks."""
    reply = answer(BUSY, arrivals=400, work=4)
    assert (reply.code, reply.parallelism) == ("below-threshold", {SOURCE: 1, WORK: 3})


@pytest.mark.parametrize(
    ("by", "up", "down"),
    [
        ({"step": 3}, 8, 2),
        ({"factor": 1.5}, 8, 3),
        ({"factor": 2}, 10, 2),
        ({"step": 50}, 12, 1),
        ({"factor": 1.01}, 6, 4),
    ],
)
def test_steps_and_factors(by: dict[str, Any], up: int, down: int) -> None:
    """From 5, within 1 and 12; a factor is rounded away from where it stands, so that it always moves."""
    chosen = {**BUSY, **by, "operators": [WORK]}
    assert answer(chosen, arrivals=2400, work=5).parallelism == {SOURCE: 1, WORK: up}
    assert answer(chosen, arrivals=100, work=5).parallelism == {SOURCE: 1, WORK: down}


def test_lag_moves_every_operator() -> None:
    """It is the application's, so who is behind it is not known."""
    assert answer(LAG, lag_seconds=31.0, work=2).parallelism == {SOURCE: 2, WORK: 3}
    assert answer({**LAG, "operators": [WORK]}, lag_seconds=31.0, work=2).parallelism == {SOURCE: 1, WORK: 3}
    assert answer(LAG, lag_seconds=10.0, work=2).code == "within-thresholds"
    assert answer({**LAG, "measure": "backlog"}, backlog=500.0, work=2).parallelism == {SOURCE: 2, WORK: 3}


def test_the_thresholds_themselves_are_inside() -> None:
    """Above is above, below is below."""
    assert answer(LAG, lag_seconds=30.0).code == "within-thresholds"
    assert answer(LAG, lag_seconds=2.0).code == "within-thresholds"


def test_no_step_is_left() -> None:
    """12 is the most."""
    reply = answer({**BUSY, "operators": [WORK]}, arrivals=6000, work=12)
    assert (reply.kind, reply.code) == ("hold", "at-bound")


def test_a_missing_reading_holds_and_is_named() -> None:
    """Unknown is not idle."""
    reply = answer(LAG, lag_seconds=None, work=8)
    assert (reply.kind, reply.code) == ("hold", "metric-missing")
    assert "lag_seconds is unknown, so nothing changes: no reading yet" in reply.sentence
    without_rate = [operator(SOURCE, 1, 1000.0, 500.0), operator(WORK, 8, None, None, utilization=known(None))]
    assert "utilization[work] is unknown" in answer(BUSY, operators=without_rate, work=8).sentence


def test_a_name_of_no_operator_holds() -> None:
    """And is named."""
    assert answer({**BUSY, "operators": ["wrok"]}).code == "unknown-operator"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"up_above": 0.5, "down_below": 0.5}, "down_below: 0.5 is not below up_above"),
        ({**BUSY, "step": 1, "factor": 2}, "give step or factor, not both"),
        ({"up_above": 80, "down_below": 30}, "utilization is a share, and none is above 1"),
        ({**BUSY, "measure": "cpu"}, "measure: .*'utilization', 'lag_seconds'"),
        ({"down_below": 0.5}, "up_above: is required"),
    ],
)
def test_wrong_parameters_are_named(parameters: dict[str, Any], message: str) -> None:
    """The field, and what it should be."""
    with pytest.raises(InvalidParameters, match=message):
        parse_parameters("threshold", parameters)


@given(st.sampled_from(["utilization", "lag_seconds", "latency_seconds", "backlog"]), st.data())
@examples(20)
def test_every_request_is_answered(measure: str, data: st.DataObject) -> None:
    """For any numbers: a complete vector or a hold, with its reason."""
    plan_request = data.draw(requests("threshold", measure=measure, up_above=0.7, down_below=0.2, factor=1.3))
    assert is_whole(ask(plan_request, "threshold"), plan_request)
