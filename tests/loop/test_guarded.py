"""Stories of the guards around planners that know less than `rate`: each holds only what would not help."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.loop.world import CALMING, WORK, Load, World, job, policy, settled, without
from weir_replay.simulator import Application, chain

RULE: dict[str, Any] = {"name": "threshold", "parameters": {"up_above": 0.8, "down_below": 0.3, "operators": [WORK]}}
"""One subtask more above 80 %, one less below 30 %."""


def held_by(world: World, guard: str) -> Iterator[str]:
    """Return the guard's reasons in the plans that it amended."""
    return (a.because for plan in world.plans for a in plan.amendments if a.guard == guard)


def at_its_threshold() -> World:
    """Two subtasks are more than 80 % busy with 870 ± 7 % records/s, three less than 60 %."""
    narrow = {**RULE, "parameters": {**RULE["parameters"], "down_below": 0.6}}
    return World(job(2), lambda t: 870.0 * (1.07 if t % 240 < 120 else 0.93), planner=narrow).live(700)


@pytest.mark.thorough
def test_a_rule_whose_thresholds_lie_too_close_does_not_flap() -> None:
    """It would add and take away one subtask for ever, and pay a restart each time until the job is minutes late; the
    guards let it try once, then what is up stays up, and the job is never late."""
    held = at_its_threshold()
    assert held.moves() in ([(2, 3)], [(2, 3), (3, 2), (2, 3)])
    assert held.worst() < 30
    with without(*CALMING):
        followed = at_its_threshold()
    assert len(followed.moves()) > 10
    assert followed.worst() > 120


LAG_RULE = {
    "name": "threshold",
    "parameters": {"measure": "lag_seconds", "up_above": 20.0, "down_below": 3.0, "operators": ["enrich"]},
}


def busy_without_lag() -> World:
    """`enrich` is 90 % busy and keeps up: the rule sees no lag, and takes a subtask away."""
    load: Load = lambda t: 900.0 if t < 120 else 900.0 + 60.0 * (t % 30 < 15)  # noqa: E731
    return World(chain(2), load, planner=LAG_RULE).live(420)


@pytest.mark.thorough
def test_a_planner_that_sees_no_backlog_takes_nothing_from_a_busy_vertex() -> None:
    """Without the guards it does, and the job is late."""
    assert all(wanted >= current for current, wanted in busy_without_lag().moves("enrich"))
    with without(*CALMING):
        followed = busy_without_lag()
    assert any(wanted < current for current, wanted in followed.moves("enrich"))
    assert followed.worst() > 30


@pytest.mark.thorough
def test_an_excluded_period_holds_and_its_end_lets_go() -> None:
    """The simulation begins at midnight; until 00:04 nothing is changed though the load triples, then it is answered at
    once."""
    quiet = {"cooldown": "30s", "excludedPeriods": [{"from": "23:00", "to": "00:04", "directions": ["up", "down"]}]}
    world = settled(behavior=quiet)
    world.load = 1200.0
    world.live(135)
    assert world.moves() == []
    assert world.plans[-1].code == "excluded-period"
    world.live(30)
    assert len(world.moves()) == 1
    world.live(90)
    assert world.p() >= 3
    assert world.lag < 30


@pytest.mark.thorough
def test_a_budget_is_used_up_and_not_passed() -> None:
    """2 cores at half a core a slot: 4 slots for a load that needs 9; the plan names the limit. A larger budget gives
    more."""
    budget: dict[str, Any] = {"cpu": 2, "perSlot": {"cpu": 0.5}}
    world = settled(budget=budget)
    world.load = 3600.0
    world.live(60)
    assert world.p() == 4
    assert any(i.code == "budget" for plan in world.plans for i in plan.infeasible)
    world.policy = policy(version=2, budget={**budget, "cpu": 8})
    world.live(60)
    assert world.p() >= 8


def test_a_lowered_total_is_kept_at_once() -> None:
    """7 subtasks run; the policy now allows 5 in all. Neither stabilisation nor cooldown keep the rest, and no bound is
    passed afterwards."""
    world = settled(1700.0, start=6)
    world.policy = policy(version=2, bounds={"max": 16, "total": {"max": 5}})
    world.live(20)
    assert (world.p(), sum(world.simulation.observed.values())) == (4, 5)
    assert any(plan.code == "out-of-bounds" for plan in world.plans)
    world.load = 3000.0
    world.live(60)
    assert sum(world.simulation.observed.values()) == 5


def swinging(**behavior: Any) -> World:
    """A load that swings every 5 minutes, for 40 minutes; stabilisation alone would follow each swing."""
    calm = {"scaleDown": {"stabilization": "30s", **behavior.pop("down", {})}, "cooldown": "10s", **behavior}
    return World(job(2), lambda t: 1300.0 if t % 600 < 300 else 500.0, interval="15s", behavior=calm).live(2400)


@pytest.mark.thorough
def test_a_swing_is_answered_by_fewer_rescales_and_no_violation() -> None:
    """After up, down and up again, the parallelism stays up for a while; without the guard it follows every swing."""
    held, followed = swinging(), swinging(down={"reversalHold": "0s"})
    assert any(held_by(held, "reversal"))
    assert not any(held_by(followed, "reversal"))
    assert len(held.moves()) <= 0.7 * len(followed.moves())
    assert held.worst(since=200) <= max(30.0, followed.worst(since=200))


@pytest.mark.thorough
def test_the_hours_actions_are_counted_and_the_last_of_them_grows() -> None:
    """The same swing with 4 actions an hour: never more within any hour, and the last one was upwards, so that nothing
    is late at the end."""
    world = swinging(maxActionsPerHour=4)
    accepted = [o for o in world.outcomes if o.phase == "verifying" and o.code == "accepted"]
    assert 1 <= len(world.moves()) <= 4
    assert all((b.at - a.at).total_seconds() >= 0 for a, b in pairwise(accepted))
    assert any(held_by(world, "action-budget"))
    assert world.moves()[-1][1] > world.moves()[-1][0]
    assert world.lag < 30


@pytest.mark.thorough
def test_growth_that_is_measured_to_bring_nothing_is_not_repeated() -> None:
    """A rule that adds a subtask whenever work is full, and a work that contends for one lock: 4 do no more than 3. The
    rule alone would go on to 12."""
    world = World(job(contention=1.0), 900.0, planner=RULE, bounds={"min": 1, "max": 12}).live(500)
    assert any(held_by(world, "ineffective-growth"))
    assert world.p() <= 4
    assert any(i.code == "ineffective-growth" for plan in world.plans for i in plan.infeasible)


@pytest.mark.thorough
def test_growth_that_helps_is_never_called_ineffective() -> None:
    """The same rule and a work that scales: it gets all it needs, one subtask after the other."""
    world = World(job(), 2600.0, planner=RULE, bounds={"min": 1, "max": 12}).live(500)
    assert not any(held_by(world, "ineffective-growth"))
    assert world.p() >= 7


def hot(share: float) -> Application:
    """The chain, with a share of all records on one key of `enrich`."""
    application = chain(2)
    operators = tuple(
        o.model_copy(update={"hot_key_share": share}) if o.name == "enrich" else o for o in application.operators
    )
    return application.model_copy(update={"operators": operators})


@pytest.mark.thorough
def test_a_rule_that_follows_lag_is_kept_from_chasing_a_hot_key() -> None:
    """60 % of all records have one key, and the rule adds to `enrich` for as long as there is lag. Once its subtasks
    have been measured it is kept at what an even load would need; without a hot key the same rule gets what it
    requests."""
    rule = {
        "name": "threshold",
        "parameters": {"measure": "lag_seconds", "up_above": 10, "down_below": 0, "operators": ["enrich"], "step": 2},
    }
    patient = {"scaleUp": {"stabilization": "1m"}, "cooldown": "30s"}
    world = World(hot(0.6), 1200.0, planner=rule, behavior=patient).live(400)
    assert any(held_by(world, "hot-key"))
    assert world.p("enrich") <= 6
    assert any(i.code == "hot-key" and i.operator == "enrich" for plan in world.plans for i in plan.infeasible)
    even = World(hot(0.0), 1200.0, planner=rule, behavior=patient).live(400)
    assert not any(held_by(even, "hot-key"))
    assert even.lag < 30
