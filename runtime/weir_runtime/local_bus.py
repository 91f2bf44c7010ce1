"""Groups of members, waits without polling, and transactions of a bus within one process.

`MemoryBus` keeps the records in memory, `SqliteBus` in a file. Their calls are short, so they run on the event loop, and
each is atomic for all tasks.
"""

import asyncio
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Unpack

from .bus import (
    SESSION_SECONDS,
    Bus,
    BusError,
    Committed,
    Consumer,
    MemberOptions,
    Outgoing,
    Place,
    Reader,
    ReaderOptions,
    Record,
    Transactions,
)
from .clock import Clock

NOTHING_COMMITTED = Committed(None, "")


class LocalBus(Bus):
    """The records, the ends and the groups' positions are a subclass's."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.broken: str | None = None
        """Why nothing can be written or read now."""
        self.min_wait_seconds = 0.0
        self.waiters: set[_Cursor] = set()
        self.epochs: dict[str, int] = defaultdict(int)
        """Of the writer of transactions with each name."""
        self.groups: dict[str, Group] = {}

    @abstractmethod
    def count(self, topic: str) -> int:
        """Return a topic's number of partitions; 0 for an unknown topic."""

    @abstractmethod
    def end(self, place: Place) -> int:
        """Return the offset of the next record."""

    @abstractmethod
    def read(self, place: Place, offset: int, max_records: int) -> tuple[list[Record], int]:
        """Return records from an offset on, and the offset to read on from."""

    @abstractmethod
    def offset_at(self, place: Place, oldest: datetime) -> int:
        """Return the offset of the first record that is not older, or the end."""

    @abstractmethod
    def committed_by(self, group: str, place: Place) -> Committed:
        """Return a group's position."""

    @abstractmethod
    def store(self, records: Sequence[Outgoing], group: str, positions: Mapping[Place, Committed]) -> set[Place]:
        """Write the records and positions of a group, all or nothing; return where records were written."""

    def check(self) -> None:
        """`BusError` while nothing can be written or read."""
        if self.broken:
            raise BusError(self.broken)

    def write(
        self, records: Sequence[Outgoing], group: str = "", positions: Mapping[Place, Committed] | None = None
    ) -> None:
        """Write all of it, or nothing, and wake those that wait for the records."""
        self.check()
        written = self.store(records, group, positions or {})
        for waiter in self.waiters:
            if not written.isdisjoint(waiter.positions):
                waiter.wake.set()

    async def start(self) -> None:
        self.check()

    async def ping(self) -> None:
        self.check()

    async def close(self) -> None:
        for group in self.groups.values():
            for member in list(group.members):
                group.leave(member)

    async def publish_many(self, records: Sequence[Outgoing]) -> None:
        self.write(records)
        await asyncio.sleep(0)

    def consumer(self, topics: Sequence[str], group: str, **options: Unpack[MemberOptions]) -> "LocalConsumer":
        if group not in self.groups:
            self.groups[group] = Group(self, group, options.get("from_beginning", True))
        member = LocalConsumer(self.groups[group], topics, options)
        self.groups[group].join(member)
        return member

    def transactions(self, name: str, consumer: Consumer) -> "LocalTransactions":
        if not isinstance(consumer, LocalConsumer):
            raise TypeError("the consumer belongs to another bus")
        return LocalTransactions(name, consumer)

    def reader(self, topic: str, **options: Unpack[ReaderOptions]) -> "LocalReader":
        return LocalReader(self, topic, options)

    def expire(self, member: "LocalConsumer") -> None:
        """End a member's session: the others get its partitions, and it notices at its next call to the group."""
        member.group.expire(member)


class _Cursor:
    """Takes records from several partitions in turn, waiting for new ones (or, with `notices_ends`, for a first end)."""

    notices_ends = False

    def __init__(self, bus: LocalBus) -> None:
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
            if self.positions[place] < self.bus.end(place) and len(taken) < max_records:
                new, offset = self.bus.read(place, self.positions[place], max_records - len(taken))
                # A partition with records goes to the end of the queue, so that a busy one does not starve the others.
                del self.positions[place]
                self.positions[place] = offset
                taken += new
            if self.positions[place] >= self.bus.end(place):
                self.read_to_end.add(place)
        return taken


class LocalConsumer(_Cursor, Consumer):
    """One member of a group."""

    def __init__(self, group: "Group", topics: Sequence[str], options: MemberOptions) -> None:
        super().__init__(group.bus)
        self.topics = tuple(topics)
        self.group = group
        self._assignment: frozenset[int] = frozenset()
        self.expired = False
        """The group gave its partitions to others, and this member has not noticed yet."""
        self._options = options
        self.notices_ends = options.get("positioned", False)
        self._confirmed_at = float("-inf")

    @property
    def assignment(self) -> frozenset[int]:
        return self._assignment

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
        self._assignment = partitions
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
        positions = {place: Committed(offset, "") for place, offset in self.positions.items()}
        self.bus.write([], self.group.name, positions)

    async def begin(self, positions: Mapping[Place, int | None]) -> None:
        begun = {place: offset or 0 for place, offset in positions.items() if place[1] in self.assignment}
        for place in [place for place, offset in begun.items() if offset > self.bus.end(place)]:
            begun[place] = 0 if self._options.get("from_beginning", True) else self.bus.end(place)
        self.positions.update(begun)
        self.read_to_end -= begun.keys()
        self.wake.set()

    @property
    def ended(self) -> frozenset[Place]:
        return frozenset(self.read_to_end)

    async def committed(self, place: Place) -> Committed:
        self.bus.check()
        return self.bus.committed_by(self.group.name, place)

    async def close(self) -> None:
        self.group.leave(self)


class Group:
    """The members of a group, in the order in which they came."""

    def __init__(self, bus: LocalBus, name: str, from_beginning: bool) -> None:
        self.bus = bus
        self.name = name
        self._from_beginning = from_beginning
        self.members: list[LocalConsumer] = []

    def start(self, place: Place) -> int:
        """Return the committed offset, or the first one to read."""
        committed = self.bus.committed_by(self.name, place).offset
        if committed is not None:
            return committed
        return 0 if self._from_beginning else self.bus.end(place)

    def join(self, member: LocalConsumer) -> None:
        member.expired = False
        self.members.append(member)
        self.rebalance()

    def leave(self, member: LocalConsumer) -> None:
        member.own(frozenset())
        self.expire(member)
        member.expired = False

    def expire(self, member: LocalConsumer) -> None:
        """Give its partitions to the others, without notifying it."""
        if member in self.members:
            self.members.remove(member)
            member.expired = True
            self.rebalance()

    def rebalance(self) -> None:
        """Give each member its part of all partitions."""
        count = max((self.bus.count(topic) for member in self.members for topic in member.topics), default=0)
        assignments = [frozenset(range(i, count, len(self.members))) for i in range(len(self.members))]
        # Two rounds, as in Kafka: moved partitions are revoked before they are assigned.
        for member, assignment in zip(self.members, assignments, strict=True):
            member.own(member.assignment & assignment)
        for member, assignment in zip(self.members, assignments, strict=True):
            member.own(assignment)


class LocalTransactions(Transactions):
    """Transactions of one writer."""

    def __init__(self, name: str, consumer: LocalConsumer) -> None:
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
        self._bus.write(records, self._consumer.group.name, {place: position})

    async def close(self) -> None:
        self._epoch = None


class LocalReader(_Cursor, Reader):
    """Reads partitions of one topic."""

    notices_ends = True

    def __init__(self, bus: LocalBus, topic: str, options: ReaderOptions) -> None:
        super().__init__(bus)
        self._topic = topic
        self._options = options
        self._has_begun = False

    def _begin(self) -> None:
        """Begin with the partitions of the options, once; `BusError` for an unknown topic."""
        if not self._has_begun:
            count = self.bus.count(self._topic)
            if count == 0:
                raise BusError(f"topic {self._topic} does not exist")
            self._assign(self._options.get("partitions", range(count)))

    async def receive(self, max_records: int = 500, timeout_seconds: float = 1.0) -> list[Record]:
        self._begin()
        return await super().receive(max_records, timeout_seconds)

    async def assign(self, partitions: Iterable[int]) -> None:
        self._assign(partitions)
        self.wake.set()

    def _assign(self, partitions: Iterable[int]) -> None:
        self._has_begun = True
        places = [(self._topic, p) for p in sorted(partitions)]
        kept = self.positions
        self.positions = {place: kept[place] if place in kept else self._start(place) for place in places}
        self.read_to_end &= self.positions.keys()

    def _start(self, place: Place) -> int:
        if (since := self._options.get("since")) is not None:
            return self.bus.offset_at(place, self.bus.clock.now() - since)
        return 0 if self._options.get("from_beginning", True) else self.bus.end(place)

    async def caught_up(self) -> bool:
        self._begin()
        return self.read_to_end >= self.positions.keys()

    async def close(self) -> None:
        self.positions = {}
