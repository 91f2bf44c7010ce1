"""Reads one Kafka cluster's offsets: log ends at the policy's isolation level, log starts, commits, append times.

confluent-kafka's clients are synchronous, so all calls of one cluster run on one thread of its own.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec
from weir_contracts import KafkaSignals, Problem

from services.monitor.core import PartitionOffsets

T = TypeVar("T")

TOPICS_KEPT_SECONDS = 30.0
MEMORY_SAMPLES = 900
"""Log ends remembered for each partition: half an hour at 2 s."""
MOST_LOOKUPS = 12
"""Records looked up in one scrape, each up to `LOOKUP_SECONDS`."""
LOOKUP_SECONDS = 0.5

Place = tuple[str, int]


@dataclass(frozen=True)
class Wanted:
    """A source's partitions as its own metrics name them (dots of a topic's name are written `_` there)."""

    vertex_id: str
    positions: Mapping[Place, int | None]


@dataclass(frozen=True)
class KafkaReadings:
    partitions: tuple[tuple[str, PartitionOffsets], ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass
class _Memory:
    """What earlier scrapes of a partition saw."""

    ends: deque[tuple[datetime, int]] = field(default_factory=lambda: deque(maxlen=MEMORY_SAMPLES))
    committed: int | None = None
    committed_at: datetime | None = None
    looked_up: tuple[int, datetime | None] | None = None


class KafkaCollector:
    """Offsets of one application's sources. Never raises: what cannot be read is a problem in the readings."""

    def __init__(self, signals: KafkaSignals, timeout_seconds: float) -> None:
        self._signals = signals
        self._timeout_seconds = timeout_seconds
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="monitor-kafka")
        self._settings: dict[str, Any] = {
            "bootstrap.servers": signals.bootstrap_servers,
            "socket.timeout.ms": int(timeout_seconds * 1000),
            "reconnect.backoff.max.ms": 2_000,
            # Silent: every failure becomes a problem of the observation.
            "log_level": 0,
        }
        self._admin: AdminClient | None = None
        self._consumer: Consumer | None = None
        self._topics: tuple[datetime, dict[str, list[int]]] | None = None
        self._memory: dict[Place, _Memory] = {}

    async def close(self) -> None:
        def closing() -> None:
            if self._consumer is not None:
                self._consumer.close()

        await self._run(closing)
        self._thread.shutdown(wait=False)

    async def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def scrape(self, wanted: Sequence[Wanted], now: datetime) -> KafkaReadings:
        """The brokers' present account of all partitions of these sources."""
        try:
            return await asyncio.wait_for(self._run(self._scrape, wanted, now), 3 * self._timeout_seconds)
        except TimeoutError:
            what = f"no answer within {3 * self._timeout_seconds:g} s"
        except KafkaException as error:
            reason = error.args[0]
            what = reason.str() if isinstance(reason, KafkaError) else str(reason)
        return KafkaReadings(
            problems=(Problem(where=f"kafka {self._signals.bootstrap_servers}"[:300], what=what[:1000]),)
        )

    def _scrape(self, wanted: Sequence[Wanted], now: datetime) -> KafkaReadings:
        problems: list[Problem] = []
        topics = self._known_topics(now)
        places = self._places(wanted, topics, problems)
        if not places:
            return KafkaReadings(problems=tuple(problems))
        names = [(p.topic, p.partition) for _, p in places]
        ends = self._offsets(names, OffsetSpec.latest(), problems)
        starts = self._offsets(names, OffsetSpec.earliest(), problems)
        commits = self._committed(names, problems)
        found = []
        lookups = 0
        positions = {w.vertex_id: w.positions for w in wanted}
        for vertex_id, partition in places:
            place = (partition.topic, partition.partition)
            memory = self._memory.setdefault(place, _Memory())
            end, committed = ends.get(place), commits.get(place)
            if committed is not None and committed != memory.committed:
                memory.committed, memory.committed_at = committed, now
            if end is not None:
                memory.ends.append((now, end))
            position = positions[vertex_id].get((partition.metric_topic, partition.partition))
            position = committed if position is None else position
            appended_at = None
            if _needs_lookup(memory, position, end) and position is not None and lookups < MOST_LOOKUPS:
                appended_at = self._appended_at(place, position, memory)
                lookups += 1
            found.append(
                (
                    vertex_id,
                    replace(
                        partition,
                        log_start_offset=starts.get(place),
                        log_end_offset=end,
                        committed_offset=committed,
                        committed_at=memory.committed_at if committed is not None else None,
                        position_appended_at=appended_at,
                    ),
                )
            )
        return KafkaReadings(tuple(found), tuple(problems))

    def _known_topics(self, now: datetime) -> dict[str, list[int]]:
        if self._topics is None or now - self._topics[0] > timedelta(seconds=TOPICS_KEPT_SECONDS):
            listed = self._client().list_topics(timeout=self._timeout_seconds).topics
            self._topics = (now, {name: sorted(topic.partitions) for name, topic in listed.items()})
        return self._topics[1]

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(self._settings)
        return self._admin

    def _places(
        self, wanted: Sequence[Wanted], topics: Mapping[str, Sequence[int]], problems: list[Problem]
    ) -> list[tuple[str, PartitionOffsets]]:
        """All partitions of all topics of each source: also those that the source has not read from yet."""
        places = []
        for source in wanted:
            named = sorted({metric_topic for metric_topic, _ in source.positions})
            real = [(resolve(name, topics, self._signals.topics), name) for name in named]
            for topic, name in real:
                if topic is None:
                    problems.append(Problem(where=f"topic {name}"[:300], what=_unresolved(name, topics)))
            if not named and len(wanted) == 1:
                # Before the first record a source names none; the policy may.
                real = [(topic, topic.replace(".", "_")) for topic in self._signals.topics or []]
            for topic, name in real:
                if topic is not None and topic not in topics:
                    problems.append(Problem(where=f"topic {topic}"[:300], what="the brokers have no such topic"))
                for partition in topics.get(topic or "", []):
                    places.append((source.vertex_id, PartitionOffsets(topic or "", name, partition)))
        return places

    def _offsets(self, places: Sequence[Place], spec: OffsetSpec, problems: list[Problem]) -> dict[Place, int]:
        level = (
            IsolationLevel.READ_COMMITTED
            if self._signals.isolation == "read_committed"
            else IsolationLevel.READ_UNCOMMITTED
        )
        futures = self._client().list_offsets(
            {TopicPartition(topic, partition): spec for topic, partition in places},
            isolation_level=level,
            request_timeout=self._timeout_seconds,
        )
        found = {}
        for place, future in futures.items():
            try:
                found[place.topic, place.partition] = int(future.result(timeout=self._timeout_seconds).offset)
            except (KafkaException, TimeoutError) as error:
                problems.append(
                    Problem(where=f"offsets of {place.topic}/{place.partition}"[:300], what=str(error)[:1000])
                )
        return found

    def _committed(self, places: Sequence[Place], problems: list[Problem]) -> dict[Place, int]:
        group = self._signals.group_id
        if group is None:
            return {}
        # Not the admin client's list_consumer_group_offsets: librdkafka 2.16 crashes when the group's coordinator is loading.
        asked = [TopicPartition(topic, partition) for topic, partition in places]
        try:
            answered = self._reader().committed(asked, timeout=self._timeout_seconds)
        except KafkaException as error:
            problems.append(Problem(where=f"commits of group {group}"[:300], what=str(error)[:1000]))
            return {}
        # -1001: this group has committed nothing there.
        return {(p.topic, p.partition): int(p.offset) for p in answered if p.error is None and p.offset >= 0}

    def _reader(self) -> Consumer:
        """Reads commits and single records. Never subscribes, so it is no member of the group whose commits it reads."""
        if self._consumer is None:
            self._consumer = Consumer(
                {
                    **self._settings,
                    "group.id": self._signals.group_id or "weir-monitor-lookup",
                    "enable.auto.commit": False,
                    "isolation.level": self._signals.isolation,
                    "auto.offset.reset": "earliest",
                    "fetch.max.bytes": 1_000_000,
                    "max.partition.fetch.bytes": 200_000,
                    "queued.min.messages": 1,
                }
            )
        return self._consumer

    def _appended_at(self, place: Place, position: int, memory: _Memory) -> datetime | None:
        """When the record at `position` was appended, read from the log; remembered for as long as the position stays."""
        if memory.looked_up is not None and memory.looked_up[0] == position:
            return memory.looked_up[1]
        consumer = self._reader()
        consumer.assign([TopicPartition(*place, position)])
        message = consumer.poll(LOOKUP_SECONDS)
        consumer.unassign()
        if message is None or message.error() is not None:
            return None
        kind, milliseconds = message.timestamp()
        found = None if kind == TIMESTAMP_NOT_AVAILABLE else datetime.fromtimestamp(milliseconds / 1000, UTC)
        memory.looked_up = (position, found)
        return found


def _needs_lookup(memory: _Memory, position: int | None, end: int | None) -> bool:
    """Whether the append time of a position cannot be told from the log ends seen so far."""
    return position is not None and end is not None and position < end and position < memory.ends[0][1]


def resolve(name: str, topics: Mapping[str, Sequence[int]], hinted: Sequence[str] | None) -> str | None:
    """The topic that Flink's metrics call `name`: the policy's choice if it fits, else the only one that does."""
    fitting = [topic for topic in topics if topic.replace(".", "_") == name]
    chosen = [topic for topic in hinted or [] if topic.replace(".", "_") == name]
    if chosen:
        return chosen[0]
    return fitting[0] if len(fitting) == 1 else None


def _unresolved(name: str, topics: Mapping[str, Sequence[int]]) -> str:
    fitting = sorted(topic for topic in topics if topic.replace(".", "_") == name)
    if not fitting:
        return "the brokers have no topic that Flink's metrics would name so"
    return f"may be any of {', '.join(fitting)}: name the right one in spec.signals.kafka.topics"[:1000]
