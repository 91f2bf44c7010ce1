"""One interval of a simulated application: what is left behind is what the next one begins with."""

import pytest

from weir_contracts import Operator, Topology
from weir_predictor import Backlog, CapacityCurve, Model, Restart
from weir_predictor.trajectory import run_interval

TOPOLOGY = Topology(operators=[Operator(name="in", id="v0")])


def model(arrivals: float, waiting: float = 0.0, age: float = 0.0) -> Model:
    """One operator of 1,000 records/s."""
    curve = CapacityCurve(1 / 1000)
    return Model(TOPOLOGY, {"in": {"in": 1.0}}, {"in": curve}, {"in": arrivals}, {"in": Backlog(waiting, age)})


def test_two_intervals_are_one() -> None:
    """Ten seconds at once, or five and five: as much waits, and as old."""
    whole = run_interval(model(1500), {"in": 1000.0}, Restart(), 10, objective_seconds=None)
    half = run_interval(model(1500), {"in": 1000.0}, Restart(), 5, objective_seconds=None)
    left = half.backlogs["in"]
    rest = run_interval(
        model(1500, left.records, left.age_seconds or 0), {"in": 1000.0}, Restart(), 5, objective_seconds=None
    )
    assert rest.backlogs["in"].records == pytest.approx(whole.backlogs["in"].records)
    assert rest.lag_seconds == pytest.approx(whole.lag_seconds, rel=0.01)


def test_a_restart_costs_its_time_and_its_replay() -> None:
    """Four seconds of nothing and one second's records again, then 1,000/s work off what waits."""
    found = run_interval(model(500), {"in": 1000.0}, Restart(4, 1.0), 5, objective_seconds=None)
    assert found.taken["in"] == pytest.approx(1000)
    assert found.backlogs["in"].records == pytest.approx(5 * 500 + 500 - 1000)


def test_what_holds_nothing_back_takes_all() -> None:
    """An operator of unknown capacity that is known to suffice is left out."""
    found = run_interval(model(5000), {}, Restart(), 5, objective_seconds=1.0)
    assert (found.backlogs["in"].records, found.violation_seconds) == (0, 0)


def test_late_is_counted_in_the_interval_itself() -> None:
    """30 s wait already: all of it is late for an objective of 10 s, of lag as of latency."""
    waits = model(1000, 30_000, 30)
    assert run_interval(waits, {"in": 1000.0}, Restart(), 5, objective_seconds=10).violation_seconds == 5
    assert (
        run_interval(waits, {"in": 1000.0}, Restart(), 5, objective_seconds=10, of_latency=True).violation_seconds == 5
    )
    assert run_interval(waits, {"in": 1000.0}, Restart(), 5, objective_seconds=60).violation_seconds == 0
