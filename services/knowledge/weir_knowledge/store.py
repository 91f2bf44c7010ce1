"""The store that the knowledge service needs. `adapters/redis.py` and the tests' store in memory pass the same tests."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Protocol

from weir_contracts import ActionState, LoopResult, ScalingPolicy

from .core import KINDS, HistoryEntry, Kind, Newest, State

NOTHING_NEW: Mapping[str, Mapping[Kind, str]] = MappingProxyType({})

RETRY_SECONDS = 5.0
"""Between two attempts to write to a full store."""


INCOMPLETE = "the store is being compared with the topics, since it is new or lost its data: try again in some seconds"


class StoreUnavailable(Exception):
    """The store cannot be reached; a retry may succeed."""


class StoreFull(StoreUnavailable):
    """The store has no room for a write; reads continue."""


class VersionConflict(Exception):
    """Another writer was first. `current` is the stored value; None: it does not exist."""

    def __init__(self, current: ScalingPolicy | ActionState | None) -> None:
        self.current = current
        super().__init__("another writer was first")


class TargetTaken(Exception):
    """The policy of another `application` has the same target."""

    def __init__(self, application: str) -> None:
        self.application = application
        super().__init__(f"{application} has the same target")


@dataclass(frozen=True)
class FeedEvent:
    """An entry of the event feed, in the order of `id`."""

    id: str
    kind: str
    application: str
    data: str
    """The message's JSON."""


@dataclass(frozen=True)
class OutboxEntry:
    """A policy to publish. `value` None: deleted."""

    id: str
    application: str
    value: str | None
    version: int | None = None
    """Of a deletion."""
    deleted: str | None = None
    """The deleted policy, if its application's end is to be published."""


class Store(Protocol):
    async def ping(self) -> None:
        """Return if the store answers."""

    async def check_room(self) -> None:
        """Return if the store answers and has room; `StoreFull` otherwise."""

    async def close(self) -> None: ...

    async def is_complete(self) -> bool:
        """Return whether the store was marked since it was empty; False: data of the topics may be missing."""

    async def mark_complete(self) -> None:
        """Mark that the store has all data of the topics."""

    async def policy(self, application: str) -> ScalingPolicy | None: ...

    async def policies(self) -> list[ScalingPolicy]:
        """Return all policies, by application."""

    async def put_policy(self, policy: ScalingPolicy, expected: int | None) -> None:
        """Store a policy and put it into the outbox, in one transaction.

        `expected` is the version to replace (0: none; None: any). `VersionConflict` for another one, and for a policy
        that is not newer than its deletion. `TargetTaken` for a new target that another policy claims
        (`claims` of the engines). `StoreUnavailable` while the store is not complete: a policy that is still to be restored could
        have a higher version, and what was accepted here would be lost to it.
        """

    async def delete_policy(self, application: str, expected: int | None, min_version: int = 1) -> bool:
        """Delete a policy in the same way, as version `min_version` or the next after the policy's. False without a
        policy."""

    async def restore_policy(self, policy: ScalingPolicy) -> None:
        """Store a published policy, without publishing it again, unless a newer one or a newer deletion is stored."""

    async def restore_deletion(self, application: str, version: int) -> None:
        """The same for a published deletion."""

    async def deletion(self, application: str) -> int | None:
        """Return the version of an application's deletion; None without one, with a newer policy, or if the deletion
        was dropped."""

    async def deletions(self) -> dict[str, int]:
        """Return the versions of all deletions, by application."""

    async def forget_deletions(self, before: int) -> None:
        """Drop the deletions with an older version."""

    async def publish_again(self, application: str) -> None:
        """Put a stored policy, or its deletion, into the outbox again."""

    async def outbox(self, count: int = 100) -> list[OutboxEntry]:
        """Return the oldest entries."""

    async def outbox_size(self) -> int:
        """Return the number of entries."""

    async def published(self, entries: Sequence[OutboxEntry]) -> None:
        """Remove acknowledged entries."""

    async def state(self, application: str) -> State | None: ...

    async def states(self, applications: Collection[str]) -> dict[str, State | None]:
        """Return the state of each application."""

    async def newest(self, application: str, kinds: Collection[Kind] = KINDS) -> Newest | None:
        """Return the newest message of each of these kinds; None without a state."""

    async def applications(self) -> list[str]:
        """Return all applications with a policy or a state."""

    async def save(
        self,
        states: Sequence[State],
        events: Sequence[tuple[Kind, str, str]],
        entries: Sequence[tuple[str, HistoryEntry]] = (),
        newest: Mapping[str, Mapping[Kind, str]] = NOTHING_NEW,
    ) -> None:
        """Store states, append `(kind, application, json)` events to the feed and `(application, entry)` to histories,
        in one transaction.

        The feed is bounded by events and bytes, a history by cycles; the oldest are dropped. `newest` has new newest
        messages of these applications, as JSON. `StoreUnavailable` if another replica changed a state since it was
        read.
        """

    async def history(self, application: str) -> list[LoopResult]:
        """Return past cycles, newest first."""

    async def leftovers(self) -> dict[str, datetime | None]:
        """Return stored applications without a policy, and when their newest message was observed (None: unknown)."""

    async def forget(self, application: str) -> None:
        """Delete an application's state, history and action."""

    async def action(self, application: str) -> ActionState | None: ...

    async def put_action(self, action: ActionState, expected: int) -> None:
        """Replace the action with version `expected` (0: none); `VersionConflict` with the current one otherwise."""

    async def events(self, after: str, count: int = 100, wait_seconds: float = 0.0) -> list[FeedEvent]:
        """Return events after an id, oldest first, waiting up to `wait_seconds` for the first one."""

    async def newest_event(self) -> str:
        """Return the id of the newest event; `0-0` without events."""
