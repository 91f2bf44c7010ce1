"""The bus in memory, for tests and replays in one process, with Kafka's partitions, groups and offsets."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from weir_contracts import counted
from weir_contracts.topics import TOPICS

from .bus import BusError, Committed, Outgoing, Place, Record, Refused, TopicSpec, partition_of
from .clock import Clock, SystemClock
from .local_bus import NOTHING_COMMITTED, LocalBus


class MemoryBus(LocalBus):
    """All topics of one process. `break_down(reason)` and `mend()` simulate an outage of the brokers, `refuses` records that
    they never accept."""

    def __init__(self, partitions: int = 4, clock: Clock | None = None) -> None:
        super().__init__(clock or SystemClock())
        self.log: dict[Place, list[Record]] = defaultdict(list)
        self.refuses: Callable[[Outgoing], bool] = lambda _record: False
        self._partitions = partitions
        self._counts = {topic.name: topic.partitions for topic in TOPICS if topic.partitions is not None}
        self._committed: dict[str, dict[Place, Committed]] = defaultdict(dict)

    def count(self, topic: str) -> int:
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

    def records(self, topic: str) -> list[Record]:
        """Return all records of a topic, by partition and offset."""
        return [r for p in range(self.count(topic)) for r in self.log[topic, p]]

    def committed(self, group: str, topic: str) -> int:
        """Return the number of records of a topic that a group has committed."""
        return sum(position.offset or 0 for (name, _), position in self._committed[group].items() if name == topic)

    async def ensure_topics(self, specs: Sequence[TopicSpec]) -> list[str]:
        self.check()
        for spec in specs:
            count = self._counts.setdefault(spec.name, spec.partitions)
            if count != spec.partitions:
                raise BusError(f"topic {spec.name} has {counted(count, 'partition')} and must have {spec.partitions}")
        return []

    def end(self, place: Place) -> int:
        return len(self.log[place])

    def read(self, place: Place, offset: int, max_records: int) -> tuple[list[Record], int]:
        found = self.log[place][offset : offset + max_records]
        return found, offset + len(found)

    def offset_at(self, place: Place, oldest: datetime) -> int:
        log = self.log[place]
        return next((r.offset for r in log if r.timestamp and r.timestamp >= oldest), len(log))

    def committed_by(self, group: str, place: Place) -> Committed:
        return self._committed[group].get(place, NOTHING_COMMITTED)

    def store(self, records: Sequence[Outgoing], group: str, positions: Mapping[Place, Committed]) -> set[Place]:
        if any(map(self.refuses, records)):
            raise Refused("message size too large")
        written = set[Place]()
        for each in records:
            place = each.topic, partition_of(each.key, self.count(each.topic))
            log = self.log[place]
            log.append(Record(*place, len(log), each.key, each.value, dict(each.headers), self.clock.now()))
            written.add(place)
        self._committed[group].update(positions)
        return written
