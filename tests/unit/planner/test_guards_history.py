"""Guards on the last hour's actions: their number, their reversals, their effect."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid5

import pytest

from tests.unit.planner.build import (
    NOON,
    SOURCE,
    SPACE,
    WORK,
    action,
    after,
    analysis,
    outcome,
    point,
    request,
    request_at,
    scale,
)
from tests.unit.planner.test_guards import NOW, guards, passed, seen_busy
from weir_contracts import CapacityPoint, Parallelism, PastAction
from weir_planner.core.decide import make_plan
from weir_planner.core.plan_state import MAX_ACTIONS, MAX_ENTRIES, past_actions


def past_action(at: float, now: int, wanted: int, /, **changes: Any) -> PastAction:
    """Return an action on `work`, `at` seconds after noon."""
    parts = {"id": uuid5(SPACE, f"{at}"), "at": after(at), "before": {WORK: now}, "after": {WORK: wanted}}
    return PastAction(**{**parts, **changes})


def limited(limit: int) -> dict[str, Any]:
    return {
        "behavior": {"scaleDown": {"stabilization": "0s"}, "cooldown": "0s", "maxActionsPerHour": limit},
    }


THREE = [past_action(-3000, 1, 2), past_action(-2000, 2, 3), past_action(-1000, 3, 4)]


def test_no_more_actions_than_the_policy_allows_in_an_hour() -> None:
    """Three were taken: with 3 allowed the next waits until the first is an hour old, in 600 s; with 5 it passes."""
    wanted = {SOURCE: 1, WORK: 6}
    proposal = passed(wanted, request_at(NOW, spec=limited(3), actions=THREE))
    assert (proposal.vector, proposal.code) == (None, "action-budget")
    assert "the next one in 600 s" in proposal.sentence
    assert passed(wanted, request_at(NOW, spec=limited(5), actions=THREE)).vector == wanted
    later = request_at(NOW, spec=limited(3), actions=THREE, now=after(600))
    assert passed(wanted, later).vector == wanted


def test_the_last_action_of_the_hour_is_kept_for_growth() -> None:
    """3 of 4 actions were taken: shrinking waits, growing does not. A limit of one allows both."""
    given_ = request_at(NOW, spec=limited(4), actions=THREE, found=seen_busy())
    assert passed({SOURCE: 1, WORK: 3}, given_).code == "action-budget"
    assert passed({SOURCE: 1, WORK: 6}, given_).vector == {SOURCE: 1, WORK: 6}
    single = request_at(NOW, spec=limited(1), found=seen_busy())
    assert passed({SOURCE: 1, WORK: 3}, single).vector == {SOURCE: 1, WORK: 3}


def test_what_is_out_of_bounds_needs_no_action_left() -> None:
    """12 run and 8 are allowed."""
    spec = {**limited(3), "bounds": {"max": 8}}
    proposal = passed({SOURCE: 1, WORK: 12}, request_at({SOURCE: 1, WORK: 12}, spec=spec, actions=THREE))
    assert proposal.vector == {SOURCE: 1, WORK: 8}


SWING = [past_action(-1500, 2, 4), past_action(-900, 4, 2), past_action(-100, 2, 4)]


def test_what_swings_is_held_longer() -> None:
    """Up, down and up again within half an hour: no scale-down for ten minutes after the last. Growth goes on."""
    given_ = request_at(NOW, actions=SWING, found=seen_busy())
    proposal = passed({SOURCE: 1, WORK: 2}, given_)
    assert (proposal.vector, proposal.code) == (None, "reversal")
    assert "another 500 s" in proposal.sentence
    assert passed({SOURCE: 1, WORK: 6}, given_).vector == {SOURCE: 1, WORK: 6}


@pytest.mark.parametrize(
    ("actions", "now"),
    [
        (SWING, 501),
        (SWING[1:], 0),
        ([past_action(-1700, 1, 2), past_action(-900, 2, 3), past_action(-100, 3, 4)], 0),
        ([past_action(-2500, 2, 4), *SWING[1:]], 0),
        ([*SWING[:2], past_action(-100, 2, 4, undone=True)], 0),
        ([*SWING[:2], past_action(-100, 1, 2, before={SOURCE: 1}, after={SOURCE: 2})], 0),
    ],
    ids=[
        "its time is over",
        "down and up",
        "steadily up",
        "slower than half an hour",
        "rolled back",
        "another operator",
    ],
)
def test_what_does_not_swing_is_not(actions: Sequence[PastAction], now: float) -> None:
    """Following a load is no reversal."""
    proposal = passed({SOURCE: 1, WORK: 3}, request_at(NOW, actions=actions, found=seen_busy(), now=after(now)))
    assert proposal.vector == {SOURCE: 1, WORK: 3}


def measured(parallelism: int, rate: float, at: float, **changes: Any) -> CapacityPoint:
    return point(parallelism, rate).model_copy(update={"measured_at": after(at), **changes})


GREW = [past_action(-200, 2, 4)]


def full(*measurements: CapacityPoint) -> Any:
    """Return an analysis in which `work` is saturated at 4 subtasks, with these measurements."""
    return analysis(work=4, arrivals=1500.0, per_subtask=250.0, seen=measurements)


def test_growth_without_effect_is_not_repeated_for_ten_minutes() -> None:
    """2 subtasks did 1,000 records/s and 4 do 1,050, both saturated: no growth for ten minutes, then once more."""
    found = full(measured(2, 1000, -300), measured(4, 1050, -20))
    proposal = passed({SOURCE: 1, WORK: 8}, request_at(NOW, actions=GREW, found=found))
    assert (proposal.vector, proposal.code) == (None, "ineffective-growth")
    assert "work does 1,050 records/s with 4 and did 1,000 with 2: no growth for another 400 s" in proposal.sentence
    assert [(i.operator, i.code, i.limit) for i in proposal.infeasible] == [(WORK, "ineffective-growth", 4.0)]
    again = request_at(NOW, actions=GREW, found=found, now=after(400))
    assert passed({SOURCE: 1, WORK: 8}, again).vector == {SOURCE: 1, WORK: 8}


@pytest.mark.parametrize(
    "measurements",
    [
        (measured(2, 1000, -300), measured(4, 1300, -20)),
        (measured(4, 1050, -20),),
        (measured(2, 1000, -300), measured(4, 1050, -250)),
        (measured(2, 1000, -300), measured(4, 1050, -20, saturated=False)),
        (measured(2, 1000, -300, confidence=0.4), measured(4, 1050, -20)),
        (measured(2, 1000, -9000), measured(4, 1050, -20)),
    ],
    ids=["it helped", "before is unknown", "not measured since", "not full", "not trusted", "long ago"],
)
def test_growth_that_may_have_helped_is_not_held_against_it(measurements: Sequence[CapacityPoint]) -> None:
    """Only measurements before and after the growth, both under overload, count."""
    proposal = passed({SOURCE: 1, WORK: 8}, request_at(NOW, actions=GREW, found=full(*measurements)))
    assert proposal.vector == {SOURCE: 1, WORK: 8}


def test_actions_are_remembered_from_their_outcomes_once_and_for_an_hour() -> None:
    """By the operators they changed; a second outcome of the same action marks it as rolled back."""
    done = action(before={SOURCE: 1, WORK: 2}, wanted=NOW, requested_at=after(-50))
    actions = past_actions([past_action(-3700, 1, 2), past_action(-1000, 1, 2)], [outcome(done)], NOON)
    assert [(a.before, a.after, a.undone) for a in actions] == [
        ({WORK: 1}, {WORK: 2}, False),
        ({WORK: 2}, {WORK: 4}, False),
    ]
    rolled_back = done.model_copy(update={"phase": "rolled-back"})
    updated = past_actions(actions, [outcome(rolled_back), outcome(done)], NOON)
    assert [a.undone for a in updated] == [False, True]
    refused = action("refused", before={SOURCE: 1, WORK: 2}, wanted=NOW)
    assert past_actions([], [outcome(refused), outcome(None)], NOON) == []


def test_what_is_remembered_is_bounded() -> None:
    """Many actions on many operators: all are counted, only the newest keep their operators."""
    many = [past_action(-i, 1, 2) for i in range(100, 0, -1)]
    assert len(past_actions(many, [], NOON)) == MAX_ACTIONS
    wide: Parallelism = {f"operator {i}": 1 for i in range(900)}
    large = [past_action(-i, 1, 2, before=wide, after=wide) for i in (30, 20, 10)]
    kept = past_actions(large, [], NOON)
    assert [len(a.after) for a in kept] == [0, 900, 900]
    assert sum(len(a.after) for a in kept) <= MAX_ENTRIES


def test_a_plan_passes_actions_to_the_next() -> None:
    """A replica that takes over continues with them; a hold passes them on too."""
    done = action(before={SOURCE: 1, WORK: 2}, wanted=NOW, requested_at=after(-50))
    plan_request = request(analysis(work=4), outcomes=[outcome(done)])
    plan = make_plan(plan_request, scale({SOURCE: 1, WORK: 6}), planner="rate", created_at=NOON)
    assert [a.after for a in plan.state.actions] == [{WORK: 4}]
    later = make_plan(request(analysis(work=4), state=plan.state), scale(NOW), planner="rate", created_at=NOON)
    assert later.kind == "hold"
    assert later.state.actions == plan.state.actions
    assert "reversal" not in guards(passed({SOURCE: 1, WORK: 3}, request_at(NOW, actions=plan.state.actions)))
