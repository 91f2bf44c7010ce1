"""The monitor's side of a simulated Kafka Streams application: brokers, the group's coordinator and metrics endpoints. The
collector is that of production."""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from uuid import UUID

from weir_contracts import Observation, ScalingPolicy, Subject
from weir_engines.kafka.assignment import Place
from weir_engines.kafka.collector import GroupCollector, InstanceMetricsCollector, MetricsReadings
from weir_engines.kafka.group import DescribedGroup, DescribedMember
from weir_engines.kafka.metrics import InstanceMetrics, ThreadMetrics
from weir_engines.kafka.partitions import BrokersAway, End, Isolation, Offsets
from weir_engines.kafka.positions import FirstRecord, FirstRecords
from weir_monitor.applications import ApplicationCollector
from weir_monitor.core import Readings, observe
from weir_monitor.prometheus import SignalReadings
from weir_runtime.clock import Clock

from .simulator import Fault, StreamsSimulation
from .simulator.streams_group import Process
from .simulator.streams_spec import Task
from .simulator.world import START, Delivery, at

BROKERS_AWAY = "the brokers do not answer"
RECORDS_LAG = "sum(kafka_consumer_consumer_fetch_manager_metrics_records_lag)"
"""PromQL query that is answered: lag as the consumers report it, which vanishes with them."""
_FAULTS = frozenset({"lost", "delayed", "brokers-away", "missing"})
_THREAD_RUNNING, _THREAD_ASSIGNED = 4, 3
NEVER = 2**63 - 1
"""Time of a probing rebalance that is not due."""


class SimulatedGroup:
    """One simulation at the clock's time, and what brokers and instances say of it."""

    def __init__(self, simulation: StreamsSimulation, clock: Clock) -> None:
        self.simulation = simulation
        self._clock = clock

    def now(self) -> StreamsSimulation:
        """Return the simulation, advanced to the clock's time."""
        self.simulation.advance((self._clock.now() - START).total_seconds())
        return self.simulation

    def described(self) -> DescribedGroup:
        """Return the group as its coordinator describes it, with the bytes of its members."""
        simulation = self.now()
        group, app = simulation.group, simulation.application
        stable = group.state == "Stable"
        probing_ms = NEVER if group.probing_at is None else round(at(group.probing_at).timestamp() * 1000)
        topics = [app.topic(s) for s in range(len(app.subtopologies))]
        members = []
        for i, (id, member) in enumerate(group.members.items()):
            described = DescribedMember(id, member.client_id, f"/{member.process}")
            if stable:
                due_ms = probing_ms if i == 0 else NEVER
                places = [(topics[s], p) for s, p in member.tasks]
                described = DescribedMember(
                    id,
                    member.client_id,
                    f"/{member.process}",
                    assignment=assignment(places, _user_data(member.tasks, member.copies, probing_ms=due_ms)),
                    subscription=subscription(tuple(topics), member.process_id),
                )
            members.append(described)
        return DescribedGroup(app.name, group.state, "classic", "consumer", "stream", tuple(members))

    def metrics(self) -> tuple[InstanceMetrics, ...]:
        """Return what the instances' endpoints report."""
        simulation = self.now()
        return tuple(
            _metrics(simulation, process) for process in simulation.group.processes.values() if process.ends_at is None
        )


def _metrics(simulation: StreamsSimulation, process: Process) -> InstanceMetrics:
    group = simulation.group
    restoring = any(not group.runs(process, task) for task in process.active)
    waits = restoring or not process.joined
    stateful = any(simulation.application.state_records(task[0]) > 0 for task in process.active)
    return InstanceMetrics(
        threads={
            thread.name: ThreadMetrics(
                blocked_ns=max(0.0, thread.alive_seconds - thread.busy_seconds) * 1e9,
                processed=float(int(thread.processed + 1e-6)),
                state=_THREAD_ASSIGNED if waits else _THREAD_RUNNING,
            )
            for thread in process.threads
        },
        client_state="REBALANCING" if waits else "RUNNING",
        restore_remaining_records=round(group.restore_remaining(process)) if stateful else None,
        memory_bytes=200_000_000,
    )


class SimulatedBrokers:
    """The brokers as the monitor's collector reads them."""

    def __init__(self, application: SimulatedGroup) -> None:
        self._application = application
        self.away = False

    def _now(self) -> StreamsSimulation:
        if self.away:
            raise BrokersAway(BROKERS_AWAY)
        return self._application.now()

    async def topics(self, *, fresh: bool = False) -> Mapping[str, Sequence[int]]:
        del fresh
        app = self._now().application
        return {app.topic(s): range(each.partitions) for s, each in enumerate(app.subtopologies)}

    async def ends(self, places: Sequence[Place], end: End, isolation: Isolation) -> Offsets:
        simulation, numbers = self._now(), _numbers(self._application.simulation)
        if end == "first":
            return Offsets(dict.fromkeys(places, 0))
        return Offsets({(t, p): int(simulation.inputs[numbers[t]].ends[p] + 1e-6) for t, p in places})

    async def commits(self, places: Sequence[Place], group: str) -> Offsets:
        simulation, numbers = self._now(), _numbers(self._application.simulation)
        if group != simulation.application.name:
            return Offsets()
        found = {}
        for topic, p in places:
            read = simulation.inputs[numbers[topic]]
            if read.committed_times[p] is not None:
                found[topic, p] = int(read.committed[p] + 1e-6)
        return Offsets(found)

    async def all_commits(self, group: str) -> Offsets:
        topics = await self.topics()
        return await self.commits([(topic, number) for topic, numbers in topics.items() for number in numbers], group)

    async def group(self, name: str, *, raw: bool) -> DescribedGroup:
        if name != self._now().application.name:
            return DescribedGroup(name, "Dead")
        return self._application.described()

    async def first_records(self, positions: Mapping[Place, int], isolation: Isolation) -> FirstRecords:
        simulation, numbers = self._now(), _numbers(self._application.simulation)
        found = {}
        for (topic, p), offset in positions.items():
            appended_at = at(simulation.inputs[numbers[topic]].appended_at(p, offset))
            timestamp_ms = round(appended_at.timestamp() * 1000)
            found[topic, p] = FirstRecord(offset, timestamp_ms=timestamp_ms, is_append_time=True)
        return FirstRecords(found)


def _numbers(simulation: StreamsSimulation) -> dict[str, int]:
    """Return the sub-topology that reads each topic."""
    app = simulation.application
    return {app.topic(s): s for s in range(len(app.subtopologies))}


class SimulatedMetrics(InstanceMetricsCollector):
    """The metrics endpoints of all instances."""

    def __init__(self, application: SimulatedGroup) -> None:
        self._application = application
        self.away = False

    async def read(self, hosts: Iterable[str], now: Callable[[], float] | None = None) -> MetricsReadings:
        return MetricsReadings() if self.away else MetricsReadings(self._application.metrics())

    async def close(self) -> None:
        return None


class StreamsObserver:
    """The monitor of one simulated application. Faults of the kinds lost, delayed, brokers-away and missing (metrics)."""

    def __init__(self, application: SimulatedGroup, clock: Clock, *, faults: Sequence[Fault] = ()) -> None:
        unknown = sorted({fault.kind for fault in faults} - _FAULTS)
        if unknown:
            raise ValueError(f"faults: {unknown[0]} is of Flink jobs; groups have {', '.join(sorted(_FAULTS))}")
        self.faults = list(faults)
        self._application = application
        self._clock = clock
        self._brokers, self._metrics = SimulatedBrokers(application), SimulatedMetrics(application)
        self._collector: ApplicationCollector | None = None
        self._subject: Subject | None = None
        self._previous: Observation | None = None
        self._delivery = Delivery()

    async def scrape(self, policy: ScalingPolicy) -> list[Observation]:
        """Return the observations that arrive now, in order."""
        now = self._application.now().now
        holding = {fault.kind: fault for fault in self.faults if fault.holds(now)}
        self._brokers.away, self._metrics.away = "brokers-away" in holding, "missing" in holding
        current = observe(await self._read(policy), self._clock.now())
        if current.topology is not None:
            self._previous = current
        delay = holding["delayed"].delay_seconds if "delayed" in holding else 0.0
        return self._delivery.arriving(now, current, is_lost="lost" in holding, delay_seconds=delay)

    async def _read(self, policy: ScalingPolicy) -> Readings:
        if self._collector is None or self._subject != policy.subject:
            self._subject = policy.subject
            streams = policy.subject.application.kafka_streams
            metrics = self._metrics if streams is not None and streams.metrics is not None else None
            group = GroupCollector(policy.subject, self._brokers, self._clock, metrics)
            self._collector = ApplicationCollector(group, self._clock)
        read = await self._collector.read(policy)
        return Readings(
            policy=policy,
            scrape=read.scrape,
            problems=read.problems,
            scrape_seconds=0.0,
            previous=self._previous,
            signals=self._signals(policy).values,
        )

    def _signals(self, policy: ScalingPolicy) -> SignalReadings:
        """Answer the policy's queries for `RECORDS_LAG`; others have no value."""
        prometheus = policy.spec.signals.prometheus
        if prometheus is None:
            return SignalReadings()
        lag = self._application.simulation.reported_lag()
        return SignalReadings(
            {name: lag if query == RECORDS_LAG else None for name, query in prometheus.queries.items()}
        )


# -- bytes that Kafka Streams' members exchange through the coordinator, so that the real decoder reads a simulated group ------


def text(value: str) -> bytes:
    """Return a text with its length in two bytes."""
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def user_data(active: Sequence[Task], standby: Sequence[Task] = (), *, probing_ms: int = NEVER) -> bytes:
    """Return an `AssignmentInfo` of version 11."""

    def task(subtopology: int, partition: int) -> bytes:
        return struct.pack(">iii", subtopology, partition, 0)

    head = struct.pack(">iii", 11, 11, len(active)) + b"".join(task(*each) for each in active)
    standbys = b"".join(task(*each) + struct.pack(">i", 1) + text("orders") + struct.pack(">i", 0) for each in standby)
    return head + struct.pack(">i", len(standby)) + standbys + struct.pack(">iiiiq", 0, 0, 0, 0, probing_ms)


_user_data = cache(user_data)


def assignment(places: Sequence[tuple[str, int]], data: bytes | None = None) -> bytes:
    """Return a member's assignment with its user data."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in places:
        by_topic.setdefault(topic, []).append(partition)
    topics = b"".join(
        text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers) for topic, numbers in by_topic.items()
    )
    rest = struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
    return struct.pack(">hi", 1, len(by_topic)) + topics + rest


def subscription(topics: Sequence[str], process: UUID | None = None) -> bytes:
    """Return a member's subscription; with a process that of a Kafka Streams thread."""
    listed = b"".join(text(topic) for topic in topics)
    head = struct.pack(">hi", 1, len(topics)) + listed
    if process is None:
        return head + struct.pack(">i", -1)
    data = struct.pack(">ii", 11, 11) + process.bytes + struct.pack(">iibii", 0, 0, 0, 0, 0)
    return head + struct.pack(">i", len(data)) + data
