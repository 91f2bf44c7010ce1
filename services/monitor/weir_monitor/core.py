"""Core of the monitor: `observe(readings, now)` makes the observation of one scrape and the brokers' offsets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import floor
from typing import NamedTuple

from weir_contracts import (
    Deployment,
    Observation,
    Operator,
    OperatorReading,
    Problem,
    Run,
    ScalingPolicy,
    Topology,
    observation_id,
    off_level,
)
from weir_engines.scrape import PartitionOffsets, Scrape

_MAX_PROBLEMS = 100
_MAX_PARTITIONS = 10_000
_JUMP_SHARE = 0.15
"""Share of the expected records by which more have to arrive for a jump."""


@dataclass(frozen=True)
class Readings:
    """Readings of one scrape of one application."""

    policy: ScalingPolicy
    scrape: Scrape
    partitions: tuple[tuple[str, PartitionOffsets], ...] = ()
    """Name of the source operator, and partition."""
    problems: tuple[Problem, ...] = ()
    scrape_seconds: float | None = None
    previous: Observation | None = None
    """Last observation of the application with a topology, if this monitor made it."""
    signals: Mapping[str, float | None] = field(default_factory=dict)
    """Readings of other collectors by name; None: unknown."""


def observe(readings: Readings, now: datetime) -> Observation:
    """Return the observation of one application at `now`, the monitor's clock at the end of the scrape."""
    scrape, previous = readings.scrape, readings.previous
    run = _run(scrape, previous)
    same_run = previous is not None and previous.run is not None and run is not None and run.is_same(previous.run)
    operators, fallen = _checked(scrape.operators, previous) if previous and same_run else (list(scrape.operators), [])
    partitions = [
        p.reading(name, current_offset=_position(scrape, name, p))
        for name, p in readings.partitions
        if name in scrape.sources
    ]
    partitions += scrape.partitions
    application = readings.policy.application
    return Observation(
        id=observation_id(application, now),
        application=application,
        observed_at=now,
        source_time=scrape.source_time,
        scrape_seconds=readings.scrape_seconds,
        policy=readings.policy,
        status=scrape.status,
        message=scrape.message,
        run=run,
        deployment=_deployment(scrape.deployment, readings.policy),
        topology=_topology(readings),
        operators=operators,
        partitions=partitions[:_MAX_PARTITIONS],
        signals=dict(readings.signals),
        problems=[*_problems(readings, len(partitions)), *fallen][:_MAX_PROBLEMS],
    )


def _position(scrape: Scrape, source: str, p: PartitionOffsets) -> int | None:
    return None if p.has_stale_position else scrape.sources[source].get((p.metric_topic, p.partition))


def next_due(due: float, now: float, interval_seconds: float) -> tuple[float, int]:
    """Return when the next scrape is due, in monotonic seconds, and how many were skipped because of a long one.

    The cadence stays fixed: skipped scrapes are not made up for.
    """
    missed = max(0, floor((now - due) / interval_seconds))
    return due + (missed + 1) * interval_seconds, missed


class Appended(NamedTuple):
    """Records that were appended to an application's partitions between two observations, and the seconds between."""

    records: int
    seconds: float


def appended(before: Observation | None, now: Observation) -> Appended | None:
    """Return what was appended to the partitions that both observations know; None if there is none."""
    if before is None or now.observed_at <= before.observed_at:
        return None
    ends = {(p.operator, p.topic, p.partition): p.log_end_offset for p in before.partitions}
    grown = [
        p.log_end_offset - end
        for p in now.partitions
        if p.log_end_offset is not None and (end := ends.get((p.operator, p.topic, p.partition))) is not None
    ]
    return Appended(sum(grown), (now.observed_at - before.observed_at).total_seconds()) if grown else None


def has_jumped(first: Appended | None, second: Appended | None, last: Appended | None) -> bool:
    """Return whether arrivals rose in the last of three intervals, after two at the same rate.

    Arrivals that vary from one interval to the next have no jump, as where a producer appends in batches.
    """
    if first is None or second is None or last is None:
        return False
    level = (first.records + second.records) / (first.seconds + second.seconds)
    off = [off_level(each.records, level * each.seconds, _JUMP_SHARE) for each in (first, second, last)]
    return off == [0, 0, 1]


def _run(scrape: Scrape, previous: Observation | None) -> Run | None:
    """Return the run with the first number of restarts that was read: a late number must not look like another run."""
    before = previous.run if previous else None
    if scrape.run is not None and before is not None and before.attempt is not None and scrape.run.is_same(before):
        return before
    return scrape.run


def _checked(
    operators: Sequence[OperatorReading], previous: Observation
) -> tuple[list[OperatorReading], list[Problem]]:
    """Mark readings with a counter that fell as incomplete, and report both values.

    Counters only grow within a run: after a fall, the counters of one run came with the graph of another.
    """
    before = {reading.operator: reading for reading in previous.operators}
    checked, problems = [], []
    for reading in operators:
        fell = _fell(before[reading.operator], reading) if reading.operator in before else ""
        if fell and before[reading.operator].complete:
            problems.append(Problem(where=f"counters of {reading.operator}"[:300], what=fell))
        checked.append(reading.model_copy(update={"complete": False}) if fell else reading)
    return checked, problems


def _fell(before: OperatorReading, now: OperatorReading) -> str:
    """Return which counter fell within the run, with both values; empty if none did."""
    for name in ("records_in", "records_out"):
        old, new = getattr(before, name), getattr(now, name)
        if old is not None and new is not None and new < old:
            return f"{name} fell from {old:,} to {new:,} within a run"
    return ""


def _problems(readings: Readings, partitions: int) -> list[Problem]:
    problems = [*readings.scrape.problems, *readings.problems, *_group_problem(readings)]
    if partitions > _MAX_PARTITIONS:
        what = f"{partitions} partitions are more than an observation holds; the first {_MAX_PARTITIONS} are in it"
        problems.insert(0, Problem(where="partitions", what=what))
    return problems[:_MAX_PROBLEMS]


def _group_problem(readings: Readings) -> list[Problem]:
    """Report the policy's consumer group if the application would have committed to it by now and has not."""
    kafka, scrape = readings.policy.spec.signals.kafka, readings.scrape
    if kafka is None or kafka.group_id is None or not readings.partitions or not scrape.commits_expected:
        return []
    if any(p.committed_offset is not None for _, p in readings.partitions) or any(
        p.where.startswith("commit") for p in readings.problems
    ):
        return []
    positions = [at for source in scrape.sources.values() for at in source.values()]
    if positions and all(at is None for at in positions):
        return []  # idle: the sources have read nothing to commit
    topics = ", ".join(sorted({p.topic for _, p in readings.partitions})[:5])
    what = (
        f"does not exist or has committed nothing for {topics}, {scrape.commits_expected}: "
        "check spec.signals.kafka.groupId"
    )
    return [Problem(where=f"group {kafka.group_id}", what=what)]


def _topology(readings: Readings) -> Topology | None:
    """Return the graph with the number of each source's partitions.

    The brokers also list partitions that a source has not read from yet. While the application does not run, the source
    reports none, and the previous number still applies.
    """
    topology, previous = readings.scrape.topology, readings.previous
    if topology is None:
        return None
    before = (
        {o.name: o.source_partitions for o in previous.topology.operators} if previous and previous.topology else {}
    )
    listed: dict[str, int] = {}
    for name, _ in readings.partitions:
        listed[name] = listed.get(name, 0) + 1

    def counted(operator: Operator) -> Operator:
        if operator.name not in readings.scrape.sources:
            return operator
        count = max(listed.get(operator.name, 0), operator.source_partitions or 0) or before.get(operator.name)
        return operator.model_copy(update={"source_partitions": count})

    return topology.model_copy(update={"operators": [counted(operator) for operator in topology.operators]})


def _deployment(deployment: Deployment | None, policy: ScalingPolicy) -> Deployment | None:
    """Return the deployment without its request if instances are scaled: such a job requests every slot.

    Workloads of Kubernetes have a request of their own: their number of replicas.
    """
    if deployment is None or policy.spec.target.unit is None or deployment.workloads:
        return deployment
    return deployment.model_copy(update={"requested": None, "requested_lower": None})
