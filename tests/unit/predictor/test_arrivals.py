"""Arrival rates that change over time: exact where it can be worked out by hand, and as a constant where they do not."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.planner.build import SOURCE, WORK, topology
from tests.unit.predictor.test_trajectory import model
from weir_predictor.capacity import CapacityCurve
from weir_predictor.flow import flow_of
from weir_predictor.forecast import ArrivalPath
from weir_predictor.model import STAY, Backlog, Model, Restart
from weir_predictor.trajectory import Outlook, outlooks, predict

OTHER = "Source: other"


def found(case: Model, p: int = 1, restart: Restart = STAY, *, of_latency: bool = False) -> Outlook:
    (one,) = outlooks(
        case,
        [{SOURCE: 1, WORK: p}],
        [restart],
        horizon_seconds=60,
        objective_seconds=2,
        of_latency=of_latency,
    )
    return one


def step(at: float, before: float, behind: float) -> ArrivalPath:
    return ArrivalPath((at, at), (before, behind))


def test_a_rise_is_late_from_its_time_on() -> None:
    """100/s are taken in. From second 20 on 200/s arrive: lag grows by half a second each second, so it is above 2 s from
    second 24 on and 20 s at the end; the operator is overloaded then."""
    case = model(50).under({SOURCE: step(20.0, 50.0, 200.0)})
    rise = found(case)
    assert rise.objective_left_at_seconds == pytest.approx(24.0, abs=0.6)
    assert rise.violation_seconds == pytest.approx(36.0, abs=1.0)
    assert rise.max_lag_seconds == pytest.approx(20.0, abs=0.05)
    assert (rise.max_utilization, rise.bottleneck) == (2.0, WORK)
    assert rise.late_after_seconds == float("inf")
    assert found(model(50)).violation_seconds == 0


def test_a_burst_is_worked_off_behind_it() -> None:
    """300/s for 10 s leave 2,000 records at 100/s; nothing arrives behind it, so they are processed in 20 s."""
    burst = ArrivalPath((0.0, 10.0, 10.0), (300.0, 300.0, 0.0))
    done = found(model(0).under({SOURCE: burst}))
    left = done.arrived - done.processed
    assert float(left.max()) == pytest.approx(2000)
    # At second 20 half of it is processed: the next record arrived at 20/3.
    assert float(np.interp(20.0, done.times, done.lag)) == pytest.approx(20 - 20 / 3, abs=0.1)
    assert float(done.lag[done.times >= 30.5].max()) == 0
    assert done.late_after_seconds == 0


def test_what_arrives_after_a_pause_is_as_old_as_its_arrival() -> None:
    """Nothing arrives for 10 s, and the application is down for 15 s: the oldest record came at second 10."""
    pause = step(10.0, 0.0, 50.0)
    down = found(model(0).under({SOURCE: pause}), restart=Restart(15.0))
    assert float(np.interp(9.0, down.times, down.lag)) == 0
    assert float(np.interp(14.0, down.times, down.lag)) == pytest.approx(4.0, abs=0.05)
    assert down.max_lag_seconds == pytest.approx(5.0, abs=0.05)


def test_a_ramp_brings_its_area() -> None:
    """From 0 to 600/s in 60 s: 18,000 records; the rate passes the 300/s of three subtasks at half the time."""
    ramp = ArrivalPath((0.0, 60.0), (0.0, 600.0))
    done = found(model(0).under({SOURCE: ramp}), p=3)
    assert float(done.arrived[-1]) == pytest.approx(18_000)
    # 9,000 more arrive than 300/s take in the second half: (600 - 300) / 2 · 30.
    assert float(done.arrived[-1] - done.processed[-1]) == pytest.approx(4_500)
    assert done.max_utilization == 2.0


def test_sources_that_share_an_operator_have_their_own_paths() -> None:
    """One source falls as the other rises: together they never exceed the capacity, alone neither is the highest load."""
    graph = topology(partitions=64)
    graph = graph.model_copy(
        update={
            "operators": [graph.operators[0].model_copy(update={"name": OTHER}), *graph.operators],
            "edges": [graph.edges[0].model_copy(update={"source": OTHER}), *graph.edges],
        }
    )
    both = Model(
        topology=graph,
        flow=flow_of(graph, {(SOURCE, WORK): 1.0, (OTHER, WORK): 1.0}),
        curves={WORK: CapacityCurve(0.01)},
        arrivals={SOURCE: 0.0, OTHER: 0.0},
        backlogs={SOURCE: Backlog(0.0), OTHER: Backlog(0.0)},
    )
    crossing = both.under({SOURCE: step(30.0, 90.0, 5.0), OTHER: step(30.0, 5.0, 90.0)})
    (calm,) = outlooks(crossing, [{WORK: 1}], [STAY], horizon_seconds=60, objective_seconds=1)
    assert (calm.max_utilization, calm.violation_seconds) == (0.95, 0)
    rising = both.under({OTHER: step(30.0, 5.0, 190.0)})
    (late,) = outlooks(rising, [{WORK: 1}], [STAY], horizon_seconds=60, objective_seconds=1)
    # 190/s against 100/s leave 47 % unprocessed: 14.2 s at the end.
    assert late.max_lag_seconds == pytest.approx(30 * 90 / 190, abs=0.1)
    assert late.violation_seconds == pytest.approx(28, abs=1)


def test_a_path_that_never_changes_is_a_constant() -> None:
    """It takes the constant's way, so nothing is computed step by step."""
    flat = model(10).under({SOURCE: ArrivalPath((0.0, 5.0), (150.0, 150.0)), "Source: unknown": step(1.0, 2.0, 3.0)})
    assert (flat.paths, dict(flat.arrivals)) == ({}, {SOURCE: 150.0})
    assert found(flat).prediction() == found(model(150)).prediction()


def test_latency_looks_ahead_along_the_path() -> None:
    """200/s from second 20 on against 100/s: a record that arrives at second 30 waits for 1,000 others."""
    waits = found(model(50).under({SOURCE: step(20.0, 50.0, 200.0)}), of_latency=True)
    assert waits.objective_left_at_seconds == pytest.approx(22.0, abs=0.6)


@pytest.mark.parametrize(
    ("seconds", "rates", "reason"),
    [
        ((), (), "no path"),
        ((0.0,), (1.0, 2.0), "no path"),
        ((2.0, 1.0), (1.0, 1.0), "ascend"),
        ((0.0,), (-1.0,), "negative"),
        ((float("nan"),), (1.0,), "finite"),
    ],
)
def test_a_path_is_checked(seconds: tuple[float, ...], rates: tuple[float, ...], reason: str) -> None:
    """Times ascend, and no rate is negative."""
    with pytest.raises(ValueError, match=reason):
        ArrivalPath(seconds, rates)


rates = st.floats(0, 2000)
times = st.lists(st.floats(0, 90), min_size=1, max_size=6)
paths = times.flatmap(
    lambda at: st.lists(rates, min_size=len(at), max_size=len(at)).map(
        lambda each: ArrivalPath(tuple(sorted(at)), tuple(each))
    )
)


@examples(40)
@example(ArrivalPath((0.0, 0.0, 5e-324), (0.0, 0.0, 1.0)), 50.0, Restart(0.0, 0.0), 1)
@given(paths, st.floats(0, 20_000), st.builds(Restart, st.floats(0, 20), st.floats(0, 5)), st.integers(1, 20))
def test_a_path_is_followed_as_by_small_steps(path: ArrivalPath, backlog: float, restart: Restart, p: int) -> None:
    """Compare with a simulation of 60,000 steps: as much is processed, more arrivals never lower lag; nothing is negative."""
    case = model(0, backlog=backlog, age=3.0).under({SOURCE: path})
    one = found(case, p, restart)
    fine = np.linspace(0.0, 60.0, 60_001)
    come = one.arrived[0] + path.arrived_by(fine)
    able = 100.0 * p * np.maximum(0.0, fine - restart.seconds)
    done = able + np.minimum(0.0, np.minimum.accumulate(come - able))
    # A rate that rises through the capacity within a step is averaged over that step.
    allowed = max(path.rates) * 0.3 + 1e-6
    assert one.processed == pytest.approx(np.interp(one.times, fine, done), abs=allowed)
    assert (np.diff(one.processed) >= -1e-6).all() and (one.processed <= one.arrived + 1e-6).all()
    assert np.isfinite(one.lag).all() and (one.lag >= -1e-6).all()
    more = found(replace(case, paths={}).under({SOURCE: path.scaled(1.5)}), p, replace(restart, replay_seconds=0.0))
    less = found(case, p, replace(restart, replay_seconds=0.0))
    assert more.arrived[-1] - more.processed[-1] >= less.arrived[-1] - less.processed[-1] - 1e-3


def test_no_steps_are_needed_for_a_single_point() -> None:
    """One point is a constant rate."""
    flat = model(10).under({SOURCE: ArrivalPath((30.0,), (80.0,))})
    assert predict(flat, {SOURCE: 1, WORK: 1}, STAY, horizon_seconds=60, objective_seconds=1).max_utilization == 0.8
