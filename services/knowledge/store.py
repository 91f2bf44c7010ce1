"""The store that the knowledge service needs. `adapters/redis.py` and `adapters/memory.py` pass the same tests."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Protocol

from weir_contracts import ActionState, LoopResult, ScalingPolicy, ScoredHour

from runtime.loop import Stop

from .core import KINDS, HistoryEntry, Kind, Newest, State

NOTHING_NEW: Mapping[str, Mapping[Kind, str]] = MappingProxyType({})

RETRY_SECONDS = 5.0
"""Between two attempts to write to a full store."""


class StoreUnavailable(Exception):
    """The memory cannot be reached; trying again may help."""


class StoreFull(StoreUnavailable):
    """The memory answers, and has no room for what was to be written; reading goes on."""


class VersionConflict(Exception):
    """Another writer was first. `current` is the stored value; None: it does not exist."""

    def __init__(self, current: ScalingPolicy | ActionState | None) -> None:
        self.current = current
        super().__init__("another writer was first")


class TargetTaken(Exception):
    """Another application's policy has the same target. `application` is the other's."""

    def __init__(self, application: str) -> None:
        self.application = application
        super().__init__(f"{application} has the same target")


class StoreFullBackoff:
    """Backoff of one loop that writes to the store: waits while it is full, and logs that once."""

    def __init__(self, logger: Any, retry_seconds: float = RETRY_SECONDS) -> None:
        self._log = logger
        self._retry_seconds = retry_seconds
        self._full = False

    async def refused(self, error: StoreFull, stop: Stop) -> None:
        """Wait after a refused write; the caller keeps its records and tries again."""
        if not self._full:
            self._full = True
            self._log.warning("memory-full", reason=str(error), tried_again_every_seconds=self._retry_seconds)
        await stop.wait(self._retry_seconds)

    def written(self) -> None:
        """Note a write that succeeded."""
        if self._full:
            self._full = False
            self._log.info("memory-has-room")


@dataclass(frozen=True)
class FeedEvent:
    """One entry of the event feed. `id` orders all of them."""

    id: str
    kind: str
    application: str
    data: str
    """The message's JSON."""


@dataclass(frozen=True)
class OutboxEntry:
    """A policy that still has to be published. `value is None`: deleted."""

    id: str
    application: str
    value: str | None
    version: int | None = None
    """Of a deletion; None where an earlier version of Weir wrote it."""
    deleted: str | None = None
    """The policy that was deleted, where its end was not published before."""


class Store(Protocol):
    async def ping(self) -> None:
        """Returns if it answers."""
        ...

    async def check_room(self) -> None:
        """Returns if it answers and takes more in; `StoreFull` while it does not."""
        ...

    async def close(self) -> None: ...

    async def is_complete(self) -> bool:
        """Whether it was marked since it was empty; False: what the topics know may be missing."""
        ...

    async def migrate(self) -> None:
        """Put what an earlier version wrote where this one looks for it."""
        ...

    async def mark_complete(self) -> None:
        """Say that everything the topics know is in it."""
        ...

    async def policy(self, application: str) -> ScalingPolicy | None: ...

    async def policies(self) -> list[ScalingPolicy]:
        """All, by application."""
        ...

    async def put_policy(self, policy: ScalingPolicy, expected: int | None) -> None:
        """Store a policy and put it into the outbox, in one transaction.

        `expected`: the version that must be there (0: none); None: any. `VersionConflict` otherwise, and where the policy is not newer
        than its deletion.
        `TargetTaken` where the policy has a new target that another one claims (`targets.claims`).
        """
        ...

    async def delete_policy(self, application: str, expected: int | None, min_version: int = 1) -> bool:
        """The same for a deletion, which has its own version: `min_version`, or the next after the policy's. False if there was
        no policy."""
        ...

    async def restore_policy(self, policy: ScalingPolicy) -> None:
        """Store a policy as it was published, without publishing it again. A newer one stays, and so does a newer deletion."""
        ...

    async def restore_deletion(self, application: str, version: int) -> None:
        """The same for a deletion as it was published."""
        ...

    async def deletion(self, application: str) -> int | None:
        """The version of an application's deletion; None where it was not deleted, has a policy again, or the deletion was forgotten."""
        ...

    async def deletions(self) -> dict[str, int]:
        """All, by application."""
        ...

    async def forget_deletions(self, before: int) -> None:
        """Forget the deletions of an older version than this."""
        ...

    async def publish_again(self, application: str) -> None:
        """Put what is stored of a policy, or its deletion, into the outbox once more."""
        ...

    async def keep_mode(self, application: str, mode: str) -> None:
        """Remember the mode an application had before it was paused."""
        ...

    async def kept_mode(self, application: str) -> str | None: ...

    async def outbox(self, count: int = 100) -> list[OutboxEntry]:
        """The oldest entries."""
        ...

    async def outbox_size(self) -> int:
        """How many entries there are."""
        ...

    async def published(self, entries: Sequence[OutboxEntry]) -> None:
        """Remove entries that the brokers have acknowledged."""
        ...

    async def state(self, application: str) -> State | None: ...

    async def states(self, applications: Collection[str]) -> dict[str, State | None]:
        """Return the state of each application."""
        ...

    async def newest(self, application: str, kinds: Collection[Kind] = KINDS) -> Newest | None:
        """The newest message of each of these kinds; None where there is no state either."""
        ...

    async def applications(self) -> list[str]:
        """Every application anything is known of."""
        ...

    async def save(
        self,
        states: Sequence[State],
        events: Sequence[tuple[Kind, str, str]],
        entries: Sequence[tuple[str, HistoryEntry]] = (),
        newest: Mapping[str, Mapping[Kind, str]] = NOTHING_NEW,
    ) -> None:
        """Store states, append `(kind, application, json)` events to the feed and `(application, past)` to histories, in one go. The
        oldest make room: the feed is bounded by its number of events and by its bytes, a history by its number of cycles. `newest`: for
        applications with a state here, the messages that `newest` shall give, as JSON; of other kinds it gives what it did.
        `StoreUnavailable` where a state is known to have been changed by somebody else since it was read."""
        ...

    async def history(self, application: str) -> list[LoopResult]:
        """Past cycles, newest first."""
        ...

    async def leftovers(self) -> dict[str, datetime | None]:
        """Applications without a policy of which anything is kept, and when their newest message was observed, None if it is not known."""
        ...

    async def forget(self, application: str) -> None:
        """Remove an application's state, history, action and scores, and without a policy the mode before its pause."""
        ...

    async def action(self, application: str) -> ActionState | None: ...

    async def put_action(self, action: ActionState, expected: int) -> None:
        """Compare-and-swap by version (0: none yet); `VersionConflict` with the current one otherwise."""
        ...

    async def keep_scores(self, application: str, hours: Sequence[ScoredHour], oldest: datetime) -> None:
        """Store these hours, replacing their earlier scores, and forget those before `oldest`."""
        ...

    async def scores(self, application: str) -> list[ScoredHour]:
        """All hours kept, oldest first."""
        ...

    async def events(self, after: str, count: int = 100, wait_seconds: float = 0.0) -> list[FeedEvent]:
        """Events after an id, oldest first, waiting for the first one up to `wait_seconds`."""
        ...

    async def newest_event(self) -> str:
        """The id of the newest event; `0-0` if there is none."""
        ...
