"""Which readings are samples, and which windows count."""

from datetime import timedelta

import pytest

from tests.unit.analyzer.story import NOON, Job, Loop
from weir_analyzer.core import AnalyzerState, advance
from weir_contracts import Observation, Run


def test_what_is_not_newer_is_ignored_and_counted() -> None:
    """A duplicate and a late observation change nothing but the count of what was dropped."""
    loop = Loop()
    loop.watch(20)
    late = loop.job.observe(observed_at=NOON + timedelta(seconds=5))
    before = loop.memory
    assert loop.see(loop.job.observe()) is None
    assert loop.see(late) is None
    assert before is not None
    assert loop.memory is not None
    assert loop.memory.dropped == before.dropped + 2
    assert loop.memory.run == before.run
    assert loop.now().dropped_observations == 2


def test_an_unchanged_snapshot_is_no_sample_but_its_offsets_are() -> None:
    """An engine that refreshes every 10 s is asked every 2 s: five equal answers are one sample, the brokers' are five."""
    loop = Loop()
    loop.watch(40)
    job = loop.job
    assert loop.memory is not None
    assert loop.memory.run is not None
    rows = loop.memory.run.rows
    stale = job.observe()
    for _ in range(3):
        job.run_for(2)
        fresh = job.observe()
        old_positions = {p.partition: p.current_offset for p in stale.partitions}
        partitions = [p.model_copy(update={"current_offset": old_positions[p.partition]}) for p in fresh.partitions]
        analysis = loop.see(fresh.model_copy(update={"operators": stale.operators, "partitions": partitions}))
    assert analysis is not None
    assert loop.memory.run is not None
    assert loop.memory.run.rows == rows
    assert [ends[0] for _, ends in loop.memory.history.rows[-3:]] == [3150, 3300, 3450]
    assert analysis.arrival_rate.value == pytest.approx(300, rel=0.02)
    # positions are as old as the snapshot: what arrived since is no lag yet
    assert analysis.lag_records.value == 0
    assert "6 s ago" in analysis.lag_records.basis


def test_an_engine_silent_for_longer_than_half_a_minute_lags() -> None:
    """A snapshot that never changes again is a standstill, and its lag grows."""
    loop = Loop()
    loop.watch(40)
    stale = loop.job.observe()
    for _ in range(20):
        loop.job.run_for(2)
        fresh = loop.job.observe()
        old = {p.partition: p.current_offset for p in stale.partitions}
        partitions = [p.model_copy(update={"current_offset": old[p.partition]}) for p in fresh.partitions]
        analysis = loop.see(fresh.model_copy(update={"operators": stale.operators, "partitions": partitions}))
    assert analysis is not None
    assert analysis.lag_records.value == pytest.approx(40 * 300, rel=0.02)
    assert analysis.lag_seconds.value == pytest.approx(40, rel=0.1)


def test_the_first_interval_and_the_warm_up_teach_nothing() -> None:
    """Half speed during the first 10 s of a run leaves no trace in the capacity."""
    loop = Loop()
    loop.job.stages[1].subtask_rate = 350
    loop.watch(10)
    loop.job.stages[1].subtask_rate = 600
    assert loop.analyses[-1].has("warming-up")
    enrich = loop.watch(40).operator("enrich")
    assert enrich is not None
    assert enrich.true_processing_rate.value == pytest.approx(600, rel=0.02)
    assert [round(p.records_per_second) for p in enrich.capacities] == [600]


def test_no_capacity_before_a_whole_window() -> None:
    """With 10 s of warm-up and a window of 30 s no capacity is known at 36 s, and the reason is given."""
    enrich = Loop().watch(36).operator("enrich")
    assert enrich is not None
    assert enrich.true_processing_rate.value is None
    assert "window" in enrich.true_processing_rate.basis
    assert enrich.capacities == []
    assert enrich.input_rate.value == pytest.approx(300, rel=0.02)


def test_an_incomplete_reading_is_no_sample() -> None:
    """While the engine has not heard of all subtasks its sums are too low; they never enter a window."""
    loop = Loop()
    loop.watch(60)
    loop.job.run_for(2)
    fresh = loop.job.observe()
    torn = [r.model_copy(update={"complete": False, "records_in": 0, "busy_ms": 0.0}) for r in fresh.operators]
    analysis = loop.see(fresh.model_copy(update={"operators": torn}))
    assert analysis is not None
    assert analysis.has("metric-missing")
    enrich = loop.watch(10).operator("enrich")
    assert enrich is not None
    assert enrich.true_processing_rate.value == pytest.approx(600, rel=0.02)
    assert enrich.input_rate.value == pytest.approx(300, rel=0.02)


def test_busy_time_that_falls_for_a_while_does_not_mislead() -> None:
    """Flink books idle spells up to 5 s late, so accumulated busy time may step back; the slope barely changes."""
    loop = Loop()
    loop.watch(40)
    for i in range(20):
        loop.job.run_for(2)
        fresh = loop.job.observe()
        wrong = 2500.0 if i % 3 == 0 else 0.0
        late = [
            r.model_copy(update={"busy_ms": (r.busy_ms or 0) + wrong, "idle_ms": max(0.0, (r.idle_ms or 0) - wrong)})
            for r in fresh.operators
        ]
        analysis = loop.see(fresh.model_copy(update={"operators": late}))
    assert analysis is not None
    enrich = analysis.operator("enrich")
    assert enrich is not None
    assert enrich.true_processing_rate.value == pytest.approx(600, rel=0.15)
    assert enrich.utilization.value == pytest.approx(0.5, abs=0.08)


def test_a_counter_that_falls_within_a_run_starts_that_operators_window_again() -> None:
    """A task that restarted by itself counts from 0; the difference would be negative, the reading after it too high."""
    loop = Loop()
    loop.watch(60)
    stage = loop.job.stages[2]
    before = loop.job.stages[1].given
    loop.job.stages[1].given = 0.0
    stage.taken = 0.0
    analysis = loop.watch(4)
    sink = analysis.operator("sink: Writer")
    assert sink is not None
    assert sink.input_rate.value is None
    assert before > 0
    sink = loop.watch(20).operator("sink: Writer")
    assert sink is not None
    assert sink.input_rate.value == pytest.approx(300, rel=0.05)


def test_another_parallelism_is_another_run_whatever_the_engine_reports() -> None:
    """Windows never span two parallelisms, even if the run's start did not change."""
    loop = Loop()
    loop.watch(60)
    loop.job.stages[1].parallelism = 2
    analysis = loop.watch(2)
    enrich = analysis.operator("enrich")
    assert enrich is not None
    assert enrich.parallelism == 2
    assert enrich.true_processing_rate.value is None


def test_only_the_engines_clock_is_skewed_not_the_window() -> None:
    """An engine whose clock is an hour behind: the warm-up still ends 10 s after the run's start."""
    loop = Loop(Job())
    hour = timedelta(hours=1)
    for _ in range(30):
        loop.job.run_for(2)
        observed = loop.job.observe()
        assert observed.run is not None
        run = Run(attempt=0, running_since=observed.run.running_since - hour)
        analysis = loop.see(observed.model_copy(update={"run": run, "source_time": observed.observed_at - hour}))
    assert analysis is not None
    assert not analysis.has("warming-up")
    assert analysis.window.started_at is not None
    assert analysis.window.started_at > NOON


@pytest.mark.parametrize(("second_key", "same"), [("run-1", True), ("run-2", False)])
def test_a_key_identifies_a_run(second_key: str, same: bool) -> None:
    """A restarted monitor reads another start and another count of restarts of the same run: the window goes on."""
    loop = Loop()
    for i in range(40):
        loop.job.run_for(2)
        observed = loop.job.observe()
        assert observed.run is not None
        since = observed.run.running_since + timedelta(seconds=1 if i >= 35 else 0)
        run = Run(key=second_key if i >= 35 else "run-1", attempt=2 if i >= 35 else 0, running_since=since)
        analysis = loop.see(observed.model_copy(update={"run": run}))
    assert analysis is not None
    enrich = analysis.operator("enrich")
    assert enrich is not None
    assert (enrich.input_rate.value is not None and enrich.input_rate.samples > 5) is same


def test_slow_scrapes_still_teach() -> None:
    """At an interval of 30 s the window holds the fewest samples that make one."""
    loop = Loop(Job(interval=30))
    enrich = loop.watch(180).operator("enrich")
    assert enrich is not None
    assert enrich.true_processing_rate.value == pytest.approx(600, rel=0.02)
    assert loop.analyses[-1].arrival_rate.value == pytest.approx(300, rel=0.02)


def test_the_memory_given_is_never_changed() -> None:
    """`advance` is a function: the same memory and observation give the same answer twice."""
    loop = Loop()
    loop.watch(60)
    memory = loop.memory
    assert memory is not None
    loop.job.run_for(2)
    observed: Observation = loop.job.observe()
    before = memory.to_bytes()
    first = advance(memory, observed)
    assert memory.to_bytes() == before
    assert advance(AnalyzerState.from_bytes(before), observed) == first


@pytest.mark.thorough
def test_memory_stays_bounded() -> None:
    """The state does not grow after the first hour."""
    loop = Loop(Job(partitions=12, interval=60))
    loop.watch(3600)
    assert loop.memory is not None
    hour = len(loop.memory.to_bytes())
    loop.watch(3600)
    assert len(loop.memory.to_bytes()) < 1.2 * hour < 40_000
