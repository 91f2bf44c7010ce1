"""In-memory Flink cluster with one job, and in-memory Kafka cluster. They pass the same suites as the real ones."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from weir_contracts import Pod, Problem
from weir_engines.flink.metrics import SourceOffsets
from weir_engines.flink.readings import FlinkReadings, Shares, scrape_of
from weir_engines.flink.rescale import CheckpointStatistics
from weir_engines.flink.topology import Job, Link, VertexReading
from weir_engines.kafka.assignment import Place
from weir_engines.kafka.group import DescribedGroup
from weir_engines.kafka.partitions import BrokersAway, End, Isolation, Offsets
from weir_engines.kafka.positions import FirstRecord, FirstRecords
from weir_engines.scrape import Scrape
from weir_runtime.clock import Clock

SOURCE, MAP = "bc4197a480c92c793190a9f8c0afc54c", "a0bcbe636c3291fd3f45c25deb2b0823"
JOB_ID = "5ccd81b6e34f5a1a600a6ab743d937c8"
_VERTICES = {SOURCE: "Source: orders", MAP: "map"}


@dataclass
class _Log:
    """Records of one partition."""

    stamped: list[int | None] = field(default_factory=list)
    """Timestamps of the records in ms, by offset."""
    start: int = 0
    gone: set[int] = field(default_factory=set)
    """Offsets of which a reader gets no record: markers, aborted and compacted records."""
    open_from: int | None = None
    """First offset of an open transaction; None: there is none."""
    is_append_time: bool = False
    """Whether the broker sets the timestamps."""


class MemoryBrokers:
    """Topics with partitions. `break_down` begins an outage."""

    def __init__(self, clock: Clock, topics: Mapping[str, int]) -> None:
        self._clock = clock
        self._logs = {(topic, n): _Log() for topic, count in topics.items() for n in range(count)}
        self._commits: dict[str, dict[Place, int]] = {}
        self.groups: dict[str, DescribedGroup] = {}
        self._away: str | None = None
        self.listed = 0
        self.looked_up: list[dict[Place, int]] = []
        """Positions of each lookup."""

    def append(
        self, place: Place, records: int, *, in_transaction: bool = False, stamped_ms: int | None = None
    ) -> None:
        """Write records now; with `in_transaction` they are visible to uncommitted readers only.

        The producer stamps them with `stamped_ms`, None: with the present time, -1: not at all.
        """
        log = self._logs[place]
        if in_transaction and log.open_from is None:
            log.open_from = len(log.stamped)
        if stamped_ms is None or log.is_append_time:
            stamped_ms = round(self._clock.now().timestamp() * 1000)
        log.stamped += [None if stamped_ms == -1 else stamped_ms] * records

    def transact(self, place: Place, records: int, *, aborts: bool = False) -> None:
        """Write the records of a transaction, and its marker."""
        log = self._logs[place]
        began = len(log.stamped)
        self.append(place, records + 1)
        log.gone |= set(range(began if aborts else began + records, began + records + 1))

    def compact(self, place: Place, offsets: Iterable[int]) -> None:
        """Remove records whose keys were written again."""
        self._logs[place].gone |= set(offsets)

    def truncate(self, place: Place, end: int) -> None:
        """Cut the log off, as an unclean election of a leader does."""
        del self._logs[place].stamped[end:]

    def stamp_by_broker(self, topic: str) -> None:
        """Set `message.timestamp.type` of a topic to LogAppendTime."""
        for place, log in self._logs.items():
            log.is_append_time |= place[0] == topic

    def delete_before(self, place: Place, offset: int) -> None:
        """Delete records as retention does."""
        self._logs[place].start = offset

    def add_topic(self, topic: str, partitions: int) -> None:
        """Add an empty topic; an existing one of this name is deleted."""
        self._logs = {place: log for place, log in self._logs.items() if place[0] != topic}
        self._logs |= {(topic, n): _Log() for n in range(partitions)}

    def commit(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Commit offsets of a consumer group."""
        self._commits.setdefault(group, {}).update(offsets)

    def break_down(self, reason: str = "the brokers are away") -> None:
        """Begin an outage: every call fails with `reason`."""
        self._away = reason

    def mend(self) -> None:
        """End the outage."""
        self._away = None

    def _check_reachable(self) -> None:
        if self._away is not None:
            raise BrokersAway(self._away)

    async def topics(self, *, fresh: bool = False) -> Mapping[str, Sequence[int]]:
        del fresh  # the list is always current
        self._check_reachable()
        self.listed += 1
        found: dict[str, list[int]] = {}
        for topic, number in sorted(self._logs):
            found.setdefault(topic, []).append(number)
        return found

    async def ends(self, places: Sequence[Place], end: End, isolation: Isolation) -> Offsets:
        self._check_reachable()
        found, problems = {}, []
        for place in places:
            log = self._logs.get(place)
            if log is None:
                problems.append(
                    Problem(where=f"{end} offset of {place[0]}/{place[1]}", what="unknown topic or partition")
                )
            elif end == "first":
                found[place] = log.start
            else:
                found[place] = self._end(log, isolation)
        return Offsets(found, tuple(problems))

    def _end(self, log: _Log, isolation: Isolation) -> int:
        hidden = isolation == "read_committed" and log.open_from is not None
        return log.open_from if hidden and log.open_from is not None else len(log.stamped)

    async def commits(self, places: Sequence[Place], group: str) -> Offsets:
        self._check_reachable()
        committed = self._commits.get(group, {})
        return Offsets({place: committed[place] for place in places if place in committed})

    async def all_commits(self, group: str) -> Offsets:
        self._check_reachable()
        return Offsets(self._commits.get(group, {}))

    async def group(self, name: str, *, raw: bool) -> DescribedGroup:
        del raw  # members in memory have their bytes, if they have any
        self._check_reachable()
        return self.groups.get(name, DescribedGroup(name, "Dead"))

    async def first_records(self, positions: Mapping[Place, int], isolation: Isolation) -> FirstRecords:
        self._check_reachable()
        self.looked_up.append(dict(positions))
        found: dict[Place, FirstRecord] = {}
        for place, position in positions.items():
            log = self._logs[place]
            end = self._end(log, isolation)
            ahead = (n for n in range(max(position, log.start), end) if n not in log.gone)
            first = next(ahead, None)
            if first is None:
                found[place] = FirstRecord(max(end, position), exists=False)
            else:
                found[place] = FirstRecord(first, timestamp_ms=log.stamped[first], is_append_time=log.is_append_time)
        return FirstRecords(found)


@dataclass
class MemoryFlink:
    """Cluster with the job `orders`: a Kafka source and a keyed map. The next scrape shows a change."""

    clock: Clock
    wanted: str = "orders"
    """Name or id of the requested job."""
    topic: str = "orders"
    partitions: int = 4
    away: bool = False
    absent: bool = False

    def __post_init__(self) -> None:
        self.state = "RUNNING"
        self.deploying = False
        self.started_at = self.running_since = self.clock.now()
        self.parallelism = dict.fromkeys(_VERTICES, 1)
        self.requested = dict(self.parallelism)
        self.processed = [0] * self.partitions
        self._run_began_with = 0
        self.restarts = 0

    def process(self, partition: int, records: int) -> None:
        """Let the source emit records of a partition, and the map take them in."""
        self.processed[partition] += records

    def rescale(self, vertex_id: str, parallelism: int) -> None:
        """Start a new run with another parallelism, at once."""
        self.parallelism[vertex_id] = self.requested[vertex_id] = parallelism
        self.restart()

    def restart(self) -> None:
        """Start a new run: counters begin at 0."""
        self.running_since = self.clock.now()
        self.restarts += 1
        self._run_began_with = sum(self.processed)

    def cancel(self) -> None:
        """End the job."""
        self.state = "CANCELED"

    @property
    def emitted(self) -> int:
        """Number of records emitted in this run."""
        return sum(self.processed) - self._run_began_with

    async def close(self) -> None:
        """Do nothing: no connection was opened."""

    async def scrape(self) -> Scrape:
        return scrape_of(await self.read())

    async def read(self) -> FlinkReadings:
        """Return the readings of one scrape."""
        if self.away:
            return FlinkReadings(reachable=False, message="GET /jobs/overview: connection refused")
        if self.absent or self.wanted not in ("orders", JOB_ID):
            return FlinkReadings(message=f"the cluster has no job {self.wanted!r}")
        job = self.job()
        live = job.all_running
        return FlinkReadings(
            job=job,
            shares=dict.fromkeys(_VERTICES, Shares(0.5, 0.6, 0.0, 0.1)) if live else {},
            sources={SOURCE: self.offsets()} if live else {},
            requirements={vertex_id: (1, wanted) for vertex_id, wanted in self.requested.items()},
            checkpoints=CheckpointStatistics(self.clock.now() - timedelta(seconds=3), 0.2, completed=4, failed=1),
            checkpoint_interval_seconds=10.0,
            slots_total=8,
            slots_available=8 - (max(self.parallelism.values()) if live else 0),
            restarts=self.restarts,
            configuration={"jobmanager.scheduler": "adaptive"},
            version="2.2.1",
            task_managers=(Pod(name="127.0.0.1:6122-a1b2c3", ready=True, cpu_cores=1.0, memory_bytes=242),),
        )

    def offsets(self) -> SourceOffsets:
        """Return the source's offsets; a partition without a record in this run has no position."""
        positions = {
            (self.topic, n): self.processed[n] if self.processed[n] and self.emitted else None
            for n in range(self.partitions)
        }
        return SourceOffsets(positions, 0, self.emitted)

    def job(self) -> Job:
        """Return the job as `GET /jobs/:id` shows it."""
        vertices = tuple(
            VertexReading(
                id=vertex_id,
                name=name,
                parallelism=self.parallelism[vertex_id],
                max_parallelism=120,
                slot_sharing_group="group",
                running=self.state == "RUNNING" and not self.deploying,
                finished=False,
                complete=True,
                read_records=0 if vertex_id == SOURCE else self.emitted,
                write_records=self.emitted if vertex_id == SOURCE else 0,
                busy_ms=float(self.emitted),
                backpressured_ms=0.0,
                idle_ms=1000.0 * (self.clock.now() - self.running_since).total_seconds(),
            )
            for vertex_id, name in _VERTICES.items()
        )
        return Job(
            id=JOB_ID,
            name="orders",
            state=self.state,
            started_at=self.started_at,
            running_since=self.running_since,
            now=self.clock.now(),
            vertices=vertices,
            links=(Link(SOURCE, MAP, "HASH"),),
        )
