"""Requests whose plans nobody would accept: what `rate` decides for each, with all guards."""

import json
from pathlib import Path
from typing import Any

import pytest

from weir_contracts import Parallelism, Plan, PlanRequest
from weir_planner.core.decide import plan_offline

REQUESTS = Path(__file__).parents[2] / "golden" / "plans"


def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((REQUESTS / f"{name}.json").read_text())
    return found


def planned(read: dict[str, Any]) -> Plan:
    return plan_offline(PlanRequest.model_validate(read))


def after(name: str) -> Parallelism:
    """Return what runs after the plan."""
    plan = planned(document(name))
    return plan.approved or plan.current


def test_ten_percent_too_much_lead_to_no_leap() -> None:
    """30 subtasks were measured, 500 are allowed, and about 36 are needed: one step may cost half as much again, not 470
    subtasks."""
    assert 33 <= after("overloaded_by_a_tenth_of_500")["work"] <= 50


@pytest.mark.parametrize(
    "name", ["late_before_an_unmeasured_restart", "little_used_with_lag", "little_used_with_unknown_lag"]
)
def test_what_is_unknown_is_no_reason_to_act(name: str) -> None:
    """Growing would be late for longer than holding; what is little used may have waiting records."""
    assert planned(document(name)).kind == "hold"


def test_an_unmeasured_restart_shrinks_nothing_that_a_measured_one_keeps() -> None:
    """With the restart of 8 s and without it."""
    read = document("little_used_with_a_restart_of_8_s")
    assert planned(read).kind == "hold"
    read["analysis"]["restart_times"] = {}
    assert planned(read).kind == "hold"


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("late_by_17_min_at_7_of_8", "late_by_35_min_at_7_of_8"),
        ("late_by_696_s", "late_by_696_s_and_half_as_many_arrivals_again"),
    ],
)
def test_more_lag_or_arrivals_give_no_operator_fewer_subtasks(less: str, more: str) -> None:
    """The two requests of a pair differ in nothing else."""
    many = after(more)
    assert {name for name, p in after(less).items() if many[name] < p} == set()
