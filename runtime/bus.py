"""The bus as its users see it: a few small protocols. `kafka_bus` and `memory_bus` pass the same tests.

Delivery is at least once: whoever consumes must be idempotent, and commits only after what was made of the records has been
acknowledged.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from .records import Outgoing, Record, TopicSpec

PartitionsChanged = Callable[[frozenset[int]], None]
"""Called on the event loop with the partitions that were given or taken."""


SESSION_SECONDS = 8.0
"""How long a group waits for a sign of life of a member before it gives the member's partitions to others."""


class BusError(Exception):
    """The bus could not do what was asked; trying again may help."""


class Consumer(Protocol):
    """A member of a consumer group: shares the topics' partitions with the other members."""

    @property
    def assignment(self) -> frozenset[int]:
        """The partition numbers this member owns now."""
        ...

    async def confirmed_until(self, partition: int, min_seconds: float = 0.0) -> float | None:
        """Return the monotonic second until which no other member can own `partition`; None if that is not certain for
        `min_seconds`.

        Asks the group if the last confirmation ends sooner. A confirmation lasts for a session, counted from before it
        was sent, so it ends before the group gives the partition to another member. A member that the group removed
        loses its partitions here, before its next `receive`, and `on_revoked` is called as for any loss.
        """
        ...

    async def receive(self, max_records: int = 500, timeout_seconds: float = 1.0) -> list[Record]:
        """The next records, as soon as there are any; empty when `timeout_seconds` pass without, brokers away included.

        One call at a time. A cancelled call loses nothing: what it had taken comes with the next.
        """
        ...

    async def commit(self) -> None:
        """Remember that everything `receive` returned so far is done. After a rebalance the lost partitions are left out."""
        ...

    async def close(self) -> None:
        """Leave the group, so that others take over at once."""
        ...


class Reader(Protocol):
    """Reads partitions of one topic by itself, without a group."""

    async def receive(self, max_records: int = 500, timeout_seconds: float = 1.0) -> list[Record]:
        """As a consumer's; may come back empty sooner, such as when an end is reached. `BusError` for an unknown topic."""
        ...

    async def assign(self, partitions: Iterable[int]) -> None:
        """Read exactly these from now on: new ones from the reader's start, kept ones from where they are."""
        ...

    async def caught_up(self) -> bool:
        """Whether the end of every assigned partition has been reached since it was assigned."""
        ...

    async def close(self) -> None: ...


class Bus(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None:
        """Flush what was published and close everything that was opened."""
        ...

    async def ping(self) -> None:
        """Returns if the brokers answer, raises `BusError` otherwise."""
        ...

    async def publish(
        self, topic: str, key: str, value: bytes | None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Returns once the brokers have acknowledged it; `BusError` if they do not in time."""
        ...

    async def publish_many(self, records: Sequence[Outgoing]) -> None:
        """The same for several, in order; returns when all are acknowledged."""
        ...

    async def ensure_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create what is missing. `BusError` that names topic and both counts if one has another number of partitions."""
        ...

    def consumer(
        self,
        topics: Sequence[str],
        group: str,
        *,
        from_beginning: bool = True,
        on_assigned: PartitionsChanged | None = None,
        on_revoked: PartitionsChanged | None = None,
    ) -> Consumer:
        """Join a group. `from_beginning`: where to start without a committed offset."""
        ...

    def reader(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        since: timedelta | None = None,
        from_beginning: bool = True,
    ) -> Reader:
        """Read `partitions` (None: all) from the beginning, from `since` ago, or from the end.

        `since` and the end are what they are at the first `receive` or `assign`.
        """
        ...
