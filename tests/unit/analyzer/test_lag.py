"""Lag in records and seconds, and its sources."""

from datetime import timedelta
from typing import Any

import pytest

from tests.unit.analyzer.story import NOON, Job, Loop
from weir_contracts import Analysis, Checkpoints, Observation, PartitionReading


def _with_partitions(observation: Observation, **changes: Any) -> Observation:
    partitions = [p.model_copy(update=changes) for p in observation.partitions]
    return observation.model_copy(update={"partitions": partitions})


def _standing_still(loop: Loop, seconds: float, **changes: Any) -> Analysis:
    """Nothing is processed for a while, though the run goes on and counts its idle time."""
    loop.job.stages[1].subtask_rate = 1e-9
    last = None
    for _ in range(round(seconds / loop.job.interval)):
        loop.job.run_for(loop.job.interval)
        last = loop.see(_with_partitions(loop.job.observe(), **changes))
    assert last is not None
    return last


def test_the_oldest_waiting_record_sets_the_lag_in_seconds() -> None:
    """After 40 s of standstill the oldest waiting record is 40 s old, whatever came after it."""
    loop = Loop()
    loop.watch(60)
    loop.job.rate = 3000
    analysis = _standing_still(loop, 40)
    assert analysis.lag_seconds.value == pytest.approx(40, abs=2.5)
    assert analysis.lag_records.value == pytest.approx(40 * 3000, rel=0.01)


def test_the_worst_partition_counts() -> None:
    """One partition in twelve stands still: records add up, seconds are its own."""
    loop = Loop(Job(partitions=12))
    loop.watch(60)
    held = loop.job.positions[3]
    for _ in range(10):
        loop.job.run_for(2)
        observed = loop.job.observe()
        partitions = [
            p.model_copy(update={"current_offset": int(held)}) if p.partition == 3 else p for p in observed.partitions
        ]
        analysis = loop.see(observed.model_copy(update={"partitions": partitions}))
    assert analysis is not None
    assert analysis.lag_seconds.value == pytest.approx(20, abs=2.5)
    assert analysis.lag_records.value == pytest.approx(20 * 300 / 12, rel=0.05)


def test_half_an_hour_of_lag_is_read_off_the_history() -> None:
    """The decimated history reaches back far enough, and its age is right within a tenth."""
    loop = Loop(Job(interval=20))
    loop.watch(60)
    analysis = _standing_still(loop, 1800)
    assert analysis.lag_seconds.value == pytest.approx(1800, rel=0.1)
    assert analysis.lag_seconds.confidence >= 0.5


def test_lag_from_before_the_history_is_extrapolated_with_low_confidence() -> None:
    """An application first seen far behind: at the rate seen, 90,000 records are 300 s."""
    job = Job(ends=[22_500.0] * 4, positions=[0.0] * 4)
    loop = Loop(job)
    job.stages[1].subtask_rate = 1e-9
    analysis = loop.watch(20)
    assert analysis.lag_seconds.value == pytest.approx(320, rel=0.05)
    assert analysis.lag_seconds.confidence <= 0.3


def test_a_looked_up_append_time_beats_interpolation() -> None:
    """Where the monitor has read the waiting record itself, its timestamp is the truth, from the first scrape on."""
    job = Job(ends=[1000.0] * 4, positions=[0.0] * 4)
    job.stages[1].subtask_rate = 1e-9
    loop = Loop(job)
    job.run_for(2)
    analysis = loop.see(_with_partitions(job.observe(), position_appended_at=NOON - timedelta(hours=5)))
    assert analysis is not None
    assert analysis.lag_seconds.value == pytest.approx(5 * 3600 + 2, abs=0.1)


def test_at_the_end_of_the_log_nothing_lags() -> None:
    """A position at the log's end is 0, also before any history exists; so is one among records of open transactions."""
    loop = Loop()
    loop.job.run_for(2)
    observed = loop.job.observe()
    ahead = [
        p.model_copy(
            update={"current_offset": (p.log_end_offset or 0) + 5 * n, "high_watermark": (p.log_end_offset or 0) + 20}
        )
        for n, p in enumerate(observed.partitions)
    ]
    analysis = loop.see(observed.model_copy(update={"partitions": ahead}))
    assert analysis is not None
    assert analysis.lag_records.value == 0
    assert analysis.lag_seconds.value == 0
    assert analysis.expected_latency_seconds.value is None  # no throughput is known yet


def test_an_unknown_position_is_unknown_lag() -> None:
    """No position, no commit, no pendingRecords: `None`, with the reason, and a symptom."""
    loop = Loop()
    loop.watch(20)
    analysis = _standing_still(loop, 4, current_offset=None)
    assert analysis.lag_records.value is None
    assert analysis.lag_seconds.value is None
    assert "unknown" in analysis.lag_records.basis
    assert analysis.has("metric-missing")


def test_an_unknown_log_end_is_unknown_lag() -> None:
    """Brokers that do not answer leave lag and its age unknown; demand falls back to what is processed."""
    loop = Loop()
    loop.watch(40)
    for _ in range(10):
        loop.job.run_for(2)
        analysis = loop.see(_with_partitions(loop.job.observe(), log_end_offset=None))
    assert analysis is not None
    assert analysis.lag_records.value is None
    assert analysis.lag_seconds.value is None


def test_an_empty_partition_lags_by_nothing() -> None:
    """A partition without a record has no position to be read from, and needs none."""
    loop = Loop()
    loop.watch(20)
    loop.job.run_for(2)
    observed = loop.job.observe()
    empty = PartitionReading(
        operator="Source: orders", topic="orders", partition=9, log_start_offset=0, log_end_offset=0
    )
    analysis = loop.see(observed.model_copy(update={"partitions": [*observed.partitions, empty]}))
    assert analysis is not None
    assert analysis.lag_records.value == 0
    assert analysis.sources[0].partitions == 5


def test_committed_offsets_stand_in_and_their_age_is_taken_off() -> None:
    """Commits every 10 s make a sawtooth; as of the commit the job kept up, so there is no lag."""
    loop = Loop()
    loop.watch(40)
    committed, at = [0] * 4, NOON
    for i in range(15):
        loop.job.run_for(2)
        observed = loop.job.observe()
        if i % 5 == 0:
            committed, at = [p.current_offset or 0 for p in observed.partitions], observed.observed_at
        partitions = [
            p.model_copy(
                update={"current_offset": None, "committed_offset": committed[p.partition], "committed_at": at}
            )
            for p in observed.partitions
        ]
        analysis = loop.see(observed.model_copy(update={"partitions": partitions}))
        assert analysis is not None
        assert analysis.lag_seconds.value == pytest.approx(0, abs=1.1)
        assert analysis.lag_records.value == pytest.approx(0, abs=30)
    assert "fallback" in analysis.lag_seconds.basis
    assert analysis.lag_seconds.confidence <= 0.5


def test_a_position_that_was_overtaken_by_a_commit_is_not_believed() -> None:
    """The engine lost a worker: positions stand still for minutes, while commits of its checkpoints move on: no lag."""
    loop = Loop()
    loop.watch(40)
    frozen = [int(position) for position in loop.job.positions]
    committed, at, analysis = list(frozen), NOON, None
    for i in range(60):
        loop.job.run_for(2)
        observed = loop.job.observe()
        if i % 5 == 0:
            committed, at = [p.current_offset or 0 for p in observed.partitions], observed.observed_at
        partitions = [
            p.model_copy(
                update={
                    "current_offset": frozen[p.partition],
                    "committed_offset": committed[p.partition],
                    "committed_at": at,
                }
            )
            for p in observed.partitions
        ]
        analysis = loop.see(observed.model_copy(update={"partitions": partitions}))
    assert analysis is not None
    assert analysis.lag_seconds.value == pytest.approx(0, abs=1.1)
    assert "committed offset" in analysis.lag_seconds.basis


def test_while_nothing_runs_the_commit_is_where_processing_resumes() -> None:
    """During an outage the commit's age is not taken off: what waits is as old as it is."""
    loop = Loop()
    loop.watch(60)
    committed = [int(x) for x in loop.job.positions]
    at = NOON + timedelta(seconds=loop.job.t)
    loop.job.status, loop.job.state = "not_running", "FAILING"
    for _ in range(10):
        loop.job.run_for(2)
        observed = loop.job.observe()
        partitions = [
            p.model_copy(update={"committed_offset": committed[p.partition], "committed_at": at})
            for p in observed.partitions
        ]
        analysis = loop.see(observed.model_copy(update={"partitions": partitions}))
    assert analysis is not None
    assert analysis.lag_seconds.value == pytest.approx(20, abs=2.5)
    assert analysis.lag_records.value == pytest.approx(20 * 300, rel=0.05)
    assert analysis.arrival_rate.value == pytest.approx(300, rel=0.02)


class _Checkpoints:
    """Scrapes of a job whose checkpoints are known; its offsets were committed at one of them, `committed_at`."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.job = loop, loop.job
        self.completed_at = self.committed_at = 0.0
        self.committed = [0] * loop.job.partitions

    def complete(self, *, is_committed: bool = True) -> None:
        """A checkpoint that took half a second is completed."""
        self.completed_at = self.job.t
        if is_committed:
            self.committed_at, self.committed = self.job.t, [int(x) for x in self.job.positions]

    def see(self, **changes: Any) -> Analysis:
        observed = self.job.observe()
        assert observed.deployment is not None
        committed_at = NOON + timedelta(seconds=self.committed_at)
        partitions = [
            p.model_copy(
                update={"committed_offset": self.committed[p.partition], "committed_at": committed_at, **changes}
            )
            for p in observed.partitions
        ]
        points = Checkpoints(last_completed_at=NOON + timedelta(seconds=self.completed_at), last_duration_seconds=0.5)
        deployment = observed.deployment.model_copy(update={"checkpoints": points})
        analysis = self.loop.see(observed.model_copy(update={"partitions": partitions, "deployment": deployment}))
        assert analysis is not None
        return analysis

    def watch(self, seconds: float, **changes: Any) -> Analysis:
        for _ in range(round(seconds / self.job.interval)):
            self.job.run_for(self.job.interval)
            analysis = self.see(**changes)
        return analysis


def test_a_rescale_resumes_at_the_checkpoint_before_it_whose_offsets_were_not_committed() -> None:
    """The job restarts right after a checkpoint. The latest commit is of the one before, ten seconds earlier; the
    positions were read two seconds before."""
    story = _Checkpoints(Loop())
    story.watch(50)
    story.complete()
    story.watch(10)
    story.job.run_for(1)
    story.complete(is_committed=False)
    story.job.status, story.job.state = "not_running", "RESTARTING"
    story.job.run_for(1)
    down = story.see()
    assert down.lag_seconds.value == pytest.approx(2, abs=0.5)
    assert "last checkpoint, where processing resumes" in down.lag_seconds.basis
    story.job.restart({"enrich": 2}, down_seconds=1)
    fresh = story.see(current_offset=None)
    assert fresh.lag_seconds.value == pytest.approx(3, abs=0.5)
    assert "last checkpoint, fallback: no position yet" in fresh.lag_seconds.basis
    assert fresh.lag_seconds.confidence <= 0.5


def test_a_failure_resumes_where_the_commit_is() -> None:
    """The last checkpoint is the committed one: what was read after it does not count."""
    story = _Checkpoints(Loop())
    story.watch(50)
    story.complete()
    story.watch(10)
    story.job.status, story.job.state = "not_running", "RESTARTING"
    story.job.run_for(2)
    analysis = story.see()
    assert analysis.lag_seconds.value == pytest.approx(12, abs=0.5)
    assert "committed offset, where processing resumes" in analysis.lag_seconds.basis


def test_a_checkpoint_of_the_next_run_has_not_what_the_failed_one_had_read() -> None:
    """The run failed 10 s after its checkpoint, and the next one made its first before it was seen."""
    story = _Checkpoints(Loop())
    story.watch(50)
    story.complete()
    story.watch(10)
    story.job.positions = [float(x) for x in story.committed]
    story.job.stages[1].subtask_rate = 1e-9
    story.job.restart(down_seconds=1)
    story.job.run_for(1)
    story.complete(is_committed=False)
    analysis = story.see(current_offset=None)
    assert analysis.lag_seconds.value == pytest.approx(12, abs=0.5)


def test_a_topic_that_was_made_again_is_not_read_from_the_old_checkpoint() -> None:
    """The log ends before the position of the checkpoint."""
    story = _Checkpoints(Loop())
    story.watch(50)
    story.complete(is_committed=False)
    story.watch(2)
    story.job.ends, story.job.positions = [50.0] * 4, [0.0] * 4
    story.job.status, story.job.state = "not_running", "RESTARTING"
    story.job.run_for(0.1)
    assert story.see().lag_records.value == pytest.approx(4 * 50, abs=40)


def test_pending_records_serve_where_there_is_no_position() -> None:
    """A source that only reports pending records: seconds come from spreading them over the partitions."""
    loop = Loop()
    loop.watch(40)
    loop.job.stages[1].subtask_rate = 1e-9
    for _ in range(10):
        loop.job.run_for(2)
        observed = loop.job.observe()
        readings = [
            observed.operators[0].model_copy(update={"pending_records": int(loop.job.backlog)}),
            *observed.operators[1:],
        ]
        bare = _with_partitions(observed, current_offset=None)
        analysis = loop.see(bare.model_copy(update={"operators": readings}))
    assert analysis is not None
    assert analysis.lag_records.value == pytest.approx(20 * 300, rel=0.01)
    assert analysis.lag_seconds.value == pytest.approx(20, abs=2.5)
    assert "pendingRecords" in analysis.lag_seconds.basis


@pytest.mark.parametrize(
    ("pending", "busy", "grows", "drained"),
    [(0, 0.0, False, True), (3, 0.0, False, False), (0, 0.6, False, False), (0, 0.0, True, False)],
    ids=["nothing pends", "records pend", "the source is busy", "the log grows on"],
)
def test_a_source_without_pending_records_is_not_behind_a_marker(
    pending: int, busy: float, grows: bool, drained: bool
) -> None:
    """Three offsets follow each position, and the monitor may not look at them. Flink's consumer passes markers of
    transactions, so that its pendingRecords are 0; positions and that metric may also stand still with the source."""
    loop = Loop()
    loop.watch(60)
    loop.job.rate = 300 if grows else 0
    loop.job.stages[1].subtask_rate = 600 if not grows else 1e-9
    for _ in range(20):
        loop.job.run_for(2)
        observed = loop.job.observe()
        source = observed.operators[0].model_copy(
            update={"pending_records": pending, "busy_share_mean": busy, "backpressure_share_mean": 0.0}
        )
        partitions = [p.model_copy(update={"log_end_offset": (p.log_end_offset or 0) + 3}) for p in observed.partitions]
        operators = [source, *observed.operators[1:]]
        analysis = loop.see(observed.model_copy(update={"operators": operators, "partitions": partitions}))
    assert analysis is not None
    assert (analysis.lag_records.value == 0) is drained
    assert analysis.has("stalled") is not drained


def test_without_brokers_pending_records_and_throughput_give_demand() -> None:
    """No partitions at all: demand is what is processed plus what piles up, at less confidence."""
    loop = Loop()
    loop.job.rate = 900
    for _ in range(30):
        loop.job.run_for(2)
        observed = loop.job.observe()
        readings = [
            observed.operators[0].model_copy(update={"pending_records": int(loop.job.backlog)}),
            *observed.operators[1:],
        ]
        analysis = loop.see(observed.model_copy(update={"operators": readings, "partitions": []}))
    assert analysis is not None
    assert analysis.arrival_rate.value == pytest.approx(900, rel=0.05)
    assert "throughput" in analysis.arrival_rate.basis
    assert analysis.arrival_rate.confidence <= 0.6
    assert analysis.lag_seconds.value == pytest.approx(60 * 300 / 600, rel=0.1)
    assert analysis.lag_seconds.confidence <= 0.5


def test_retention_may_delete_what_was_waiting() -> None:
    """Deleted records do not wait: lag counts from the log's start."""
    loop = Loop()
    loop.watch(30)
    loop.job.stages[1].subtask_rate = 1e-9
    for _ in range(10):
        loop.job.run_for(2)
        observed = loop.job.observe()
        partitions = [
            p.model_copy(update={"log_start_offset": (p.log_end_offset or 0) - 100}) for p in observed.partitions
        ]
        analysis = loop.see(observed.model_copy(update={"partitions": partitions}))
    assert analysis is not None
    assert analysis.lag_records.value == 400
    assert analysis.lag_seconds.value == pytest.approx(400 / 300, abs=0.5)


def test_a_recreated_topic_starts_its_history_again() -> None:
    """Log ends that fall mean another topic of the same name: no negative demand, no ages from the old one."""
    loop = Loop()
    loop.watch(40)
    loop.job.ends = [10.0] * 4
    loop.job.positions = [0.0] * 4
    analysis = loop.watch(2)
    assert analysis.arrival_rate.value is None or analysis.arrival_rate.value >= 0
    analysis = loop.watch(10)
    assert analysis.arrival_rate.value == pytest.approx(300, rel=0.05)
    assert analysis.lag_seconds.value is not None
    assert analysis.lag_seconds.value < 15
