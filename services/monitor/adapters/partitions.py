"""Reads the partitions of one application's sources: start and end of the logs, commits, age of the waiting records.

`Brokers` hides the difference between a real Kafka and the in-memory one.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal, Protocol

from weir_contracts import KafkaSignals, Problem

from engines.kafka_streams.group import DescribedGroup
from engines.scrape import Positions
from services.monitor.core import PartitionOffsets

Place = tuple[str, int]
"""Topic and partition."""
End = Literal["first", "last"]
Isolation = Literal["read_committed", "read_uncommitted"]

ENDS_KEPT = timedelta(minutes=30)
"""How far back log ends are kept: the analyzer's own history reaches as far."""
ENDS_STEP = timedelta(seconds=10)
MAX_LOOKUPS = 16
"""Records looked up in one scrape, the ones of the longest lag first."""


class BrokersAway(Exception):
    """The brokers gave no answer; the sentence says why."""


@dataclass(frozen=True)
class Offsets:
    """Offsets by place, and why some are missing."""

    found: Mapping[Place, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    metadata: Mapping[Place, str] = field(default_factory=dict)
    """Metadata of commits by place, where there is any."""


class Brokers(Protocol):
    """One Kafka cluster. `BrokersAway` where nothing can be read."""

    async def topics(self, *, fresh: bool = False) -> Mapping[str, Sequence[int]]:
        """All topics and their partitions, not older than half a minute; a `fresh` list is a few seconds old at most."""

    async def ends(self, places: Sequence[Place], end: End, isolation: Isolation) -> Offsets:
        """Return the log-start offsets, or the next ones that a reader at this isolation level would wait for."""

    async def commits(self, places: Sequence[Place], group: str) -> Offsets:
        """Return the group's committed offsets with their metadata, without the places where it has none."""

    async def group(self, name: str, *, raw: bool) -> DescribedGroup:
        """Return the group at its coordinator; with `raw` the bytes that members of the classic protocol exchange."""

    async def appended_at(
        self, positions: Mapping[Place, int], isolation: Isolation
    ) -> Mapping[Place, datetime | None]:
        """Return when the first record at or after each position was appended, without those that take too long. None: no
        record follows, only markers of transactions or, for readers of committed records, aborted ones."""


@dataclass(frozen=True)
class KafkaReadings:
    partitions: tuple[tuple[str, PartitionOffsets], ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass
class _PartitionHistory:
    """Readings of a partition in earlier scrapes."""

    ends: deque[tuple[datetime, int]] = field(default_factory=deque)
    last_end: int = 0
    committed: int | None = None
    committed_at: datetime | None = None
    looked_up: tuple[int, datetime] | None = None
    metadata: str = ""
    rewound_at: datetime | None = None

    def add_end(self, end: int, now: datetime) -> None:
        if end < self.last_end:
            # the topic was created again: its offsets mean other records
            self.ends.clear()
            self.looked_up = None
            self.rewound_at = now
        self.last_end = end
        if not self.ends or now - self.ends[-1][0] >= ENDS_STEP:
            self.ends.append((now, end))
        while now - self.ends[0][0] > ENDS_KEPT:
            self.ends.popleft()

    def add_commit(self, committed: int, metadata: str, now: datetime) -> None:
        if self.committed is not None and committed < self.committed:
            self.rewound_at = now
        if committed != self.committed:
            self.committed, self.committed_at = committed, now
        self.metadata = metadata

    def reaches_back_to(self, position: int) -> bool:
        """Whether the kept log ends bracket the append time of a position."""
        return bool(self.ends) and self.ends[0][1] <= position


class PartitionCollector:
    """Offsets of one application's sources. Never raises: an unreadable one is a problem in the readings."""

    def __init__(self, signals: KafkaSignals, brokers: Brokers, group_id: str | None = None) -> None:
        self._signals = signals
        self._brokers = brokers
        self._group_id = group_id or signals.group_id
        self._named: dict[str, frozenset[str]] = {}
        self._histories: dict[Place, _PartitionHistory] = {}

    async def scrape(self, sources: Mapping[str, Positions], now: datetime) -> KafkaReadings:
        """Return the offsets of all partitions of these sources."""
        problems: list[Problem] = []
        try:
            found = await self._scrape(sources, now, problems)
        except BrokersAway as error:
            problems.append(Problem(where=f"kafka {self._signals.bootstrap_servers}", what=str(error)))
            found = []
        return KafkaReadings(tuple(found), tuple(problems))

    async def _scrape(
        self, sources: Mapping[str, Positions], now: datetime, problems: list[Problem]
    ) -> list[tuple[str, PartitionOffsets]]:
        listed = await self._places(sources, problems)
        if not listed:
            return []
        places = list(dict.fromkeys((p.topic, p.partition) for _, p in listed))
        commits, starts = await asyncio.gather(
            self._commits(places, problems), self._brokers.ends(places, "first", self._signals.isolation)
        )
        # The ends come last: read after the positions, they can only add the records of the time in between to the lag.
        ends = await self._brokers.ends(places, "last", self._signals.isolation)
        problems += [*starts.problems, *ends.problems]
        self._remember(places, ends.found, commits, now)
        read = [
            (operator, self._with_offsets(partition, starts.found, ends.found, commits.found))
            for operator, partition in listed
        ]
        return await self._with_ages(read, sources)

    async def _places(
        self, sources: Mapping[str, Positions], problems: list[Problem]
    ) -> list[tuple[str, PartitionOffsets]]:
        """All partitions of all topics of each source: also those that the source has not read from yet."""
        topics = await self._brokers.topics()
        named = {name: self._names(name, positions, alone=len(sources) == 1) for name, positions in sources.items()}
        if any(resolve(name, topics, self._signals.topics) not in topics for names in named.values() for name in names):
            topics = await self._brokers.topics(fresh=True)
        places = []
        for operator, names in named.items():
            for name in sorted(names):
                topic = resolve(name, topics, self._signals.topics)
                if topic is None or topic not in topics:
                    problems.append(Problem(where=f"topic {name}", what=_unresolved(name, topic, topics)))
                    continue
                places += [(operator, PartitionOffsets(topic, name, number)) for number in topics[topic]]
        return places

    def _names(self, source: str, positions: Positions, *, alone: bool) -> frozenset[str]:
        """Return a source's topics as its metrics call them.

        Before its first run the policy may name them; while it restarts it names none, but demand goes on, so the last
        ones count.
        """
        if now := frozenset(topic for topic, _ in positions):
            self._named[source] = now
        if cached := self._named.get(source):
            return cached
        return frozenset(metric_name(topic) for topic in self._signals.topics or []) if alone else frozenset()

    async def _commits(self, places: Sequence[Place], problems: list[Problem]) -> Offsets:
        if self._group_id is None:
            return Offsets()
        commits = await self._brokers.commits(places, self._group_id)
        problems += commits.problems
        return commits

    def _remember(self, places: Sequence[Place], ends: Mapping[Place, int], commits: Offsets, now: datetime) -> None:
        before = self._histories
        self._histories = {place: before[place] if place in before else _PartitionHistory() for place in places}
        for place, history in self._histories.items():
            if place in ends:
                history.add_end(ends[place], now)
            if place in commits.found:
                history.add_commit(commits.found[place], commits.metadata.get(place, ""), now)

    def _with_offsets(
        self,
        partition: PartitionOffsets,
        starts: Mapping[Place, int],
        ends: Mapping[Place, int],
        commits: Mapping[Place, int],
    ) -> PartitionOffsets:
        place = (partition.topic, partition.partition)
        history, committed = self._histories[place], commits.get(place)
        # a monitor reads tens of thousands of these a scrape, and `replace` takes twice as long
        return PartitionOffsets(
            topic=partition.topic,
            metric_topic=partition.metric_topic,
            partition=partition.partition,
            log_start_offset=starts.get(place),
            log_end_offset=ends.get(place),
            committed_offset=committed,
            committed_at=None if committed is None else history.committed_at,
            commit_metadata="" if committed is None else history.metadata,
            rewound_at=history.rewound_at,
        )

    async def _with_ages(
        self, read: Sequence[tuple[str, PartitionOffsets]], sources: Mapping[str, Positions]
    ) -> list[tuple[str, PartitionOffsets]]:
        """Add the append time of the record at each waiting position that is older than the kept log ends."""
        waiting: list[tuple[int, Place, int]] = []
        positions: dict[tuple[str, Place], int] = {}
        for operator, partition in read:
            place = (partition.topic, partition.partition)
            position = sources.get(operator, {}).get((partition.metric_topic, partition.partition))
            position = partition.committed_offset if position is None else position
            end = partition.log_end_offset
            if position is None or end is None or position >= end or self._histories[place].reaches_back_to(position):
                continue
            positions[operator, place] = position
            before = self._histories[place].looked_up
            if before is None or before[0] != position:
                waiting.append((end - position, place, position))
        chosen = {place: position for _, place, position in sorted(waiting, reverse=True)[:MAX_LOOKUPS]}
        found = await self._brokers.appended_at(chosen, self._signals.isolation) if chosen else {}
        for place, at in found.items():
            if at is not None:
                self._histories[place].looked_up = (chosen[place], at)
        return [(v, self._aged(p, positions.get((v, (p.topic, p.partition))))) for v, p in read]

    def _aged(self, partition: PartitionOffsets, position: int | None) -> PartitionOffsets:
        looked_up = self._histories[partition.topic, partition.partition].looked_up
        if looked_up is None or looked_up[0] != position:
            return partition
        return replace(partition, position_appended_at=looked_up[1])


def metric_name(topic: str) -> str:
    """Return a topic as Flink's metrics write it."""
    return topic.replace(".", "_")


def resolve(name: str, topics: Mapping[str, Sequence[int]], hinted: Sequence[str] | None) -> str | None:
    """Return the topic that Flink's metrics call `name`: the policy's choice if one fits, else the only match."""
    fitting = [topic for topic in hinted or topics if metric_name(topic) == name]
    if not fitting and hinted:
        fitting = [topic for topic in topics if metric_name(topic) == name]
    return fitting[0] if len(fitting) == 1 else None


def _unresolved(name: str, topic: str | None, topics: Mapping[str, Sequence[int]]) -> str:
    fitting = sorted(topic for topic in topics if metric_name(topic) == name)
    if topic is not None:
        return f"the brokers have no topic {topic}"
    if not fitting:
        return "the brokers have no topic that Flink's metrics would call so"
    return f"may be any of {', '.join(fitting)}: name the right one in spec.signals.kafka.topics"
