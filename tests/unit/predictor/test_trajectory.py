"""The predictor: exact where it can be worked out by hand, conserving records, never worse for more parallelism."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.planner.build import SOURCE, WORK, topology
from weir_contracts import Edge, Operator, Topology
from weir_predictor.capacity import CapacityCurve
from weir_predictor.flow import flow_of
from weir_predictor.model import STAY, Backlog, Model, Restart
from weir_predictor.trajectory import outlooks, predict


def model(
    arrivals: float,
    per_subtask: float = 100.0,
    *,
    backlog: float = 0.0,
    age: float | None = None,
    serial: float = 0.0,
    partitions: int = 64,
) -> Model:
    """`orders` is as quick as anybody wants; `work` does `per_subtask` records/s with one subtask."""
    graph = topology(partitions=partitions)
    own = 1 / per_subtask
    return Model(
        topology=graph,
        flow=flow_of(graph, {(SOURCE, WORK): 1.0}),
        curves={WORK: CapacityCurve(own, serial * own)},
        arrivals={SOURCE: arrivals},
        backlogs={SOURCE: Backlog(backlog, age)},
    )


def test_twice_what_one_can_do() -> None:
    """1,000/s arrive, 500/s are done, for 10 s: 5,000 wait, and the oldest of them came 5 s ago."""
    found = predict(model(1000, 500), {SOURCE: 1, WORK: 1}, STAY, horizon_seconds=10, objective_seconds=2)
    assert found.points[-1].backlog_records == pytest.approx(5000)
    assert found.final_lag_seconds == pytest.approx(5.0, abs=0.01)
    assert found.max_lag_seconds == pytest.approx(5.0, abs=0.01)
    # Lag grows by half a second each second, so it is above 2 s from the 4th on.
    assert found.violation_seconds == pytest.approx(6.0, abs=0.01)
    assert found.objective_met_at_seconds is None
    assert (found.max_utilization, found.bottleneck) == (2.0, WORK)


@pytest.mark.parametrize("waiting", [600, 601, 640, 800])
def test_a_violation_ends_between_two_steps(waiting: int) -> None:
    """100/s arrive and 200/s are done: lag falls by a second each second, from a second for each 100 that wait. A step is
    0.79 s long."""
    of = model(100, 200, backlog=waiting)
    found = predict(of, {SOURCE: 1, WORK: 1}, STAY, horizon_seconds=95, objective_seconds=5)
    assert found.violation_seconds == pytest.approx(waiting / 100 - 5, abs=0.01)


def test_a_quick_fall_ends_within_its_last_step() -> None:
    """30,000 wait for 3 s at 100/s, 9,000/s are done: lag of 300 s is above 5 s until 3.3 s, when next to nothing waits."""
    found = predict(
        model(100, 9000, backlog=30_000), {SOURCE: 1, WORK: 1}, STAY, horizon_seconds=95, objective_seconds=5
    )
    assert found.violation_seconds == pytest.approx(295 * 100 / 9000, abs=0.05)


def test_a_restart_is_caught_up() -> None:
    """4 s without intake at 100/s leave 400; 300/s then gain 200 each second: nothing waits after 2 more."""
    found = predict(model(100), {SOURCE: 1, WORK: 3}, Restart(4.0), horizon_seconds=12, objective_seconds=None)
    assert found.downtime_seconds == 4.0
    assert max(point.backlog_records for point in found.points) == pytest.approx(400, abs=60)
    assert found.max_lag_seconds == pytest.approx(4.0, abs=0.1)
    assert [p.backlog_records for p in found.points if p.at_seconds >= 6.1] == pytest.approx([0.0] * 12, abs=0.2)
    assert found.final_lag_seconds == 0


def test_what_is_replayed_is_work_again() -> None:
    """5 s since the checkpoint at 100/s: 500 records more than without, 2.5 s longer to catch up at 200/s gained."""
    without = predict(model(100), {SOURCE: 1, WORK: 3}, Restart(4.0), horizon_seconds=24, objective_seconds=0.5)
    replayed = predict(model(100), {SOURCE: 1, WORK: 3}, Restart(4.0, 5.0), horizon_seconds=24, objective_seconds=0.5)
    assert without.objective_met_at_seconds is not None
    assert replayed.objective_met_at_seconds is not None
    assert replayed.objective_met_at_seconds - without.objective_met_at_seconds == pytest.approx(2.5, abs=0.45)


def test_a_backlog_drains_oldest_first() -> None:
    """1,000 wait, the oldest for 20 s; nothing more comes; at 100/s half are left after 5 s."""
    found = predict(
        model(0, backlog=1000, age=20), {SOURCE: 1, WORK: 1}, STAY, horizon_seconds=5, objective_seconds=None
    )
    assert found.points[-1].backlog_records == pytest.approx(500)
    # The oldest left came halfway through those 20 s, and 5 s have passed since.
    assert found.final_lag_seconds == pytest.approx(15.0, abs=0.2)


def test_a_job_that_keeps_up_has_no_lag() -> None:
    """Half its capacity is asked for: the objective is met from the start."""
    found = predict(model(50), {SOURCE: 1, WORK: 1}, STAY, horizon_seconds=60, objective_seconds=1)
    assert (found.max_lag_seconds, found.violation_seconds, found.objective_met_at_seconds) == (0, 0, 0)
    assert found.max_utilization == 0.5


def test_a_rate_on_its_way_to_nothing_gives_no_endless_lag() -> None:
    """A smoothed rate of 1e-308/s is no measure of how long a backlog took to come."""
    found = predict(model(1e-308, backlog=2), {SOURCE: 1, WORK: 1}, STAY, horizon_seconds=60, objective_seconds=1)
    assert found.max_lag_seconds < 1


def test_subtasks_without_a_partition_do_nothing() -> None:
    """A source of 4 partitions is as quick with 4 subtasks as with 12."""
    graph = topology(partitions=4)
    narrow = Model(
        graph, flow_of(graph, {}), {SOURCE: CapacityCurve(0.01, shares=4)}, {SOURCE: 800.0}, {SOURCE: Backlog(0)}
    )
    assert narrow.capacities({SOURCE: 12, WORK: 1}) == narrow.capacities({SOURCE: 4, WORK: 1}) == {SOURCE: 400.0}


loads = st.floats(0, 2000)
waiting = st.floats(0, 50_000)
restarts = st.builds(Restart, st.floats(0, 20), st.floats(0, 5))


@examples(25)
@given(loads, waiting, restarts, st.integers(1, 32), st.floats(0, 0.2))
def test_records_are_conserved(arrivals: float, backlog: float, restart: Restart, p: int, serial: float) -> None:
    """The final backlog is the initial one plus replayed and arrived records, less those taken."""
    horizon = 60.0
    case = model(arrivals, backlog=backlog, serial=serial)
    found = predict(case, {SOURCE: 1, WORK: p}, restart, horizon_seconds=horizon, objective_seconds=10)
    capacity = case.capacities({SOURCE: 1, WORK: p})[WORK]
    replay = min(arrivals, capacity) * restart.replay_seconds
    come = backlog + replay + arrivals * horizon
    left = found.points[-1].backlog_records
    assert found.points[0].backlog_records == pytest.approx(backlog + replay, abs=0.1)
    # No more is taken than was available, nor than running time allows; an operator with a backlog is busy.
    taken = come - left
    able = capacity * (horizon - restart.seconds)
    assert -0.1 <= taken <= min(come, able) * (1 + 1e-6) + 0.1
    if left > 0.1 and backlog + replay > able:
        assert taken == pytest.approx(able, rel=1e-3)
    assert all(point.throughput <= capacity * (1 + 1e-6) + 0.1 for point in found.points)


@examples(25)
@given(
    loads, st.builds(Backlog, waiting, st.none() | st.floats(0, 100)), restarts, st.integers(1, 31), st.floats(0, 0.2)
)
@example(
    1.0, Backlog(2.3e-308, 4.0), Restart(1.0), 1, 0.0
)  # a tiny fraction of a record, seconds old: an infinite slope
def test_more_is_never_worse(arrivals: float, waits: Backlog, restart: Restart, p: int, serial: float) -> None:
    """With the same restart, one subtask more never gives more lag or more violation."""
    case = model(arrivals, backlog=waits.records, age=waits.age_seconds, serial=serial)
    # Replay is counted by what was processed, which depends on the present, so it is left out of the comparison.
    same = Restart(restart.seconds)
    less, more = (
        predict(case, {SOURCE: 1, WORK: q}, same, horizon_seconds=60, objective_seconds=10) for q in (p, p + 1)
    )
    assert more.max_lag_seconds <= less.max_lag_seconds + 0.02
    assert more.final_lag_seconds <= less.final_lag_seconds + 0.02
    assert more.violation_seconds <= less.violation_seconds + 0.01


@examples(60)
@given(
    st.floats(0.1, 2000),
    st.builds(Backlog, waiting, st.none() | st.floats(0, 100)),
    restarts,
    st.integers(1, 31),
)
def test_the_short_way_leads_where_the_steps_do(arrivals: float, waits: Backlog, restart: Restart, p: int) -> None:
    """The closed form for a single source equals a step-by-step simulation that takes what has arrived and what time
    allows, and looks up when the next record arrived."""
    (found,) = outlooks(
        model(arrivals, backlog=waits.records, age=waits.age_seconds),
        [{SOURCE: 1, WORK: p}],
        [restart],
        horizon_seconds=60,
        objective_seconds=10,
    )
    times, come = found.times.tolist(), found.arrived.tolist()
    done = [0.0]
    for i in range(1, len(times)):
        running = min(times[i] - times[i - 1], max(0.0, times[i] - restart.seconds))
        done.append(min(come[i], done[-1] + found.capacities[WORK] * running))
    assert found.processed.tolist() == pytest.approx(done, abs=1e-6)
    age = waits.age_seconds or waits.records / arrivals
    age += (come[0] - waits.records) / arrivals
    came_at = np.interp(done, [0.0, *come], [-age, *times])
    lag = [
        at - since if n - d > arrivals * 1e-3 else 0.0
        for at, since, n, d in zip(times, came_at, come, done, strict=True)
    ]
    assert found.lag.tolist() == pytest.approx(lag, abs=2e-3)


def test_latency_looks_ahead_where_lag_looks_back() -> None:
    """1,000/s arrive, 500/s are done, for 10 s. The oldest waiting at the end came 5 s ago; what arrives then waits for
    5,000 others: 10 s. So an objective of 6 s holds for lag, and is broken for latency from the 6th second on."""
    twice = model(1000, 500)
    lag = predict(twice, {SOURCE: 1, WORK: 1}, STAY, horizon_seconds=10, objective_seconds=6)
    latency = predict(twice, {SOURCE: 1, WORK: 1}, STAY, horizon_seconds=10, objective_seconds=6, of_latency=True)
    assert lag.violation_seconds == 0
    assert latency.violation_seconds == pytest.approx(4.0, abs=0.2)


def test_a_source_that_others_leave_too_little_is_not_late_for_ever() -> None:
    """Of 110 records/s that `work` does 100 arrive, half of them at each source. It takes from both what waits in proportion:
    2,000 records of one leave the other too little until both are worked off, 200 s from now."""
    graph = Topology(
        operators=[Operator(name=n, id=n, slot_sharing_group="all") for n in ("a", "b", WORK)],
        edges=[Edge(source=n, target=WORK, ship_strategy="HASH") for n in ("a", "b")],
    )
    two = Model(
        topology=graph,
        flow=flow_of(graph, {("a", WORK): 1.0, ("b", WORK): 1.0}),
        curves={WORK: CapacityCurve(1 / 110)},
        arrivals={"a": 50.0, "b": 50.0},
        backlogs={"a": Backlog(2000.0), "b": Backlog(0.0)},
    )
    (found,) = outlooks(two, [{"a": 1, "b": 1, WORK: 1}], [STAY], horizon_seconds=20, objective_seconds=2)
    assert found.lag[-1] > 2
    assert 0 < found.late_after_seconds <= 180.0 + 1e-6
