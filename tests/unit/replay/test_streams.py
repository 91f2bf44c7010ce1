"""The model of a group: facts that were tried on a real one (4.1.0), records are conserved, state has to be somewhere."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from weir_replay.simulator import InvalidApplication, StreamsApplication, StreamsSimulation, stateful, streams
from weir_replay.simulator.streams_spec import assign, parse_streams


def running(application: StreamsApplication, rate: float, seconds: float = 60.0) -> StreamsSimulation:
    simulation = StreamsSimulation(application, lambda _: rate)
    simulation.advance(seconds)
    return simulation


def after(simulation: StreamsSimulation, seconds: float) -> StreamsSimulation:
    simulation.advance(simulation.now + seconds)
    return simulation


def tasks(simulation: StreamsSimulation) -> list[int]:
    """The number of active tasks of each process."""
    return [len(process.active) for process in simulation.group.processes.values()]


def assert_whole(simulation: StreamsSimulation) -> None:
    """Every record was processed or waits, and no task has two owners."""
    for topic in simulation.inputs:
        for end, position, committed in zip(topic.ends, topic.positions, topic.committed, strict=True):
            assert committed <= position + 1e-6
            assert position <= end + 1e-6
    owned = [task for process in simulation.group.processes.values() for task in process.active]
    assert len(owned) == len(set(owned))


def test_a_member_that_ended_keeps_its_tasks_until_its_session_ends() -> None:
    """Live: process ended after 0.3 s, tasks back after 48 s."""
    simulation = running(streams(2), 400.0)
    simulation.request(1)
    after(simulation, 44)
    assert len(simulation.group.members) == 2
    assert simulation.lag_seconds > 40
    after(simulation, 4)
    assert tasks(simulation) == [12]
    assert simulation.lag_seconds == pytest.approx(47.5, abs=1.0)


def test_an_evicted_member_frees_its_tasks_within_seconds() -> None:
    """Live: 2.8 s."""
    simulation = running(streams(2), 400.0)
    simulation.request(1)
    after(simulation, 0.5)
    gone = [member for member, each in simulation.group.members.items() if each.expires_at is not None]
    assert simulation.evict(gone) == gone
    after(simulation, 2.5)
    assert tasks(simulation) == [12]
    assert simulation.lag_seconds < 3.5


def owners(simulation: StreamsSimulation) -> dict[tuple[int, int], str]:
    """Return the process of each active task."""
    return {task: process.id for process in simulation.group.processes.values() for task in process.active}


def test_sixteen_stateful_tasks_move_from_two_instances_to_four_two_at_each_probing_rebalance() -> None:
    """Two warm-ups of the whole group at a time, a look each ten minutes: forty minutes at least, without a task standing
    still. Tasks are dealt out in the order of process ids, so that some move between the instances that were there."""
    application = stateful(2, subtopologies=({"topic": "orders", "partitions": 16, "state_bytes": 2e8},))
    simulation = running(application, 900.0)
    simulation.request(4)
    after(simulation, 60)
    assert tasks(simulation) == [8, 8, 0, 0]
    looks = 0
    while simulation.group.probing_at is not None and looks < 9:
        before = owners(simulation)
        after(simulation, 605)
        now = owners(simulation)
        assert sum(before[task] != now[task] for task in now) <= 2
        looks += 1
    assert tasks(simulation) == [4, 4, 4, 4]
    assert looks >= 4
    assert simulation.lag_seconds < 5


def test_a_task_whose_state_nobody_has_waits_for_its_restore() -> None:
    """400 MB a task at 20 MB/s: six tasks take two minutes. Its thread is idle meanwhile."""
    simulation = running(stateful(2, state_bytes=4e8), 300.0)
    dead, *_ = simulation.group.processes
    simulation.kill(dead)
    after(simulation, 60)
    assert simulation.group.restores
    assert simulation.lag_seconds > 55
    after(simulation, 200)
    assert not simulation.group.restores
    assert_whole(simulation)


def test_a_standby_spares_the_restore() -> None:
    """The same with `num.standby.replicas` 1: the survivor is caught up."""
    simulation = running(stateful(2, state_bytes=4e8, standbys=1), 300.0, 120.0)
    dead, *_ = simulation.group.processes
    simulation.kill(dead)
    after(simulation, 60)
    assert not simulation.group.restores
    assert simulation.lag_seconds < 60


def test_eager_rebalances_stop_every_task() -> None:
    """Before Kafka 2.4 all tasks stood still while one member joined."""
    lags = []
    for eager in (False, True):
        simulation = running(streams(2, eager=eager, rebalance_seconds=6.0), 400.0)
        simulation.request(3)
        after(simulation, 10.5)
        lags.append(simulation.lag_seconds)
    cooperative, eager_lag = lags
    assert cooperative < 1
    assert eager_lag > 4


def test_commits_move_once_in_an_interval() -> None:
    """The sawtooth: processed at once, committed each 30 s."""
    simulation = running(streams(1), 100.0, 100.0)
    topic = simulation.inputs[0]
    assert sum(topic.ends) - sum(topic.positions) < 1
    assert sum(topic.ends) - sum(topic.committed) == pytest.approx(1000, abs=60)


def test_a_killed_process_is_replayed_from_its_last_commit() -> None:
    simulation = running(streams(1), 100.0, 89.0)
    before = sum(simulation.inputs[0].positions)
    simulation.kill(next(iter(simulation.group.processes)))
    assert sum(simulation.inputs[0].positions) == pytest.approx(before - 2900, abs=60)


def test_a_stuck_instance_keeps_its_tasks_and_a_restart_frees_them() -> None:
    """Its heartbeats go on, so that no other instance takes its tasks."""
    simulation = running(streams(2), 400.0)
    stuck = next(iter(simulation.group.processes))
    simulation.conditions.stuck.add(stuck)
    after(simulation, 120)
    assert simulation.lag_seconds > 115
    assert tasks(simulation) == [6, 6]
    assert simulation.restart(stuck) is None
    assert simulation.restart(stuck) == f"no instance {stuck} runs"
    after(simulation, 250)
    assert simulation.lag_seconds < 1
    assert stuck in simulation.group.ended


def test_records_flow_through_a_repartition_topic() -> None:
    """Two sub-topologies: the second reads what the first writes, at twice the cost."""
    second = {"partitions": 6, "service_seconds": 4e-3}
    simulation = running(streams(4, subtopologies=({"topic": "orders", "selectivity": 0.5}, second)), 400.0, 300.0)
    orders, inner = simulation.inputs
    assert sum(inner.ends) == pytest.approx(0.5 * sum(orders.positions), rel=0.01)
    assert simulation.latency_seconds < 2
    assert len(simulation.application.tasks) == 18


def test_capacity_is_that_of_the_busiest_thread() -> None:
    """T / ceil(T / n) threads: 5 of them do as much as 4 with 12 tasks."""
    application = streams(1)
    rates = {n: application.capacity(n) for n in (1, 4, 5, 6, 11, 12, 20)}
    assert rates == pytest.approx({1: 500, 4: 2000, 5: 2000, 6: 3000, 11: 3000, 12: 6000, 20: 6000})


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"subtopologies": [{"topic": ""}]}, "subtopologies.0.topic"),
        ({"subtopologies": [{"topic": "a"}, {"topic": "a"}]}, "subtopologies"),
        ({"subtopologies": [{"topic": "a", "partitions": 2, "weights": [1.0]}]}, "weights"),
        ({"subtopologies": [{"topic": "a"}], "threads": 0}, "threads"),
        ({"subtopologies": [{"topic": "a"}], "instances": 9, "max_instances": 8}, "instances"),
    ],
)
def test_a_wrong_field_is_named(document: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidApplication, match=field):
        parse_streams(document)


@given(st.lists(st.sampled_from(["more", "less", "kill", "evict", "wait", "probe"]), max_size=12))
@examples(60)
def test_whatever_happens_every_task_finds_an_owner_again(events: Sequence[str]) -> None:
    """Instances come, go and die in any order: no task is lost or processed twice, and the group comes to rest."""
    simulation = StreamsSimulation(stateful(2, state_bytes=2e6, threads=2), lambda _: 300.0)
    for event in events:
        if event == "more":
            simulation.request(min(6, simulation.replicas + 1))
        elif event == "less":
            simulation.request(max(1, simulation.replicas - 1))
        elif event == "kill" and simulation.group.processes:
            simulation.kill(next(iter(simulation.group.processes)))
        elif event == "evict":
            simulation.evict(list(simulation.group.members)[:1])
        after(simulation, 700 if event == "probe" else 7)
        assert_whole(simulation)
    after(simulation, 7200)
    assert_whole(simulation)
    assert simulation.group.state == "Stable"
    assert sum(tasks(simulation)) == 12
    assert simulation.waiting_records < 1


def test_stateless_tasks_stay_where_they_are_while_that_is_balanced() -> None:
    everything = [(0, p) for p in range(6)]
    options = {"acceptable_lag": 0.0, "max_warmups": 2, "standbys": 0}
    before = assign(["a", "b"], [], everything, {}, lambda *_: 0.0, **options)
    after_one_more = assign(["a", "b", "c"], [], everything, before.active, lambda *_: 0.0, **options)
    moved = [task for task, owner in after_one_more.active.items() if before.active[task] != owner]
    assert len(moved) == 2
    assert {after_one_more.active[task] for task in moved} == {"c"}
