"""The bus as small protocols. `kafka_bus` and `memory_bus` pass the same tests.

Delivery is at least once: a consumer must be idempotent, and commits after the results of its records were
acknowledged.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol, TypedDict, Unpack

from .records import Outgoing, Record, TopicSpec

PartitionsChanged = Callable[[frozenset[int]], None]
"""Called on the event loop with the assigned or revoked partitions."""


SESSION_SECONDS = 8.0
"""Without a heartbeat, until a group gives a member's partitions to others."""


class MemberOptions(TypedDict, total=False):
    """Options of a member of a group."""

    from_beginning: bool
    """Where to start without a committed offset; at the end if False."""
    on_assigned: PartitionsChanged
    on_revoked: PartitionsChanged | None


class ReaderOptions(TypedDict, total=False):
    """Options of a reader, which starts at the beginning by default."""

    partitions: Iterable[int]
    """All by default."""
    since: timedelta
    """Start this long ago."""
    from_beginning: bool
    """Start at the end if False."""


class BusError(Exception):
    """The bus failed; a retry may succeed."""


class Consumer(Protocol):
    """A member of a consumer group: shares the topics' partitions with the other members."""

    @property
    def assignment(self) -> frozenset[int]:
        """The partitions that this member owns now."""

    async def confirmed_until(self, partition: int, min_seconds: float = 0.0) -> float | None:
        """Return the monotonic second until which no other member can own `partition`; None if that is not certain for
        `min_seconds`.

        Asks the group if the last confirmation ends sooner. A confirmation lasts for a session, counted from before it
        was sent, so it ends before the group gives the partition to another member. A member that the group removed
        loses its partitions here, before its next `receive`, and `on_revoked` is called as for any loss.
        """

    async def receive(self, max_records: int = 500, timeout_seconds: float = 1.0) -> list[Record]:
        """Return the next records, as soon as there are any; empty after `timeout_seconds`, also while the brokers are
        away.

        One call at a time. A cancelled call loses nothing: the next call returns its records.
        """

    async def commit(self) -> None:
        """Commit all that `receive` has returned, without partitions lost in a rebalance."""

    async def close(self) -> None:
        """Leave the group, so that other members take over at once."""


class Reader(Protocol):
    """Reads partitions of one topic without a group."""

    async def receive(self, max_records: int = 500, timeout_seconds: float = 1.0) -> list[Record]:
        """As a consumer's, but may return nothing sooner, such as at an end. `BusError` for an unknown topic."""

    async def assign(self, partitions: Iterable[int]) -> None:
        """Read exactly these from now on: new ones from the reader's start, others from their position."""

    async def caught_up(self) -> bool:
        """Return whether every assigned partition was read to its end since it was assigned."""

    async def close(self) -> None: ...


class Bus(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None:
        """Flush, and close all consumers and readers."""

    async def ping(self) -> None:
        """Return if the brokers answer; `BusError` otherwise."""

    async def publish(
        self, topic: str, key: str, value: bytes | None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Return once the brokers have acknowledged it; `BusError` if they do not in time."""
        await self.publish_many([Outgoing(topic, key, value, headers or {})])

    async def publish_many(self, records: Sequence[Outgoing]) -> None:
        """Publish several records in order; return when all are acknowledged."""

    async def ensure_topics(self, specs: Sequence[TopicSpec]) -> list[str]:
        """Create missing topics; return sentences about topics with fewer replicas than their specification.

        `BusError` for one with another number of partitions, which names both numbers.
        """

    def consumer(self, topics: Sequence[str], group: str, **options: Unpack[MemberOptions]) -> Consumer:
        """Join a group."""

    def reader(self, topic: str, **options: Unpack[ReaderOptions]) -> Reader:
        """Read a topic, as of the first `receive` or `assign`."""
