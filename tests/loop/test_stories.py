"""Stories of the whole loop: what an engineer would want to be true on a bad night."""

import asyncio

from weir_contracts import Observation
from weir_contracts.topics import OBSERVATIONS

from tests.loop.world import WORK, World, policy, settled

OBJECTIVE_SECONDS = 30.0


def test_a_small_job_under_a_small_load_is_left_alone() -> None:
    """400 of 500 records/s: nothing is scaled for two minutes."""
    world = settled()
    assert world.scaled() == []
    assert world.plans[-1].code == "objective-held"


def test_load_triples_and_the_job_is_rescaled_before_its_lag_is_out_of_bounds() -> None:
    """The brokers show the step at once; the answer comes within two scrapes and holds."""
    world = settled()
    world.job.arrivals = 1200.0
    world.run(6)
    assert world.scaled(), world.plans[-1].sentence
    world.run(90)
    assert world.work >= 3
    assert max(world.lags) < OBJECTIVE_SECONDS
    assert world.lag_seconds < 2
    assert {o.phase for o in world.outcomes} >= {"applying", "verifying", "verified"}


def test_load_falls_and_what_is_not_needed_is_given_back_once() -> None:
    """Down only after it was wanted for the whole window, in few steps, without hurting the objective."""
    world = settled(1200.0, start=4)
    world.job.arrivals = 300.0
    before = len(world.scaled())
    world.run(30)
    assert len(world.scaled()) == before
    world.run(240)
    assert world.work < 4
    assert len(world.scaled()) - before <= 3
    assert max(world.lags[-100:]) < OBJECTIVE_SECONDS


def test_a_load_near_a_threshold_does_not_make_it_flap() -> None:
    """±7 % around a level for ten minutes: at most one change."""
    world = settled(700.0, start=2)
    before = len(world.scaled())
    for i in range(60):
        world.job.arrivals = 700.0 * (1.07 if i % 2 else 0.93)
        world.run(10)
    assert len(world.scaled()) - before <= 1


def test_an_under_provisioned_start_is_found_out_and_ended() -> None:
    """Nothing was known of the job; its backlog is worked off and the objective held."""
    world = World()
    world.job.arrivals = 1100.0
    world.run(200)
    assert world.work >= 3
    assert world.lag_seconds < 5


def test_a_missing_metric_is_a_hold_that_names_it() -> None:
    """Without log ends the arrival rate is unknown: whatever else falls to 0, nothing shrinks."""
    world = settled(1200.0, start=4)
    before = len(world.scaled())

    def blind(observation: Observation) -> Observation:
        return observation.model_copy(update={"partitions": [], "operators": []})

    world.edit = blind
    world.run(120)
    assert len(world.scaled()) == before
    assert world.plans[-1].kind == "hold"
    assert world.plans[-1].code == "metric-missing"
    assert "unknown" in world.plans[-1].sentence


def test_an_unreachable_cluster_is_waited_for() -> None:
    """Hold, say so, and go on by itself when it is back."""
    world = settled()

    def away(observation: Observation) -> Observation:
        nothing = {"deployment": None, "topology": None, "run": None, "operators": [], "partitions": []}
        return observation.model_copy(update={"status": "unreachable", "message": "no answer in time", **nothing})

    world.edit = away
    world.run(60)
    assert world.plans[-1].code == "unreachable"
    assert "no answer in time" in world.plans[-1].sentence
    world.edit = lambda observation: observation
    world.job.arrivals = 1200.0
    world.run(120)
    assert world.work >= 3


def test_lost_and_repeated_observations_change_nothing() -> None:
    """Every third is lost, every fifth comes twice: the step is still answered, and each plan is acted on once."""
    world = settled()
    count = 0

    def lossy(observation: Observation) -> Observation | None:
        nonlocal count
        count += 1
        return None if count % 3 == 0 else observation

    world.edit = lossy
    world.job.arrivals = 1200.0
    world.run(120)
    assert world.work >= 3
    acted = [o.plan_id for o in world.outcomes if o.phase == "applying"]
    assert len(acted) == len(set(acted))


def test_what_cannot_be_read_is_put_aside_and_the_loop_goes_on() -> None:
    """Random bytes on a topic between two readings."""
    world = settled()
    for body in (b"", b"{", b"null", b"[1, 2", b'{"id": 5}', bytes(range(256))):
        asyncio.run(world.say_bytes(OBSERVATIONS, body))
    world.job.arrivals = 1200.0
    world.run(60)
    assert world.unreadable == 6
    assert world.work >= 3


def test_advice_touches_nothing() -> None:
    """In mode advise the same decisions are made, refused at the gate, and the job stays."""
    world = World(policy=policy(mode="advise"))
    world.job.arrivals = 1100.0
    world.run(150)
    assert world.work == 1
    assert any(plan.kind == "scale" for plan in world.plans)
    assert {o.code for o in world.outcomes} == {"not-act"}


def test_a_pause_stops_planning_and_a_resumption_goes_on() -> None:
    """A new policy version each time."""
    world = settled()
    world.policy = policy(version=2, mode="paused")
    world.job.arrivals = 1200.0
    world.run(40)
    assert world.plans[-1].code == "paused"
    assert world.work == 1
    world.policy = policy(version=3)
    world.run(90)
    assert world.work >= 3


def test_a_plan_for_another_policy_version_is_refused_at_the_last_gate() -> None:
    """The user changed the policy while the plan was on its way."""
    world = settled()
    old = world.policy
    world.edit = lambda observation: observation.model_copy(update={"policy": old})
    world.policy = policy(version=2, bounds={"min": 1, "max": 2})
    world.job.arrivals = 1200.0
    world.run(20)
    assert {o.code for o in world.outcomes} == {"policy-changed"}
    assert world.work == 1


def test_somebody_else_rescales_and_weir_stands_back() -> None:
    """Requirements that are not what Weir wrote last: contested, hold."""
    world = settled()
    world.job.arrivals = 1200.0
    world.run(60)
    world.cluster.requested = {**world.cluster.requested, WORK: 7}
    world.cluster.checkpoint_at = world.clock.now()
    world.run(20)
    world.job.arrivals = 5000.0
    world.run(40)
    assert "contested" in {o.code for o in world.outcomes}
    assert world.cluster.requested[WORK] == 7


def test_load_that_rises_during_verification_is_planned_for_and_never_rolled_back() -> None:
    """×3, and ×1.6 again while the first answer is being watched."""
    world = settled()
    world.job.arrivals = 1200.0
    world.run(12)
    first = world.scaled()
    assert first
    world.job.arrivals = 2400.0
    world.run(100)
    assert len(world.scaled()) > len(first)
    assert world.work >= 6
    assert not {"rolling-back", "rolled-back"} & {o.phase for o in world.outcomes}


def test_slots_run_out_and_what_can_be_had_is_taken() -> None:
    """4 slots for a load that needs more: all 4 are used, and the plan says what was infeasible."""
    world = settled(slots=4)
    world.job.arrivals = 4000.0
    world.run(60)
    assert world.work == 4
    assert any(i.code in ("slots", "bounds") for plan in world.plans for i in plan.infeasible)


def test_a_crashing_parallelism_is_rolled_back_and_not_tried_again() -> None:
    """Above 2 subtasks the job restarts all the time: back to 1, quarantined, and said."""
    world = settled()
    world.cluster.crash_above = 2
    world.job.arrivals = 1200.0
    world.run(400)
    phases = [o.phase for o in world.outcomes]
    assert "rolled-back" in phases
    assert world.outcomes[-1].quarantine or any(o.quarantine for o in world.outcomes)


def test_every_decision_can_be_explained_afterwards() -> None:
    """One id joins reading, analysis, plan and outcomes in what knowledge remembers."""
    world = settled()
    world.job.arrivals = 1200.0
    world.run(60)
    turns = [turn for turn in world.knowledge.turns if turn.outcomes and turn.plan and turn.plan.kind == "scale"]
    assert turns
    turn = turns[-1]
    assert turn.reading is not None
    assert turn.analysis is not None
    assert turn.plan is not None
    assert turn.plan.observation_id == turn.correlation_id
    assert {outcome.observation_id for outcome in turn.outcomes} == {turn.correlation_id}
