"""The measure of `make bench-fidelity`: a run and its simulation are read by the same functions."""

import pytest
from weir_contracts import parse_policy

from bench.fidelity.curves import compare, difference, lags, rescales
from bench.fidelity.recording import Look, Recording, Request
from bench.fidelity.simulated import sample_application, simulate
from simulator import Observer, Simulation
from workloads.sample_job import SLOWEST

POLICY = parse_policy(
    {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"namespace": "trial", "name": "orders", "version": 1},
        "spec": {
            "target": {"flink": {"url": "http://127.0.0.1:8081", "job": "orders"}},
            "objective": {"maxLag": "30s"},
            "interval": "1s",
        },
    }
)
OVERLOADED_AT, RESCALED_AT, SECONDS = 15, 25, 60


@pytest.fixture(scope="module")
def recording() -> Recording:
    """A simulated run taken for a real one: too much load for one subtask, then four."""
    simulation = Simulation(sample_application(3.0), lambda t: 300.0 if t < OVERLOADED_AT else 900.0, step_seconds=0.1)
    observer = Observer(simulation)
    wanted = {**simulation.observed, SLOWEST: 4}
    observations, looks = [], []
    for quarter in range(4 * SECONDS + 1):
        at = quarter / 4
        simulation.advance(at)
        if at == RESCALED_AT:
            simulation.request(wanted)
            simulation.trigger_checkpoint()
        looks.append(Look(at_seconds=at, running=simulation.state == "RUNNING", latency_seconds=None))
        if quarter % 4 == 0:
            observations += observer.scrape(POLICY)
    return Recording(
        observations=observations, requests=[Request(at_seconds=RESCALED_AT, parallelism=wanted)], looks=looks
    )


def test_a_run_and_its_simulation_are_the_same_where_the_model_is_right(recording: Recording) -> None:
    """Recorded at the brokers once a second, the load is known well enough to find throughput, lag and busy shares again."""
    found = compare(recording, simulate(recording, sample_application(3.0)), SLOWEST)

    apart = found["differences"]
    assert apart["records/s"]["mean_abs"] < 2.0
    assert apart["lag"]["mean_abs"] < 0.1
    assert apart[f"busy {SLOWEST}"]["mean_abs"] < 0.01


def test_a_model_that_restarts_more_slowly_shows(recording: Recording) -> None:
    """Longer down, a higher peak, later caught up."""
    slower = simulate(recording, sample_application(9.0))

    (real,), (simulated,) = (rescales(run, SLOWEST, lags(run.observations)) for run in (recording, slower))
    assert real.down_seconds == pytest.approx(3.0, abs=0.3)
    assert simulated.down_seconds == pytest.approx(9.0, abs=0.3)
    assert (simulated.peak_lag_seconds or 0) > (real.peak_lag_seconds or 0) + 3
    assert (simulated.caught_up_after_seconds or 0) > (real.caught_up_after_seconds or 0) + 3


def test_the_load_is_what_came_to_the_brokers(recording: Recording) -> None:
    """Between two observations it is even."""
    load = recording.load()

    assert load(10.5) == pytest.approx(300.0, abs=15)
    assert load(30.5) == pytest.approx(900.0, abs=15)


def test_where_one_of_both_is_unknown_nothing_is_compared() -> None:
    """A job that is down has no throughput."""
    found = difference([1.0, None, 3.0], [2.0, 5.0, None])

    assert found is not None
    assert (found.compared, found.mean_abs) == (1, 1.0)
    assert difference([None], [1.0]) is None
