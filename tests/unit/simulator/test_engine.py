"""The model: records are conserved, queues push back, restarts replay, lag has an age."""

import pytest

from simulator import Simulation, chain, diamond, two_sources
from simulator.capacity import capacity, hottest_share, sustained
from simulator.spec import Application, OperatorSpec


def running(application: Application, rate: float, seconds: float) -> Simulation:
    simulation = Simulation(application, lambda _: rate)
    simulation.advance(seconds)
    return simulation


def assert_conserved(simulation: Simulation) -> None:
    """Within a run what came to an operator was taken or is queued; what was appended was read or waits."""
    flow = simulation.flow
    assert simulation.appended == pytest.approx(
        sum(topic.taken for topic in simulation.topics.values()) + simulation.backlog
    )
    for i in range(len(flow.operators)):
        if flow.operators[i].source is None:
            came = sum(
                flow.records_out[k] * share / sum(s for _, s in flow.outputs[k])
                for k in range(len(flow.operators))
                for j, share in flow.outputs[k]
                if j == i
            )
            assert came == pytest.approx(flow.records_in[i] + flow.queued[i], abs=1e-3)


@pytest.mark.parametrize("application", [chain(2), diamond(2), two_sources(2)], ids=["chain", "diamond", "two sources"])
@pytest.mark.parametrize("rate", [100.0, 5000.0], ids=["idle", "overloaded"])
def test_no_record_is_made_or_lost(application: Application, rate: float) -> None:
    """Whatever the graph and the load."""
    assert_conserved(running(application, rate, 90))


def test_capacity_by_hand() -> None:
    """2 ms a record and a contention of 0.05: four subtasks do 4 / (0.002 · 1.15) = 1,739 records/s."""
    operator = OperatorSpec(name="enrich", service_seconds=0.002, contention=0.05)
    assert capacity(operator, 1) == pytest.approx(500)
    assert capacity(operator, 4) == pytest.approx(4 / (0.002 * 1.15))


def test_a_hot_key_bounds_what_more_subtasks_can_do() -> None:
    """With 30 % of all records in one key no number of subtasks does more than 500 / 0.3 records/s."""
    operator = OperatorSpec(name="enrich", service_seconds=0.002, hot_key_share=0.3)
    assert hottest_share(operator, 4, keyed=True) == pytest.approx(0.3 + 0.7 / 4)
    assert sustained(operator, 120, keyed=True) < 500 / 0.3


def test_backpressure_reaches_the_source() -> None:
    """Only enrich is too slow, and it is the log that grows: at exactly the difference of the rates."""
    simulation = running(chain(1), 800, 120)
    names = [o.name for o in simulation.flow.operators]
    enrich = names.index("enrich")
    assert simulation.backlog == pytest.approx((800 - 500) * 120, rel=0.02)
    assert simulation.flow.blocked_ms[0] > 0.9 * 120_000
    assert simulation.flow.busy_ms[enrich] == pytest.approx(120_000, rel=0.01)
    assert simulation.flow.blocked_ms[enrich] == 0


def test_lag_in_seconds_is_the_age_of_the_oldest_unread_record() -> None:
    """800/s come and 500/s are read: the record at 500 t was appended at 500 t / 800, so it is 3/8 t old."""
    simulation = running(chain(1), 800, 400)
    read = sum(topic.taken for topic in simulation.topics.values())
    assert simulation.lag_seconds == pytest.approx(400 - read / 800)
    assert simulation.lag_seconds == pytest.approx(400 * 3 / 8, rel=0.02)


def test_a_restart_replays_from_the_last_checkpoint() -> None:
    """Between two checkpoints a task fails: what was read since the last one is read again."""
    simulation = running(chain(2), 400, 99)
    committed = sum(sum(topic.committed) for topic in simulation.topics.values())
    assert committed == pytest.approx(400 * 90)
    simulation.fail()
    assert simulation.state == "RESTARTING"
    assert simulation.backlog == pytest.approx(400 * 9)
    assert simulation.lag_seconds == pytest.approx(9)
    simulation.advance(160)
    assert (simulation.state, simulation.restarts) == ("RUNNING", 1)
    assert simulation.flow.records_in[0] == pytest.approx(400 * (160 - 90))
    assert_conserved(simulation)
