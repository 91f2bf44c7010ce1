"""The store in memory, for tests."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from weir_contracts import ActionState, LoopResult, ScalingPolicy
from weir_engines.registry import claims, rival
from weir_knowledge.core import KINDS, End, HistoryEntry, Kind, Newest, State, with_ends
from weir_knowledge.store import (
    INCOMPLETE,
    NOTHING_NEW,
    FeedEvent,
    OutboxEntry,
    StoreFull,
    StoreUnavailable,
    TargetTaken,
    VersionConflict,
)


class MemoryStore:
    """The store in dictionaries. On one event loop, so every method is atomic until it awaits."""

    def __init__(
        self,
        events_kept: int = 20_000,
        events_bytes: int = 16_000_000,
        history_kept: int = 500,
        history_seconds: float = 86_400.0,
        *,
        complete: bool = True,
    ) -> None:
        self._policies: dict[str, ScalingPolicy] = {}
        self._deletions: dict[str, int] = {}
        self._outbox: list[OutboxEntry] = []
        self._states: dict[str, State] = {}
        self._newest: dict[str, dict[Kind, str]] = {}
        self._lines: dict[str, list[LoopResult]] = {}
        self._ends: dict[str, dict[UUID, str]] = {}
        self._history_kept, self._history_age = history_kept, timedelta(seconds=history_seconds)
        self._actions: dict[str, ActionState] = {}
        self._events: list[FeedEvent] = []
        self._events_kept = events_kept
        self._events_bytes = events_bytes
        self.full = False
        """Refuses writes that need memory, as a full Redis does."""
        self._whole = complete
        self._count = 0
        self._arrived = asyncio.Condition()

    async def ping(self) -> None:
        return

    async def check_room(self) -> None:
        self._need_room()

    def _need_room(self) -> None:
        if self.full:
            raise StoreFull("the store is full")

    def _need_completeness(self) -> None:
        if not self._whole:
            raise StoreUnavailable(INCOMPLETE)

    async def close(self) -> None:
        return

    async def is_complete(self) -> bool:
        return self._whole

    async def mark_complete(self) -> None:
        self._need_room()
        self._whole = True

    async def policy(self, application: str) -> ScalingPolicy | None:
        return self._policies.get(application)

    async def policies(self) -> list[ScalingPolicy]:
        return [self._policies[name] for name in sorted(self._policies)]

    async def put_policy(self, policy: ScalingPolicy, expected: int | None) -> None:
        self._need_completeness()
        self._expect_free_target(policy)
        self._expect(policy.application, expected)
        if self._deletions.get(policy.application, -1) >= (policy.metadata.version or 0):
            raise VersionConflict(None)
        self._need_room()
        self._set(policy)
        self._post(policy.application, policy.model_dump_json(exclude_unset=True))

    async def delete_policy(self, application: str, expected: int | None, min_version: int = 1) -> bool:
        self._need_completeness()
        self._expect(application, expected)
        policy = self._policies.pop(application, None)
        if policy is None:
            return False
        version = max((policy.metadata.version or 0) + 1, min_version)
        self._deletions[application] = version
        self._post(application, None, version, policy.model_dump_json(exclude_unset=True))
        return True

    async def restore_policy(self, policy: ScalingPolicy) -> None:
        if self._stored_version(policy.application) < (policy.metadata.version or 0):
            self._need_room()
            self._set(policy)

    async def restore_deletion(self, application: str, version: int) -> None:
        if self._stored_version(application) < version:
            self._policies.pop(application, None)
            self._deletions[application] = version

    def _set(self, policy: ScalingPolicy) -> None:
        self._policies[policy.application] = policy
        self._deletions.pop(policy.application, None)

    def _stored_version(self, application: str) -> int:
        policy = self._policies.get(application)
        return self._deletions.get(application, -1) if policy is None else policy.metadata.version or 0

    async def deletion(self, application: str) -> int | None:
        return self._deletions.get(application)

    async def deletions(self) -> dict[str, int]:
        return dict(self._deletions)

    async def forget_deletions(self, before: int) -> None:
        self._deletions = {name: version for name, version in self._deletions.items() if version >= before}

    async def publish_again(self, application: str) -> None:
        policy = self._policies.get(application)
        if policy is not None:
            self._post(application, policy.model_dump_json(exclude_unset=True))
        elif application in self._deletions:
            self._post(application, None, self._deletions[application])

    def _expect_free_target(self, policy: ScalingPolicy) -> None:
        others = {name: claims(other.subject) for name, other in self._policies.items()}
        wanted = claims(policy.subject)
        if others.pop(policy.application, None) != wanted and (taken := rival(wanted, others)) is not None:
            raise TargetTaken(taken)

    def _expect(self, application: str, expected: int | None) -> None:
        current = self._policies.get(application)
        version = 0 if current is None else current.metadata.version
        if expected is not None and expected != version:
            raise VersionConflict(current)

    def _post(
        self, application: str, value: str | None, version: int | None = None, deleted: str | None = None
    ) -> None:
        self._count += 1
        self._outbox.append(OutboxEntry(str(self._count), application, value, version, deleted))

    async def outbox(self, count: int = 100) -> list[OutboxEntry]:
        return self._outbox[:count]

    async def outbox_size(self) -> int:
        return len(self._outbox)

    async def published(self, entries: Sequence[OutboxEntry]) -> None:
        done = {entry.id for entry in entries}
        self._outbox = [entry for entry in self._outbox if entry.id not in done]

    async def state(self, application: str) -> State | None:
        return self._states.get(application)

    async def states(self, applications: Collection[str]) -> dict[str, State | None]:
        return {name: self._states.get(name) for name in applications}

    async def newest(self, application: str, kinds: Collection[Kind] = KINDS) -> Newest | None:
        if application not in self._states:
            return None
        found = self._newest.get(application, {})
        newest = Newest.read(application, {kind: found[kind] for kind in kinds if kind in found})
        return newest.model_copy(
            update={name: getattr(self._states[application], name) for name in ("spend", "advice")}
        )

    async def applications(self) -> list[str]:
        return sorted({*self._states, *self._policies})

    async def save(
        self,
        states: Sequence[State],
        events: Sequence[tuple[Kind, str, str]],
        entries: Sequence[tuple[str, HistoryEntry]] = (),
        newest: Mapping[str, Mapping[Kind, str]] = NOTHING_NEW,
    ) -> None:
        self._need_room()
        self._states.update({state.application: state for state in states})
        for state in states:
            self._newest.setdefault(state.application, {}).update(newest.get(state.application, {}))
        for application, entry in entries:
            if isinstance(entry, End):
                self._ends.setdefault(application, {})[entry.plan_id] = entry.phase
            else:
                lines = [entry, *self._lines.get(application, [])][: self._history_kept]
                self._lines[application] = [line for line in lines if line.at >= entry.at - self._history_age]
        for kind, application, data in events:
            self._count += 1
            self._events.append(FeedEvent(f"{self._count}-0", kind, application, data))
        self._events = self._newest_events()
        async with self._arrived:
            self._arrived.notify_all()

    def _newest_events(self) -> list[FeedEvent]:
        """Return the newest events within both bounds."""
        kept: list[FeedEvent] = []
        room = self._events_bytes
        for event in reversed(self._events[-self._events_kept :]):
            room -= len(event.data)
            if room < 0:
                break
            kept.append(event)
        return kept[::-1]

    async def history(self, application: str) -> list[LoopResult]:
        return with_ends(self._lines.get(application, []), self._ends.get(application, {}))

    async def leftovers(self) -> dict[str, datetime | None]:
        kept: set[str] = {*self._states, *self._lines, *self._ends, *self._actions}
        kept -= self._policies.keys()
        return {name: self._states[name].times.newest if name in self._states else None for name in kept}

    async def forget(self, application: str) -> None:
        self._states.pop(application, None)
        self._newest.pop(application, None)
        self._lines.pop(application, None)
        self._ends.pop(application, None)
        self._actions.pop(application, None)

    async def action(self, application: str) -> ActionState | None:
        return self._actions.get(application)

    async def put_action(self, action: ActionState, expected: int) -> None:
        current = self._actions.get(action.application)
        if (current.version if current else 0) != expected:
            raise VersionConflict(current)
        self._need_room()
        self._actions[action.application] = action

    async def events(self, after: str, count: int = 100, wait_seconds: float = 0.0) -> list[FeedEvent]:
        start = self._place(after)
        found = self._after(start, count)
        if not found and wait_seconds > 0:
            try:
                async with asyncio.timeout(wait_seconds), self._arrived:
                    await self._arrived.wait_for(lambda: bool(self._after(start, 1)))
            except TimeoutError:
                return []
            found = self._after(start, count)
        return found

    async def newest_event(self) -> str:
        return self._events[-1].id if self._events else "0-0"

    def _after(self, start: tuple[int, int], count: int) -> list[FeedEvent]:
        return [event for event in self._events if self._place(event.id) > start][:count]

    @staticmethod
    def _place(event_id: str) -> tuple[int, int]:
        milliseconds, _, sequence = event_id.partition("-")
        return int(milliseconds), int(sequence or 0)
