"""The model: records are conserved, queues push back, restarts replay, lag has an age."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from weir_replay.simulator import Simulation, chain, diamond, two_sources
from weir_replay.simulator.capacity import OfflineOptimum, capacity, hottest_share, sustained
from weir_replay.simulator.spec import Application, OperatorSpec, SourceSpec, parse


def running(application: Application, rate: float, seconds: float) -> Simulation:
    simulation = Simulation(application, lambda _: rate)
    simulation.advance(seconds)
    return simulation


def assert_conserved(simulation: Simulation) -> None:
    """Within a run, an operator's input is taken or queued; an appended record is read or waits."""
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


def test_the_offline_optimum_knows_the_steps_of_a_source() -> None:
    """10 ms a record and 12 partitions: 8 subtasks do no more than 6, 600 records/s, as the simulation of 650 shows."""
    source = SourceSpec(topic="orders", partitions=12)
    job = Application(operators=(OperatorSpec(name="in", service_seconds=0.01, source=source),)).on(slots=12)
    optimum = OfflineOptimum(job, 16)
    assert [optimum.parallelism(rate)["in"] for rate in (590.0, 610.0, 1190.0)] == [6, 12, 12]
    assert not optimum.carries(1210.0)
    assert running(job.started_with(8), 650.0, 120).backlog > 1000
    assert running(job.started_with(8), 590.0, 120).backlog < 1000


def test_few_keys_fall_unevenly() -> None:
    """5,000 keys: the fullest of four subtasks gets 2–3 % more than its share, of eight 4–6 %, as measured on the
    sample job."""
    operator = OperatorSpec(name="enrich", service_seconds=0.002, keys=5000)
    assert hottest_share(operator, 1, keyed=True) == 1.0
    assert 1.02 < 4 * hottest_share(operator, 4, keyed=True) < 1.03
    assert 1.04 < 8 * hottest_share(operator, 8, keyed=True) < 1.06


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
    """800/s come and 500/s are read: the record at 500 t was appended at 500 t / 800, so it is 3/8 t old.

    Of one partition; of several, the one whose turn is furthest away lies further back.
    """
    document = chain(1).model_dump()
    document["operators"][0]["source"]["partitions"] = 1
    simulation = running(parse(document), 800, 400)
    assert running(chain(1), 800, 400).lag_seconds > simulation.lag_seconds + 20
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


def test_a_rescale_waits_for_a_checkpoint_and_keeps_every_record() -> None:
    """Requested at 93, done with the checkpoint of 100; downtime, then cold, then all of the new capacity."""
    simulation = running(chain(2), 800, 93)
    wanted = dict.fromkeys(simulation.observed, 4)
    assert simulation.request(wanted) is None
    simulation.advance(99)
    assert (simulation.state, simulation.requested) == ("RUNNING", wanted)
    simulation.advance(101)
    assert simulation.state == "RESTARTING"
    simulation.advance(104)
    assert (simulation.state, simulation.observed, simulation.restarts) == ("RUNNING", wanted, 1)
    assert simulation.warmth < 0.8
    simulation.advance(115)
    assert simulation.warmth == 1.0
    assert_conserved(simulation)


def test_a_triggered_checkpoint_lets_a_rescale_begin_at_once() -> None:
    """It triggers the checkpoint that the rescale waits for."""
    simulation = running(chain(2), 800, 93)
    simulation.request(dict.fromkeys(simulation.observed, 4))
    assert simulation.trigger_checkpoint() is None
    simulation.advance(94)
    assert simulation.state == "RESTARTING"


def test_state_sets_the_downtime() -> None:
    """400 MB in one operator on two subtasks at 100 MB/s: two seconds more than without."""
    heavy = chain(2).model_dump()
    heavy["operators"][2]["state_bytes"] = 400e6
    simulation = running(Application.model_validate(heavy), 100, 50)
    simulation.fail()
    simulation.advance(53.9)
    assert simulation.state == "RESTARTING"
    simulation.advance(54.1)
    assert simulation.state == "RUNNING"


def test_missing_slots_bound_what_is_had() -> None:
    """Eight are wanted and six are there: six it is, and eight as soon as they come."""
    simulation = running(chain(2).on(slots=6), 100, 20)
    simulation.request(dict.fromkeys(simulation.observed, 8))
    simulation.advance(60)
    assert set(simulation.observed.values()) == {6}
    simulation.conditions.slots = 8
    simulation.advance(90)
    assert set(simulation.observed.values()) == {8}


def test_what_cannot_run_crashes_again_and_again() -> None:
    """Above the parallelism that its cluster stands; below it, it stays."""
    simulation = running(chain(2), 100, 20)
    simulation.conditions.crash_above = 3
    simulation.request(dict.fromkeys(simulation.observed, 4))
    simulation.advance(80)
    assert simulation.restarts > 5
    simulation.conditions.crash_above = None
    simulation.advance(120)
    assert simulation.state == "RUNNING"


def test_requests_are_refused_with_a_reason() -> None:
    """Too much, too few operators, a job that has ended, a cluster that does not want to."""
    simulation = running(chain(2), 100, 5)
    assert "121 exceeds" in (simulation.request({**simulation.observed, "enrich": 121}) or "")
    assert "enrich" in (simulation.request({k: 1 for k in simulation.observed if k != "enrich"}) or "")
    simulation.conditions.refuses = "no resources"
    assert simulation.request(simulation.observed) == "no resources"
    simulation.end()
    assert "Could not find" in (simulation.request(simulation.observed) or "")


def test_a_window_gives_out_when_it_ends() -> None:
    """Ten seconds of records are held, then come all at once and are worked off at the sink's pace."""
    slow = chain(1).model_dump()
    slow["operators"][3].update(window_seconds=10.0, window_keys=None)
    simulation = Simulation(Application.model_validate(slow), lambda _: 200.0, step_seconds=0.25, calm_seconds=0)
    simulation.advance(9.9)
    assert simulation.flow.records_in[4] == 0
    assert simulation.flow.held[3] == pytest.approx(200 * 9.9)
    simulation.advance(11)
    assert simulation.flow.records_in[4] == pytest.approx(2000)


def test_selectivity_drifts() -> None:
    """From one to three records out for each in: what comes behind is busier for it."""
    drifting = chain(1).model_dump()
    drifting["operators"][1]["selectivity_over_time"] = [[0, 1.0], [100, 3.0]]
    simulation = running(Application.model_validate(drifting), 100, 300)
    taken = simulation.flow.records_in
    assert taken[2] / taken[1] == pytest.approx((100 * 2 + 200 * 3) / 300, rel=0.02)


def test_far_steps_come_to_the_same_as_small_ones() -> None:
    """While nothing waits a step may be long: counters and times agree with those of small steps."""
    load = lambda t: 400 + 0.5 * t  # noqa: E731
    far, near = Simulation(chain(2), load), Simulation(chain(2), load, step_seconds=0.25, calm_seconds=0)
    for simulation in (far, near):
        simulation.advance(600)
    assert far.flow.records_in == pytest.approx(near.flow.records_in, rel=1e-3)
    assert far.flow.busy_ms == pytest.approx(near.flow.busy_ms, rel=1e-3)
    assert far.lag_seconds == near.lag_seconds == 0


def test_two_inputs_share_a_full_operator() -> None:
    """The join does 667/s and 600 + 540 want in: it takes from each in turn, so that neither source starves."""
    simulation = running(two_sources(1), 2400, 120)
    orders, clicks = simulation.topics.values()
    assert orders.taken == pytest.approx(333 * 120, rel=0.05)
    assert clicks.taken * 0.3 == pytest.approx(333 * 120, rel=0.05)


@examples(15)
@given(
    rates=st.lists(st.floats(0, 4000), min_size=1, max_size=4),
    parallelism=st.integers(1, 6),
    preset=st.sampled_from([chain, diamond, two_sources]),
    fails=st.booleans(),
)
def test_nothing_is_ever_lost(
    rates: list[float], parallelism: int, preset: Callable[[int], Application], fails: bool
) -> None:
    """Any load, any graph, with and without a failure."""
    simulation = Simulation(preset(parallelism), lambda t: rates[int(t // 12) % len(rates)], step_seconds=1.0)
    simulation.advance(25)
    if fails:
        simulation.fail()
    simulation.advance(45)
    assert_conserved(simulation)
    assert 0 <= simulation.lag_seconds <= simulation.now


def test_a_restart_that_hangs_goes_on_when_it_may() -> None:
    """The log grows meanwhile; then everything since the checkpoint of second 20 is read."""
    simulation = running(chain(2), 100, 21)
    simulation.conditions.hangs = True
    simulation.fail()
    simulation.advance(200)
    assert (simulation.state, simulation.backlog) == ("RESTARTING", pytest.approx(100 * 180))
    assert simulation.lag_seconds == pytest.approx(180)
    simulation.conditions.hangs = False
    simulation.advance(260)
    assert (simulation.state, simulation.backlog) == ("RUNNING", 0.0)


def test_a_rescale_without_checkpoints_proceeds_after_its_maximum_wait_and_replays_more() -> None:
    """They fail since second 50: the rescale of second 93 waits for three intervals, and begins where 50 was."""
    simulation = running(chain(2), 100, 51)
    simulation.conditions.checkpoints_fail = True
    simulation.advance(93)
    simulation.request(dict.fromkeys(simulation.observed, 3))
    simulation.advance(122.5)
    assert simulation.state == "RUNNING"
    simulation.advance(123.5)
    assert simulation.state == "RESTARTING"
    assert simulation.lag_seconds == pytest.approx(123.5 - 50, abs=0.5)
    assert simulation.checkpoints_failed == 7


def test_a_job_that_lags_too_much_crashes_until_it_is_given_more() -> None:
    """A crash loop from overload: it ends when the backlog can be held."""
    simulation = running(chain(1), 900, 20)
    simulation.conditions.crash_lag_seconds = 60.0
    simulation.advance(400)
    assert simulation.restarts > 10
    simulation.conditions.crash_lag_seconds = None
    simulation.request(dict.fromkeys(simulation.observed, 6))
    simulation.advance(900)
    assert (simulation.state, simulation.lag_seconds) == ("RUNNING", 0.0)


def test_another_job_takes_over_where_the_last_one_was() -> None:
    """It was cancelled at 95; its successor with another graph begins at the last checkpoint, of 90, as another job."""
    simulation = running(chain(2), 100, 95)
    before = simulation.graph_hash
    simulation.end("CANCELED")
    simulation.advance(110)
    assert (simulation.slots_used, simulation.backlog) == (0, pytest.approx(1500))
    simulation.resubmit(diamond(3), "6" * 32)
    assert simulation.backlog == pytest.approx(100 * 20)
    simulation.advance(140)
    assert (simulation.state, simulation.job_id, simulation.restarts) == ("RUNNING", "6" * 32, 0)
    assert simulation.graph_hash != before
    assert simulation.flow.records_in[0] == pytest.approx(100 * 50)
    assert_conserved(simulation)


def test_new_slots_come_late_and_are_held_from_the_request_on() -> None:
    """A minute until they have come, in which two subtasks go on and five slots are held; fewer need no wait."""
    simulation = running(chain(2).on(new_slot_seconds=60, stabilization_seconds=60), 100, 100)
    simulation.request(dict.fromkeys(simulation.observed, 5))
    simulation.advance(159)
    assert (simulation.state, simulation.observed["enrich"], simulation.slots_used) == ("RUNNING", 2, 5)
    simulation.advance(180)
    assert (simulation.state, simulation.observed["enrich"], simulation.slots_used) == ("RUNNING", 5, 5)
    simulation.request(dict.fromkeys(simulation.observed, 1))
    simulation.advance(200)
    assert (simulation.observed["enrich"], simulation.slots_used) == (1, 1)


def test_a_failure_while_new_slots_start_restarts_with_those_that_are_there() -> None:
    """They come at 160, the failure at 130: two subtasks run again, then five."""
    simulation = running(chain(2).on(new_slot_seconds=60, stabilization_seconds=60), 100, 100)
    simulation.request(dict.fromkeys(simulation.observed, 5))
    simulation.advance(130)
    simulation.fail()
    simulation.advance(150)
    assert (simulation.state, simulation.observed["enrich"]) == ("RUNNING", 2)
    simulation.advance(180)
    assert simulation.observed["enrich"] == 5
    assert_conserved(simulation)
