"""The bus in memory, for tests and replays in one process, with Kafka's partitions, groups and offsets."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Unpack

from weir_contracts import counted
from weir_contracts.topics import TOPICS

from .bus import (
    SESSION_SECONDS,
    Bus,
    BusError,
    Committed,
    Consumer,
    MemberOptions,
    Outgoing,
    Place,
    ReaderOptions,
    Record,
    Refused,
    TopicSpec,
    Transactions,
    partition_of,
)
from .clock import Clock, SystemClock


class MemoryBus(Bus):
    """All topics of one process. `break_down(reason)` and `mend()` simulate an outage of the brokers, `refuses` records that
    they never accept."""

    def __init__(self, partitions: int = 4, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.log: dict[Place, list[Record]] = defaultdict(list)
        self.waiters: set[_Cursor] = set()
        self.broken: str | None = None
        self.refuses: Callable[[Outgoing], bool] = lambda _record: False
        self.min_wait_seconds = 0.0
        self._partitions = partitions
        self.epochs: dict[str, int] = defaultdict(int)
        """Of the writer of transactions with each name."""
        self._counts = {topic.name: topic.partitions for topic in TOPICS if topic.partitions is not None}
        self._groups: dict[str, _Group] = {}

    def count(self, topic: str) -> int:
        """Return a topic's number of partitions."""
        return self._counts.setdefault(topic, self._partitions)

    def wait_at_least(self, seconds: float) -> None:
        """Extend each wait for records: in simulated time most polls would find nothing."""
        self.min_wait_seconds = seconds

    def break_down(self, reason: str = "the brokers are away") -> None:
        self.broken = reason

    def mend(self) -> None:
        self.broken = None
        for waiter in self.waiters:
            waiter.wake.set()

    def expire(self, member: "MemoryConsumer") -> None:
        """End a member's session: the others get its partitions, and it notices at its next call to the group."""
        member.group.expire(member)

    def records(self, topic: str) -> list[Record]:
        """Return all records of a topic, by partition and offset."""
        return [r for p in range(self.count(topic)) for r in self.log[topic, p]]

    def committed(self, group: str, topic: str) -> int:
        """Return the number of records of a topic that a group has committed."""
        places = self._groups[group].committed if group in self._groups else {}
        return sum(position.offset or 0 for (name, _), position in places.items() if name == topic)

    async def start(self) -> None:
        self.check()

    async def close(self) -> None:
        for group in self._groups.values():
            for member in list(group.members):
                group.leave(member)

    def check(self) -> None:
        """`BusError` during an outage."""
        if self.broken:
            raise BusError(self.broken)

    async def ping(self) -> None:
        self.check()

    async def publish_many(self, records: Sequence[Outgoing]) -> None:
        self.append(records)
        await asyncio.sleep(0)

    def append(self, records: Sequence[Outgoing]) -> None:
        """Write all of the records, or nothing."""
        self.check()
        if any(map(self.refuses, records)):
            raise Refused("message size too large")
        for each in records:
            place = each.topic, partition_of(each.key, self.count(each.topic))
            log = self.log[place]
            log.append(Record(*place, len(log), each.key, each.value, dict(each.headers), self.clock.now()))
            for waiter in self.waiters:
                if place in waiter.positions:
                    waiter.wake.set()

    async def ensure_topics(self, specs: Sequence[TopicSpec]) -> list[str]:
        self.check()
        for spec in specs:
            count = self._counts.setdefault(spec.name, spec.partitions)
            if count != spec.partitions:
                raise BusError(f"topic {spec.name} has {counted(count, 'partition')} and must have {spec.partitions}")
        return []

    def consumer(self, topics: Sequence[str], group: str, **options: Unpack[MemberOptions]) -> "MemoryConsumer":
        joined = self._groups.setdefault(group, _Group(self, options.get("from_beginning", True)))
        member = MemoryConsumer(joined, topics, options)
        joined.join(member)
        return member

    def transactions(self, name: str, consumer: Consumer) -> "MemoryTransactions":
        if not isinstance(consumer, MemoryConsumer):
            raise TypeError("the consumer belongs to another bus")
        return MemoryTransactions(name, consumer)

    def reader(self, topic: str, **options: Unpack[ReaderOptions]) -> "MemoryReader":
        return MemoryReader(self, topic, options)


class _Cursor:
    """Takes records from several partitions in turn, waiting for new ones (or, with `notices_ends`, for a first end)."""

    notices_ends = False

    def __init__(self, bus: MemoryBus) -> None:
        self.bus = bus
        self.wake = asyncio.Event()
        self.positions: dict[Place, int] = {}
        self.read_to_end: set[Place] = set()
        self.is_over = False
        """The wait for records ends without one: there is something else to do."""

    async def receive(self, max_records: int = 500, timeout_seconds: float = 1.0) -> list[Record]:
        await asyncio.sleep(0)  # let other tasks run; before taking, so that a cancellation loses nothing
        ended_before = len(self.read_to_end)
        taken = self._available(max_records)
        if taken or timeout_seconds <= 0 or (self.notices_ends and len(self.read_to_end) > ended_before):
            return taken
        self.wake.clear()
        self.is_over = False
        self.bus.waiters.add(self)
        try:
            async with asyncio.timeout(max(timeout_seconds, self.bus.min_wait_seconds)):
                while not taken and not self.is_over:
                    await self.wake.wait()
                    self.wake.clear()
                    taken = self._available(max_records)
        except TimeoutError:
            pass
        finally:
            self.bus.waiters.discard(self)
        return taken

    def _available(self, max_records: int) -> list[Record]:
        if self.bus.broken:
            return []
        taken: list[Record] = []
        for place in list(self.positions):
            # A partition with records goes to the end of the queue, so that a busy one does not starve the others.
            position = self.positions[place]
            if new := self.bus.log[place][position : position + max_records - len(taken)]:
                del self.positions[place]
                self.positions[place] = position + len(new)
                taken += new
            if self.positions[place] >= len(self.bus.log[place]):
                self.read_to_end.add(place)
        return taken


class MemoryConsumer(_Cursor):
    """One member of a group of `MemoryBus`."""

    def __init__(self, group: "_Group", topics: Sequence[str], options: MemberOptions) -> None:
        super().__init__(group.bus)
        self.topics = tuple(topics)
        self.group = group
        self.assignment: frozenset[int] = frozenset()
        self.expired = False
        """The group gave its partitions to others, and this member has not noticed yet."""
        self._options = options
        self.notices_ends = options.get("positioned", False)
        self._confirmed_at = float("-inf")

    async def confirmed_until(self, partition: int, min_seconds: float = 0.0) -> float | None:
        await asyncio.sleep(0)
        now = self.bus.clock.monotonic()
        if self._confirmed_at + SESSION_SECONDS - now <= min_seconds and not self.bus.broken:
            self._notice_expiry()
            self._confirmed_at = now
        until = self._confirmed_at + SESSION_SECONDS
        return until if partition in self.assignment and until - now > min_seconds else None

    def _notice_expiry(self) -> None:
        """Drop the partitions of a member that the group removed."""
        if self.expired:
            self.own(frozenset())

    def own(self, partitions: frozenset[int]) -> None:
        """Own exactly these partitions; called by the group at a rebalance."""
        lost, gained = self.assignment - partitions, partitions - self.assignment
        if lost:
            self._confirmed_at = float("-inf")
        self.assignment = partitions
        if lost and (on_revoked := self._options.get("on_revoked")):
            on_revoked(lost)
        for topic in self.topics:
            for partition in lost:
                self.positions.pop((topic, partition), None)
                self.read_to_end.discard((topic, partition))
            for partition in gained if not self._options.get("positioned") else ():
                self.positions[topic, partition] = self.group.start((topic, partition))
        if gained and (on_assigned := self._options.get("on_assigned")):
            on_assigned(gained)
        self.is_over = bool(gained) and self._options.get("positioned", False)
        self.wake.set()

    async def receive(self, max_records: int = 500, timeout_seconds: float = 1.0) -> list[Record]:
        if self.expired and not self.bus.broken:
            self._notice_expiry()
            self.group.join(self)
        return await super().receive(max_records, timeout_seconds)

    async def commit(self) -> None:
        self.bus.check()
        self._notice_expiry()
        self.group.committed.update({place: Committed(offset, "") for place, offset in self.positions.items()})

    async def begin(self, positions: Mapping[Place, int | None]) -> None:
        begun = {place: offset or 0 for place, offset in positions.items() if place[1] in self.assignment}
        for place in [place for place, offset in begun.items() if offset > len(self.bus.log[place])]:
            begun[place] = 0 if self._options.get("from_beginning", True) else len(self.bus.log[place])
        self.positions.update(begun)
        self.read_to_end -= begun.keys()
        self.wake.set()

    @property
    def ended(self) -> frozenset[Place]:
        return frozenset(self.read_to_end)

    async def committed(self, place: Place) -> Committed:
        self.bus.check()
        return self.group.committed.get(place, Committed(None, ""))

    async def close(self) -> None:
        self.group.leave(self)


class _Group:
    def __init__(self, bus: MemoryBus, from_beginning: bool) -> None:
        self.bus = bus
        self._from_beginning = from_beginning
        self.committed: dict[Place, Committed] = {}
        self.members: list[MemoryConsumer] = []

    def start(self, place: Place) -> int:
        """Return the committed offset, or the first one to read."""
        committed = self.committed.get(place, Committed(None, "")).offset
        if committed is not None:
            return committed
        return 0 if self._from_beginning else len(self.bus.log[place])

    def join(self, member: MemoryConsumer) -> None:
        member.expired = False
        self.members.append(member)
        self._rebalance()

    def leave(self, member: MemoryConsumer) -> None:
        member.own(frozenset())
        self.expire(member)
        member.expired = False

    def expire(self, member: MemoryConsumer) -> None:
        """Give its partitions to the others, without notifying it."""
        if member in self.members:
            self.members.remove(member)
            member.expired = True
            self._rebalance()

    def _rebalance(self) -> None:
        count = max((self.bus.count(topic) for member in self.members for topic in member.topics), default=0)
        assignments = [frozenset(range(i, count, len(self.members))) for i in range(len(self.members))]
        # Two rounds, as in Kafka: moved partitions are revoked before they are assigned.
        for member, assignment in zip(self.members, assignments, strict=True):
            member.own(member.assignment & assignment)
        for member, assignment in zip(self.members, assignments, strict=True):
            member.own(assignment)


class MemoryTransactions(Transactions):
    """Transactions of one writer of `MemoryBus`."""

    def __init__(self, name: str, consumer: MemoryConsumer) -> None:
        self._bus, self._name, self._consumer = consumer.bus, name, consumer
        self._epoch: int | None = None

    async def fence(self) -> None:
        self._bus.check()
        self._bus.epochs[self._name] += 1
        self._epoch = self._bus.epochs[self._name]
        await asyncio.sleep(0)

    async def commit(self, records: Sequence[Outgoing], place: Place, position: Committed) -> None:
        self._bus.check()
        await asyncio.sleep(0)
        if self._epoch != self._bus.epochs[self._name]:
            raise BusError(f"{self._name} was fenced by a newer writer")
        if self._consumer.expired or place[1] not in self._consumer.assignment:
            raise BusError(f"the group has given {place[0]}/{place[1]} to another member")
        self._bus.append(records)
        self._consumer.group.committed[place] = position

    async def close(self) -> None:
        self._epoch = None


class MemoryReader(_Cursor):
    """Reads partitions of one topic of `MemoryBus`."""

    notices_ends = True

    def __init__(self, bus: MemoryBus, topic: str, options: ReaderOptions) -> None:
        super().__init__(bus)
        self._topic = topic
        self._options = options
        self._assign(options.get("partitions", range(bus.count(topic))))

    async def assign(self, partitions: Iterable[int]) -> None:
        self._assign(partitions)
        self.wake.set()

    def _assign(self, partitions: Iterable[int]) -> None:
        places = [(self._topic, p) for p in sorted(partitions)]
        kept = self.positions
        self.positions = {place: kept[place] if place in kept else self._start(place) for place in places}
        self.read_to_end &= self.positions.keys()

    def _start(self, place: Place) -> int:
        log = self.bus.log[place]
        if (since := self._options.get("since")) is not None:
            oldest = self.bus.clock.now() - since
            return next((r.offset for r in log if r.timestamp and r.timestamp >= oldest), len(log))
        return 0 if self._options.get("from_beginning", True) else len(log)

    async def caught_up(self) -> bool:
        return self.read_to_end >= self.positions.keys()

    async def close(self) -> None:
        self.positions = {}
