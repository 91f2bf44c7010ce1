"""Flink's REST answers as typed values. Pure: parsed once, at the border, and never re-read.

Everything that may be missing is `None`; what has the wrong form raises `Unreadable` with the place.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from weir_contracts import MAX_SECONDS, within

_OFFSET = re.compile(r"KafkaSourceReader\.topic\.(?P<topic>.+)\.partition\.(?P<partition>\d{1,9})\.currentOffset$")
_COUNTER = re.compile(r"Source__[^.]*\.(?P<what>numRecordsIn|numRecordsOut)$")
_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
_LONGEST_NAME = 380
"""Longer vertex names are cut, which leaves room for a number."""
_LARGEST_PARALLELISM = 32_768
_MOST_VERTICES = 1_000
_MOST_LINKS = 5_000


class Unreadable(ValueError):
    """An answer that is not what the documentation says: `where` names call and field."""

    def __init__(self, where: str, what: str) -> None:
        self.where = where
        self.what = what
        super().__init__(f"{where}: {what}")


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Unreadable(where, f"expected an object, got {type(value).__name__}")
    return value


def sequence(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise Unreadable(where, f"expected a list, got {type(value).__name__}")
    return value


def text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise Unreadable(where, f"expected a text that is not empty, got {type(value).__name__}")
    return value


def identifier(value: Any, where: str) -> str:
    """An id that may become part of a request's path."""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise Unreadable(where, "expected an id of letters, digits, - and _")
    return value


def number(value: Any) -> float | None:
    """A number of 0 or more within the bounds of messages, from a number or a text; None for anything else (NaN, -1, 'unknown')."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        parsed = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return within(parsed) if parsed >= 0 else None


def count(value: Any) -> int | None:
    parsed = number(value)
    return None if parsed is None else int(parsed)


def instant(milliseconds: Any) -> datetime | None:
    """An instant from milliseconds since the epoch; None for 0, -1 and what is no time."""
    parsed = number(milliseconds)
    if not parsed or parsed > 32_503_680_000_000:
        return None
    return datetime.fromtimestamp(parsed / 1000, UTC)


@dataclass(frozen=True)
class JobEntry:
    id: str
    name: str
    state: str
    started_at: datetime | None


def jobs(document: Any) -> list[JobEntry]:
    """`GET /jobs/overview`. A line that cannot be read is left out: it may be of anybody's job."""
    entries = sequence(mapping(document, "/jobs/overview").get("jobs"), "/jobs/overview jobs")
    return [
        JobEntry(entry["jid"], entry["name"], entry["state"], instant(entry.get("start-time")))
        for entry in entries
        if isinstance(entry, dict)
        and all(isinstance(entry.get(key), str) for key in ("jid", "name", "state"))
        and _ID.fullmatch(entry["jid"])
    ]


ENDED = frozenset({"FINISHED", "CANCELED", "FAILED"})


def find_job(entries: Sequence[JobEntry], wanted: str) -> tuple[JobEntry | None, str | None]:
    """The job called `wanted` or with that id: the newest that has not ended, else the newest. Also what is odd about it."""
    named = [entry for entry in entries if wanted in (entry.name, entry.id)]
    alive = [entry for entry in named if entry.state not in ENDED]
    oldest = datetime.min.replace(tzinfo=UTC)
    ordered = sorted(alive or named, key=lambda entry: (entry.started_at or oldest, entry.id))
    if not ordered:
        return None, None
    odd = None
    if len(alive) > 1:
        others = ", ".join(entry.id for entry in ordered[:10])
        odd = f"{len(alive)} jobs of this name run ({others}); the newest, {ordered[-1].id}, is meant"
    return ordered[-1], odd


@dataclass(frozen=True)
class VertexReading:
    """A vertex as `GET /jobs/:id` shows it. Times in ms, over all subtasks since the run began."""

    id: str
    name: str
    parallelism: int
    max_parallelism: int | None
    slot_sharing_group: str | None
    running: bool
    complete: bool
    read_records: int | None
    write_records: int | None
    busy_ms: float | None
    backpressured_ms: float | None
    idle_ms: float | None


@dataclass(frozen=True)
class Link:
    source: str
    target: str
    ship_strategy: str


@dataclass(frozen=True)
class Job:
    """A job's graph and counters. Vertices in topological order, sources first; links by vertex id."""

    id: str
    name: str
    state: str
    started_at: datetime | None
    running_since: datetime | None
    now: datetime | None
    vertices: tuple[VertexReading, ...]
    links: tuple[Link, ...]

    @property
    def all_running(self) -> bool:
        return self.state == "RUNNING" and all(vertex.running for vertex in self.vertices)

    @property
    def sources(self) -> tuple[VertexReading, ...]:
        fed = {link.target for link in self.links}
        return tuple(vertex for vertex in self.vertices if vertex.id not in fed)

    def names(self) -> dict[str, str]:
        """Operator name by vertex id: the vertex's own, made unique in topological order by ` #2`, ` #3`, …"""
        names: dict[str, str] = {}
        taken: set[str] = set()
        for vertex in self.vertices:
            base = name = vertex.name[:_LONGEST_NAME]
            number = 1
            while name in taken:
                number += 1
                name = f"{base} #{number}"
            taken.add(name)
            names[vertex.id] = name
        return names


def job(document: Any) -> Job:
    """`GET /jobs/:id`."""
    raw = mapping(document, "/jobs/:id")
    times = mapping(raw.get("timestamps") or {}, "/jobs/:id timestamps")
    vertices = {v.id: v for v in _vertices(sequence(raw.get("vertices"), "/jobs/:id vertices"))}
    nodes = sequence(mapping(raw.get("plan"), "/jobs/:id plan").get("nodes"), "/jobs/:id plan.nodes")
    links = tuple(_links(nodes, vertices))
    if len(vertices) > _MOST_VERTICES or len(links) > _MOST_LINKS:
        raise Unreadable("/jobs/:id", f"a graph of {len(vertices)} vertices and {len(links)} edges is too large")
    return Job(
        id=identifier(raw.get("jid"), "/jobs/:id jid"),
        name=text(raw.get("name"), "/jobs/:id name"),
        state=text(raw.get("state"), "/jobs/:id state"),
        started_at=instant(raw.get("start-time")),
        running_since=instant(times.get("RUNNING")),
        now=instant(raw.get("now")),
        vertices=tuple(_ordered(vertices, links)),
        links=links,
    )


def _vertices(entries: Sequence[Any]) -> Iterator[VertexReading]:
    for i, entry in enumerate(entries):
        where = f"/jobs/:id vertices.{i}"
        raw = mapping(entry, where)
        metrics = mapping(raw.get("metrics") or {}, f"{where}.metrics")
        tasks = mapping(raw.get("tasks") or {}, f"{where}.tasks")
        parallelism = count(raw.get("parallelism"))
        if not parallelism or parallelism > _LARGEST_PARALLELISM:
            raise Unreadable(f"{where}.parallelism", f"expected a number from 1 to {_LARGEST_PARALLELISM}")
        running = (count(tasks.get("RUNNING")) or 0) + (count(tasks.get("FINISHED")) or 0)
        yield VertexReading(
            id=identifier(raw.get("id"), f"{where}.id"),
            name=text(raw.get("name"), f"{where}.name"),
            parallelism=parallelism,
            max_parallelism=count(raw.get("maxParallelism")) or None,
            slot_sharing_group=_group(raw.get("slotSharingGroupId")),
            running=running >= parallelism if tasks else raw.get("status") == "RUNNING",
            # The first answer after a start shows zeros that are not readings.
            complete=metrics.get("read-records-complete") is True and metrics.get("write-records-complete") is True,
            read_records=count(metrics.get("read-records")),
            write_records=count(metrics.get("write-records")),
            busy_ms=number(metrics.get("accumulated-busy-time")),
            backpressured_ms=number(metrics.get("accumulated-backpressured-time")),
            idle_ms=number(metrics.get("accumulated-idle-time")),
        )


def _group(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= 200 else None


def _links(nodes: Sequence[Any], vertices: Mapping[str, VertexReading]) -> Iterator[Link]:
    planned = set()
    for i, entry in enumerate(nodes):
        where = f"/jobs/:id plan.nodes.{i}"
        node = mapping(entry, where)
        target = text(node.get("id"), f"{where}.id")
        planned.add(target)
        for j, raw in enumerate(sequence(node.get("inputs") or [], f"{where}.inputs")):
            given = mapping(raw, f"{where}.inputs.{j}")
            source = text(given.get("id"), f"{where}.inputs.{j}.id")
            for end in (source, target):
                if end not in vertices:
                    raise Unreadable(f"{where}.inputs.{j}", f"names the unknown vertex {end[:40]}")
            yield Link(source, target, str(given.get("ship_strategy") or "UNKNOWN")[:100])
    if missing := vertices.keys() - planned:
        # Without its inputs a vertex would pass for a source.
        raise Unreadable("/jobs/:id plan.nodes", f"lack the vertex {min(missing)}")


def _ordered(vertices: Mapping[str, VertexReading], links: Sequence[Link]) -> Iterator[VertexReading]:
    """Topological order; among the ready ones as Flink lists them (Kahn 1962)."""
    waiting = {vertex_id: {link.source for link in links if link.target == vertex_id} for vertex_id in vertices}
    while waiting:
        ready = next((vertex_id for vertex_id, inputs in waiting.items() if not inputs), None)
        if ready is None:
            raise Unreadable("/jobs/:id plan", "the graph has a cycle")
        del waiting[ready]
        for inputs in waiting.values():
            inputs.discard(ready)
        yield vertices[ready]


def metric_names(document: Any) -> list[str]:
    """`GET …/subtasks/metrics` without `get=`."""
    entries = sequence(document, "subtasks/metrics")
    return [e["id"] for e in entries if isinstance(e, dict) and isinstance(e.get("id"), str)]


Aggregates = dict[str, Mapping[str, float | None]]
"""min, max, avg and sum over subtasks, by metric name."""


def aggregates(document: Any) -> Aggregates:
    """`GET …/subtasks/metrics?get=…`. A name that nobody knows makes Flink answer with none."""
    found: Aggregates = {}
    for entry in sequence(document, "subtasks/metrics?get="):
        if isinstance(entry, dict) and isinstance(entry.get("id"), str):
            found[entry["id"]] = {key: number(entry.get(key)) for key in ("min", "max", "avg", "sum")}
    return found


def plain_metrics(document: Any) -> dict[str, float | None]:
    """`GET …/metrics?get=…`: values, which Flink writes as texts, by name."""
    entries = sequence(document, "metrics?get=")
    return {e["id"]: number(e.get("value")) for e in entries if isinstance(e, dict) and isinstance(e.get("id"), str)}


@dataclass(frozen=True)
class SourceOffsets:
    """What a source tells of its partitions: position (next offset to process) by metric topic name and partition."""

    positions: Mapping[tuple[str, int], int | None] = field(default_factory=dict)
    pending_records: int | None = None
    records_in: int | None = None


def wanted_source_metrics(names: Sequence[str]) -> list[str]:
    """Of a source's listed metrics, those that are needed: asking for an unlisted one would give nothing at all."""
    return [name for name in names if name.endswith((".pendingRecords", ".currentOffset")) or _COUNTER.fullmatch(name)]


def source_offsets(found: Aggregates) -> SourceOffsets:
    """A source's own account from its aggregated metrics."""
    positions: dict[tuple[str, int], int | None] = {}
    pending: list[float] = []
    counted: dict[str, float] = {}
    for name, values in found.items():
        if offset := _OFFSET.search(name):
            place = (offset["topic"], int(offset["partition"]))
            # The last record sent; -1, which `number` reads as unknown, until there is one in this run.
            last = values.get("max")
            # One place under two names is read from two clusters: whose position it is cannot be told.
            positions[place] = None if last is None or place in positions else int(last) + 1
            continue
        total = values.get("sum")
        if total is None:
            continue
        if counter := _COUNTER.fullmatch(name):
            counted[counter["what"]] = total
        elif name.endswith(".pendingRecords"):
            pending.append(total)
    records = counted.get("numRecordsIn", counted.get("numRecordsOut"))
    return SourceOffsets(positions, count(sum(pending)) if pending else None, None if records is None else int(records))


@dataclass(frozen=True)
class CheckpointFacts:
    last_completed_at: datetime | None = None
    last_duration_seconds: float | None = None
    completed: int | None = None
    failed: int | None = None


def checkpoints(document: Any) -> CheckpointFacts:
    """`GET /jobs/:id/checkpoints`."""
    raw = mapping(document, "/jobs/:id/checkpoints")
    counts = mapping(raw.get("counts") or {}, "/jobs/:id/checkpoints counts")
    latest = mapping(raw.get("latest") or {}, "/jobs/:id/checkpoints latest")
    done = mapping(latest.get("completed") or {}, "/jobs/:id/checkpoints latest.completed")
    duration = number(done.get("end_to_end_duration"))
    return CheckpointFacts(
        last_completed_at=instant(done.get("latest_ack_timestamp")),
        last_duration_seconds=None if duration is None else within(duration / 1000, MAX_SECONDS),
        completed=count(counts.get("completed")),
        failed=count(counts.get("failed")),
    )


def checkpoint_interval_seconds(document: Any) -> float | None:
    """`GET /jobs/:id/checkpoints/config`; None: off, which Flink writes as the largest long."""
    where = "/jobs/:id/checkpoints/config"
    milliseconds = number(mapping(document, where).get("interval"))
    if milliseconds is None and mapping(document, where).get("interval") != 2**63 - 1:
        raise Unreadable(f"{where} interval", "expected milliseconds")
    return None if not milliseconds else within(milliseconds / 1000, MAX_SECONDS)


def requirements(document: Any) -> dict[str, tuple[int | None, int | None]]:
    """`GET /jobs/:id/resource-requirements`: lower and upper bound by vertex id; None: unset, which Flink writes as -1."""
    found = {}
    for vertex_id, entry in mapping(document, "resource-requirements").items():
        where = f"resource-requirements {vertex_id[:60]}"
        bounds = mapping(mapping(entry, where).get("parallelism"), f"{where} parallelism")
        found[vertex_id] = (_bound(bounds.get("lowerBound")), _bound(bounds.get("upperBound")))
    return found


def _bound(value: Any) -> int | None:
    bound = count(value)
    return bound if bound and bound <= _LARGEST_PARALLELISM else None


def configuration(document: Any) -> dict[str, str]:
    """`GET /jobmanager/config`: explicitly set keys."""
    entries = sequence(document, "/jobmanager/config")
    return {
        e["key"]: e["value"]
        for e in entries
        if isinstance(e, dict) and isinstance(e.get("key"), str) and isinstance(e.get("value"), str)
    }


_UNITS = {
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_DURATION = re.compile(r"(\d{1,18})\s*([a-z]*)")
_ISO_DURATION = re.compile(r"pt(?=\d)(?:(\d{1,12})h)?(?:(\d{1,12})m)?(?:(\d{1,12}(?:\.\d+)?)s)?")


def flink_seconds(value: str | None, default: float | None) -> float | None:
    """A duration as Flink writes it (`30 s`, `1 min`, `PT30S`, plain milliseconds); `default` if unset, None if unreadable
    or longer than a year."""
    if value is None:
        return default
    cleaned = value.strip().lower()
    if iso := _ISO_DURATION.fullmatch(cleaned):
        hours, minutes, seconds = (float(part or 0) for part in iso.groups())
        return within(hours * 3600 + minutes * 60 + seconds, MAX_SECONDS)
    match = _DURATION.fullmatch(cleaned)
    return None if match is None or match[2] not in _UNITS else within(float(match[1]) * _UNITS[match[2]], MAX_SECONDS)
