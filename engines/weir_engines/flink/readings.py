"""Readings of one scrape of a Flink cluster, and their translation into a neutral `Scrape`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from weir_contracts import (
    Checkpoints,
    Deployment,
    ObservationStatus,
    OperatorReading,
    Pod,
    Problem,
    Run,
    Slots,
    Topology,
)
from weir_engines.scrape import Scrape

from .metrics import SourceOffsets
from .rescale import CheckpointStatistics, Requirements, bounds_by_name, rescale_settings
from .topology import Job, VertexReading


@dataclass(frozen=True)
class Shares:
    """Flink's 60 s gauges of a vertex, as shares of time (0 to 1); None if not reported."""

    busy_mean: float | None = None
    busy_max: float | None = None
    backpressure_mean: float | None = None
    backpressure_max: float | None = None


@dataclass(frozen=True)
class FlinkReadings:
    """Parsed responses of one scrape; mappings are by vertex id.

    `reachable` is False if the state of the job is unknown; `job` is None if the cluster has no such job.
    """

    job: Job | None = None
    reachable: bool = True
    message: str = ""
    shares: Mapping[str, Shares] = field(default_factory=dict)
    sources: Mapping[str, SourceOffsets] = field(default_factory=dict)
    requirements: Requirements | None = None
    checkpoints: CheckpointStatistics | None = None
    checkpoint_interval_seconds: float | None = None
    """Checkpoint interval in seconds. None: checkpointing is off, or unknown."""
    checkpointing_off: bool = False
    slots_total: int | None = None
    slots_available: int | None = None
    restarts: int | None = None
    configuration: Mapping[str, str] | None = None
    version: str | None = None
    problems: tuple[Problem, ...] = ()
    task_managers: tuple[Pod, ...] = ()
    """TaskManagers of the cluster with CPU and memory; empty if they are not read."""


def scrape_of(flink: FlinkReadings) -> Scrape:
    """Return the readings in contract values."""
    status, message = _status(flink)
    job = flink.job
    if job is None or not job.vertices:
        return Scrape(status, message, source_time=job.now if job else None, problems=flink.problems)
    names = job.names()
    sources = {vertex.id for vertex in job.sources}
    topology = job.topology(
        {v.id: _reported_partitions(flink.sources.get(v.id)) for v in job.sources},
        {vertex_id for vertex_id, source in flink.sources.items() if source.has_broker_offsets is False},
    )
    return Scrape(
        status,
        message,
        source_time=job.now,
        run=_run(job, flink) if status == "running" else None,
        deployment=_deployment(job, flink, topology),
        topology=topology,
        operators=tuple(_operator(v, names[v.id], flink, is_source=v.id in sources) for v in job.vertices),
        sources={names[v.id]: flink.sources[v.id].positions if v.id in flink.sources else {} for v in job.sources},
        commits_expected=_commits_expected(flink),
        problems=flink.problems,
    )


def _status(flink: FlinkReadings) -> tuple[ObservationStatus, str]:
    if not flink.reachable:
        return "unreachable", flink.message or "the cluster does not answer"
    job = flink.job
    if job is None:
        return "not_found", flink.message or "the cluster has no such job"
    if not job.all_running:
        waiting = sum(1 for vertex in job.vertices if not vertex.running)
        detail = f", {waiting} of {len(job.vertices)} vertices do not run yet" if job.state == "RUNNING" else ""
        return "not_running", f"the job is {job.state}{detail}"
    return "running", flink.message or "RUNNING"


def _run(job: Job, flink: FlinkReadings) -> Run | None:
    """Return the run with its start in the key: the number of restarts comes seconds later, with the metrics."""
    if job.running_since is None:
        return None
    key = f"{job.id}@{job.running_since.isoformat()}"
    return Run(key=key, attempt=flink.restarts, running_since=job.running_since)


def _reported_partitions(source: SourceOffsets | None) -> int | None:
    return (source.splits or len(source.positions) or None) if source else None


def _commits_expected(flink: FlinkReadings) -> str:
    """Return why offsets are committed by now: Flink commits shortly after a checkpoint, so surely once the next one is
    complete."""
    if flink.checkpoints is not None and (flink.checkpoints.completed or 0) > 1:
        return f"after {flink.checkpoints.completed} checkpoints"
    return "as the job makes no checkpoints" if flink.checkpointing_off else ""


def _operator(vertex: VertexReading, name: str, flink: FlinkReadings, *, is_source: bool) -> OperatorReading:
    shares = flink.shares.get(vertex.id, Shares())
    source = flink.sources.get(vertex.id) if is_source else None
    records_in = vertex.read_records
    if is_source and not records_in:
        # The vertex of a source counts no records as read: take the source's counter, else the records that it sent.
        # Without the metrics of a source its counter is unknown: the other one would look like a jump.
        records_in = (
            None if source is None else source.records_in if source.records_in is not None else vertex.write_records
        )
    return OperatorReading(
        operator=name,
        parallelism=vertex.parallelism,
        complete=vertex.complete,
        finished=vertex.finished,
        records_in=records_in,
        records_out=vertex.write_records,
        busy_ms=vertex.busy_ms,
        backpressured_ms=vertex.backpressured_ms,
        idle_ms=vertex.idle_ms,
        busy_share_mean=shares.busy_mean,
        busy_share_max=shares.busy_max,
        backpressure_share_mean=shares.backpressure_mean,
        backpressure_share_max=shares.backpressure_max,
        pending_records=source.pending_records if source else None,
        pending_refused=source.pending_refused if source else "",
        idle_seconds=source.idle_seconds if source else None,
        behind_seconds=source.behind_seconds if source else None,
        behind_shortest_seconds=source.behind_shortest_seconds if source else None,
        fetch_lag_seconds=source.fetch_lag_seconds if source else None,
        watermark_lag_seconds=source.watermark_lag_seconds if source else None,
    )


def _deployment(job: Job, flink: FlinkReadings, topology: Topology) -> Deployment:
    lower, upper = bounds_by_name(flink.requirements, topology)
    points = flink.checkpoints
    slots = None
    if flink.slots_total is not None and flink.slots_available is not None:
        slots = Slots(total=flink.slots_total, available=flink.slots_available)
    return Deployment(
        engine="flink",
        health=job.health,
        job_id=job.id,
        job_name=job.name[:300],
        graph_hash=topology.graph_hash(),
        state=job.state[:50],
        started_at=job.started_at,
        requested=upper,
        requested_lower=lower,
        observed=job.observed(),
        slots=slots,
        pods=list(flink.task_managers),
        restarts=flink.restarts,
        checkpoints=Checkpoints(
            interval_seconds=flink.checkpoint_interval_seconds,
            last_completed_at=points.last_completed_at,
            last_duration_seconds=points.last_duration_seconds,
            completed=points.completed,
            failed=points.failed,
        )
        if points
        else None,
        rescale=rescale_settings(
            flink.configuration,
            flink.version,
            flink.checkpoint_interval_seconds,
            checkpointing_off=flink.checkpointing_off,
        ),
    )
