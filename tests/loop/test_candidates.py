"""Candidates in a loop: the plan of another planner wins where it is cheaper or less late, and the loop acts on it."""

from typing import Any

import pytest

from tests.effort import thorough
from tests.loop.world import WORK, World, job, policy


def world(own: dict[str, Any], *candidates: dict[str, Any], load: float = 900.0, start: int = 1) -> World:
    return World(job(start), load, policy=policy(planner=own, candidates=list(candidates)))


def static(parallelism: int, **more: Any) -> dict[str, Any]:
    return {"name": "static", "parameters": {"parallelism": parallelism}, **more}


def test_a_cheaper_candidate_takes_back_what_the_own_planner_wastes() -> None:
    """900 records/s need three subtasks. The own planner wants eight, always; `rate` proposes less, wins after the
    window in which shrinking must be recommended, and the application stays there: no planner undoes the other's plan."""
    found = world(static(8), {"name": "rate"}, start=8).live(600 if thorough() else 480)
    assert found.p(WORK) == 3
    assert found.worst(since=100) < 30
    moves = found.moves()
    assert all(after <= before for before, after in moves)
    won = [plan for plan in found.plans if plan.planner == "rate"]
    assert len(won) >= len(moves) - 1 > 0  # the first move is the own planner's: nothing is measured yet
    lost = {each.lost_because for plan in won for each in plan.contenders if each.label == "static"}
    assert any("costs 8 slots, rate 7" in (reason or "") for reason in lost)


@pytest.mark.thorough
def test_a_candidate_that_would_be_late_never_wins() -> None:
    """The thrifty candidate wants one subtask for 900 records/s: the loop does what `rate` alone does."""
    with_it, alone = world({"name": "rate"}, static(1)).live(300), world({"name": "rate"}).live(300)
    assert with_it.p(WORK) == alone.p(WORK)
    assert with_it.moves() == alone.moves()
    lost = {each.lost_because or "" for plan in with_it.plans for each in plan.contenders if each.label == "static"}
    assert "" not in lost
    assert any("the busiest operator would be used to" in reason for reason in lost)


@pytest.mark.thorough
def test_a_state_that_grows_is_bounded() -> None:
    """A wave, two planners with memory as candidates: what a plan hands to the next one stays small."""
    found = world(
        {"name": "rate"}, {"name": "threshold", "parameters": {"up_above": 0.8, "down_below": 0.3}}, {"name": "hpa"}
    )
    found.load = lambda seconds: 900.0 if int(seconds / 60) % 2 else 300.0
    found.live(600)
    sizes = [len(plan.model_dump_json()) for plan in found.plans]
    assert max(sizes) < 30_000
    assert {each.label for each in found.plans[-1].state.contenders} == {"threshold", "hpa"}
