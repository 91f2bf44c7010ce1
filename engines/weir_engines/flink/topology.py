"""Graph, counters and health of a job, from `GET /jobs/overview` and `GET /jobs/:id`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from weir_contracts import Edge, Health, Operator, Topology
from weir_engines.flink.rest import (
    MAX_PARALLELISM,
    Unreadable,
    count,
    identifier,
    instant,
    mapping,
    number,
    sequence,
    text,
)

_MAX_NAME_CHARACTERS = 380
_MAX_NAMES_CHARACTERS = 100_000
"""Of all operators of a job: each message names each of them several times."""
"""Longer vertex names are cut, which leaves room for a suffix."""
_MAX_VERTICES = 1_000
_MAX_LINKS = 5_000


@dataclass(frozen=True)
class JobEntry:
    """Entry of `GET /jobs/overview`, with numbers of tasks; None: not given."""

    id: str
    name: str
    state: str
    started_at: datetime | None = None
    last_modified_at: datetime | None = None
    """Time of the last change of a task's state."""
    tasks: int | None = None
    tasks_running: int | None = None
    """Number of tasks that run or have finished."""

    @property
    def all_running(self) -> bool:
        return self.state == "RUNNING" and bool(self.tasks) and self.tasks == self.tasks_running


def find_job(document: Any, wanted: str) -> tuple[JobEntry | None, str | None]:
    """Return the newest job of this name or id that has not ended, else the newest, and a warning if several run.

    Unreadable entries of `GET /jobs/overview` are skipped, since they may be other users' jobs; `Unreadable` if only
    such an entry matches.
    """
    found, unreadable = _entries(document, wanted)
    if not found and unreadable is not None:
        raise unreadable
    alive = _alive(found)
    if len(alive) < 2:
        ordered = alive or found
        return (ordered[-1] if ordered else None), None
    others = ", ".join(entry.id for entry in alive[:10])
    return alive[-1], f"{len(alive)} jobs of this name run ({others}); the newest, {alive[-1].id}, is used"


def jobs_named(document: Any, name: str) -> list[JobEntry]:
    """Return all jobs of this name in `GET /jobs/overview`, oldest first, without unreadable entries."""
    return [entry for entry in _entries(document, name)[0] if entry.name == name]


def running_jobs(document: Any) -> list[JobEntry]:
    """Return the jobs of `GET /jobs/overview` that have not ended, oldest first, without unreadable entries."""
    return _alive(_entries(document)[0])


def _entries(document: Any, wanted: str | None = None) -> tuple[list[JobEntry], Unreadable | None]:
    """Return the readable entries of `GET /jobs/overview`, all or those of one name or id, oldest first, and the error
    of the last unreadable one."""
    found, unreadable = [], None
    for i, raw in enumerate(sequence(mapping(document, "/jobs/overview").get("jobs"), "/jobs/overview jobs")):
        if not isinstance(raw, dict) or wanted not in (None, raw.get("name"), raw.get("jid")):
            continue
        try:
            found.append(_entry(raw, f"/jobs/overview jobs.{i}"))
        except Unreadable as error:
            unreadable = error
    oldest = datetime.min.replace(tzinfo=UTC)
    return sorted(found, key=lambda entry: (entry.started_at or oldest, entry.id)), unreadable


def _alive(entries: Sequence[JobEntry]) -> list[JobEntry]:
    return [entry for entry in entries if health_of(entry.state) not in ("failed", "ended")]


def _entry(raw: Mapping[str, Any], where: str) -> JobEntry:
    given = raw.get("tasks")
    tasks: Mapping[str, Any] = given if isinstance(given, dict) else {}
    running = count(tasks.get("running"))
    return JobEntry(
        id=identifier(raw.get("jid"), f"{where}.jid"),
        name=text(raw.get("name"), f"{where}.name"),
        state=text(raw.get("state"), f"{where}.state"),
        started_at=instant(raw.get("start-time")),
        last_modified_at=instant(raw.get("last-modification")),
        tasks=count(tasks.get("total")),
        tasks_running=None if running is None else running + (count(tasks.get("finished")) or 0),
    )


@dataclass(frozen=True)
class VertexReading:
    """Vertex of `GET /jobs/:id`. Times are in ms, over all subtasks since the run began."""

    id: str
    name: str
    parallelism: int
    max_parallelism: int | None
    slot_sharing_group: str | None
    running: bool
    finished: bool
    """Whether all its subtasks have ended: those of a bounded source, while others of the job go on."""
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
    """Graph and counters of a job: vertices in topological order, sources first; links by vertex id."""

    id: str
    name: str
    state: str
    started_at: datetime | None
    running_since: datetime | None
    now: datetime | None
    vertices: tuple[VertexReading, ...]
    links: tuple[Link, ...]

    @property
    def health(self) -> Health | None:
        """Health of the job; None for an unknown state."""
        return health_of(self.state, all_running=self.all_running)

    @property
    def all_running(self) -> bool:
        return self.state == "RUNNING" and all(vertex.running for vertex in self.vertices)

    @property
    def sources(self) -> tuple[VertexReading, ...]:
        fed = {link.target for link in self.links}
        return tuple(vertex for vertex in self.vertices if vertex.id not in fed)

    def names(self) -> dict[str, str]:
        """Return operator names by vertex id: the vertex names, made unique in topological order by ` #2`, ` #3`, …"""
        names: dict[str, str] = {}
        taken: set[str] = set()
        max_characters = min(_MAX_NAME_CHARACTERS, _MAX_NAMES_CHARACTERS // max(1, len(self.vertices)))
        for vertex in self.vertices:
            base = name = vertex.name[:max_characters]
            number = 1
            while name in taken:
                number += 1
                name = f"{base} #{number}"
            taken.add(name)
            names[vertex.id] = name
        return names

    def topology(
        self, source_partitions: Mapping[str, int | None] | None = None, without_broker: Collection[str] = ()
    ) -> Topology:
        """Return the graph in contract values; `source_partitions` is by vertex id, and those of `without_broker` are not
        Kafka's. `Unreadable` without vertices."""
        if not self.vertices:
            raise Unreadable("/jobs/:id vertices", "expected at least one")
        names, partitions = self.names(), source_partitions or {}
        return Topology(
            operators=[
                Operator(
                    name=names[v.id],
                    id=v.id,
                    max_parallelism=v.max_parallelism,
                    slot_sharing_group=v.slot_sharing_group,
                    source_partitions=partitions.get(v.id),
                    has_broker_offsets=False if v.id in without_broker else None,
                )
                for v in self.vertices
            ],
            edges=[
                Edge(source=names[e.source], target=names[e.target], ship_strategy=e.ship_strategy) for e in self.links
            ],
        )

    def observed(self) -> dict[str, int]:
        """Return the running parallelism by operator name."""
        names = self.names()
        return {names[vertex.id]: vertex.parallelism for vertex in self.vertices}


def job(document: Any) -> Job:
    """Parse `GET /jobs/:id`."""
    raw = mapping(document, "/jobs/:id")
    times = mapping(raw.get("timestamps") or {}, "/jobs/:id timestamps")
    vertices = {v.id: v for v in _vertices(sequence(raw.get("vertices"), "/jobs/:id vertices"))}
    nodes = sequence(mapping(raw.get("plan"), "/jobs/:id plan").get("nodes"), "/jobs/:id plan.nodes")
    links = tuple(_links(nodes, vertices))
    if len(vertices) > _MAX_VERTICES or len(links) > _MAX_LINKS:
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
        if not parallelism or parallelism > MAX_PARALLELISM:
            raise Unreadable(f"{where}.parallelism", f"expected a number from 1 to {MAX_PARALLELISM}")
        finished = count(tasks.get("FINISHED")) or 0
        running = (count(tasks.get("RUNNING")) or 0) + finished
        yield VertexReading(
            id=identifier(raw.get("id"), f"{where}.id"),
            name=text(raw.get("name"), f"{where}.name"),
            parallelism=parallelism,
            max_parallelism=count(raw.get("maxParallelism")) or None,
            slot_sharing_group=_group(raw.get("slotSharingGroupId")),
            running=running >= parallelism if tasks else raw.get("status") == "RUNNING",
            finished=finished >= parallelism,
            # The first response after a start has zeros that are not readings.
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
        # A vertex without its inputs would count as a source.
        raise Unreadable("/jobs/:id plan.nodes", f"lack the vertex {min(missing)}")


def _ordered(vertices: Mapping[str, VertexReading], links: Sequence[Link]) -> Iterator[VertexReading]:
    """Yield the vertices in topological order (Kahn 1962), otherwise in Flink's order."""
    waiting = {vertex_id: {link.source for link in links if link.target == vertex_id} for vertex_id in vertices}
    while waiting:
        ready = next((vertex_id for vertex_id, inputs in waiting.items() if not inputs), None)
        if ready is None:
            raise Unreadable("/jobs/:id plan", "the graph has a cycle")
        del waiting[ready]
        for inputs in waiting.values():
            inputs.discard(ready)
        yield vertices[ready]


_HEALTH: dict[str, Health] = {
    "INITIALIZING": "restarting",
    "CREATED": "restarting",
    "RUNNING": "running",
    "FAILING": "restarting",
    "RESTARTING": "restarting",
    "RECONCILING": "restarting",
    "FAILED": "failed",
    "CANCELLING": "ended",
    "CANCELED": "ended",
    "FINISHED": "ended",
    "SUSPENDED": "ended",
}
"""Health by constant of Flink's `JobStatus`."""
TERMINAL = frozenset({"FINISHED", "CANCELED", "FAILED"})
"""States in which a job has released its slots (in Flink: globally terminal)."""


def health_of(state: str, *, all_running: bool = True) -> Health | None:
    """Return the health of a job in `state`, or None for an unknown state.

    A RUNNING job is restarting until every task runs (`all_running`).
    """
    found = _HEALTH.get(state.upper())
    return "restarting" if found == "running" and not all_running else found
