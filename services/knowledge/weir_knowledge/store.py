"""The store that the knowledge service needs: a view of the log (docs/adr/0014), which changes together with the
position that it shows. `adapters/redis.py`, `adapters/sqlite.py`, where log and view are one file, and the tests' store in
memory pass the same tests."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weir_contracts import LoopResult

from .core import HistoryEntry
from .newest import Kind

RETRY_SECONDS = 5.0
"""Between two attempts to write to a full store."""

Key = tuple[str, str]
"""Kind and key of a document, such as `policy` and `shop/orders`."""
Fields = Mapping[str, str]
"""A document in parts, so that a message writes only its changes."""


@dataclass(frozen=True)
class Position:
    """How much of a partition the store shows, of all topics: an application's state comes from all of them.

    The first position is that of policies and actions read to their end, so a partition with a position is complete.
    """

    offsets: Mapping[str, int] = field(default_factory=dict)
    """Of the next record of each topic; one without an offset is read from its beginning."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """Newest version of each topic of decisions that was applied, deletions included."""
    written_ms: int = 0
    """When it was written, by its writer's clock."""


@dataclass(frozen=True)
class Batch:
    """Changes that one reading of the log leads to."""

    continues: Mapping[int, Position | None]
    """The positions of partitions that it was computed from; None: the store had none."""
    positions: Mapping[int, Position]
    """Those that it leads to."""
    deleted: Collection[Key] = ()
    """Documents to delete, before anything is written."""
    forgotten: Collection[str] = ()
    """Applications whose history is deleted, before anything is written."""
    removed: Mapping[Key, Collection[str]] = field(default_factory=dict)
    """Fields to remove."""
    changed: Mapping[Key, Fields] = field(default_factory=dict)
    """Fields to write; the others of the document stay."""
    events: Sequence[tuple[Kind, str, str]] = ()
    """`(kind, application, json)` for the feed."""
    entries: Sequence[tuple[str, HistoryEntry]] = ()
    """`(application, entry)` for histories."""


class StoreUnavailable(Exception):
    """The store cannot be reached; a retry may succeed."""


class StoreFull(StoreUnavailable):
    """The store has no room for a write; reads continue."""


class Incomplete(StoreUnavailable):
    """The policies and actions of a partition were not read to their end since the store was empty."""

    def __init__(self) -> None:
        super().__init__(
            "policies are being read from the log, since the store is new or lost its data: try again in some seconds"
        )


class NotContinued(StoreUnavailable):
    """The store has another position than a batch continues: another replica was faster, or the store was emptied.

    The batch is to be computed again from the present position.
    """

    def __init__(self, partition: int) -> None:
        self.partition = partition
        super().__init__(f"another replica has applied partition {partition} meanwhile, or the store was emptied")


@dataclass(frozen=True)
class FeedEvent:
    """An entry of the event feed, in the order of `id`."""

    id: str
    kind: str
    application: str
    data: str
    """The message's JSON."""


class Store(Protocol):
    async def ping(self) -> None:
        """Return if the store answers."""

    async def check_room(self) -> None:
        """Return if the store answers and has room; `StoreFull` otherwise."""

    async def close(self) -> None: ...

    async def applied(self, partitions: Collection[int]) -> dict[int, Position | None]:
        """Return the position of each partition; None: nothing of it was applied since the store was empty."""

    async def get(
        self, keys: Collection[Key], names: Collection[str] | None = None, *, complete: Collection[int] = ()
    ) -> dict[Key, dict[str, str]]:
        """Return these fields (None: all), those that it has, of each document that exists.

        `Incomplete` unless all the partitions `complete` have a position at that moment.
        """

    async def all(
        self, kind: str, names: Collection[str] | None = None, *, complete: Collection[int] = ()
    ) -> dict[str, dict[str, str]]:
        """Return these fields (None: all) of the documents of a kind by key, in its order; `Incomplete` as for `get`."""

    async def keys(self, kind: str) -> list[str]:
        """Return the keys of a kind's documents, in order."""

    async def apply(self, batch: Batch) -> None:
        """Apply a batch in one transaction, positions included; `NotContinued` if it does not continue the present ones.

        The feed is bounded by events and bytes, a history by cycles and their age; the oldest are dropped.
        """

    async def history(self, application: str) -> list[LoopResult]:
        """Return past cycles, newest first."""

    async def events(self, after: str, count: int = 100, wait_seconds: float = 0.0) -> list[FeedEvent]:
        """Return events after an id, oldest first, waiting up to `wait_seconds` for the first one."""

    async def newest_event(self) -> str:
        """Return the id of the newest event; `0-0` without events."""
