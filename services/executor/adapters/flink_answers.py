"""Flink's answers, parsed once at the border into a snapshot. Pure; every error names call and field.

An unknown number is None: a missing metric is not 0, and neither is a timestamp that Flink has not set.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from weir_contracts import (
    MAX_SECONDS,
    Checkpoints,
    Deployment,
    Edge,
    InvalidDocument,
    Operator,
    RescaleSettings,
    Topology,
    within,
)

from services.executor.core import Snapshot

_NEVER_MS = 2**60
"""Flink writes Long.MAX_VALUE for `no interval`."""

_PREFIX = "jobmanager.adaptive-scheduler."
_COOLDOWN = ("executing.cooldown-after-rescaling", "scaling-interval.min")
_STABILIZATION = ("executing.resource-stabilization-timeout", "scaling-interval.max")
_MAX_DELAY = "rescale-trigger.max-delay"
_MAX_FAILURES = "rescale-trigger.max-checkpoint-failures"

LONGEST_NAME = 380
"""Longer vertex names are cut, which leaves room for a number."""

MOST_EDGES = 5000
_FARTHEST_MS = 40 * 365 * 86_400_000
"""An instant further from now than any job is old is not one."""
_LARGEST_COUNT = 2**63

ENDED = frozenset({"FAILED", "CANCELED", "FINISHED"})


class Malformed(Exception):
    """An answer that is not what Flink documents; the sentence names call and field."""


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


Milliseconds = Annotated[int, Field(ge=-1, le=2**63)]
Subtasks = Annotated[int, Field(ge=0, le=100_000)]


class TaskCounts(_Answer):
    total: Subtasks
    running: Subtasks = 0
    finished: Subtasks = 0


class JobLine(_Answer):
    """One line of `GET /jobs/overview`."""

    jid: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    name: str
    state: Annotated[str, Field(max_length=50)]
    start_time: Annotated[Milliseconds, Field(alias="start-time")]
    last_modification: Annotated[Milliseconds, Field(alias="last-modification")] = -1
    tasks: TaskCounts


class Overview(_Answer):
    jobs: Annotated[list[JobLine], Field(max_length=100_000, fail_fast=True)]


class Vertex(_Answer):
    id: Annotated[str, Field(min_length=1, max_length=200)]
    name: Annotated[str, Field(min_length=1)]
    parallelism: Annotated[int, Field(ge=1, le=32768)]
    max_parallelism: Annotated[int | None, Field(alias="maxParallelism")] = None
    slot_sharing_group: Annotated[str | None, Field(alias="slotSharingGroupId", max_length=200)] = None
    status: str = ""
    tasks: Annotated[dict[str, int], Field(fail_fast=True)] = Field(default_factory=dict)


class PlanInput(_Answer):
    id: str
    ship_strategy: Annotated[str, Field(max_length=100)] = "UNKNOWN"


class PlanNode(_Answer):
    id: str
    inputs: Annotated[list[PlanInput], Field(max_length=MOST_EDGES, fail_fast=True)] = Field(default_factory=list)


class JobGraph(_Answer):
    nodes: Annotated[list[PlanNode], Field(max_length=1000, fail_fast=True)]


class Job(_Answer):
    """`GET /jobs/:id`."""

    jid: str
    name: str
    state: Annotated[str, Field(max_length=50)]
    start_time: Annotated[Milliseconds, Field(alias="start-time")] = -1
    now: Milliseconds
    timestamps: Annotated[dict[str, int], Field(fail_fast=True)] = Field(default_factory=dict)
    vertices: Annotated[list[Vertex], Field(min_length=1, max_length=1000, fail_fast=True)]
    plan: JobGraph


class Bounds(_Answer):
    lower: Annotated[int, Field(alias="lowerBound")]
    upper: Annotated[int, Field(alias="upperBound", ge=1, le=32768)]


class Requirement(_Answer):
    parallelism: Bounds


Requirements = TypeAdapter(Annotated[dict[str, Requirement], Field(fail_fast=True)])


class CompletedCheckpoint(_Answer):
    latest_ack_timestamp: Milliseconds | None = None
    end_to_end_duration: Milliseconds | None = None


class LatestCheckpoints(_Answer):
    completed: CompletedCheckpoint | None = None


class CheckpointCounts(_Answer):
    in_progress: int | None = None
    completed: int | None = None
    failed: int | None = None


class CheckpointStatistics(_Answer):
    """`GET /jobs/:id/checkpoints`."""

    counts: CheckpointCounts = Field(default_factory=CheckpointCounts)
    latest: LatestCheckpoints | None = None


def _number_or_none(value: Any) -> Any:
    try:
        return int(float(value))
    except (TypeError, ValueError, OverflowError):
        return None


class Metric(_Answer):
    id: str
    value: Annotated[int | None, BeforeValidator(_number_or_none)] = None


Metrics = TypeAdapter(Annotated[list[Metric], Field(fail_fast=True)])


class ConfigEntry(_Answer):
    key: str
    value: str


Configuration = TypeAdapter(Annotated[list[ConfigEntry], Field(fail_fast=True)])


class CheckpointConfig(_Answer):
    interval: int | None = None


class ClusterOverview(_Answer):
    """`GET /overview`."""

    slots_total: Annotated[int | None, Field(alias="slots-total", ge=0, le=10_000_000)] = None


class Features(_Answer):
    web_rescale: Annotated[bool | None, Field(alias="web-rescale")] = None


class ClusterConfig(_Answer):
    features: Features = Field(default_factory=Features)


A = TypeVar("A")


def parse(adapter: TypeAdapter[A], content: bytes, call: str) -> A:
    """Read an answer; `Malformed` that names the call and the field at fault."""
    with _well_formed(call):
        return adapter.validate_json(content)


@contextmanager
def _well_formed(call: str) -> Iterator[None]:
    """`Malformed` for what does not fit a type, an answer's own or the contract's that it becomes part of."""
    try:
        yield
    except ValidationError as error:
        raise Malformed(f"{call}: {InvalidDocument.of(error, 'the answer')}") from None


def find(overview: Overview, wanted: str) -> JobLine | None:
    """The job of this id or name: among those of one name the newest that has not ended, else the newest."""
    matching = [job for job in overview.jobs if wanted in (job.jid, job.name)]
    return max(matching, key=lambda job: (job.state not in ENDED, job.start_time, job.jid), default=None)


def topology(job: Job) -> Topology:
    """The graph in topological order with unique names: vertex names, repeated ones with ` #2`, ` #3` in that order.

    Must agree with what the monitor makes of the same answer, names, order and edges, or no plan would fit any job.
    """
    if (count := sum(len(node.inputs) for node in job.plan.nodes)) > MOST_EDGES:
        raise Malformed(f"GET /jobs/:id: plan.nodes: have {count} inputs, more than {MOST_EDGES}")
    vertices = _sorted(job)
    names = unique(vertex.name[:LONGEST_NAME] for vertex in vertices)
    by_id = {vertex.id: name for vertex, name in zip(vertices, names, strict=True)}
    with _well_formed("GET /jobs/:id"):
        operators = [
            Operator(
                name=by_id[vertex.id],
                id=vertex.id,
                max_parallelism=_positive(vertex.max_parallelism),
                slot_sharing_group=vertex.slot_sharing_group,
            )
            for vertex in vertices
        ]
        edges = [
            Edge(source=by_id[i.id], target=by_id[node.id], ship_strategy=i.ship_strategy)
            for node in job.plan.nodes
            for i in node.inputs
        ]
        return Topology(operators=operators, edges=edges)


def _sorted(job: Job) -> list[Vertex]:
    """Topological order; among the vertices that are ready, as Flink lists them (Kahn 1962)."""
    inputs = {node.id: {i.id for i in node.inputs} for node in job.plan.nodes}
    if inputs.keys() != {vertex.id for vertex in job.vertices}:
        raise Malformed("GET /jobs/:id: plan.nodes: are others than vertices")
    done: dict[str, Vertex] = {}
    waiting = {vertex.id: vertex for vertex in job.vertices}
    while waiting:
        ready = next((vertex for vertex in waiting.values() if inputs[vertex.id] <= done.keys()), None)
        if ready is None:
            raise Malformed("GET /jobs/:id: plan.nodes: inputs form a cycle or name unknown nodes")
        done[ready.id] = waiting.pop(ready.id)
    return list(done.values())


def unique(names: Iterable[str]) -> list[str]:
    """Each name once: the second `map` becomes `map #2`."""
    taken: set[str] = set()
    result = []
    for name in names:
        candidate, count = name, 1
        while candidate in taken:
            count += 1
            candidate = f"{name} #{count}"
        taken.add(candidate)
        result.append(candidate)
    return result


def settings(entries: Sequence[ConfigEntry], features: Features, interval_seconds: float | None) -> RescaleSettings:
    """The adaptive scheduler's timings where they are set explicitly; defaults are the core's to know."""
    explicit = {entry.key.removeprefix(_PREFIX): entry.value for entry in entries if entry.key.startswith(_PREFIX)}
    delay = _first(explicit, (_MAX_DELAY,))
    failures = _number_or_none(explicit.get(_MAX_FAILURES))
    if delay is None and failures is not None and 0 <= failures < 2**31 and interval_seconds is not None:
        delay = within((failures + 1) * interval_seconds, MAX_SECONDS)
    scheduler = None if features.web_rescale is None else ("adaptive" if features.web_rescale else "default")
    if any(entry.key == "scheduler-mode" and entry.value.strip().lower() == "reactive" for entry in entries):
        scheduler = "reactive"  # adaptive, too, but it takes no wishes
    return RescaleSettings(
        scheduler=scheduler,
        cooldown_seconds=_first(explicit, _COOLDOWN),
        stabilization_seconds=_first(explicit, _STABILIZATION),
        max_trigger_delay_seconds=delay,
    )


def _first(explicit: Mapping[str, str], keys: Sequence[str]) -> float | None:
    return next((seconds for key in keys if (seconds := duration_seconds(explicit.get(key))) is not None), None)


_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d{1,18})\s*([a-zµ]*)")
_WORDS = {
    "": "ms",
    "µs": "us",
    **dict.fromkeys(("milli", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("minute", "minutes"), "min"),
    **dict.fromkeys(("hour", "hours"), "h"),
    **dict.fromkeys(("day", "days"), "d"),
}
_ISO = TypeAdapter(timedelta)


def duration_seconds(text: str | None) -> float | None:
    """A duration as Flink's configuration writes it: `30 s`, `1 min`, `500ms`, `PT1M`; a bare number is milliseconds.
    None for anything else and for more than a year: then it is unknown."""
    if text is None:
        return None
    cleaned = text.strip().strip("'\"").lower()
    if cleaned.startswith("pt"):
        try:
            seconds = _ISO.validate_python(cleaned.upper()).total_seconds()
        except ValidationError:
            return None
        return within(seconds, MAX_SECONDS) if seconds >= 0 else None
    match = _DURATION.fullmatch(cleaned)
    if match is None:
        return None
    unit = _UNITS.get(_WORDS.get(match[2], match[2]))
    return None if unit is None else within(int(match[1]) * unit, MAX_SECONDS)


def interval_seconds(config: CheckpointConfig | None) -> float | None:
    """The checkpoint interval; None when checkpointing is off or unknown."""
    if config is None or config.interval is None or not 0 < config.interval < _NEVER_MS:
        return None
    return within(config.interval / 1000, MAX_SECONDS)


def snapshot(
    line: JobLine,
    job: Job,
    requirements: Mapping[str, Requirement] | None,
    statistics: CheckpointStatistics | None,
    restarts: int | None,
    *,
    interval: float | None,
    rescale: RescaleSettings,
    at: datetime,
) -> Snapshot:
    """One snapshot of all answers of a look. `at` is this process's time of Flink's `now`: others are shifted by it."""

    def here(milliseconds: int | None) -> datetime | None:
        if milliseconds is None or milliseconds <= 0 or abs(milliseconds - job.now) > _FARTHEST_MS:
            return None
        return at + timedelta(milliseconds=milliseconds - job.now)

    graph = topology(job)
    latest = statistics.latest.completed if statistics and statistics.latest else None
    counts = statistics.counts if statistics else CheckpointCounts()
    completed_at = here(latest.latest_ack_timestamp) if latest else None
    with _well_formed("GET /jobs/:id"):
        checkpoints = Checkpoints(
            interval_seconds=interval,
            last_completed_at=completed_at,
            last_duration_seconds=_seconds(latest.end_to_end_duration) if latest else None,
            completed=_positive(counts.completed, least=0),
            failed=_positive(counts.failed, least=0),
        )
        deployment = Deployment(
            job_id=job.jid,
            job_name=job.name[:300],
            graph_hash=graph.graph_hash(),
            state=job.state,
            started_at=here(job.start_time),
            requested=by_name(graph, requirements),
            requested_lower=by_name(graph, requirements, upper=False),
            observed=_observed(graph, job),
            restarts=_positive(restarts, least=0),
            checkpoints=checkpoints,
            rescale=rescale,
        )
    return Snapshot(
        at=at,
        reachable=True,
        deployment=deployment,
        all_running=_all_running(line, job),
        running_since=here(job.timestamps.get("RUNNING")),
        steady_since=here(line.last_modification),
        checkpoint_completed_at=completed_at,
        checkpoint_in_progress=None if counts.in_progress is None else counts.in_progress > 0,
        topology=graph,
    )


def _all_running(line: JobLine, job: Job) -> bool:
    """Both answers must agree: the job's details may be seconds old (`web.refresh-interval`), the overview is not."""
    tasks = line.tasks
    if line.state != "RUNNING" or job.state != "RUNNING" or tasks.total == 0:
        return False
    if tasks.running + tasks.finished != tasks.total or tasks.total != sum(v.parallelism for v in job.vertices):
        return False
    return all(v.tasks.get("RUNNING", 0) + v.tasks.get("FINISHED", 0) == v.parallelism for v in job.vertices if v.tasks)


def _observed(graph: Topology, job: Job) -> dict[str, int]:
    parallelism = {vertex.id: vertex.parallelism for vertex in job.vertices}
    return {operator.name: parallelism[operator.id] for operator in graph.operators}


def by_name(
    graph: Topology, requirements: Mapping[str, Requirement] | None, *, upper: bool = True
) -> dict[str, int] | None:
    """Bounds by operator name; None unless Flink names every vertex (a lower bound of -1 is unset: 1)."""
    if requirements is None or any(operator.id not in requirements for operator in graph.operators):
        return None
    bounds = {operator.name: requirements[operator.id].parallelism for operator in graph.operators}
    return {name: each.upper if upper else max(1, each.lower) for name, each in bounds.items()}


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None or milliseconds < 0 else within(milliseconds / 1000, MAX_SECONDS)


def _positive(value: int | None, least: int = 1) -> int | None:
    return None if value is None or not least <= value < _LARGEST_COUNT else value


_REASONS = re.compile(
    r"does not support changing the parallelism"
    r"|Could not find Flink job"
    r"|The newly requested parallelism \d{1,9} for the job vertex [0-9a-f]{1,32} exceeds its maximum parallelism \d{1,9}"
    r"|ongoing leader election"
    r"|Not all required tasks are currently running"
    r"|Checkpoint Coordinator is suspending"
    r"|The maximum number of queued checkpoint requests exceeded"
    r"|The minimum time between checkpoints is still pending"
)
"""Flink's own words for what it refuses. Nothing else of a refusal is repeated: a policy names the address it came from."""


def reason(content: bytes) -> str | None:
    """Return the first of Flink's known reasons in a refusal's body, or None."""
    found = _REASONS.search(content.decode(errors="replace"))
    return found and found[0]
