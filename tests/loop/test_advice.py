"""What following the plans would have saved, by an application that only gets advice; the simulator says what is true."""

import math
from itertools import pairwise

import pytest

from tests.loop.world import Load, World, job, policy
from weir_knowledge.spend import advice_view

INTERVAL = "15s"


def swinging(seconds: float) -> float:
    """Between 300 and 1,700 records/s, three times an hour."""
    return 1000 - 700 * math.cos(2 * math.pi * seconds / 1200)


def slot_hours(world: World, seconds: float) -> float:
    """Return the slot-hours that an application holds in these seconds, by the simulation."""
    total = 0
    for _ in range(round(seconds / 15)):
        world.live(15)
        total += 15 * max(world.simulation.observed.values())
    return total / 3600


def late_seconds(world: World) -> float:
    """Return the seconds above the objective of 30 s, by the simulation."""
    return sum(after - at for (at, lag), (after, _) in pairwise(world.lags) if lag > 30)


def advising(start: int, load: Load, **spec: object) -> World:
    return World(job(start), load, policy=policy(mode="advise", interval=INTERVAL, **spec))


def acting(start: int, load: Load) -> World:
    return World(job(start), load, policy=policy(interval=INTERVAL))


@pytest.mark.thorough
def test_a_steady_application_that_is_too_large() -> None:
    """Eight subtasks for 400 records/s: acting gives back one after the other, and so does what follows the plans."""
    advised, acted = advising(8, 400.0), acting(8, 400.0)
    ran, cost = slot_hours(advised, 1200), slot_hours(acted, 1200)
    assert len(acted.moves()) > 3, "it goes down in steps"
    view = advice_view(advised.remembered.advice)
    assert view is not None
    assert view.running_slot_hours == pytest.approx(ran, rel=0.03)
    assert view.slot_hours == pytest.approx(cost, rel=0.15)
    assert (view.late_seconds, view.running_late_seconds) == (0, 0)
    assert (late_seconds(acted), late_seconds(advised)) == (0, 0)
    assert advised.moves() == []
    assert view.sentence.startswith("following the plans for 0.3 h: ")


@pytest.mark.thorough
def test_an_application_that_is_too_small_would_have_been_in_time() -> None:
    """One subtask for 900 records/s: what runs is late almost all the time, and the plans would have cost more slots."""
    advised, acted = advising(1, 900.0), acting(1, 900.0)
    slot_hours(advised, 900)
    slot_hours(acted, 900)
    view = advice_view(advised.remembered.advice)
    assert view is not None
    assert view.late_seconds is not None
    assert view.saved_share < 0
    assert view.running_late_seconds == pytest.approx(late_seconds(advised), rel=0.1)
    # The estimate knows one restart a step; acting is late for some seconds more at each of its steps.
    assert view.late_seconds == pytest.approx(late_seconds(acted), abs=60)
    assert " more), late " in view.sentence


@pytest.mark.thorough
def test_a_load_that_swings() -> None:
    """Slot-hours within a fifth of those of an application that follows the same plans, and as seldom late."""
    advised, acted = advising(8, swinging), acting(8, swinging)
    ran, cost = slot_hours(advised, 3600), slot_hours(acted, 3600)
    view = advice_view(advised.remembered.advice)
    assert view is not None
    assert view.running_slot_hours == pytest.approx(ran, rel=0.03)
    assert view.slot_hours == pytest.approx(cost, rel=0.2)
    assert view.late_seconds == pytest.approx(late_seconds(acted), abs=60)


def test_without_an_objective_in_seconds_the_cost_is_known_and_the_lateness_is_not() -> None:
    """A utilization bounds no lag."""
    view = advice_view(advising(8, 400.0, objective={"utilization": 0.7}).live(400).remembered.advice)
    assert view is not None
    assert view.saved_share > 0
    assert (view.late_seconds, view.running_late_seconds) == (None, None)
    assert "lateness unknown" in view.sentence


def test_too_short_a_time_shows_nothing() -> None:
    """Four minutes; and acting ends the sums."""
    world = advising(8, 400.0).live(240)
    assert world.remembered.advice is not None
    assert advice_view(world.remembered.advice) is None
    world.policy = policy(interval=INTERVAL, version=2)
    assert world.live(30).remembered.advice is None
