"""Kafka Streams application as frozen values, and the assignment of its tasks to instances. Times in seconds, rates in
records/s, sizes in bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from .spec import Partitioned, Positive, Seconds, Spec, parse_as

Task = tuple[int, int]
"""Sub-topology and partition."""


class Subtopology(Partitioned):
    """Part of the topology with an own task for each partition."""

    topic: Annotated[str, Field(max_length=200)] = ""
    """Input topic. Empty: the repartition topic that the sub-topology before it writes."""
    partitions: Annotated[int, Field(ge=1, le=1000)] = 12
    service_seconds: Annotated[float, Field(gt=0, le=3600)] = 2e-3
    """Seconds per record of one thread."""
    selectivity: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Records to the next sub-topology's repartition topic per record in."""
    state_bytes: Annotated[float, Field(ge=0)] = 0.0
    """State of one task. 0: stateless."""


class StreamsApplication(Spec):
    """Instances of equal size, and the settings of their group. Defaults are those of Kafka 4.1."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,100}$")] = "orders"
    """The `application.id`."""
    subtopologies: Annotated[tuple[Subtopology, ...], Field(min_length=1, max_length=20)]
    instances: Annotated[int, Field(ge=1, le=1000)] = 1
    """Initial number of instances."""
    max_instances: Annotated[int, Field(ge=1, le=1000)] = 100
    """Number above which the endpoint refuses a request."""
    threads: Annotated[int, Field(ge=1, le=100)] = 1
    """Threads of one instance: `num.stream.threads`."""
    commit_interval_seconds: Annotated[float, Field(ge=0.01, le=3600)] = 30.0
    standbys: Annotated[int, Field(ge=0, le=10)] = 0
    """`num.standby.replicas`."""
    acceptable_recovery_lag: Annotated[float, Field(ge=0)] = 10_000.0
    """Changelog records up to which an instance counts as caught up: `acceptable.recovery.lag`."""
    max_warmups: Annotated[int, Field(ge=1, le=1000)] = 2
    """Warm-ups of the whole group at a time: `max.warmup.replicas`."""
    probing_seconds: Annotated[float, Field(ge=60, le=86_400)] = 600.0
    """`probing.rebalance.interval.ms`."""
    session_seconds: Annotated[float, Field(ge=1, le=3600)] = 45.0
    """Time after which the coordinator gives up a member without heartbeats: `session.timeout.ms`."""
    rebalance_seconds: Annotated[float, Field(gt=0, le=600)] = 2.0
    """Duration of a rebalance in which every member answers."""
    eager: bool = False
    """Whether all tasks stand still during a rebalance, as before Kafka 2.4."""
    restore_bytes_per_second: Positive = 20e6
    """Rate at which one instance reads changelogs."""
    changelog_record_bytes: Positive = 100.0
    start_seconds: Seconds = 5.0
    """Time from the request of an instance until its threads join the group."""
    stop_seconds: Seconds = 0.3
    """Time that a process takes to end."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.subtopologies[0].topic:
            raise ValueError("subtopologies.0.topic: the first one reads an input topic")
        topics = [each.topic for each in self.subtopologies if each.topic]
        if len(set(topics)) != len(topics):
            raise ValueError("subtopologies: two of them read the same topic")
        if self.instances > self.max_instances:
            raise ValueError(f"instances: {self.instances} is above max_instances {self.max_instances}")
        return self

    @property
    def tasks(self) -> tuple[Task, ...]:
        return tuple((s, p) for s, each in enumerate(self.subtopologies) for p in range(each.partitions))

    @property
    def input_share(self) -> float:
        """Records that are appended to all input topics per record of the load."""
        return sum(each.share for each in self.subtopologies if each.topic)

    def topic(self, subtopology: int) -> str:
        """Return the topic that a sub-topology reads."""
        return self.subtopologies[subtopology].topic or f"{self.name}-{subtopology}-repartition"

    def state_records(self, subtopology: int) -> float:
        """Return the changelog records of one task's entire state."""
        return self.subtopologies[subtopology].state_bytes / self.changelog_record_bytes

    def flows(self) -> list[float]:
        """Return the records/s that arrive at each sub-topology per record/s of the load."""
        found: list[float] = []
        for i, each in enumerate(self.subtopologies):
            found.append(each.share if each.topic else found[i - 1] * self.subtopologies[i - 1].selectivity)
        return found

    def task_seconds(self) -> list[list[float]]:
        """Return the seconds of work of each partition's task per record of the load, by sub-topology."""
        return [
            [flow * share * each.service_seconds for share in each.shares()]
            for each, flow in zip(self.subtopologies, self.flows(), strict=True)
        ]

    def capacity(self, threads: int) -> float:
        """Return the load in records/s that `threads` threads sustain: the one with the most work sets the pace.

        Tasks are indivisible, so it is the capacity of T / ceil(T / n) threads where all tasks are equal.
        """
        work = [seconds for costs in self.task_seconds() for seconds in costs]
        bins = [0.0] * min(threads, len(work))
        for i, seconds in enumerate(work):
            bins[i % len(bins)] += seconds
        busiest = max(bins)
        return 1 / busiest if busiest > 0 else float("inf")

    def started_with(self, instances: int) -> "StreamsApplication":
        """Return the application with another initial number of instances."""
        return parse_streams({**self.model_dump(), "instances": instances})


def parse_streams(document: Mapping[str, Any]) -> StreamsApplication:
    """Read an application strictly. Raises `InvalidApplication` that names the first wrong fields."""
    return parse_as(StreamsApplication, document, "application")


def streams(instances: int = 1, **fields: Any) -> StreamsApplication:
    """Return the ready-made application: 12 stateless tasks of one thread each that do 500 records/s."""
    given = {"subtopologies": ({"topic": "orders"},), "instances": instances, **fields}
    return parse_streams(given)


def stateful(instances: int = 1, state_bytes: float = 200e6, **fields: Any) -> StreamsApplication:
    """Return the same with 200 MB of state a task: 10 s of restore, and far above the acceptable lag."""
    subtopology = {"topic": "orders", "state_bytes": state_bytes}
    return streams(instances, **{"subtopologies": (subtopology,), **fields})


STREAMS_PRESETS = {"streams": streams, "streams-stateful": stateful}
"""Names for `weir replay --topology`."""


# -- assignment of tasks ------------------------------------------------------------------------------------------------

Missing = Callable[[str, Task], float]
"""Changelog records that an instance would have to read before it can run a task."""


@dataclass(frozen=True)
class Assignment:
    """Owner of each task, and the copies of its state elsewhere."""

    active: Mapping[Task, str] = field(default_factory=dict)
    standbys: Mapping[Task, tuple[str, ...]] = field(default_factory=dict)
    warmups: Mapping[Task, str] = field(default_factory=dict)
    probes: bool = False
    """Whether a task waits for a warm-up, so that a probing rebalance follows."""


def assign(
    instances: Sequence[str],
    stateful: Sequence[Task],
    stateless: Sequence[Task],
    previous: Mapping[Task, str],
    missing: Missing,
    *,
    acceptable_lag: float,
    max_warmups: int,
    standbys: int,
) -> Assignment:
    """Return the assignment to these instances, which are in the order of their process ids, as the classic assignor of
    Kafka Streams 4.1 makes it (HighAvailabilityTaskAssignor, KIP-441).

    Stateful tasks are dealt out in turn. One whose new instance is not caught up stays with a caught-up instance and is
    warmed up on the new one, a few tasks of the whole group at a time; a probing rebalance then looks again. If no
    instance is caught up, the task moves at once and waits for its state. Stateless tasks stay where they are while that
    is balanced.
    """
    if not instances:
        return Assignment()
    active: dict[Task, str] = {}
    warmups: dict[Task, str] = {}
    probes = False
    for i, task in enumerate(stateful):
        wanted = instances[i % len(instances)]
        caught_up = [each for each in instances if missing(each, task) <= acceptable_lag]
        if wanted in caught_up or not caught_up:
            active[task] = wanted
            continue
        probes = True
        owner = previous.get(task)
        active[task] = owner if owner in caught_up and owner is not None else _closest(caught_up, task, missing)
        if len(warmups) < max_warmups:
            warmups[task] = wanted
    copies = {task: _copies(i, active[task], instances, standbys) for i, task in enumerate(stateful)}
    _balance(instances, stateless, previous, active)
    return Assignment(active, {task: found for task, found in copies.items() if found}, warmups, probes)


def _closest(instances: Sequence[str], task: Task, missing: Missing) -> str:
    return min(instances, key=lambda each: missing(each, task))


def _copies(turn: int, owner: str, instances: Sequence[str], count: int) -> tuple[str, ...]:
    """Return the instances of a task's standbys, the next ones in turn."""
    others = [instances[(turn + k) % len(instances)] for k in range(1, len(instances) + 1)]
    return tuple([each for each in others if each != owner][:count])


def _balance(
    instances: Sequence[str], stateless: Sequence[Task], previous: Mapping[Task, str], active: dict[Task, str]
) -> None:
    """Add the stateless tasks: each stays with its owner while that one has no more than its part."""
    total = len(active) + len(stateless)
    loads = dict.fromkeys(instances, 0)
    for owner in active.values():
        loads[owner] += 1
    fair, spare = divmod(total, len(instances))
    left = []
    for task in stateless:
        owner = previous.get(task, "")
        if owner in loads and (loads[owner] < fair or (loads[owner] == fair and spare > 0)):
            spare -= loads[owner] == fair
            active[task] = owner
            loads[owner] += 1
        else:
            left.append(task)
    for task in left:
        owner = min(instances, key=lambda each: loads[each])
        active[task] = owner
        loads[owner] += 1
