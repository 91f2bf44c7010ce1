"""The store in memory, for tests."""

import asyncio
from collections.abc import Callable, Collection
from datetime import timedelta
from uuid import UUID

from weir_contracts import ActionState, LoopResult, ScalingPolicy
from weir_contracts.topics import ACTIONS, POLICIES
from weir_knowledge.core import End, with_ends
from weir_knowledge.store import Batch, FeedEvent, Fields, Incomplete, Key, NotContinued, Position, StoreFull
from weir_knowledge.view import action_fields, policy_fields
from weir_runtime.bus import partition_of


class MemoryStore:
    """The store in dictionaries. On one event loop, so every method is atomic until it awaits."""

    def __init__(
        self,
        events_kept: int = 20_000,
        events_bytes: int = 16_000_000,
        history_kept: int = 500,
        history_seconds: float = 86_400.0,
    ) -> None:
        self.events_kept, self.events_bytes = events_kept, events_bytes
        self.history_kept, self.history_age = history_kept, timedelta(seconds=history_seconds)
        self.full = False
        """Refuses writes that need memory, as a full Redis does."""
        self.on_applied: Callable[[], None] = lambda: None
        """Called after each batch, before its caller knows: raises what is to go wrong there."""
        self._arrived = asyncio.Condition()
        self.empty()

    def empty(self) -> None:
        """Lose everything, as a Redis without a disk does when it restarts."""
        self.positions: dict[int, Position] = {}
        self.documents: dict[Key, dict[str, str]] = {}
        self._lines: dict[str, list[LoopResult]] = {}
        self._ends: dict[str, dict[UUID, str]] = {}
        self._events: list[FeedEvent] = []
        self._count = 0
        self.now_ms = 0
        """Of the ids of events; they count from 1 while it is 0."""

    async def ping(self) -> None:
        return

    async def check_room(self) -> None:
        if self.full:
            raise StoreFull("the store is full")

    async def close(self) -> None:
        return

    async def applied(self, partitions: Collection[int]) -> dict[int, Position | None]:
        return {partition: self.positions.get(partition) for partition in partitions}

    async def get(
        self, keys: Collection[Key], names: Collection[str] | None = None, *, complete: Collection[int] = ()
    ) -> dict[Key, dict[str, str]]:
        self._need(complete)
        return {
            key: {name: text for name, text in self.documents[key].items() if names is None or name in names}
            for key in keys
            if key in self.documents
        }

    async def all(
        self, kind: str, names: Collection[str] | None = None, *, complete: Collection[int] = ()
    ) -> dict[str, dict[str, str]]:
        self._need(complete)
        return {
            key: {name: text for name, text in fields.items() if names is None or name in names}
            for (of, key), fields in sorted(self.documents.items())
            if of == kind
        }

    def _need(self, complete: Collection[int]) -> None:
        if not self.positions.keys() >= set(complete):
            raise Incomplete

    async def keys(self, kind: str) -> list[str]:
        return sorted(key for of, key in self.documents if of == kind)

    async def apply(self, batch: Batch) -> None:
        for partition, position in batch.continues.items():
            if self.positions.get(partition) != position:
                raise NotContinued(partition)
        await self.check_room()
        for key in batch.deleted:
            self.documents.pop(key, None)
        for application in batch.forgotten:
            self._lines.pop(application, None)
            self._ends.pop(application, None)
        for key, names in batch.removed.items():
            for name in names:
                self.documents.get(key, {}).pop(name, None)
        for key, fields in batch.changed.items():
            self.documents.setdefault(key, {}).update(fields)
        self._add_history(batch)
        for kind, application, data in batch.events:
            self._count += 1
            place = f"{self.now_ms}-{self._count}" if self.now_ms else f"{self._count}-0"
            self._events.append(FeedEvent(place, kind, application, data))
        self._events = self._newest_events()
        self.positions.update(batch.positions)
        async with self._arrived:
            self._arrived.notify_all()
        self.on_applied()

    def _add_history(self, batch: Batch) -> None:
        for application, entry in batch.entries:
            if isinstance(entry, End):
                self._ends.setdefault(application, {})[entry.plan_id] = entry.phase
            else:
                kept = [line for line in self._lines.get(application, []) if line.plan_id != entry.plan_id]
                lines = sorted([entry, *kept], key=lambda line: line.at, reverse=True)[: self.history_kept]
                self._lines[application] = [line for line in lines if line.at >= lines[0].at - self.history_age]

    def _newest_events(self) -> list[FeedEvent]:
        """Return the newest events within both bounds."""
        kept: list[FeedEvent] = []
        room = self.events_bytes
        for event in reversed(self._events[-self.events_kept :]):
            room -= len(event.data)
            if room < 0:
                break
            kept.append(event)
        return kept[::-1]

    async def history(self, application: str) -> list[LoopResult]:
        return with_ends(self._lines.get(application, []), self._ends.get(application, {}))

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

    async def write(self, **changes: object) -> None:
        """Apply changes, at whatever position."""
        await self.apply(Batch(**{"continues": {}, "positions": {}, **changes}))  # type: ignore[arg-type]

    async def set_policy(self, application: str, policy: ScalingPolicy | None, version: int, partitions: int) -> None:
        """Show a policy, or its deletion, as if it had been decided and applied."""
        if policy is None:
            key = ("policy", application)
            changes: dict[str, object] = {"deleted": [key, ("state", application)], "forgotten": [application]}
        else:
            changes = {"changed": {("policy", application): policy_fields(policy)}}
        await self._decided(POLICIES.name, application, version, partitions, changes)

    async def set_action(self, application: str, action: ActionState | None, version: int, partitions: int) -> None:
        """The same for an action, with its version in the log."""
        key = ("action", application)
        fields: Fields | None = None if action is None else action_fields(action, version)
        changes: dict[str, object] = {"deleted": [key]} if fields is None else {"changed": {key: fields}}
        await self._decided(ACTIONS.name, application, version, partitions, changes)

    async def _decided(
        self, topic: str, application: str, version: int, partitions: int, changes: dict[str, object]
    ) -> None:
        partition = partition_of(application, partitions)
        before = self.positions.get(partition, Position())
        newest = max(version, before.versions.get(topic, 0))
        position = Position(before.offsets, {**before.versions, topic: newest})
        await self.write(positions={partition: position}, **changes)

    def complete(self, partitions: int) -> None:
        """Show all partitions as read, without anything in them."""
        for partition in range(partitions):
            self.positions.setdefault(partition, Position())
