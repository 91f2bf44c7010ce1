"""The guard of applications that are scaled by pods: one parallelism for all operators."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.planner.build import SOURCE, WORK, request_at, scale, topology
from weir_contracts import Parallelism, Slots
from weir_planner.core.guards import Proposal, amend

NOW: Parallelism = {SOURCE: 4, WORK: 4}


def spec(slots: int = 1, **changes: Any) -> dict[str, Any]:
    pods = {"kind": "Deployment", "name": "tm", "slots": slots}
    job = {"url": "http://jm:8081", "job": "orders"}
    return {"application": {"flink": job}, "target": {"kubernetes": pods}, **changes}


def passed(wanted: Parallelism, current: Parallelism | None = None, **given_: Any) -> Proposal:
    now = current or NOW
    return amend(scale(wanted), request_at(now, slots=Slots(total=4, available=0), **given_))


def test_all_operators_get_one_parallelism() -> None:
    """`work` needs 6, so all operators get 6; free slots are not required."""
    proposal = passed({SOURCE: 1, WORK: 6}, spec=spec())
    assert proposal.vector == {SOURCE: 6, WORK: 6}
    assert proposal.amendments[-1].guard == "one-parallelism"
    assert "6 with 6 pods of 1 slot" in proposal.amendments[-1].because


def test_whole_pods() -> None:
    """5 need 2 pods of 4 slots, which gives 8."""
    assert passed({SOURCE: 1, WORK: 5}, spec=spec(slots=4)).vector == {SOURCE: 8, WORK: 8}


def test_a_reduction_within_the_last_pod_is_no_change() -> None:
    """3 subtasks need the same pod of 4 slots."""
    proposal = passed({SOURCE: 1, WORK: 3}, spec=spec(slots=4))
    assert (proposal.vector, proposal.code) == (None, "one-parallelism")


@pytest.mark.parametrize(
    ("limits", "code", "left"),
    [
        ({"bounds": {"max": 7}}, "bounds", 6),
        ({"bounds": {"max": 12, "total": {"max": 14}}}, "total-bounds", 6),
        ({"budget": {"slots": 7}}, "budget", 6),
    ],
)
def test_no_more_than_the_policy_allows_in_total(limits: dict[str, Any], code: str, left: int) -> None:
    """As many pods as fit; the proposal is reported as infeasible."""
    proposal = passed({SOURCE: 1, WORK: 7}, spec=spec(slots=2, **limits))
    assert proposal.vector == {SOURCE: left, WORK: left}
    assert code in [limit.code for limit in proposal.infeasible]


def test_no_more_task_managers_than_the_policy_allows() -> None:
    """In reactive mode: 9 need five of two slots, and four give 8."""
    managers = {"kubernetes": {"kind": "Deployment", "name": "tm"}, "slots": 2, "max": 4, "reactive": True}
    target = {"flink": {"taskManagers": managers}}
    proposal = passed({SOURCE: 1, WORK: 9}, spec={**spec(), "target": target})
    assert proposal.vector == {SOURCE: 8, WORK: 8}
    assert "8 with 4 TaskManagers of 2 slots: the policy allows 4 TaskManagers" in proposal.amendments[-1].because
    limit = next(each for each in proposal.infeasible if each.code == "slots")
    assert (limit.wanted, limit.limit) == (10, 8)


def test_key_groups_bound_it() -> None:
    """More pods than key groups would be idle."""
    proposal = passed({SOURCE: 1, WORK: 6}, graph=topology(groups=6), spec=spec(slots=4, bounds={"max": 12}))
    assert (proposal.vector, proposal.infeasible[-1].code) == (None, "key-groups")


def test_another_drivers_vectors_are_not_changed() -> None:
    """Only scaling by pods gives every operator one parallelism."""
    assert passed({SOURCE: 4, WORK: 6}, current={SOURCE: 4, WORK: 4}).vector is None  # no slot is free
    assert amend(scale({SOURCE: 1, WORK: 6}), request_at({SOURCE: 1, WORK: 4})).vector == {SOURCE: 1, WORK: 6}


@examples(20)
@given(st.data())
def test_any_proposal_becomes_one_parallelism(data: st.DataObject) -> None:
    """A multiple of a pod's slots, within bounds and total unless one pod exceeds them."""
    slots, pods, maximum = (data.draw(st.integers(low, high)) for low, high in ((1, 6), (1, 6), (6, 40)))
    total, source, work = (data.draw(st.integers(low, high)) for low, high in ((2, 60), (1, 16), (1, 16)))
    now = {SOURCE: pods * slots, WORK: pods * slots}
    bounds = {"min": 1, "max": maximum, "total": {"max": total}}
    proposal = passed({SOURCE: source, WORK: work}, now, spec=spec(slots, bounds=bounds))
    if proposal.vector is None:
        return
    (level,) = set(proposal.vector.values())
    assert level % slots == 0
    assert level == slots or (level <= maximum and 2 * level <= total)
