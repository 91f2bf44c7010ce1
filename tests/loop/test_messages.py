"""Events between the services: policies that change under a plan; messages that are late, lost, doubled, out of order
or too many."""

from itertools import chain, repeat

import pytest

from tests.effort import some
from tests.loop.world import WORK, World, job, policy, settled
from weir_contracts import Analysis, Observation, Plan, ScalingPolicy
from weir_contracts.topics import ANALYSES, OBSERVATIONS, PLANS
from weir_executor.core import Rules
from weir_replay.simulator import Fault
from weir_runtime.bus import Outgoing

EDITED = policy(version=2, bounds={"min": 1, "max": 2})
PAUSED = policy(version=2, mode="paused")
ANOTHER = policy(version=1_800_000_000_000)
"""Deleted and created again: the same words, and a version of its own."""
CHANGES = pytest.mark.parametrize(
    ("changed", "code"),
    some(
        [
            pytest.param(EDITED, "policy-changed", id="edited"),
            pytest.param(PAUSED, "not-act", id="paused"),
            pytest.param(None, "policy-changed", id="deleted"),
            pytest.param(ANOTHER, "policy-changed", id="created again"),
        ],
        4,
    ),
)

# -- policies ---------------------------------------------------------------------------------------------------------


def test_advice_touches_nothing() -> None:
    """In mode advise the same decisions are made, refused at the gate, and the job stays."""
    world = World(load=1100.0, mode="advise").live(150)
    assert world.p() == 1
    assert any(plan.kind == "scale" for plan in world.plans)
    assert set(world.codes) == {"not-act"}


def test_a_pause_stops_planning_and_a_resumption_goes_on() -> None:
    """A new policy version each time."""
    world = settled()
    world.policy = PAUSED
    world.load = 1200.0
    world.live(40)
    assert world.plans[-1].code == "paused"
    assert world.p() == 1
    world.policy = policy(version=3)
    world.live(60)
    assert world.p() >= 3


def waiting(world: World) -> Plan:
    """A plan to scale that was made and did not arrive yet."""
    world.keep = (Plan,)
    world.load = 1200.0
    while not any(plan.kind == "scale" for plan in world.kept):
        world.live(5)
    world.keep = ()
    return next(plan for plan in world.kept if plan.kind == "scale")


@CHANGES
def test_a_policy_that_changes_while_a_plan_waits(changed: ScalingPolicy | None, code: str) -> None:
    """It was made under the old one: refused at the last gate, whatever it proposes."""
    world = settled()
    plan = waiting(world)
    world.executor_reads(changed)
    world.late(plan)
    assert (world.outcomes[-1].phase, world.outcomes[-1].code) == ("refused", code)
    world.live(10)
    assert world.p() == 1
    assert world.simulation.requested[WORK] == 1


@CHANGES
def test_a_policy_that_changes_between_gate_and_request(changed: ScalingPolicy | None, code: str) -> None:
    """The intent is published; the engine has no request yet, and gets none."""
    world = settled()
    plan = waiting(world)
    world.executor_reads_each(chain([world.policy], repeat(changed)))
    world.late(plan)
    assert [o.phase for o in world.outcomes[-2:]] == ["intended", "refused"]
    assert world.outcomes[-1].code == code
    assert world.simulation.requested[WORK] == 1


@pytest.mark.thorough
@CHANGES
def test_a_policy_that_changes_in_the_middle_of_an_action(changed: ScalingPolicy | None, code: str) -> None:
    """The action continues to its end; the old plans request nothing more."""
    world = settled()
    world.simulation.conditions.restart_factor = 5.0
    world.late(waiting(world))
    assert world.outcomes[-1].phase == "verifying"
    world.executor_reads(changed)
    world.load = 4000.0
    world.live(60)
    assert "verified" in world.phases
    assert len(world.moves()) == 1
    assert set(world.codes[-3:]) == {code}


def test_a_policy_that_cannot_be_read_admits_no_action() -> None:
    """Knowledge is away: no new action; the next one comes when it is back."""
    world = settled()
    world.loop.knowledge.away = "connection refused"
    world.load = 1200.0
    world.live(30)
    assert world.moves() == []
    assert set(world.codes) == {"unreachable"}
    world.loop.knowledge.away = None
    world.live(60)
    assert world.p() >= 3


# -- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_two_plans_in_flight() -> None:
    """Both were made before either arrived: the first is acted on, the second is not, the next one is made for the new
    deployment."""
    world = settled()
    first = waiting(world)
    world.keep, world.kept = (Plan,), []
    world.live(5)
    (second,) = world.kept
    assert second.kind == "scale"
    world.keep = ()
    world.late(first, second)
    assert (world.outcomes[-1].plan_id, world.outcomes[-1].code) == (second.id, "in-flight")
    world.live(60)
    assert len(world.moves()) == 1
    assert world.p() >= 3


@pytest.mark.thorough
def test_plans_out_of_order() -> None:
    """The newer arrives first and is acted on; the older is for a deployment that is no more."""
    world = settled()
    older = waiting(world)
    world.live(20)
    assert len(world.moves()) == 1
    world.late(older)
    assert world.outcomes[-1].phase == "refused"
    world.live(30)
    assert len(world.moves()) == 1


def test_a_plan_that_comes_twice_is_acted_on_once() -> None:
    """At least once is what Kafka promises; it may be long after it was done, too."""
    world = settled()
    plan = waiting(world)
    world.late(plan, plan)
    world.live(10)
    published = len(world.outcomes)
    world.late(plan)
    assert len(world.outcomes) == published
    assert len(world.moves()) == 1


@pytest.mark.thorough
def test_a_plan_that_waited_too_long_is_not_acted_on() -> None:
    """It was in Kafka for ten minutes without an executor: refused as expired, and a new one is acted on."""
    world = settled()
    plan = waiting(world)
    world.keep = (Plan,)
    world.live(600)
    world.keep = ()
    world.late(plan)
    assert world.outcomes[-1].code == "expired"
    world.live(60)
    assert world.p() >= 3


# -- readings and analyses --------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_lost_and_repeated_observations_change_nothing() -> None:
    """Every third is lost, every fifth comes twice: the step is still answered, and each plan is acted on once."""
    world = settled()
    scraped: list[Observation] = []

    def lossy(observation: Observation) -> Observation | None:
        scraped.append(observation)
        return None if len(scraped) % 3 == 0 else observation

    world.edit = lossy
    world.load = 1200.0
    for _ in range(20):
        world.live(5)
        if len(scraped) % 5 == 0:
            world.late(scraped[-1], scraped[-2])
    assert world.p() >= 3
    acted = [o.plan_id for o in world.outcomes if o.phase == "applying"]
    assert len(acted) == len(set(acted)) == len(world.moves())
    assert len({plan.id for plan in world.plans}) == len(world.plans)


@pytest.mark.thorough
def test_observations_out_of_order_teach_nothing_wrong() -> None:
    """Each pair is swapped: the newer counts, the older is only counted; no rate is taken over a negative time."""
    world = settled()
    world.keep = (Observation,)
    world.load = 1200.0
    for _ in range(12):
        world.live(10)
        world.late(*reversed(world.kept))
        world.kept.clear()
    assert world.p() >= 3
    assert world.analysis is not None
    assert world.analysis.dropped_observations >= 10
    assert all(wanted > current for current, wanted in world.moves())


@pytest.mark.thorough
def test_a_reading_that_comes_late_is_not_decided_on() -> None:
    """Half a minute old at an interval of 5 s: a hold with this reason; fresh ones are decided on again."""
    world = settled(faults=[Fault("delayed", 101, 201, delay_seconds=30)])
    world.load = 1200.0
    world.live(100)
    assert world.moves() == []
    assert {plan.code for plan in world.plans[-10:]} == {"stale"}
    world.live(60)
    assert world.p() >= 3


@pytest.mark.thorough
def test_an_outage_of_half_an_hour_is_followed_by_one_current_decision() -> None:
    """360 analyses wait in the topic. In whatever order they are taken, only the newest is fresh enough to be decided
    on, and what is older than the last decided on is history."""
    world = settled()
    world.keep = (Analysis,)
    world.live(1800)
    plans = len(world.plans)
    world.keep = ()
    world.load = 1200.0
    world.live(5)
    assert [plan.kind for plan in world.plans[plans:]] == ["scale"]
    world.late(*world.kept)
    assert len(world.plans) == plans + 1
    assert len(world.kept) == 360
    world.live(60)
    assert world.p() >= 3
    assert len(world.moves()) == 1


@pytest.mark.thorough
def test_a_backlog_that_is_taken_oldest_first_is_history() -> None:
    """A quarter of an hour of rising load, observed afterwards: a hold for each old analysis, and no action."""
    world = settled()
    world.keep = (Analysis,)
    world.load = lambda t: 400.0 if t < 700 else 1200.0
    world.live(895)
    plans = len(world.plans)
    world.late(*world.kept[:-10:10])
    assert {plan.code for plan in world.plans[plans:]} == {"stale"}
    assert world.moves() == []


@pytest.mark.parametrize("body", some([b'{"id": 5}', b"", b"{", b"null", b"[1, 2", bytes(range(256))], 6))
def test_an_unreadable_message_has_no_effect(body: bytes) -> None:
    """Random bytes on each topic are sent to the dead-letter topic by each service that reads them; the loop continues."""
    world = settled()
    world.loop.deliver(*(Outgoing(topic.name, "shop/orders", body) for topic in (OBSERVATIONS, ANALYSES, PLANS)))
    readers = {(letter.topic, letter.service) for letter in world.loop.tally.dead_letters}
    assert readers == {
        (OBSERVATIONS.name, "analyzer"),
        (OBSERVATIONS.name, "planner"),
        (ANALYSES.name, "planner"),
        (PLANS.name, "executor"),
    }
    world.load = 1200.0
    world.live(20)
    assert len(world.moves()) == 1


# -- a fleet ----------------------------------------------------------------------------------------------------------

HOLD_SECONDS = 200.0


def fleet(**rules: float) -> list[World]:
    """Five applications of one executor, each with more than it will need."""
    given = Rules(fleet_hold_seconds=HOLD_SECONDS, **rules)  # type: ignore[arg-type]
    policies = [policy(f"app-{i}", interval="10s") for i in range(5)]
    first = World(job(4), 1200.0, policy=policies[0], rules=given)
    worlds = [first, *(World(job(4), 1200.0, policy=each, shares=first) for each in policies[1:])]
    first.live(60)
    return worlds


@pytest.mark.thorough
def test_a_fleet_that_would_shrink_in_the_same_minute_is_held() -> None:
    """Their common input, or what measures them, has an outage: not even the first shrinks, one that needs more grows
    at once, and after a while all shrink."""
    worlds = fleet()
    for world in worlds:
        world.load = 300.0
    worlds[0].live(HOLD_SECONDS - 20)
    assert [world.moves() for world in worlds] == [[]] * 5
    assert all("fleet-shrinking" in world.codes for world in worlds)
    assert "5 of 5 applications began to need less" in worlds[0].outcomes[-1].sentence
    worlds[0].load = 2400.0
    worlds[0].live(60)
    assert [world.p() > 4 for world in worlds] == [True] + [False] * 4
    assert all(world.p() < 4 for world in worlds[1:])


@pytest.mark.thorough
def test_a_fleet_whose_loads_fall_one_after_the_other_is_not_held() -> None:
    """An evening: each falls a little more than the window after the one before."""
    worlds = fleet(fleet_window_seconds=30.0)
    for world in worlds:
        world.load = 300.0
        world.live(40)
    worlds[0].live(60)
    assert all(world.p() < 4 for world in worlds)
    assert not any("fleet-shrinking" in world.codes for world in worlds)
