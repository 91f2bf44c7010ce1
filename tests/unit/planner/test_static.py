"""The planner `static`."""

from typing import Any

import pytest
from hypothesis import given

from tests.effort import examples
from tests.unit.planner.build import SOURCE, WORK, analysis, policy, request
from tests.unit.planner.requests import is_whole, requests
from weir_contracts import PlanReply, PlanRequest
from weir_sdk import InvalidParameters
from weir_sdk.installed import ask, parse_parameters


def answer(parameters: dict[str, Any], **of: Any) -> PlanReply:
    chosen = policy(planner={"name": "static", "parameters": parameters})
    return ask(request(analysis(the_policy=chosen, **of)), "static")


def test_all_operators_or_single_ones() -> None:
    """One number for all, others by name; what is named by neither keeps what it has. No metric is needed."""
    assert answer({"parallelism": 4}, arrivals=None, backlog=None).parallelism == {SOURCE: 4, WORK: 4}
    assert answer({"parallelism": 4, "operators": {SOURCE: 2}}).parallelism == {SOURCE: 2, WORK: 4}
    assert answer({"operators": {WORK: 6}}, work=2).parallelism == {SOURCE: 1, WORK: 6}


def test_what_runs_already_is_held() -> None:
    """A hold says what is held."""
    reply = answer({"operators": {WORK: 2}}, work=2)
    assert (reply.kind, reply.code) == ("hold", "fixed")
    assert reply.sentence == "orders 1, work 2: the policy fixes it"


def test_more_than_may_be_is_infeasible() -> None:
    """The policy allows 12."""
    reply = answer({"operators": {WORK: 40}}, work=2)
    assert reply.parallelism == {SOURCE: 1, WORK: 12}
    assert [(i.operator, i.wanted, i.limit) for i in reply.infeasible] == [(WORK, 40, 12)]


def test_a_name_of_no_operator_holds() -> None:
    """After a change of the job its operators have other names: the planner does not guess."""
    reply = answer({"operators": {"wrok": 4}})
    assert (reply.kind, reply.code) == ("hold", "unknown-operator")
    assert "there is no operator wrok; there are: orders, work" in reply.sentence


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "give parallelism, operators or both"),
        ({"parallelism": 0}, "parallelism: .*greater than or equal to 1"),
        ({"operators": {"work": 1.5}}, "operators.work"),
        ({"parallelsim": 3}, "parallelsim: is not a parameter"),
    ],
)
def test_wrong_parameters_are_named(parameters: dict[str, Any], message: str) -> None:
    """The field, and what it should be."""
    with pytest.raises(InvalidParameters, match=message):
        parse_parameters("static", parameters)


@given(requests("static", parallelism=7, operators={"o0": 3}))
@examples(20)
def test_every_request_is_answered(plan_request: PlanRequest) -> None:
    """For any numbers: a complete vector or a hold, with its reason."""
    assert is_whole(ask(plan_request, "static"), plan_request)
