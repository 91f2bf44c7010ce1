"""Stories of a Kafka Streams application: what an HPA on lag does to it, and what Weir does instead.

The HPA's rule runs alone (`no_guards`), as it does in a cluster.
"""

from datetime import timedelta
from typing import Any

import pytest

from tests.loop.streams_world import StreamsWorld, lag_rule, no_guards
from weir_replay.simulator import StreamsApplication, stateful, streams
from weir_replay.streams import RECORDS_LAG

OBJECTIVE_SECONDS = 30.0
THREE = {"min": 3, "max": 3}
USEFUL = {1, 2, 3, 4, 6, 12}
"""ceil(12 / k): between them a thread more takes no task from the one that has the most."""


def app(instances: int, **fields: Any) -> StreamsApplication:
    """Twelve stateless tasks of 500 records/s a thread, committed each second."""
    return streams(instances, commit_interval_seconds=1.0, **fields)


def with_state(instances: int, megabytes: float) -> StreamsApplication:
    """The same with state."""
    return stateful(instances, state_bytes=megabytes * 1e6, commit_interval_seconds=1.0)


# -- fast ones -----------------------------------------------------------------------------------------------------------


def test_load_triples_and_the_answer_is_a_useful_number_of_threads() -> None:
    """Two instances, then three times the load: one action within two scrapes, to a count that divides the tasks well."""
    world = StreamsWorld(app(2), 700.0).live(100)
    assert world.moves() == []
    world.load = 2200.0
    world.live(80)
    assert world.moves() == [(2, 6)]
    assert world.worst() < OBJECTIVE_SECONDS
    assert world.lag < 2
    assert world.phases >= {"applying", "verifying", "verified"}


def test_capacity_at_five_threads_is_that_of_four() -> None:
    """Twelve tasks on five threads: one has three of them, so that 2,000 records/s are the most, not 2,500."""
    world = StreamsWorld(app(5), 1500.0).live(90)
    assert world.analysis is not None
    (operator,) = world.analysis.operators
    assert operator.true_processing_rate.value == pytest.approx(2000, rel=0.03)


def test_without_a_metrics_endpoint_capacity_is_known_only_while_records_wait() -> None:
    """The brokers show throughput; it is capacity only once there is a backlog, and then it is learned as saturated."""
    world = StreamsWorld(app(2), 700.0, with_metrics=False).live(100)
    assert world.analysis is not None
    assert world.analysis.operators[0].capacities == []
    world.load = 1500.0
    world.live(60)
    (point,) = [p for p in world.analysis.operators[0].capacities if p.parallelism == 2]
    assert point.saturated
    assert point.records_per_second == pytest.approx(1000, rel=0.1)


def test_an_instance_that_hangs_is_restarted_and_the_lag_falls() -> None:
    """Its heartbeats go on, so its tasks stay with it, however many others there are. Weir names it after a minute, restarts it
    alone, evicts the old member and verifies; the number of instances stays."""
    world = StreamsWorld(app(3), 700.0, restarts=True, bounds=THREE).live(120)
    before = set(world.simulation.group.processes)
    stuck = world.hang()
    world.live(300)
    (plan,) = [each for each in world.plans if each.kind == "restart_instance"]
    assert plan.code == "instance-stuck" and stuck in plan.sentence
    assert world.restarted() == [stuck]
    codes = [each.code for each in world.outcomes if each.plan_id == plan.id]
    assert codes == ["admitted", "recorded", "accepted", "evicted", "running", "verified"]
    assert len(set(world.simulation.group.processes) & before) == 2 and world.simulation.replicas == 3
    assert 60 <= world.worst() < 100
    assert world.lag < 5


def test_a_stuck_instance_is_left_alone_without_permission() -> None:
    """The symptom is shown all the same."""
    world = StreamsWorld(app(3), 700.0, bounds=THREE).live(120)
    world.hang()
    world.live(120)
    assert world.analysis is not None and world.analysis.has("instance-stuck")
    assert world.restarted() == [] and world.worst() > OBJECTIVE_SECONDS


@pytest.mark.thorough
def test_a_second_instance_is_restarted_only_after_an_hour() -> None:
    """It hangs half an hour after the first one's restart."""
    world = StreamsWorld(app(3), 700.0, restarts=True, bounds=THREE, interval="10s").live(120)
    first = world.hang()
    world.live(1800)
    second = world.hang()
    world.live(900)
    assert world.restarted() == [first]
    world.live(1500)
    assert world.restarted() == [first, second]
    assert world.lag < world.worst()


# -- slow ones: the rule and Weir -----------------------------------------------------------------------------------------


def thrashed(**options: Any) -> StreamsWorld:
    """Two threads carry 1,000 records/s; 850 become 950. Each task has 500 MB of state: a warm-up of 25 s, and the classic
    assignor warms up two at a time, each ten minutes."""
    world = StreamsWorld(with_state(2, 500), 850.0, **options).live(100)
    world.load = 950.0
    return world.live(1500)


@pytest.mark.thorough
def test_a_probing_rebalance_provokes_no_other_action() -> None:
    """One action, then nothing until all tasks have moved, however often the group rebalances meanwhile. The HPA on lag
    follows what each rebalance does to lag, up and down."""
    world = thrashed()
    assert world.moves() == [(2, 3)]
    assert world.simulation.group.rebalances >= 4
    assert world.worst() < OBJECTIVE_SECONDS
    with no_guards():
        followed = thrashed(planner=lag_rule())
    assert len(followed.moves()) > 5
    assert followed.simulation.group.rebalances > 2 * world.simulation.group.rebalances
    assert followed.worst() > OBJECTIVE_SECONDS


def moving_while_load_rises(**options: Any) -> StreamsWorld:
    """State moves for half an hour; the load rises by another 35 % meanwhile."""
    world = StreamsWorld(with_state(2, 500), 750.0, **options).live(100)
    world.load = lambda t: 750.0 + min(260.0, max(0.0, (t - 100) / 2))
    return world.live(1500)


@pytest.mark.thorough
def test_nothing_is_taken_away_while_state_moves() -> None:
    """The load goes on rising after the first action. Weir adds instances only while those that have the tasks do not
    suffice, and takes none away; the HPA adds and takes away, and is late for minutes."""
    world = moving_while_load_rises()
    assert world.migrating
    assert all(wanted > now for now, wanted in world.moves())
    assert world.worst() < OBJECTIVE_SECONDS
    with no_guards():
        followed = moving_while_load_rises(planner=lag_rule())
    assert followed.acted_while_moving() > 2
    assert any(wanted < now for now, wanted in followed.moves())
    assert followed.worst() > 3 * OBJECTIVE_SECONDS


def beyond(**options: Any) -> StreamsWorld:
    world = StreamsWorld(app(4), 1800.0, **options).live(100)
    world.load = 9000.0
    return world.live(200)


@pytest.mark.thorough
def test_instances_without_tasks_are_never_asked_for() -> None:
    """Twelve tasks are the most that anything can process. The HPA asks for sixteen, four of which do nothing."""
    world = beyond()
    assert max(world.asked()) == 12
    assert world.p() == 12
    with no_guards():
        followed = beyond(planner=lag_rule())
    assert followed.p() == 16
    idle = [p for p in followed.simulation.group.processes.values() if p.joined and not p.active]
    assert len(idle) == 4


@pytest.mark.thorough
def test_only_useful_numbers_of_threads_are_asked_for() -> None:
    """Loads from 300 to 5,500 records/s: whatever Weir asks for is one of ceil(12 / k). The HPA asks for others."""
    asked: set[int] = set()
    for load in (300.0, 900.0, 1700.0, 2600.0, 4200.0, 5500.0):
        world = StreamsWorld(app(2), 700.0).live(100)
        world.load = load
        asked |= set(world.live(240).asked())
    assert asked
    assert asked <= USEFUL
    with no_guards():
        followed = StreamsWorld(app(2), 700.0, planner=lag_rule()).live(100)
        followed.load = 2600.0
        followed.live(300)
    assert set(followed.asked()) - USEFUL


def a_dead_instance(**options: Any) -> StreamsWorld:
    """A backlog on all four instances, of which one is to be killed. Both only advise, so that nothing else changes."""
    world = StreamsWorld(app(4), lambda t: 2600.0 if t < 80 else 1900.0, mode="advise", **options)
    return world.live(100)


@pytest.mark.thorough
def test_lag_that_vanishes_with_its_instance_takes_nothing_away() -> None:
    """The consumers' own lag lacks the dead one's partitions: by it the application got better, and the HPA wants fewer.
    The brokers know that its records wait, and Weir sees its lag grow."""
    world = a_dead_instance()
    reported, waiting = world.simulation.reported_lag(), world.simulation.waiting_records
    assert reported == pytest.approx(waiting)
    assert world.analysis is not None
    before = world.analysis.lag_records.value
    world.simulation.kill(next(iter(world.simulation.group.processes)))
    world.live(20)
    assert world.simulation.reported_lag() < 0.9 * reported
    assert world.simulation.waiting_records > waiting
    assert (world.analysis.lag_records.value or 0) > (before or 0)
    assert world.analysis.lag_seconds.value == pytest.approx(world.lag, abs=7)
    assert all(wanted >= 4 for wanted in world.asked())
    with no_guards():
        followed = a_dead_instance(planner=lag_rule(metric="records_lag"))
        wanted = followed.plans[-1].evidence["records_lag"]
        followed.simulation.kill(next(iter(followed.simulation.group.processes)))
        followed.live(10)
    after = followed.plans[-1].evidence["records_lag"]
    assert after < 0.9 * wanted
    assert RECORDS_LAG in followed.policy.spec.signals.prometheus.queries.values()


@pytest.mark.thorough
def test_instances_are_taken_away_one_useful_step_at_a_time_and_evicted() -> None:
    """Six threads for the work of two: 6 → 4 → 3 → 2, each step verified before the next. The members of what stopped are
    evicted, so that no task stands still for the session time-out of 45 s. The HPA takes all at once, and tasks do."""
    world = StreamsWorld(app(6), 2200.0).live(100)
    world.load = 600.0
    world.live(600)
    assert world.moves() == [(6, 4), (4, 3), (3, 2)]
    assert "evicted" in world.codes
    assert world.worst(since=100) < 10
    with no_guards():
        followed = StreamsWorld(app(6), 600.0, planner=lag_rule()).live(500)
    assert min(wanted - now for now, wanted in followed.moves()) < -2


@pytest.mark.thorough
def test_an_application_on_its_brokers_alone_grows_while_records_wait_and_shrinks_with_room_to_spare() -> None:
    """No metrics endpoint: the first backlog shows what two threads do; later the saturated point is what lets it
    shrink."""
    world = StreamsWorld(app(2), 700.0, with_metrics=False).live(100)
    world.load = 2200.0
    world.live(200)
    assert world.p() > 4
    assert world.lag < 2
    assert set(world.asked()) <= USEFUL


@pytest.mark.thorough
def test_commits_of_thirty_seconds_look_neither_like_lag_nor_like_bursts() -> None:
    """Kafka's default interval: committed offsets stand still for 30 s and jump. Nothing is done about it."""
    world = StreamsWorld(streams(4), 1200.0).live(600)
    assert world.moves() in ([], [(4, 3)])
    assert world.worst() < OBJECTIVE_SECONDS
    assert world.plans[-1].created_at - world.plans[0].created_at > timedelta(minutes=9)


@pytest.mark.thorough
def test_a_restoring_application_is_not_idle() -> None:
    """Its last owner died, and no other instance has the state: the tasks wait for 60 s of restore, in which threads look idle.
    Nothing is taken away."""
    world = StreamsWorld(with_state(3, 1200), 700.0).live(200)
    before = len(world.moves())
    for instance in list(world.simulation.group.processes)[:1]:
        world.simulation.kill(instance)
    world.live(110)
    assert world.simulation.group.restores
    assert world.analysis is not None
    assert world.analysis.has("restoring")
    assert any(each.blocked_share is None for each in world.analysis.deployment.instances)
    assert len(world.moves()) == before
