"""The bus in memory, for tests and replays in one process, with Kafka's partitions, groups and offsets."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from .bus import SESSION_SECONDS, BusError, PartitionsChanged
from .clock import Clock, SystemClock
from .records import Outgoing, Record, TopicSpec, partition_of


class _Log:
    """The records of all topics, and the waiters for the next one."""

    def __init__(self, partitions: int, clock: Clock) -> None:
        self.partitions = partitions
        self.clock = clock
        self.counts: dict[str, int] = {}
        self.records: dict[tuple[str, int], list[Record]] = defaultdict(list)
        self.waiters: set[_Cursor] = set()
        self.broken: str | None = None
        self.min_wait_seconds = 0.0

    def count(self, topic: str) -> int:
        return self.counts.setdefault(topic, self.partitions)

    def append(self, record: Outgoing) -> None:
        partition = partition_of(record.key, self.count(record.topic))
        log = self.records[record.topic, partition]
        log.append(
            Record(record.topic, partition, len(log), record.key, record.value, dict(record.headers), self.clock.now())
        )
        for waiter in self.waiters:
            if (record.topic, partition) in waiter.positions:
                waiter.wake()


class _Cursor:
    """Takes records from several partitions in turn, waiting for new ones (or, with `noticing_ends`, for a first end)."""

    def __init__(self, log: _Log, *, noticing_ends: bool = False) -> None:
        self._log = log
        self._noticing_ends = noticing_ends
        self._wake = asyncio.Event()
        self.positions: dict[tuple[str, int], int] = {}
        self.ended: set[tuple[str, int]] = set()

    async def take(self, max_records: int, timeout_seconds: float) -> list[Record]:
        await asyncio.sleep(0)  # let other tasks run; before taking, so that a cancellation loses nothing
        ended_before = len(self.ended)
        taken = self._available(max_records)
        if taken or timeout_seconds <= 0 or (self._noticing_ends and len(self.ended) > ended_before):
            return taken
        self._wake.clear()
        self._log.waiters.add(self)
        try:
            async with asyncio.timeout(max(timeout_seconds, self._log.min_wait_seconds)):
                while not taken:
                    await self._wake.wait()
                    self._wake.clear()
                    taken = self._available(max_records)
        except TimeoutError:
            pass
        finally:
            self._log.waiters.discard(self)
        return taken

    def wake(self) -> None:
        self._wake.set()

    def _available(self, max_records: int) -> list[Record]:
        if self._log.broken:
            return []
        taken: list[Record] = []
        for place in list(self.positions):
            # A partition with records goes to the end of the queue, so that a busy one does not starve the others.
            position = self.positions[place]
            if new := self._log.records[place][position : position + max_records - len(taken)]:
                del self.positions[place]
                self.positions[place] = position + len(new)
                taken += new
            if self.positions[place] >= len(self._log.records[place]):
                self.ended.add(place)
        return taken


class MemoryConsumer:
    """One member of a group of `MemoryBus`."""

    def __init__(
        self,
        log: _Log,
        group: "_Group",
        topics: Sequence[str],
        on_assigned: PartitionsChanged | None,
        on_revoked: PartitionsChanged | None,
    ) -> None:
        self.topics = tuple(topics)
        self.cursor = _Cursor(log)
        self._log = log
        self.group = group
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._owned: frozenset[int] = frozenset()
        self._confirmed_at = float("-inf")
        self.expired = False
        """The group gave its partitions to others, and this member has not noticed yet."""

    @property
    def assignment(self) -> frozenset[int]:
        return self._owned

    async def confirmed_until(self, partition: int, min_seconds: float = 0.0) -> float | None:
        await asyncio.sleep(0)
        now = self._log.clock.monotonic()
        if self._confirmed_at + SESSION_SECONDS - now <= min_seconds and not self._log.broken:
            self._notice_expiry()
            self._confirmed_at = now
        until = self._confirmed_at + SESSION_SECONDS
        return until if partition in self._owned and until - now > min_seconds else None

    def _notice_expiry(self) -> None:
        """Drop the partitions of a member that the group removed."""
        if self.expired:
            self.own(frozenset(), {}, from_beginning=True)

    def own(
        self, partitions: frozenset[int], committed: Mapping[tuple[str, int], int], *, from_beginning: bool
    ) -> None:
        """Own exactly these partitions; called by the group at a rebalance."""
        lost, gained = self._owned - partitions, partitions - self._owned
        if lost:
            self._confirmed_at = float("-inf")
        self._owned = partitions
        if lost and self._on_revoked:
            self._on_revoked(lost)
        for topic in self.topics:
            for partition in lost:
                self.cursor.positions.pop((topic, partition), None)
            for partition in gained:
                start = 0 if from_beginning else len(self._log.records[topic, partition])
                self.cursor.positions[topic, partition] = committed.get((topic, partition), start)
        if gained and self._on_assigned:
            self._on_assigned(gained)
        self.cursor.wake()

    async def receive(self, max_records: int = 500, timeout_seconds: float = 1.0) -> list[Record]:
        if self.expired and not self._log.broken:
            self._notice_expiry()
            self.group.join(self)
        return await self.cursor.take(max_records, timeout_seconds)

    async def commit(self) -> None:
        if self._log.broken:
            raise BusError(self._log.broken)
        self._notice_expiry()
        self.group.committed.update(self.cursor.positions)

    async def close(self) -> None:
        self.group.leave(self)


class _Group:
    def __init__(self, log: _Log, *, from_beginning: bool) -> None:
        self._log = log
        self._from_beginning = from_beginning
        self.committed: dict[tuple[str, int], int] = {}
        self.members: list[MemoryConsumer] = []

    def join(self, member: MemoryConsumer) -> None:
        member.expired = False
        self.members.append(member)
        self._rebalance()

    def leave(self, member: MemoryConsumer) -> None:
        member.own(frozenset(), {}, from_beginning=True)
        self.expire(member)
        member.expired = False

    def expire(self, member: MemoryConsumer) -> None:
        """Give its partitions to the others, without notifying it."""
        if member in self.members:
            self.members.remove(member)
            member.expired = True
            self._rebalance()

    def _rebalance(self) -> None:
        assignments: list[set[int]] = [set() for _ in self.members]
        if not assignments:
            return
        topics = {topic for member in self.members for topic in member.topics}
        for partition in range(max(self._log.count(topic) for topic in topics)):
            assignments[partition % len(assignments)].add(partition)
        # Two rounds, as in Kafka: moved partitions are revoked before they are assigned.
        for member, assignment in zip(self.members, assignments, strict=True):
            member.own(member.assignment & assignment, self.committed, from_beginning=self._from_beginning)
        for member, assignment in zip(self.members, assignments, strict=True):
            member.own(frozenset(assignment), self.committed, from_beginning=self._from_beginning)


class MemoryReader:
    """Reads partitions of one topic of `MemoryBus`."""

    def __init__(
        self, log: _Log, topic: str, partitions: Iterable[int] | None, since: timedelta | None, beginning: bool
    ) -> None:
        self._log = log
        self._topic = topic
        self._since = since
        self._beginning = beginning
        self._cursor = _Cursor(log, noticing_ends=True)
        self._assign(range(log.count(topic)) if partitions is None else partitions)

    async def receive(self, max_records: int = 500, timeout_seconds: float = 1.0) -> list[Record]:
        return await self._cursor.take(max_records, timeout_seconds)

    async def assign(self, partitions: Iterable[int]) -> None:
        self._assign(partitions)
        self._cursor.wake()

    def _assign(self, partitions: Iterable[int]) -> None:
        kept = self._cursor.positions
        self._cursor.positions = {
            place: kept[place] if place in kept else self._start(place)
            for place in ((self._topic, p) for p in sorted(partitions))
        }
        self._cursor.ended &= self._cursor.positions.keys()

    def _start(self, place: tuple[str, int]) -> int:
        log = self._log.records[place]
        if self._since is not None:
            oldest = self._log.clock.now() - self._since
            return next((r.offset for r in log if r.timestamp and r.timestamp >= oldest), len(log))
        return 0 if self._beginning else len(log)

    async def caught_up(self) -> bool:
        return self._cursor.ended >= self._cursor.positions.keys()

    async def close(self) -> None:
        self._cursor.positions = {}


class MemoryBus:
    """All topics of one process. `break_down(reason)` and `mend()` simulate an outage of the brokers."""

    def __init__(self, partitions: int = 4, clock: Clock | None = None) -> None:
        self._log = _Log(partitions, clock or SystemClock())
        self._groups: dict[str, _Group] = {}

    def wait_at_least(self, seconds: float) -> None:
        """Extend each wait for records: in simulated time most polls would find nothing."""
        self._log.min_wait_seconds = seconds

    def break_down(self, reason: str = "the brokers are away") -> None:
        self._log.broken = reason

    def mend(self) -> None:
        self._log.broken = None
        for waiter in self._log.waiters:
            waiter.wake()

    def expire(self, member: MemoryConsumer) -> None:
        """End a member's session: the others get its partitions, and it notices at its next call to the group."""
        member.group.expire(member)

    def records(self, topic: str) -> list[Record]:
        """Return all records of a topic, by partition and offset."""
        return [r for p in range(self._log.count(topic)) for r in self._log.records[topic, p]]

    def committed(self, group: str, topic: str) -> int:
        """Return the number of records of a topic that a group has committed."""
        places = self._groups[group].committed if group in self._groups else {}
        return sum(offset for (name, _), offset in places.items() if name == topic)

    async def start(self) -> None:
        await self.ping()

    async def close(self) -> None:
        for group in self._groups.values():
            for member in list(group.members):
                group.leave(member)

    async def ping(self) -> None:
        if self._log.broken:
            raise BusError(self._log.broken)

    async def publish(
        self, topic: str, key: str, value: bytes | None, headers: Mapping[str, str] | None = None
    ) -> None:
        await self.publish_many([Outgoing(topic, key, value, headers or {})])

    async def publish_many(self, records: Sequence[Outgoing]) -> None:
        await self.ping()
        for record in records:
            self._log.append(record)
        await asyncio.sleep(0)

    async def ensure_topics(self, specs: Sequence[TopicSpec]) -> None:
        await self.ping()
        for spec in specs:
            count = self._log.counts.setdefault(spec.name, spec.partitions)
            if count != spec.partitions:
                raise BusError(f"topic {spec.name} has {count} partitions and must have {spec.partitions}")

    def consumer(
        self,
        topics: Sequence[str],
        group: str,
        *,
        from_beginning: bool = True,
        on_assigned: PartitionsChanged | None = None,
        on_revoked: PartitionsChanged | None = None,
    ) -> MemoryConsumer:
        joined = self._groups.setdefault(group, _Group(self._log, from_beginning=from_beginning))
        member = MemoryConsumer(self._log, joined, topics, on_assigned, on_revoked)
        joined.join(member)
        return member

    def reader(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        since: timedelta | None = None,
        from_beginning: bool = True,
    ) -> MemoryReader:
        return MemoryReader(self._log, topic, partitions, since, from_beginning)
