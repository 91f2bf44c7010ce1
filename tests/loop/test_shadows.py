"""Shadows of a loop: what the plans say of them, and that nothing else changes."""

import math
from typing import Any

import pytest

from tests.loop.world import WORK, World, job, policy
from weir_contracts import Score

LAVISH = {"name": "rate", "label": "lavish", "parameters": {"target_utilization": 0.4}}
LAZY = {"name": "static", "label": "lazy", "parameters": {"parallelism": 1}}


def wave(seconds: float) -> float:
    """Between 200 and 1,600 records/s within 20 minutes."""
    return 900.0 - 700.0 * math.cos(2 * math.pi * seconds / 1200)


def world(shadows: list[dict[str, Any]]) -> World:
    return World(job(1), wave, policy=policy(shadows=shadows, interval="10s"))


@pytest.mark.thorough
def test_the_scores_of_a_wave() -> None:
    """A wave of 20 minutes. The lavish shadow holds more slots and restarts more often than the chosen planner. The one that
    wants one subtask takes fewer and is late, as far as the guards let the application that runs shrink. The chosen
    planner's own score has the restarts of the application."""
    found = world([LAVISH, LAZY]).live(1200)
    scores: dict[str, Score] = {each.score.label: each.score for each in found.plans[-1].state.courses}
    chosen, lavish, lazy = scores["rate"], scores["lavish"], scores["lazy"]
    assert lavish.slot_seconds / lavish.seconds > 1.3 * chosen.slot_seconds / chosen.seconds
    assert lavish.restarts > chosen.restarts == len(found.moves())
    assert lazy.late_seconds > 30 > chosen.late_seconds
    assert lazy.slot_seconds < chosen.slot_seconds
    listed = [each for plan in found.plans for each in plan.contenders]
    assert {each.label for each in listed if each.is_shadow} == {"lavish", "lazy"}
    assert all(each.lost_because is not None for each in listed if each.is_shadow)


@pytest.mark.thorough
def test_the_application_notices_nothing_of_its_shadows() -> None:
    """The same load with and without: the same plans."""
    with_them, without = world([LAVISH, LAZY]), world([])
    for each in (with_them, without):
        each.live(240)
    assert [(p.kind, p.code, p.approved, p.sentence) for p in with_them.plans] == [
        (p.kind, p.code, p.approved, p.sentence) for p in without.plans
    ]
    assert with_them.p(WORK) == without.p(WORK)
