"""Faults of readings, jobs and rescales: the loop holds, gives the reason, and continues by itself."""

from collections.abc import Callable

import pytest

from tests.loop.world import JOB_ID, WORK, World, job, settled
from weir_contracts import Observation
from weir_replay.simulator import Fault, Link, OperatorSpec


def partitions(**fields: None) -> Callable[[Observation], Observation]:
    """Return an edit that makes fields of the partitions unknown."""

    def edit(observation: Observation) -> Observation:
        unknown = [p.model_copy(update=fields) for p in observation.partitions]
        return observation.model_copy(update={"partitions": unknown})

    return edit


def commits_only(observation: Observation) -> Observation:
    """Leave only the group's commits: no position and no pending records of the source."""
    silent = [o.model_copy(update={"pending_records": None}) for o in observation.operators]
    return partitions(current_offset=None)(observation.model_copy(update={"operators": silent}))


# -- readings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        Fault("missing", since_seconds=100, field="busy_ms"),
        Fault("missing", since_seconds=100, field="records_in"),
        Fault("missing", since_seconds=100, operator=WORK),
        Fault("frozen", since_seconds=100),
        Fault("brokers-away", since_seconds=100),
    ],
    ids=["no busy time", "no counts", "nothing of one operator", "frozen", "brokers away"],
)
@pytest.mark.thorough
def test_a_missing_reading_never_shrinks_the_job(fault: Fault) -> None:
    """A NaN or a missing metric reaches the loop as unknown, and unknown is not zero; a frozen counter is no
    standstill. When the reading is back, the loop continues."""
    world = settled(1200.0, start=4, faults=[fault])
    world.live(150)
    assert all(wanted >= current for current, wanted in world.moves())
    assert world.lag < 30
    world.application.observer.faults.clear()
    world.load = 2400.0
    world.live(120)
    assert world.p() >= 6


def test_a_missing_metric_is_a_hold_that_names_it() -> None:
    """Without log ends and counters the arrival rate is unknown: whatever else falls to 0, nothing changes."""
    faults = [Fault("brokers-away", since_seconds=100), Fault("missing", since_seconds=100)]
    world = settled(1200.0, start=4, faults=faults)
    before = len(world.moves())
    world.live(120)
    assert len(world.moves()) == before
    assert (world.plans[-1].kind, world.plans[-1].code) == ("hold", "metric-missing")
    assert "unknown" in world.plans[-1].sentence


@pytest.mark.thorough
def test_an_unknown_lag_shrinks_nothing() -> None:
    """Neither commits nor positions: the age of the oldest record is unknown."""
    world = settled(1200.0, start=4)
    nowhere = partitions(committed_offset=None, committed_at=None, current_offset=None)

    def without_position(observation: Observation) -> Observation:
        operators = [o.model_copy(update={"pending_records": None}) for o in observation.operators]
        return nowhere(observation).model_copy(update={"operators": operators})

    world.edit = without_position
    world.live(120)
    assert all(wanted >= current for current, wanted in world.moves())
    assert world.analysis is not None
    assert world.analysis.lag_seconds.value is None


def test_an_unreachable_cluster_is_waited_for() -> None:
    """Its last reading is no reason to act on anything: hold with the reason, and continue when it is back."""
    world = settled()
    world.simulation.conditions.away = "connection refused"
    world.load = 1200.0
    world.live(60)
    assert world.moves() == []
    assert world.plans[-1].code == "unreachable"
    assert "connection refused" in world.plans[-1].sentence
    world.simulation.conditions.away = None
    world.live(90)
    assert world.p() >= 3


@pytest.mark.thorough
@pytest.mark.parametrize("interval", [60.0, 600.0])
@pytest.mark.parametrize("has_positions", [True, False], ids=["positions", "commits only"])
def test_rare_commits_are_not_misread_as_lag(interval: float, has_positions: bool) -> None:
    """Offsets are committed with each checkpoint only. The source's position gives the lag; without it, the age of the
    commit is subtracted. Nothing is scaled for the sawtooth, and a rescale does not wait ten minutes for a
    checkpoint."""
    world = World(job(2).on(checkpoint_interval_seconds=interval), 600.0)
    if not has_positions:
        world.edit = commits_only
    world.live(200)
    assert world.moves() == []
    assert world.analysis is not None
    assert (world.analysis.lag_seconds.value or 0.0) < 10
    world.load = 2200.0
    world.live(60)
    assert world.p() >= 5
    assert max(o.restart_seconds or 0.0 for o in world.outcomes) < 20
    assert world.simulation.checkpoints_triggered >= 1


# -- jobs -------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_job_that_vanishes_is_found_again_under_its_name() -> None:
    """Canceled, missing for a minute, then resubmitted with another id and one subtask: held, then scaled again."""
    world = settled(1200.0, start=4, faults=[Fault("not-found", 120, 161)])
    world.simulation.end("CANCELED")
    world.live(15)
    assert (world.plans[-1].kind, world.plans[-1].code) == ("hold", "job-ended")
    world.live(45)
    assert (world.plans[-1].kind, world.plans[-1].code) == ("hold", "not-found")
    assert "no such job" in world.plans[-1].sentence
    world.simulation.resubmit(job(), JOB_ID)
    world.live(120)
    assert world.p() >= 3
    assert {o.action.deployment.job_id for o in world.outcomes if o.action and o.before[WORK] == 1} == {JOB_ID}


@pytest.mark.thorough
def test_a_job_that_restarts_by_itself_keeps_its_size_and_its_learned_capacity() -> None:
    """A task fails and everything begins again from the last checkpoint: counters from 0, a cold start, a little lag."""
    world = settled(1300.0, start=4)  # needs all four, also once a restart is known to be short
    before = len(world.moves())
    world.simulation.fail()
    world.live(100)
    assert world.moves()[before:] == []
    world.simulation.fail()
    world.live(20)
    world.load = 2400.0
    world.live(60)
    assert world.p() >= 6


@pytest.mark.thorough
def test_another_graph_under_the_same_name_is_learned_from_the_start() -> None:
    """The new version of the job has a sink and allows less: a plan for the old graph does not reach it, what comes
    after it does."""
    world = settled(1200.0, start=4)
    world.keep = (type(world.plans[-1]),)
    world.load = 2400.0
    world.live(10)
    (old,) = [plan for plan in world.kept if plan.kind == "scale"][:1]
    # As large as the old one runs: only the graph differs.
    new = job(old.current[WORK], max_parallelism=6)
    sink = OperatorSpec(name="sink", service_seconds=20e-6)
    graph = {"operators": (*new.operators, sink), "links": (*new.links, Link(source=WORK, target="sink"))}
    world.simulation.resubmit(new.model_copy(update=graph), world.simulation.job_id)
    world.live(5)
    world.late(old)
    assert (world.outcomes[-1].phase, world.outcomes[-1].code) == ("refused", "other-deployment")
    assert "graph" in world.outcomes[-1].sentence
    world.keep = ()
    world.live(120)
    assert world.p() == 6


@pytest.mark.thorough
def test_a_crash_loop_from_overload_is_ended_by_scaling() -> None:
    """It fails whenever it is a minute behind, and so gets further behind: more subtasks are the way out."""
    world = World(load=1200.0)
    world.simulation.conditions.crash_lag_seconds = 60.0
    world.live(500)
    assert world.p() >= 3
    assert world.lag < 30


@pytest.mark.thorough
def test_a_machine_that_becomes_slower_is_answered() -> None:
    """A noisy neighbour takes a third of every operator's capacity: the learned capacity is corrected."""
    world = settled(850.0, start=2)
    world.simulation.conditions.capacity_factor = 0.66
    world.live(240)
    assert world.p() >= 3
    assert world.lag < 10


# -- rescales ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_refused_rescale_is_reported_and_repeated_later() -> None:
    """The engine refuses for a while: few requests are made, and the first accepted one ends it."""
    world = settled()
    world.simulation.conditions.refuses = "the job is being stopped with a savepoint"
    world.load = 1200.0
    world.live(40)
    failed = [o for o in world.outcomes if o.phase == "failed"]
    assert failed
    assert "savepoint" in failed[0].sentence
    assert len(failed) <= 8
    world.simulation.conditions.refuses = None
    world.live(60)
    assert world.p() >= 3


@pytest.mark.thorough
def test_a_rescale_that_never_begins_times_out() -> None:
    """The engine takes the request and does nothing: after its deadline the action ends, and nothing hangs."""
    world = settled()
    world.simulation._may_rescale = lambda: False  # type: ignore[method-assign]
    world.load = 1200.0
    world.live(240)
    assert {"failed", "rolled-back"} & world.phases
    assert world.p() == 1


@pytest.mark.thorough
def test_a_rescale_that_hangs_is_rolled_back_and_its_vector_kept_away() -> None:
    """The job does not come up with the new parallelism: rolled back after the deadline, not retried for minutes."""
    world = settled()
    world.simulation.conditions.hangs = True
    world.load = 1200.0
    world.live(75)
    assert "rolling-back" in world.phases
    world.simulation.conditions.hangs = False
    world.live(15)
    assert "rolled-back" in world.phases
    kept = world.outcomes[-1].quarantine
    assert [entry.parallelism[WORK] for entry in kept] == [world.moves()[0][1]]
    world.live(60)
    assert world.moves().count(world.moves()[0]) == 1


@pytest.mark.thorough
def test_a_crashing_parallelism_is_rolled_back_and_not_tried_again() -> None:
    """Above 2 subtasks the job restarts all the time: back to 1, quarantined, and the loop continues with what runs."""
    world = settled()
    world.simulation.conditions.crash_above = 2
    world.load = 1200.0
    world.live(300)
    assert "rolled-back" in world.phases
    assert any(o.quarantine for o in world.outcomes)
    first = world.moves()[0]
    assert world.moves().count(first) == 1
    kept_away = next(o for o in world.outcomes if o.quarantine)
    later = [plan for plan in world.plans if plan.created_at > kept_away.at and plan.kind == "scale"]
    assert all((plan.approved or {})[WORK] != first[1] for plan in later), "the planner knows it too"


@pytest.mark.thorough
def test_a_rescale_that_makes_it_worse_is_taken_back() -> None:
    """Many subtasks are in each other's way (κ): less is done than before at the same load, so it goes back. The loop
    learns from it: the next best is not tried in its place."""
    world = World(job(2, coherence=0.1), 1200.0).live(400)
    (worse,) = {o.action.id: o.action for o in world.outcomes if o.action and o.code == "capacity-worse"}.values()
    assert "rolled-back" in world.phases
    assert any(entry.parallelism == worse.wanted for entry in world.outcomes[-1].quarantine)
    assert world.p() == worse.before[WORK]
    assert max(wanted for _, wanted in world.moves()) == worse.wanted[WORK]
    assert world.plans[-1].kind == "hold"
    assert any(i.code == "capacity-ceiling" for i in world.plans[-1].infeasible)


@pytest.mark.thorough
def test_a_slow_rescale_is_waited_for_and_its_price_is_learned() -> None:
    """45 s from checkpoint to running: nothing is requested meanwhile, and another one comes only if it pays."""
    world = settled()
    world.simulation.conditions.restart_factor = 22.0
    world.load = 1200.0
    world.live(40)
    assert len(world.moves()) == 1
    world.live(200)
    assert "verified" in world.phases
    assert max(o.restart_seconds or 0.0 for o in world.outcomes) >= 40
    assert len(world.moves()) <= 2
    assert world.lag < 5


@pytest.mark.thorough
def test_another_client_rescales_during_verification() -> None:
    """The action ends as contested, is not rolled back, and nothing is requested against the other client's
    requirements."""
    world = settled()
    world.load = 1200.0
    while not world.outcomes or world.outcomes[-1].phase != "verifying":
        world.live(1)
    world.simulation.request({**world.simulation.requested, WORK: 7})
    world.live(60)
    assert ("failed", "contested") in {(outcome.phase, outcome.code) for outcome in world.outcomes}
    assert "rolling-back" not in world.phases
    assert world.simulation.requested[WORK] == 7


@pytest.mark.thorough
def test_another_client_rescales_and_weir_holds() -> None:
    """Requirements that are not what Weir wrote last: contested, hold."""
    world = settled()
    world.load = 1200.0
    world.live(60)
    world.simulation.request({**world.simulation.requested, WORK: 7})
    world.live(20)
    world.load = 6000.0
    world.live(40)
    assert "contested" in world.codes
    assert world.simulation.requested[WORK] == 7
