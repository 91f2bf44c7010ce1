"""`observe(readings, now) -> Observation`: what was read at the border, put together as the loop's language. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import floor

from weir_contracts import (
    Checkpoints,
    Deployment,
    Observation,
    ObservationStatus,
    OperatorReading,
    PartitionReading,
    Problem,
    Run,
    ScalingPolicy,
    Slots,
    Topology,
    observation_id,
)

from engines.flink.metrics import SourceOffsets
from engines.flink.rescale import CheckpointFacts, Requirements, bounds_by_name, rescale_settings
from engines.flink.topology import Job, VertexReading

_MOST_PROBLEMS = 100
_MOST_PARTITIONS = 10_000


@dataclass(frozen=True)
class Shares:
    """Flink's own 60 s gauges of a vertex, as shares of time; None where it does not report them."""

    busy_mean: float | None = None
    busy_max: float | None = None
    backpressure_mean: float | None = None
    backpressure_max: float | None = None


@dataclass(frozen=True)
class FlinkReadings:
    """One scrape of a Flink cluster. By vertex id unless named otherwise.

    `reachable` is False where nothing can be said of the job; `job` is None where the cluster answers and has none.
    """

    job: Job | None = None
    reachable: bool = True
    message: str = ""
    shares: Mapping[str, Shares] = field(default_factory=dict)
    sources: Mapping[str, SourceOffsets] = field(default_factory=dict)
    requirements: Requirements | None = None
    checkpoints: CheckpointFacts | None = None
    checkpoint_interval_seconds: float | None = None
    """None: off or unknown."""
    checkpointing_off: bool = False
    slots_total: int | None = None
    slots_available: int | None = None
    restarts: int | None = None
    configuration: Mapping[str, str] | None = None
    version: str | None = None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class PartitionOffsets:
    """One partition as the brokers tell it; `metric_topic` is its topic's name in Flink's metrics."""

    topic: str
    metric_topic: str
    partition: int
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    committed_offset: int | None = None
    committed_at: datetime | None = None
    position_appended_at: datetime | None = None


@dataclass(frozen=True)
class Readings:
    """All that one scrape of one application gave."""

    policy: ScalingPolicy
    flink: FlinkReadings
    partitions: tuple[tuple[str, PartitionOffsets], ...] = ()
    """Source vertex id and partition."""
    problems: tuple[Problem, ...] = ()
    scrape_seconds: float | None = None
    previous: Observation | None = None
    """The application's last observation, if this monitor made it."""


def observe(readings: Readings, now: datetime) -> Observation:
    """One application at one instant. `now` is the monitor's clock at the end of the scrape."""
    flink, previous = readings.flink, readings.previous
    status, message = _status(flink)
    job = flink.job
    names = job.names() if job else {}
    topology = _topology(job, names, readings) if job else None
    run = _run(job, flink, previous) if job and status == "running" else None
    sources = {vertex.id for vertex in job.sources} if job else set()
    operators = [_operator(v, names[v.id], flink, job_source=v.id in sources) for v in job.vertices] if job else []
    partitions = [_partition(names[vid], p, flink.sources.get(vid)) for vid, p in readings.partitions if vid in names]
    application = readings.policy.application
    return Observation(
        id=observation_id(application, now),
        application=application,
        observed_at=now,
        source_time=job.now if job else None,
        scrape_seconds=readings.scrape_seconds,
        policy=readings.policy,
        status=status,
        message=message[:1000],
        run=run,
        deployment=_deployment(job, readings, topology) if job and topology else None,
        topology=topology,
        operators=_not_fallen(operators, previous) if previous and run and previous.run == run else operators,
        partitions=partitions[:_MOST_PARTITIONS],
        problems=_problems(readings, len(partitions)),
    )


def next_due(due: float, now: float, interval_seconds: float) -> tuple[float, int]:
    """When the next scrape is due, in monotonic seconds, and how many were missed because the last took too long.

    The cadence stays fixed: what was missed is left out, never made up for in a burst.
    """
    missed = max(0, floor((now - due) / interval_seconds))
    return due + (missed + 1) * interval_seconds, missed


def _status(flink: FlinkReadings) -> tuple[ObservationStatus, str]:
    if not flink.reachable:
        return "unreachable", flink.message or "the cluster does not answer"
    if flink.job is None:
        return "not_found", flink.message or "the cluster has no such job"
    if not flink.job.all_running:
        waiting = sum(1 for vertex in flink.job.vertices if not vertex.running)
        detail = (
            f", {waiting} of {len(flink.job.vertices)} vertices do not run yet" if flink.job.state == "RUNNING" else ""
        )
        return "not_running", f"the job is {flink.job.state}{detail}"
    return "running", flink.message or "RUNNING"


def _run(job: Job, flink: FlinkReadings, previous: Observation | None) -> Run | None:
    """The run, told by when it began. The count of restarts comes with the metrics, so seconds late: as first seen in a run,
    it stays, or one run would look like two."""
    if job.running_since is None:
        return None
    known = previous.run if previous and previous.deployment and previous.deployment.job_id == job.id else None
    if known is not None and known.running_since == job.running_since and known.attempt is not None:
        return known
    return Run(attempt=flink.restarts, running_since=job.running_since)


def _not_fallen(operators: Sequence[OperatorReading], previous: Observation) -> list[OperatorReading]:
    """Within a run counters only grow. Where one fell, counters of one run came with the graph of another: no sample."""
    before = {reading.operator: reading for reading in previous.operators}
    return [
        reading.model_copy(update={"complete": False})
        if reading.operator in before and _fell(before[reading.operator], reading)
        else reading
        for reading in operators
    ]


def _fell(before: OperatorReading, now: OperatorReading) -> bool:
    pairs = ((before.records_in, now.records_in), (before.records_out, now.records_out))
    return any(old is not None and new is not None and new < old for old, new in pairs)


def _problems(readings: Readings, partitions: int) -> list[Problem]:
    problems = [*readings.flink.problems, *readings.problems, *_group_problem(readings)]
    if partitions > _MOST_PARTITIONS:
        what = f"{partitions} partitions are more than an observation holds; the first {_MOST_PARTITIONS} are in it"
        problems.insert(0, Problem(where="partitions", what=what))
    return problems[:_MOST_PROBLEMS]


def _group_problem(readings: Readings) -> list[Problem]:
    """The policy's consumer group, if the job would have committed to it by now and nothing is there.

    Flink commits at checkpoints what a source has read, so a young or idle job says nothing about its group's name.
    """
    kafka, flink = readings.policy.spec.signals.kafka, readings.flink
    if kafka is None or kafka.group_id is None or not readings.partitions:
        return []
    if any(p.committed_offset is not None for _, p in readings.partitions) or any(
        p.where.startswith("commit") for p in readings.problems
    ):
        return []
    positions = [at for source in flink.sources.values() for at in source.positions.values()]
    completed = flink.checkpoints.completed if flink.checkpoints else None
    if (positions and all(at is None for at in positions)) or not (completed or flink.checkpointing_off):
        return []
    topics = ", ".join(sorted({p.topic for _, p in readings.partitions})[:5])
    because = f"after {completed} checkpoints" if completed else "as the job makes no checkpoints"
    what = f"does not exist or has committed nothing for {topics}, {because}: check spec.signals.kafka.groupId"
    return [Problem(where=f"group {kafka.group_id}"[:300], what=what[:1000])]


def _topology(job: Job, names: Mapping[str, str], readings: Readings) -> Topology | None:
    if not job.vertices:
        return None
    return job.topology({v.id: _source_partitions(v.id, names[v.id], readings) for v in job.sources})


def _source_partitions(vertex_id: str, name: str, readings: Readings) -> int | None:
    """What the brokers say; a source that has not read from a partition yet has no metric of it.

    While the job does not run the source says nothing, but still has as many as before.
    """
    known = sum(1 for vid, _ in readings.partitions if vid == vertex_id)
    told = readings.flink.sources.get(vertex_id)
    count = max(known, len(told.positions) if told else 0)
    if count or not readings.previous or not readings.previous.topology:
        return count or None
    return next((o.source_partitions for o in readings.previous.topology.operators if o.name == name), None)


def _operator(vertex: VertexReading, name: str, flink: FlinkReadings, *, job_source: bool) -> OperatorReading:
    shares = flink.shares.get(vertex.id, Shares())
    told = flink.sources.get(vertex.id)
    records_in = vertex.read_records
    if job_source and not records_in:
        # Sources count nothing as read: their own counter, else what they sent. A counter that could not be asked for is
        # unknown: to stand another in for one scrape would look like a jump.
        records_in = None if told is None else told.records_in if told.records_in is not None else vertex.write_records
    return OperatorReading(
        operator=name,
        parallelism=vertex.parallelism,
        complete=vertex.complete,
        records_in=records_in,
        records_out=vertex.write_records,
        busy_ms=vertex.busy_ms,
        backpressured_ms=vertex.backpressured_ms,
        idle_ms=vertex.idle_ms,
        busy_share_mean=shares.busy_mean,
        busy_share_max=shares.busy_max,
        backpressure_share_mean=shares.backpressure_mean,
        backpressure_share_max=shares.backpressure_max,
        pending_records=told.pending_records if told else None,
    )


def _partition(operator: str, partition: PartitionOffsets, told: SourceOffsets | None) -> PartitionReading:
    position = told.positions.get((partition.metric_topic, partition.partition)) if told else None
    return PartitionReading(
        operator=operator,
        topic=partition.topic,
        partition=partition.partition,
        log_start_offset=partition.log_start_offset,
        log_end_offset=partition.log_end_offset,
        committed_offset=partition.committed_offset,
        committed_at=partition.committed_at,
        current_offset=position,
        position_appended_at=partition.position_appended_at,
    )


def _deployment(job: Job, readings: Readings, topology: Topology) -> Deployment:
    flink = readings.flink
    # What a job in reactive mode asks for is all there is; what was asked of Docker only the executor sees.
    wanted = flink.requirements if readings.policy.spec.target.docker is None else None
    lower, upper = bounds_by_name(wanted, topology)
    facts = flink.checkpoints
    slots = None
    if flink.slots_total is not None and flink.slots_available is not None:
        slots = Slots(total=flink.slots_total, available=flink.slots_available)
    return Deployment(
        job_id=job.id,
        job_name=job.name[:300],
        graph_hash=topology.graph_hash(),
        state=job.state[:50],
        started_at=job.started_at,
        requested=upper,
        requested_lower=lower,
        observed=job.observed(),
        slots=slots,
        restarts=flink.restarts,
        checkpoints=Checkpoints(
            interval_seconds=flink.checkpoint_interval_seconds,
            last_completed_at=facts.last_completed_at,
            last_duration_seconds=facts.last_duration_seconds,
            completed=facts.completed,
            failed=facts.failed,
        )
        if facts
        else None,
        rescale=rescale_settings(
            flink.configuration,
            flink.version,
            flink.checkpoint_interval_seconds,
            checkpointing_off=flink.checkpointing_off,
        ),
    )
