"""Reads the partitions of one application's sources: start and end of the logs, commits, age of the waiting records.

`Brokers` hides the difference between a real Kafka and the in-memory one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal, Protocol

from weir_contracts import KafkaSignals, Problem
from weir_engines.kafka.assignment import Place
from weir_engines.kafka.group import DescribedGroup
from weir_engines.kafka.positions import FirstRecords, PartitionHistory, Waiting
from weir_engines.scrape import PartitionOffsets, Positions

End = Literal["first", "last"]
Isolation = Literal["read_committed", "read_uncommitted"]

MAX_LOOKUPS = 16
"""Records looked up in one scrape for their age, the ones of the longest lag first."""
MAX_STILL_LOOKUPS = 128
"""Positions looked up in one scrape because they stand still."""


class BrokersAway(Exception):
    """The brokers gave no answer; the sentence says why."""


class BrokersRefuse(BrokersAway):
    """The brokers, or the settings, do not allow this connection."""


@dataclass(frozen=True)
class Offsets:
    """Offsets by place, and why some are missing."""

    found: Mapping[Place, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


class Brokers(Protocol):
    """One Kafka cluster. `BrokersAway` where nothing can be read."""

    async def topics(self, *, fresh: bool = False) -> Mapping[str, Sequence[int]]:
        """All topics and their partitions, not older than half a minute; a `fresh` list is a few seconds old at most."""

    async def ends(self, places: Sequence[Place], end: End, isolation: Isolation) -> Offsets:
        """Return the log-start offsets, or the next ones that a reader at this isolation level would wait for."""

    async def commits(self, places: Sequence[Place], group: str) -> Offsets:
        """Return the group's committed offsets, without the places where it has none."""

    async def all_commits(self, group: str) -> Offsets:
        """Return all committed offsets of the group, in whatever topics."""

    async def group(self, name: str, *, raw: bool) -> DescribedGroup:
        """Return the group at its coordinator; with `raw` the bytes that members of the classic protocol exchange."""

    async def first_records(self, positions: Mapping[Place, int], isolation: Isolation) -> FirstRecords:
        """Return the first record at or after each position, without those that take too long to read."""


@dataclass(frozen=True)
class KafkaReadings:
    partitions: tuple[tuple[str, PartitionOffsets], ...] = ()
    problems: tuple[Problem, ...] = ()


class PartitionCollector:
    """Offsets of one application's sources. Never raises: an unreadable one is a problem in the readings."""

    def __init__(
        self,
        signals: KafkaSignals,
        brokers: Brokers,
        group_id: str | None = None,
        *,
        on_closed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`on_closed` ends the use of the brokers, which others share."""
        self._signals = signals
        self._brokers = brokers
        self._group_id = group_id or signals.group_id
        self._on_closed = on_closed
        self._named: dict[str, frozenset[str]] = {}
        self._histories: dict[Place, PartitionHistory] = {}
        self._waiting: dict[tuple[str, Place], Waiting] = {}
        """Positions that are not their log's end, by source and place."""

    async def close(self) -> None:
        """End the use of the brokers. Call it once."""
        if self._on_closed is not None:
            await self._on_closed()

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
        self._note_waiting(read, sources, now)
        await self._look_up(read, now, problems)
        high_watermarks = await self._read_beyond(read)
        return [(name, self._with_record(name, p, high_watermarks, now)) for name, p in read] if self._waiting else read

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
        self._histories = {place: before[place] if place in before else PartitionHistory() for place in places}
        for place, history in self._histories.items():
            if place in ends:
                history.add_end(ends[place], now)
            if place in commits.found:
                history.add_commit(commits.found[place], now)

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
            rewound_at=history.rewound_at,
        )

    def _note_waiting(
        self, read: Sequence[tuple[str, PartitionOffsets]], sources: Mapping[str, Positions], now: datetime
    ) -> None:
        """Keep the positions that are not their log's end; one that did not move keeps what is known of it."""
        before, self._waiting = self._waiting, {}
        for name, p in read:
            position = sources.get(name, {}).get((p.metric_topic, p.partition))
            position, end = p.committed_offset if position is None else position, p.log_end_offset
            if position is None or end is None:
                continue
            waiting = before.get((name, (p.topic, p.partition)))
            if waiting is not None and waiting.position == position:
                waiting.see(end, now)
            elif position != end:
                waiting = Waiting(position, now, end, now)
            else:
                continue
            if position != end or waiting.is_stale:
                self._waiting[name, (p.topic, p.partition)] = waiting

    async def _look_up(
        self, read: Sequence[tuple[str, PartitionOffsets]], now: datetime, problems: list[Problem]
    ) -> None:
        """Look for the first record at positions that are older than the kept log ends, whose age is unknown, and at those
        that stand still: what follows them may be no records, but markers of transactions, or aborted or compacted ones."""
        aged: list[tuple[int, Place, int]] = []
        still: list[tuple[Place, int]] = []
        requested: list[tuple[Waiting, Place, int]] = []
        for name, p in read:
            place, end, start = (p.topic, p.partition), p.log_end_offset, p.log_start_offset or 0
            waiting = self._waiting.get((name, place))
            if waiting is None or end is None or waiting.position >= end or waiting.is_stale:
                continue
            is_old = not self._histories[place].reaches_back_to(max(waiting.position, start))
            offset = waiting.next_lookup(start, end, now, is_old=is_old)
            if offset is None or offset >= end:
                continue
            requested.append((waiting, place, offset))
            if is_old:
                aged.append((end - offset, place, offset))
            else:
                still.append((place, offset))
        # one offset of a place in a scrape: of two sources that read it, the other one's turn comes next
        wanted = dict(still[:MAX_STILL_LOOKUPS])
        wanted |= {place: offset for _, place, offset in sorted(aged, reverse=True)[:MAX_LOOKUPS]}
        looked_up = await self._brokers.first_records(wanted, self._signals.isolation) if wanted else FirstRecords()
        problems += looked_up.problems
        found = looked_up.found
        for waiting, place, offset in requested:
            if place in found and wanted.get(place) == offset:
                waiting.found = replace(found[place], offset=max(found[place].offset, offset))
        await self._compare_timestamps(now)

    async def _compare_timestamps(self, now: datetime) -> None:
        """Compare timestamps of new records with the log ends, where an age depends on producers' timestamps."""
        probes: dict[Place, int] = {}
        for (_, place), waiting in self._waiting.items():
            record, history = waiting.found, self._histories[place]
            if record is None or not record.exists or record.is_append_time or history.reaches_back_to(record.offset):
                continue
            if (offset := history.next_probe(now)) is not None and len(probes) < MAX_LOOKUPS:
                probes[place] = offset
        if probes:
            for place, record in (await self._brokers.first_records(probes, self._signals.isolation)).found.items():
                self._histories[place].compare(record)

    async def _read_beyond(self, read: Sequence[tuple[str, PartitionOffsets]]) -> Mapping[Place, int]:
        """Return the log ends with records of open transactions where a position is beyond the committed ones, and mark
        the positions that are beyond these, too."""
        ends = {(p.topic, p.partition): p.log_end_offset for _, p in read}
        beyond = {key: w for key, w in self._waiting.items() if not w.is_stale and w.position > (ends[key[1]] or 0)}
        if not beyond:
            return {}
        found: Mapping[Place, int] = {place: ends[place] or 0 for _, place in beyond}
        if self._signals.isolation == "read_committed":
            try:
                found = (await self._brokers.ends(list(found), "last", "read_uncommitted")).found
            except BrokersAway:
                return {}  # then it is unknown which of the two it is
        for (_, place), waiting in beyond.items():
            waiting.is_stale = place in found and waiting.position > found[place]
        return found

    def _with_record(
        self, name: str, p: PartitionOffsets, high_watermarks: Mapping[Place, int], now: datetime
    ) -> PartitionOffsets:
        """Add what is known of the record that waits at the position."""
        place = (p.topic, p.partition)
        waiting, end = self._waiting.get((name, place)), p.log_end_offset
        if waiting is None or end is None:
            return p
        if waiting.position > end:
            return replace(p, high_watermark=high_watermarks.get(place))
        if waiting.is_stale:
            # by now the log is longer than the position, whose records it never had
            return replace(p, committed_offset=None, committed_at=None, has_stale_position=True)
        record, history = waiting.found, self._histories[place]
        if record is None:
            return p
        looked_up = replace(p, next_record_offset=min(record.offset, end))
        if not record.exists or history.reaches_back_to(record.offset):
            return looked_up
        appended_at = history.append_time(record, now)
        refused_ms = record.timestamp_ms if appended_at is None else None
        return replace(looked_up, position_appended_at=appended_at, refused_timestamp_ms=refused_ms)


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
