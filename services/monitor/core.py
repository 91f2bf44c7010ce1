"""`observe(readings, now) -> Observation`: what was read at the border, put together as the loop's language. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from weir_contracts import (
    Checkpoints,
    Deployment,
    Edge,
    Observation,
    ObservationStatus,
    Operator,
    OperatorReading,
    PartitionReading,
    Problem,
    RescaleSettings,
    Run,
    ScalingPolicy,
    Slots,
    Topology,
    observation_id,
)

from .flink_answers import CheckpointFacts, Job, SourceOffsets, VertexReading, flink_seconds

_MOST_PROBLEMS = 100


@dataclass(frozen=True)
class Shares:
    """Flink's own 60 s gauges of a vertex, as shares of time; None where it does not report them."""

    busy_mean: float | None = None
    busy_max: float | None = None
    backpressure_mean: float | None = None
    backpressure_max: float | None = None


@dataclass(frozen=True)
class FlinkReadings:
    """One scrape of a Flink cluster. By vertex id unless named otherwise."""

    job: Job | None = None
    reachable: bool = True
    message: str = ""
    shares: Mapping[str, Shares] = field(default_factory=dict)
    sources: Mapping[str, SourceOffsets] = field(default_factory=dict)
    requirements: Mapping[str, tuple[int | None, int | None]] | None = None
    checkpoints: CheckpointFacts | None = None
    checkpoint_interval_seconds: float | None = None
    slots_total: int | None = None
    slots_available: int | None = None
    restarts: int | None = None
    configuration: Mapping[str, str] | None = None
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


def observe(readings: Readings, now: datetime) -> Observation:
    """One application at one instant. `now` is the monitor's clock at the end of the scrape."""
    flink = readings.flink
    status, message = _status(flink)
    job = flink.job
    names = job.names() if job else {}
    topology = _topology(job, names, flink, readings) if job else None
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
        run=Run(attempt=flink.restarts, running_since=job.running_since)
        if job and job.running_since and status == "running"
        else None,
        deployment=_deployment(job, names, flink, topology) if job and topology else None,
        topology=topology,
        operators=[_operator(v, names[v.id], flink) for v in job.vertices] if job else [],
        partitions=[
            _partition(names[vid], p, flink.sources.get(vid)) for vid, p in readings.partitions if vid in names
        ],
        problems=[*flink.problems, *readings.problems][:_MOST_PROBLEMS],
    )


def ended(policy: ScalingPolicy, now: datetime) -> Observation:
    """The last observation of an application whose policy was deleted: everybody may forget it."""
    application = policy.application
    return Observation(
        id=observation_id(application, now),
        application=application,
        observed_at=now,
        policy=policy,
        status="ended",
        message="its policy was deleted",
    )


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


def _topology(job: Job, names: Mapping[str, str], flink: FlinkReadings, readings: Readings) -> Topology | None:
    if not job.vertices:
        return None
    sources = {vertex.id for vertex in job.sources}
    return Topology(
        operators=[
            Operator(
                name=names[v.id],
                id=v.id,
                max_parallelism=v.max_parallelism,
                slot_sharing_group=v.slot_sharing_group,
                source_partitions=_source_partitions(v.id, flink, readings) if v.id in sources else None,
            )
            for v in job.vertices
        ],
        edges=[Edge(source=names[e.source], target=names[e.target], ship_strategy=e.ship_strategy) for e in job.links],
    )


def _source_partitions(vertex_id: str, flink: FlinkReadings, readings: Readings) -> int | None:
    """What the brokers say; a source that has not read from a partition yet has no metric of it."""
    known = sum(1 for vid, _ in readings.partitions if vid == vertex_id)
    told = flink.sources.get(vertex_id)
    return max(known, len(told.positions) if told else 0) or None


def _operator(vertex: VertexReading, name: str, flink: FlinkReadings) -> OperatorReading:
    shares = flink.shares.get(vertex.id, Shares())
    told = flink.sources.get(vertex.id)
    # Sources count nothing as read: their own counter, else what they sent.
    records_in = vertex.read_records
    if told is not None and not records_in:
        records_in = told.records_in if told.records_in is not None else vertex.write_records
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


def _deployment(job: Job, names: Mapping[str, str], flink: FlinkReadings, topology: Topology) -> Deployment:
    wanted = flink.requirements
    upper = {names[vid]: bounds[1] for vid, bounds in wanted.items() if vid in names} if wanted is not None else {}
    lower = {names[vid]: bounds[0] for vid, bounds in wanted.items() if vid in names} if wanted is not None else {}
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
        requested=_complete(upper, names),
        requested_lower=_complete(lower, names),
        observed={names[v.id]: v.parallelism for v in job.vertices},
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
        rescale=_rescale_settings(flink),
    )


def _complete(values: Mapping[str, int | None], names: Mapping[str, str]) -> dict[str, int] | None:
    """Only a whole vector is one: a missing or unset bound makes it unknown."""
    known = {name: value for name, value in values.items() if value is not None}
    return known if known and len(known) == len(names) else None


def _rescale_settings(flink: FlinkReadings) -> RescaleSettings:
    """The cluster's timings with Flink's own defaults (2.x names first, then 1.20's)."""
    config = flink.configuration
    if config is None:
        return RescaleSettings()
    prefix = "jobmanager.adaptive-scheduler."
    interval = flink.checkpoint_interval_seconds
    failures = flink_seconds(config.get(f"{prefix}rescale-trigger.max-checkpoint-failures"), None)
    default_delay = 0.0 if interval is None else ((2 if failures is None else failures * 1000) + 1) * interval
    cooldown = config.get(f"{prefix}executing.cooldown-after-rescaling", config.get(f"{prefix}scaling-interval.min"))
    stabilization = config.get(f"{prefix}executing.resource-stabilization-timeout")
    return RescaleSettings(
        scheduler=config.get("jobmanager.scheduler", "default").lower()[:50],
        cooldown_seconds=flink_seconds(cooldown, 30.0),
        stabilization_seconds=flink_seconds(stabilization, 60.0),
        max_trigger_delay_seconds=flink_seconds(config.get(f"{prefix}rescale-trigger.max-delay"), default_delay),
    )
