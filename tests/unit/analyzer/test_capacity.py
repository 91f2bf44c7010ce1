"""True processing rates and what is learned of them."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.analyzer.story import Job, Loop, Stage, policy
from weir_analyzer.core import AnalysisSettings, capacity
from weir_analyzer.core.capacity import MAX_POINTS, Point
from weir_analyzer.core.run import Shares
from weir_analyzer.core.window import estimate
from weir_contracts import Analysis, Estimate, OperatorAnalysis
from weir_engines.driver import lineage_of
from weir_replay.simulator import Application, Link, Observer, OperatorSpec, Simulation, SourceSpec, diamond
from weir_replay.simulator.capacity import capacity as sustained

SETTINGS = AnalysisSettings()


def _operator(analysis: Analysis, name: str) -> OperatorAnalysis:
    found = analysis.operator(name)
    assert found is not None
    return found


def _measured(
    rate: float,
    *,
    saturated: bool = False,
    confidence: float = 0.8,
    throughput: float | None = None,
    skew: float | None = None,
) -> capacity.Measured:
    measured = Estimate(value=rate, basis="test", confidence=confidence, samples=10, window_seconds=30)
    uneven = measured.model_copy(update={"value": skew})
    return capacity.Measured(measured, measured, saturated, uneven, throughput=throughput)


def _learn(points: Sequence[Point], p: int, now: capacity.Measured, *, at: float) -> tuple[Point, ...]:
    return capacity.learn(tuple(points), p, now, at=at, job_id="a", settings=SETTINGS)


def _measured_at(loop: Loop, **changes: Any) -> Analysis:
    """Scrape for a minute with the same change in every reading of `enrich`."""
    last = None
    for _ in range(30):
        loop.job.run_for(2)
        fresh = loop.job.observe()
        readings = [r.model_copy(update=changes) if r.operator == "enrich" else r for r in fresh.operators]
        last = loop.see(fresh.model_copy(update={"operators": readings}))
    assert last is not None
    return last


def test_a_rate_between_two_steps_is_no_other_cost_of_a_record() -> None:
    """With 12 partitions 11 subtasks do the 600 records/s that 6 do. An old reading of 900 at 11 is wrong then, and what
    was measured at 6 and 12 stays."""
    points = [Point(p, rate, 0.9, True, 5, 0.0, "a") for p, rate in ((6, 600.0), (11, 900.0), (12, 1200.0))]
    now = _measured(600, saturated=True, throughput=600)
    found = capacity.learn(tuple(points), 11, now, at=60, job_id="a", settings=SETTINGS, shares=12)
    assert [(p.parallelism, p.rate) for p in found] == [(6, 600.0), (11, 600.0), (12, 1200.0)]


def test_per_operator_and_per_subtask() -> None:
    """Four subtasks of 600 records/s, a quarter busy: 2,400 in all."""
    loop = Loop(Job(rate=600, stages=[Stage("Source: orders", 50_000), Stage("enrich", 600, parallelism=4)]))
    enrich = _operator(loop.watch(60), "enrich")
    assert enrich.true_processing_rate_per_subtask.value == pytest.approx(600, rel=0.02)
    assert enrich.true_processing_rate.value == pytest.approx(2400, rel=0.02)


def test_low_load_gives_low_confidence() -> None:
    """Below a tenth busy the confidence is low, and it grows with use."""
    light = _operator(Loop(Job(rate=20)).watch(60), "enrich")
    half = _operator(Loop(Job(rate=300)).watch(60), "enrich")
    assert light.true_processing_rate.confidence < 0.3
    assert half.true_processing_rate.confidence >= 0.6
    assert "nearly idle" in light.true_processing_rate.basis


def test_unknown_busy_time_is_unknown_capacity() -> None:
    """A legacy source reports NaN: `None`, never a guess; utilization too, and a symptom says so."""
    unknown = {
        "busy_ms": None,
        "backpressured_ms": None,
        "idle_ms": None,
        "busy_share_mean": None,
        "busy_share_max": None,
    }
    analysis = _measured_at(Loop(), **unknown)
    enrich = _operator(analysis, "enrich")
    assert enrich.true_processing_rate.value is None
    assert enrich.utilization.value is None
    assert enrich.skew.value is None
    assert enrich.capacities == []
    assert analysis.has("metric-missing")


def test_the_engines_gauges_serve_utilization_where_times_are_missing() -> None:
    """A 60 s gauge gives utilization with less confidence, and no capacity: rates and gauges average differently."""
    analysis = _measured_at(Loop(), busy_ms=None, backpressured_ms=None, idle_ms=None)
    enrich = _operator(analysis, "enrich")
    assert enrich.utilization.value == pytest.approx(0.5, abs=0.02)
    assert enrich.utilization.confidence <= 0.5
    assert enrich.true_processing_rate.value is None


def test_an_idle_operator_has_no_capacity() -> None:
    """An idle operator's capacity is unknown, not infinite and not 0."""
    enrich = _operator(Loop(Job(rate=0)).watch(60), "enrich")
    assert enrich.true_processing_rate.value is None
    assert enrich.input_rate.value == 0
    assert enrich.capacities == []


def test_a_nearly_idle_operator_has_a_bound_and_no_rate() -> None:
    """Two records/s, a third of a percent of its time: the true rate would be noise, but 40 records/s it surely does.
    With more to do there is a rate and no bound."""
    idle = _operator(Loop(Job(rate=2)).watch(60), "enrich")
    assert idle.true_processing_rate.value is None
    assert idle.capacities == []
    assert idle.min_processing_rate is not None
    assert idle.min_processing_rate.value == pytest.approx(40, rel=0.1)
    assert idle.min_processing_rate.basis.startswith("at least")
    busy = _operator(Loop(Job(rate=60)).watch(60), "enrich")
    assert busy.min_processing_rate is None
    assert busy.true_processing_rate.value is not None


def test_a_hot_subtask_limits_the_operator() -> None:
    """Two subtasks, one twice as busy as the other: the busiest saturates first, so a quarter cannot be used."""
    stages = [Stage("Source: orders", 50_000), Stage("enrich", 600, parallelism=2)]
    analysis = _measured_at(Loop(Job(rate=600, stages=stages)), busy_share_mean=0.5, busy_share_max=0.67)
    enrich = _operator(analysis, "enrich")
    assert enrich.skew.value == pytest.approx(1.34)
    assert enrich.true_processing_rate.value == pytest.approx(1200 / 1.34, rel=0.02)
    assert enrich.true_processing_rate_per_subtask.value == pytest.approx(600, rel=0.02)
    assert "skew" in enrich.true_processing_rate.basis


def test_a_backlogged_source_that_looks_idle_is_bound_by_reading() -> None:
    """3 % busy, nothing behind it holds it back, and yet lag grows: what it takes in is its capacity."""
    loop = Loop(Job(rate=900, stages=[Stage("Source: orders", 600), Stage("enrich", 5000)]))
    last = None
    for _ in range(30):
        loop.job.run_for(2)
        fresh = loop.job.observe()
        source = fresh.operators[0]
        total = (source.busy_ms or 0) + (source.idle_ms or 0)
        looks_idle = source.model_copy(
            update={"busy_ms": 0.03 * total, "idle_ms": 0.97 * total, "busy_share_mean": 0.03, "busy_share_max": 0.03}
        )
        last = loop.see(fresh.model_copy(update={"operators": [looks_idle, *fresh.operators[1:]]}))
    assert last is not None
    source_analysis = _operator(last, "Source: orders")
    assert source_analysis.true_processing_rate.value == pytest.approx(600, rel=0.05)
    assert "backlogged source" in source_analysis.true_processing_rate.basis
    assert last.has("source-bound")
    assert last.bottleneck == "Source: orders"


def test_a_backpressured_source_shows_no_capacity_of_its_own() -> None:
    """Held back by `enrich` the source takes in 600: a lower bound, not its capacity, however large its lag."""
    loop = Loop(Job(rate=900))
    loop.watch(120)
    source = _operator(loop.analyses[-1], "Source: orders")
    assert source.backpressure.value == pytest.approx(0.99, abs=0.02)
    assert not any(p.saturated for p in source.capacities)
    assert source.true_processing_rate.value is None or source.true_processing_rate.value > 10_000


def test_positions_read_late_are_no_backlog() -> None:
    """A lag that neither grows nor shrinks is what late readings look like: the source is not bound by anything."""
    loop = Loop()
    last = None
    for _ in range(40):
        loop.job.run_for(2)
        fresh = loop.job.observe()
        behind = [
            p.model_copy(update={"current_offset": max(0, (p.current_offset or 0) - 3000 // 4)})
            for p in fresh.partitions
        ]
        last = loop.see(fresh.model_copy(update={"partitions": behind}))
    assert last is not None
    assert not last.has("source-bound")
    assert not any(p.saturated for p in _operator(last, "Source: orders").capacities)


def test_smoothing_follows_slowly_and_counts() -> None:
    """Measurements within the tolerance move the point a little, more so the longer ago the last one was."""
    first = _learn((), 2, _measured(1000), at=0)
    soon = _learn(first, 2, _measured(1100), at=2)
    late = _learn(first, 2, _measured(1100), at=60)
    assert soon[0].rate == pytest.approx(1000 + 100 * 0.5 * 2 / 30)
    assert late[0].rate == pytest.approx(1050)
    assert late[0].samples == 2


def test_a_saturated_measurement_beats_one_from_busy_time() -> None:
    """It replaces it at once, and is not diluted by it afterwards."""
    points = _learn((), 2, _measured(1150), at=0)
    points = _learn(points, 2, _measured(1000, saturated=True), at=30)
    assert points[0].rate == 1000
    assert points[0].saturated
    points = _learn(points, 2, _measured(1200), at=60)
    assert points[0].rate == 1000


def test_the_maximum_input_of_a_window_is_kept() -> None:
    """Whatever comes later, until another job may run other code or a record costs more."""
    points = _learn((), 2, _measured(1000, throughput=700), at=0)
    points = _learn(points, 2, _measured(1050, throughput=300), at=30)
    assert [point.taken for point in points] == [700]
    assert capacity.published(points)[0].max_input_rate == 700
    assert capacity.halved({"a": points})["a"][0].taken == 0
    points = _learn(points, 4, _measured(2000, saturated=True), at=60)
    points = _learn(points, 4, _measured(1000, saturated=True), at=90)
    assert points[0].taken == 350


def test_the_skew_is_kept_with_the_capacity() -> None:
    """The busiest of 2 subtasks does 1.1 times the mean: kept while the gauges are away, and followed slowly."""
    points = _learn((), 2, _measured(1000, skew=1.1), at=0)
    points = _learn(points, 2, _measured(1000), at=30)
    assert capacity.published(points)[0].skew == pytest.approx(1.1)
    points = _learn(points, 2, _measured(1000, skew=1.3), at=60)
    assert 1.1 < (capacity.published(points)[0].skew or 0.0) < 1.3


def test_a_quarter_off_rescales_the_whole_curve() -> None:
    """New code at half the speed: the other parallelisms' measurements are halved, too, at less confidence."""
    points = _learn((), 1, _measured(1000, saturated=True), at=0)
    points = _learn(points, 4, _measured(3600, saturated=True), at=30)
    points = _learn(points, 4, _measured(1800, saturated=True), at=60)
    assert [(p.parallelism, p.rate) for p in points] == [(1, 500), (4, 1800)]
    assert points[0].confidence == pytest.approx(0.64)


def test_busy_time_alone_must_insist_against_what_was_seen_saturated() -> None:
    """Light load makes capacity look larger than it is: believed only after a minute, if it is sure."""
    points = _learn((), 2, _measured(1000, saturated=True), at=0)
    points = _learn(points, 2, _measured(2000), at=30)
    assert points[0].rate == 1000
    points = _learn(points, 2, _measured(2000), at=60)
    assert points[0].rate == 1000
    points = _learn(points, 2, _measured(2000), at=92)
    assert points[0].rate == 2000


def test_doubt_that_passes_is_forgotten() -> None:
    """A measurement back within the tolerance starts the minute again."""
    points = _learn((), 2, _measured(1000, saturated=True), at=0)
    points = _learn(points, 2, _measured(2000), at=30)
    points = _learn(points, 2, _measured(1010), at=60)
    points = _learn(points, 2, _measured(2000), at=92)
    assert points[0].rate == 1000


def test_throughput_above_the_learned_capacity_is_believed_at_once() -> None:
    """Throughput above the learned capacity disproves it."""
    points = _learn((), 2, _measured(1000, saturated=True), at=0)
    points = _learn(points, 2, _measured(1700, throughput=1400), at=2)
    assert points[0].rate == 1700


def test_noise_of_an_idle_night_does_not_wear_off_a_sure_measurement() -> None:
    """Unsure measurements for hours leave a sure one as it is."""
    points = _learn((), 2, _measured(1000, confidence=0.85), at=0)
    for i in range(1, 1000):
        points = _learn(points, 2, _measured(1150, confidence=0.1), at=2.0 * i)
    assert points[0].rate == 1000
    assert points[0].confidence == 0.85


def test_no_more_than_64_parallelisms_are_kept() -> None:
    """Points with the lowest confidence are dropped first."""
    points: tuple[Point, ...] = ()
    for p in range(1, 100):
        points = _learn(points, p, _measured(100.0 * p, confidence=0.2 if p < 10 else 0.8), at=float(p))
    assert len(points) == MAX_POINTS
    assert min(p.parallelism for p in points) >= 10
    assert list(points) == sorted(points)


def test_another_job_id_halves_the_confidence_and_keeps_the_rates() -> None:
    """A resubmission may be other code: what was learned counts half until it is measured again."""
    loop = Loop()
    before = _operator(loop.watch(60), "enrich").capacities[0]
    ratio = loop.analyses[-1].edges[0].selectivity
    loop.job.job_id = "b" * 32
    loop.job.restart(down_seconds=20)
    analysis = loop.watch(4)
    after = _operator(analysis, "enrich").capacities[0]
    assert after.records_per_second == before.records_per_second
    assert after.confidence == pytest.approx(before.confidence / 2, abs=0.01)
    assert analysis.edges[0].selectivity.value == ratio.value
    assert analysis.edges[0].selectivity.confidence < ratio.confidence / 2
    assert analysis.restart_times.samples == 0


def test_a_successor_that_weir_runs_keeps_all_that_was_learned() -> None:
    """Its id begins as the former job's does, so that it is the same deployment after a restart, which is measured."""
    loop = Loop()
    loop.job.job_id = lineage_of("5f6d1e2b0c9a4f3e8d7c6b5a49382716")
    before = _operator(loop.watch(60), "enrich").capacities[0]
    loop.job.job_id = lineage_of("5f6d1e2b0c9a4f3e0b1a6f2c77d05e11")
    loop.job.status, loop.job.state = "not_running", "FINISHED"
    loop.watch(18)
    loop.job.restart(down_seconds=2)
    analysis = loop.watch(4)
    after = _operator(analysis, "enrich").capacities[0]
    assert (after.records_per_second, after.confidence) == (before.records_per_second, before.confidence)
    assert analysis.restart_times.samples == 1
    assert analysis.restart_times.seconds == pytest.approx(20, abs=loop.job.interval)


def test_an_outage_of_the_brokers_teaches_nothing() -> None:
    """Its brokers are away for 30 s and slow for some more: the sink is busy all the time with waiting. What it can do
    stays as it was."""
    job = Job(rate=300, stages=[Stage("Source: orders", 50_000), Stage("enrich", 600), Stage("sink: Writer", 2_000)])
    loop = Loop(job)
    before = _operator(loop.watch(120), "sink: Writer").capacities
    job.stages[2].subtask_rate = 20
    for _ in range(15):
        job.run_for(2)
        loop.see(job.observe().model_copy(update={"partitions": []}))
    loop.watch(6)
    job.stages[2].subtask_rate = 2_000
    for _ in range(60):
        after = _operator(loop.watch(2), "sink: Writer").capacities
        assert [point.records_per_second for point in after] == pytest.approx(
            [point.records_per_second for point in before], rel=0.1
        )


def test_one_wrong_point_does_not_move_the_others() -> None:
    """A measurement that is far from what was known at its parallelism, and is what the others let expect, replaces
    that point alone; one that the others do not expect either is another cost of a record, and moves them all."""

    def learned(rate: float) -> list[tuple[int, int]]:
        points = tuple(
            Point(p, r, 0.9, True, 9, 100.0, "job") for p, r in ((1, 480.0), (2, 950.0), (3, 580.0), (4, 1800.0))
        )
        found = _learn(points, 3, _measured(rate, saturated=True, throughput=rate), at=200.0)
        return [(p.parallelism, round(p.rate)) for p in found]

    assert learned(1400.0) == [(1, 480), (2, 950), (3, 1400), (4, 1800)]
    assert learned(290.0) == [(1, 240), (2, 475), (3, 290), (4, 900)]


def test_a_doubtful_saturation_yields_to_a_surer_measurement() -> None:
    """Throughput of an operator that was not busy, and held its inputs back, is not kept for ever: busy time that is
    surer and lasts replaces it. It does not replace a certain one, as it overestimates at a light load."""

    def learned(confidence: float) -> float:
        points: tuple[Point, ...] = (Point(3, 580.0, confidence, True, 9, 100.0, "job"),)
        for at in (200.0, 230.0, 290.0):
            points = _learn(points, 3, _measured(1400.0, confidence=0.5, throughput=400.0), at=at)
        return points[0].rate

    assert learned(0.37) == 1400
    assert learned(0.9) == 580


@pytest.mark.thorough
@pytest.mark.parametrize("scrapes", [0, 1], ids=["nothing was seen of it", "one scrape got through"])
def test_an_outage_with_few_observations_teaches_nothing(scrapes: int) -> None:
    """The brokers carry the observations too: 25 s of which at most the first scrape arrives later. The operator is
    nearly idle, then has a backlog. Meanwhile the curve stays as it was, also for the one that waited on neighbours."""
    job = Job(rate=500, stages=[Stage("Source: orders", 50_000), Stage("enrich", 600), Stage("sink: Writer", 9_000)])
    loop = Loop(job)
    before = {o.operator: o.capacities for o in loop.watch(120).operators}
    job.stages[2].subtask_rate = 20
    for _ in range(scrapes):
        job.run_for(2)
        loop.see(job.observe().model_copy(update={"partitions": []}))
    job.run_for(25 - 2 * scrapes)
    job.stages[2].subtask_rate = 9_000
    for _ in range(60):
        for operator in loop.watch(2).operators:
            current = {p.parallelism: p.records_per_second for p in before[operator.operator]}
            for point in operator.capacities:
                assert point.records_per_second == pytest.approx(current[point.parallelism], rel=0.15), (
                    operator.operator
                )


def test_a_lost_scrape_is_no_outage() -> None:
    """Capacity goes on being learned where the brokers did not answer once."""
    job = Job(rate=300)
    loop = Loop(job)
    loop.watch(60)
    for silent in (True, False):
        job.run_for(2)
        observed = job.observe()
        last = loop.see(observed.model_copy(update={"partitions": []}) if silent else observed)
    assert last is not None
    assert _operator(last, "enrich").true_processing_rate.value == pytest.approx(600, rel=0.05)


@pytest.mark.thorough
@pytest.mark.parametrize(("interval", "window"), [(2.0, 30.0), (5.0, 300.0), (1.0, 180.0)])
def test_a_history_thinned_out_is_no_outage(interval: float, window: float) -> None:
    """Old offsets are kept further apart than they were heard. However long the window, brokers that were always there
    never stop it."""
    loop = Loop(
        Job(rate=300, interval=interval),
        settings=AnalysisSettings(capacity_window_seconds=window),
    )
    loop.watch(2 * window + 20)
    for _ in range(30):
        assert _operator(loop.watch(10), "enrich").true_processing_rate.value == pytest.approx(600, rel=0.05)


def test_scrapes_that_always_take_longer_than_the_interval_are_no_outage() -> None:
    """Asked for every 2 s, seen every 8 s: what is usual is no absence, and a real one is still seen."""
    job = Job(rate=300)
    loop = Loop(job)
    for _ in range(12):
        job.run_for(8)
        analysis = loop.see(job.observe())
    assert analysis is not None
    assert _operator(analysis, "enrich").true_processing_rate.value == pytest.approx(600, rel=0.05)
    job.run_for(60)
    analysis = loop.see(job.observe())
    assert analysis is not None
    assert _operator(analysis, "enrich").true_processing_rate.value is None


@pytest.mark.thorough
def test_brokers_no_longer_asked_withhold_nothing() -> None:
    """The policy names none any more, or the monitor may not ask them: after ten minutes it is learned without them."""
    job = Job(rate=300)
    loop = Loop(job)
    loop.watch(60)
    values = []
    for _ in range(340):
        job.run_for(2)
        analysis = loop.see(job.observe().model_copy(update={"partitions": []}))
        assert analysis is not None
        values.append(_operator(analysis, "enrich").true_processing_rate.value)
    assert set(values[:290]) == {None}
    assert values[-1] == pytest.approx(600, rel=0.05)


def test_a_record_that_costs_more_is_no_wrong_old_point() -> None:
    """With contention, one subtask does more than an eighth of eight. Where its records cost more, so do those of the
    eight, although the new rate is about an eighth of what the eight did."""
    for slower in (0.6, 0.65, 0.72):
        points = (Point(1, 485.0, 0.9, True, 9, 100.0, "job"), Point(8, 3207.0, 0.9, True, 9, 100.0, "job"))
        fresh = _measured(485.0 * slower, saturated=True)
        found = _learn(points, 1, fresh._replace(throughput=485.0 * slower), at=200.0)
        assert [round(p.rate) for p in found] == [round(485 * slower), round(3207 * slower)]


def _simulated(application: Application, rate: float, seconds: float = 120) -> dict[str, OperatorAnalysis]:
    """Watch a simulated job; returns its operators by name."""
    simulation = Simulation(application, lambda _: rate)
    observer, loop = Observer(simulation), Loop()
    while simulation.now < seconds - 1e-6:
        simulation.advance(simulation.now + 2)
        for observation in observer.scrape(policy(2)):
            loop.see(observation)
    return {o.operator: o for o in loop.analyses[-1].operators}


@pytest.mark.thorough
@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_a_sibling_of_the_bottleneck_is_not_saturated(parallelism: int) -> None:
    """`fraud` is full and holds the source back; `price`, fed by the same source, is two thirds busy and does more than
    it takes in."""
    application = diamond(parallelism)
    found = _simulated(application, rate=1_000.0 * parallelism)
    assert (found["Source: orders"].backpressure.value or 0) > 0.5
    for name, saturated in (("fraud", True), ("price", False)):
        spec = next(o for o in application.operators if o.name == name)
        (point,) = found[name].capacities
        assert point.saturated is saturated
        assert point.records_per_second == pytest.approx(sustained(spec, parallelism), rel=0.05)


def test_siblings_that_are_full_alike_are_both_saturated() -> None:
    """Each of them would hold the source back alone."""
    full = Shares(0.97, 0.0, 500.0)
    assert capacity.holds_back(full, None, [(Shares(1.0, 0.0, 400.0), None)])
    assert capacity.holds_back(Shares(0.9, 0.0, 500.0), None, [(Shares(0.92, 0.0, 400.0), None)])


def test_a_sibling_that_is_held_back_shows_where_the_pressure_comes_from() -> None:
    """It passes on what an operator further down does to it. Without any sibling there is only one left to hold the
    input back."""
    idle = Shares(0.3, 0.0, 500.0)
    assert not capacity.holds_back(idle, None, [(Shares(0.2, 0.8, 400.0), None)])
    assert capacity.holds_back(idle, None, [(Shares(0.3, 0.0, 400.0), None)])
    assert capacity.holds_back(idle, None, [])


def test_only_a_source_that_feeds_an_operator_counts_as_its_backlog() -> None:
    """`count` gives out its windows in bursts and waits for `store` a third of the time, which holds nothing up.
    Another source of the same job lags behind an operator that is full."""
    application = Application(
        operators=(
            OperatorSpec(name="Source: views", service_seconds=20e-6, source=SourceSpec(topic="views", share=0.5)),
            OperatorSpec(name="Source: orders", service_seconds=20e-6, source=SourceSpec(topic="orders", share=0.5)),
            OperatorSpec(name="count", service_seconds=100e-6, selectivity=0.4, window_seconds=10.0),
            OperatorSpec(name="full", service_seconds=2e-3),
            OperatorSpec(name="store", service_seconds=1e-3),
        ),
        links=(
            Link(source="Source: views", target="count"),
            Link(source="Source: orders", target="full"),
            Link(source="count", target="store"),
        ),
    )
    found = _simulated(application, rate=2_000.0)
    assert 0.2 <= (found["count"].backpressure.value or 0) < 0.5
    assert [point.saturated for point in found["full"].capacities] == [True]
    assert not any(point.saturated for point in found["store"].capacities)
    assert found["store"].true_processing_rate.value == pytest.approx(1_000, rel=0.05)


def test_a_rate_that_no_message_may_hold_is_not_published() -> None:
    """Rescaling by what was measured moves a point beyond the bounds; it is forgotten, and a measurement beyond them is
    unknown."""
    points = _learn((), 1, _measured(1e-3, saturated=True), at=0)
    points = _learn(points, 4, _measured(1e15, saturated=True), at=30)
    points = _learn(points, 4, _measured(1.0, saturated=True, throughput=1.0), at=60)
    assert [p.records_per_second for p in capacity.published(points)] == [1.0]
    assert estimate(1e306, "test", 0.9).value is None
    assert estimate(-1e306, "test", 0.9).value is None
