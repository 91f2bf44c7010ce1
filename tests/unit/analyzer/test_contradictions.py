"""Readings that contradict each other: both numbers are reported, and only the doubtful value is unknown."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.analyzer.story import Job, Loop
from weir_contracts import Analysis, Observation

Edit = Callable[[Job, Observation], Observation]


def _seen(loop: Loop, seconds: float, edit: Edit) -> Analysis:
    last = None
    for _ in range(round(seconds / loop.job.interval)):
        loop.job.run_for(loop.job.interval)
        last = loop.see(edit(loop.job, loop.job.observe()))
    assert last is not None
    return last


def _source(observation: Observation, **changes: Any) -> Observation:
    source = observation.operators[0].model_copy(update=changes)
    return observation.model_copy(update={"operators": [source, *observation.operators[1:]]})


def _half(job: Job, observation: Observation) -> Observation:
    """Only two of four partitions are at the brokers that the policy names; waiting records are those of all."""
    known = [p.model_copy(update={"current_offset": None}) for p in observation.partitions[:2]]
    return _source(observation, pending_records=int(job.backlog)).model_copy(update={"partitions": known})


def _half_with_partitions(job: Job, observation: Observation) -> Observation:
    """The same, and the source reports its four partitions."""
    topology = observation.topology
    assert topology is not None
    first, *others = topology.operators
    operators = [first.model_copy(update={"source_partitions": 4}), *others]
    return _half(job, observation).model_copy(update={"topology": topology.model_copy(update={"operators": operators})})


def test_what_is_taken_in_without_lag_shrinking_arrives() -> None:
    """A source with one topic in two clusters, of which the policy names one, takes in twice what the known partitions get:
    demand is at least that, and the symptom has both numbers."""
    analysis = _seen(Loop(), 60, _half)
    assert analysis.arrival_rate.value is None
    assert analysis.arrival_rate.lower_bound == pytest.approx(300, rel=0.1)
    found = next(s for s in analysis.symptoms if s.code == "contradiction")
    assert "takes in 300 records/s by its counter and 150 by its offsets" in found.evidence
    enrich = analysis.operator("enrich")
    assert enrich is not None
    assert enrich.target_input_rate.lower_bound == pytest.approx(300, rel=0.1)


def test_pending_records_of_all_partitions_say_what_the_known_ones_do_not() -> None:
    """The source reports four partitions, of which two are known: `pendingRecords` of all clusters (FLINK-32102,
    github.com/apache/flink-kubernetes-operator/pull/598) and its throughput give the demand."""
    analysis = _seen(Loop(), 60, _half_with_partitions)
    assert analysis.arrival_rate.value == pytest.approx(300, rel=0.05)
    assert analysis.lag_records.value == pytest.approx(0, abs=5)
    assert not analysis.has("contradiction")


def test_partitions_that_a_source_reads_and_nobody_knows_leave_a_lower_bound() -> None:
    """A pattern of topics of which the brokers list some: without `pendingRecords` only the known part is certain."""
    loop = Loop()

    def some(job: Job, observation: Observation) -> Observation:
        found = _half_with_partitions(job, observation)
        return _source(found.model_copy(update={"partitions": observation.partitions[:2]}), pending_records=None)

    analysis = _seen(loop, 60, some)
    assert analysis.arrival_rate.value is None
    assert analysis.arrival_rate.lower_bound == pytest.approx(150, rel=0.05)
    assert analysis.lag_records.value is None
    assert analysis.lag_records.lower_bound == pytest.approx(0, abs=5)
    assert analysis.lag_records.basis == "the source reads 4 partitions, and the offsets of 2 are known"


def test_records_that_the_source_drops_are_no_demand_of_what_follows() -> None:
    """A filter in the source leaves one record of ten, and its counter counts these: capacities are measured in them, so
    demand is, too."""
    analysis = _seen(Loop(), 60, lambda _, o: _source(o, records_in=(o.operators[0].records_in or 0) // 10))
    assert analysis.arrival_rate.value == pytest.approx(30, rel=0.1)
    found = next(s for s in analysis.symptoms if s.code == "contradiction")
    assert "30.0 records/s by its counter and 300 by its offsets: perhaps it drops records" in found.evidence


@pytest.mark.parametrize(("before", "after"), [(900.0, 100.0), (900.0, 0.0), (500.0, 50.0), (50.0, 590.0)])
def test_a_load_that_changes_contradicts_nothing(before: float, after: float) -> None:
    """Whether lag is worked off or not: what is taken in was appended before."""
    loop = Loop(Job(rate=before))
    loop.watch(60)
    loop.job.rate = after
    for _ in range(60):
        assert not loop.now().has("contradiction")


def test_a_restart_contradicts_nothing() -> None:
    """The backlog of a restart is worked off faster than records arrive."""
    loop = Loop()
    loop.watch(60)
    loop.job.restart({"enrich": 2}, down_seconds=20)
    for _ in range(60):
        assert not loop.now().has("contradiction")


def test_partitions_that_a_backlogged_source_has_not_reached_contradict_nothing() -> None:
    """After a restart each source subtask works off one partition after another, and reports no position of the others.
    Their lag is as of a commit, which stands still for a while: that is no record taken in. Nor is the jump once the position
    is known."""
    loop = Loop(Job(rate=900.0))
    loop.watch(30)
    committed = {p.partition: p.current_offset for p in loop.job.observe().partitions[2:]}
    at = loop.job.observe().observed_at

    def half_reached(_: Job, observation: Observation) -> Observation:
        changes = {"current_offset": None, "committed_at": at}
        waiting = [
            p.model_copy(update={**changes, "committed_offset": committed[p.partition]})
            for p in observation.partitions[2:]
        ]
        return observation.model_copy(update={"partitions": [*observation.partitions[:2], *waiting]})

    for _ in range(20):
        analysis = _seen(loop, loop.job.interval, half_reached)
        assert not analysis.has("contradiction")
    for _ in range(30):
        analysis = loop.now()
        assert not analysis.has("contradiction")
        assert analysis.arrival_rate.value == pytest.approx(900, rel=0.05)


def test_a_group_that_another_job_commits_to_does_not_hide_the_lag() -> None:
    """`signals.kafka.groupId` is that of a job that keeps up: its commits are at the log's end, while this job's positions
    move 30 records/s and lag more and more."""
    loop = Loop()
    loop.watch(60)
    loop.job.stages[1].subtask_rate = 30.0

    def another_group(_: Job, observation: Observation) -> Observation:
        changes = [
            {"committed_offset": p.log_end_offset, "committed_at": observation.observed_at}
            for p in observation.partitions
        ]
        partitions = [p.model_copy(update=c) for p, c in zip(observation.partitions, changes, strict=True)]
        return observation.model_copy(update={"partitions": partitions})

    analysis = _seen(loop, 40, another_group)
    assert analysis.lag_records.value == pytest.approx(40 * 270, rel=0.02)
    found = next(s for s in analysis.symptoms if s.code == "contradiction")
    assert "check signals.kafka.groupId" in found.evidence
    assert found.numbers["committed_offsets"] == pytest.approx(100 * 300, rel=0.01)


@pytest.mark.parametrize(("busy_factor", "is_known"), [(1.0, True), (1.2, True), (3.0, False)])
def test_busy_time_of_more_than_a_second_in_a_second_is_unknown(busy_factor: float, is_known: bool) -> None:
    """`enrich` is always busy. Its accumulated busy time grows up to 3 s in a second, and its other times are unknown: then
    its utilization is that of the engine's gauge."""
    loop = Loop(Job(rate=900))

    def busier(_: Job, observation: Observation) -> Observation:
        first, enrich, last = observation.operators
        changes = {"busy_ms": (enrich.busy_ms or 0.0) * busy_factor, "idle_ms": None, "backpressured_ms": None}
        changes["busy_share_mean"] = 0.4
        return observation.model_copy(update={"operators": [first, enrich.model_copy(update=changes), last]})

    enrich = _seen(loop, 60, busier).operator("enrich")
    assert enrich is not None
    assert enrich.utilization.value == pytest.approx(1.0 if is_known else 0.4)
