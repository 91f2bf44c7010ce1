"""Readings of one group at one instant, the `Scrape` that they amount to, and what single readings do not show: run,
throughput and commit interval."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from statistics import quantiles

from weir_contracts import (
    MAX_COUNT,
    Deployment,
    Group,
    Health,
    Instance,
    ObservationStatus,
    Operator,
    OperatorReading,
    PartitionReading,
    Problem,
    RescaleSettings,
    Run,
    Topology,
    counted,
)
from weir_engines.kafka.assignment import Place
from weir_engines.kafka.group import DescribedGroup, Membership
from weir_engines.scrape import Scrape

STREAMS = "kafka-streams"
DEFAULT_COMMIT_SECONDS = 30.0
"""`commit.interval.ms` of Kafka Streams with at-least-once processing."""
MAX_THREADS = 32_768
_NO_RESCALE = RescaleSettings(cooldown_seconds=0.0)
_RANGE = "range"


@dataclass(frozen=True)
class BusyTime:
    """Time of all threads since the collector began, in ms."""

    busy_ms: float
    idle_ms: float


@dataclass(frozen=True)
class GroupReadings:
    """Everything that one scrape read. `group` is None if the coordinator did not answer, for the reason in
    `message`."""

    id: str
    engine: str
    group: DescribedGroup | None
    message: str = ""
    membership: Membership = field(default_factory=Membership)
    """Decoded members; during a rebalance those before it."""
    run: Run | None = None
    partitions: tuple[PartitionReading, ...] = ()
    processed: int | None = None
    is_counted: bool = False
    """Whether `processed` is counted by the threads; else by their commits."""
    commit_interval_seconds: float | None = None
    has_commits: bool = False
    """Whether the group has committed anything, even if it does not exist as a group of this client's protocols."""
    instances: Mapping[str, Instance] = field(default_factory=dict)
    """Processes with what their metrics endpoints report; empty without endpoints."""
    busy: BusyTime | None = None
    restores: bool = False
    """Whether an instance restores state: its threads then look idle."""
    problems: tuple[Problem, ...] = ()


def scrape_of(readings: GroupReadings) -> Scrape:
    """Return the scrape of a group: one operator, whose parallelism is the group's number of members."""
    group, problems = readings.group, (*readings.problems, *readings.membership.problems)
    if group is None:
        return Scrape("unreachable", readings.message, problems=problems)
    if reason := _foreign(readings, group):
        return Scrape("not_found", reason, problems=problems)
    status, health = _status(group)
    threads = len(group.members) or len(readings.membership.members)
    topology = Topology(operators=[Operator(name=readings.id, id=readings.id, source_partitions=_shares(readings))])
    instances = counted(len(readings.membership.instances()), "instance")
    return Scrape(
        status=status,
        message=f"the group is {group.state}: {instances} with {counted(threads, 'thread')}",
        run=readings.run if status == "running" else None,
        deployment=_deployment(readings, group, topology, threads, health),
        topology=topology,
        operators=(_operator(readings, threads),) if status == "running" else (),
        partitions=readings.partitions,
        problems=problems,
    )


def _foreign(readings: GroupReadings, group: DescribedGroup) -> str:
    """Return why this is no group of consumers; empty if it is one."""
    if group.state == "Dead":
        if not readings.has_commits:
            return f"the brokers have no group {group.id[:60]!r}, and it has committed nothing"
        unread = "has commits, but no members that can be read: group.protocol=streams is not supported"
        return f"{group.id[:60]!r} {unread}"
    if group.type not in ("", "consumer"):
        return f"{group.id[:60]!r} is a group of type {group.type[:30]!r}, not of consumers"
    if readings.engine == STREAMS and group.assignor not in ("", "stream") and group.protocol == "classic":
        return f"{group.id[:60]!r} is not a Kafka Streams application: its assignor is {group.assignor[:40]!r}"
    return ""


def _status(group: DescribedGroup) -> tuple[ObservationStatus, Health]:
    """Return the status. Members of the newer protocols go on processing while they reconcile."""
    if group.state == "Empty" or group.rebalances:
        return "not_running", "restarting"
    return "running", "running"


def _shares(readings: GroupReadings) -> int | None:
    """Return the number of indivisible shares of work: tasks, or partitions of plain consumers.

    The range assignor gives partition n of every topic to the same member.
    """
    if readings.engine == STREAMS:
        return readings.membership.tasks
    counts: dict[str, int] = {}
    for partition in readings.partitions:
        counts[partition.topic] = counts.get(partition.topic, 0) + 1
    if not counts:
        return None
    ranged = readings.group is not None and readings.group.assignor == _RANGE
    return max(counts.values()) if ranged else sum(counts.values())


def _deployment(
    readings: GroupReadings, group: DescribedGroup, topology: Topology, threads: int, health: Health
) -> Deployment:
    instances = [readings.instances.get(each.id, each) for each in readings.membership.instances()]
    return Deployment(
        engine=readings.engine,
        health=health,
        job_id=readings.id[:200],
        job_name=readings.id,
        graph_hash=topology.graph_hash(),
        state=group.state[:50],
        observed={readings.id: min(MAX_THREADS, max(1, threads))},
        rescale=_NO_RESCALE,
        instances=instances,
        group=Group(
            id=group.id,
            protocol=group.protocol,
            assignor=group.assignor[:200],
            state=group.state[:50],
            members=len(group.members),
            probing_rebalance_at=readings.membership.probing_at,
        ),
        commit_interval_seconds=readings.commit_interval_seconds,
    )


def _operator(readings: GroupReadings, threads: int) -> OperatorReading:
    """Return the counters. One operator has no outputs to wait for: its backpressure is 0."""
    busy = None if readings.restores else readings.busy
    return OperatorReading(
        operator=readings.id,
        parallelism=min(MAX_THREADS, max(1, threads)),
        complete=not readings.restores,
        records_in=readings.processed,
        records_out=readings.processed,
        records_at_commits=not readings.is_counted,
        busy_ms=None if busy is None else busy.busy_ms,
        idle_ms=None if busy is None else busy.idle_ms,
        backpressured_ms=0.0,
        backpressure_share_mean=0.0,
        backpressure_share_max=0.0,
    )


_MIN_COMMITS = 4
_MAX_COMMITS = 64
_MAX_INTERVAL_SECONDS = 3600.0


@dataclass
class _Commit:
    offset: int
    changed_at: datetime | None = None
    """Time of its last change. None: it has not changed since the first reading."""


@dataclass
class GroupMeter:
    """Memory of one collector. A new one counts from 0, which readers recognise as a fall of the counter."""

    _run: Run | None = None
    _commits: dict[Place, _Commit] = field(default_factory=dict)
    _distances: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_COMMITS))
    _processed: int = 0
    _last_committed: int | None = None
    _threads_began: float | None = None
    """Difference between `_counted` and the threads' counters, when these were first known."""
    _counted: float = 0.0

    def run(self, key: str, at: datetime) -> Run:
        """Return the run of an assignment: it began when the assignment was first seen."""
        if self._run is None or self._run.key != key:
            self._run = Run(key=key, running_since=at)
        return self._run

    def processed(self, committed: Mapping[Place, int], at: datetime) -> int:
        """Return the number of offsets by which commits went forward.

        The first commit that is seen of a partition counts nothing, and neither does one that goes back.
        """
        for place, offset in committed.items():
            last = self._commits.get(place)
            if last is None:
                self._commits[place] = _Commit(offset)
            elif offset != last.offset:
                self._processed += max(0, offset - last.offset)
                if last.changed_at is not None:
                    self._distances.append((at - last.changed_at).total_seconds())
                self._commits[place] = _Commit(offset, at)
        return min(self._processed, MAX_COUNT)

    def counted(self, committed: int, by_threads: float | None) -> int:
        """Return the records processed, by the threads' own counters where they are known, else by commits.

        Both count the same records, commits later: after a gap in the threads' counters the sum waits until these
        have caught up with it, so that no record counts twice.
        """
        if by_threads is None:
            self._counted += 0 if self._last_committed is None else max(0, committed - self._last_committed)
        else:
            if self._threads_began is None:
                self._threads_began = self._counted - by_threads
            self._counted = max(self._counted, self._threads_began + by_threads)
        self._last_committed = committed
        return min(int(self._counted), MAX_COUNT)

    @property
    def commit_interval_seconds(self) -> float | None:
        """Usual time between two commits of a partition, at least the interval of the readings; None until four were
        seen.

        The lower quartile: a partition without new records is committed more rarely.
        """
        if len(self._distances) < _MIN_COMMITS:
            return None
        lower, *_ = quantiles(self._distances, n=4, method="inclusive")
        return round(min(lower, _MAX_INTERVAL_SECONDS), 3)
