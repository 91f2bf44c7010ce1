"""A log in one step, for tests of what is in front of it: a change is decided by the real `decide` and shown at once."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI

from tests.unit.knowledge.builders import documents
from tests.unit.knowledge.memory_store import MemoryStore
from weir_contracts import Answer, Change, ScalingPolicy
from weir_knowledge.applications_api import applications_router
from weir_knowledge.change_log import ChangeLog
from weir_knowledge.core import HistoryEntry, HistoryLimits, State, history_entries, remember
from weir_knowledge.decisions import Log, decide
from weir_knowledge.events_api import events_router
from weir_knowledge.imports_api import imports_router
from weir_knowledge.newest import Event, kind_of
from weir_knowledge.policies_api import policies_router
from weir_knowledge.policy_changes import PlannerCatalogue, PolicyChanges
from weir_knowledge.view import View, state_change
from weir_runtime.clock import Clock
from weir_runtime.memory_bus import MemoryBus

PARTITIONS = 4


class DirectLog(ChangeLog):
    """Decides on what the store shows."""

    def __init__(self, store: MemoryStore, clock: Clock) -> None:
        view = View(store, PARTITIONS)
        super().__init__(MemoryBus(), view.shows)
        self.view, self._memory, self._clock = view, store, clock
        self.accepted: list[Change] = []
        """Those that changed something."""

    async def request(self, changes: Sequence[Change]) -> None:
        for change in changes:
            await self.submit(change)

    async def submit(self, change: Change) -> Answer:
        positions = [each for each in self._memory.positions.values() if each is not None]
        newest = max((version for each in positions for version in each.versions.values()), default=0)
        policies = {policy.application: policy for policy in await self.view.policies()}
        names = {*policies, change.application}
        found = {name: action for name in names if (action := await self.view.action(name)) is not None}
        now_ms = int(self._clock.now().timestamp() * 1000)
        after, answer = decide(Log.of(policies, found, newest), change, now_ms)
        if answer.version is None:
            return answer
        self.accepted.append(change)
        application = change.application
        if change.kind != "action":
            await self._memory.set_policy(application, after.policies.get(application), answer.version, PARTITIONS)
        if change.kind == "action" or application in found:
            await self._memory.set_action(application, after.actions.get(application), answer.version, PARTITIONS)
        return answer


def complete(store: MemoryStore) -> MemoryStore:
    """Return the store, which has read all partitions."""
    store.complete(PARTITIONS)
    return store


def changes_of(
    store: MemoryStore, clock: Clock, catalogue: PlannerCatalogue | None = None, **options: Any
) -> PolicyChanges:
    """Return changes of a store that is complete."""
    log = DirectLog(complete(store), clock)
    return PolicyChanges(log.view, clock, catalogue or PlannerCatalogue(None), log, **options)


def add_routes(app: FastAPI, changes: PolicyChanges) -> None:
    """Add all routes of knowledge."""
    app.include_router(policies_router(changes))
    app.include_router(applications_router(changes))
    app.include_router(imports_router(changes))
    app.include_router(events_router(changes.view.store, clock=changes.clock))


async def show(store: MemoryStore, *policies: ScalingPolicy) -> None:
    """Let the store show policies as they are."""
    for each in policies:
        await store.set_policy(each.application, each, each.metadata.version or 1, PARTITIONS)


async def show_messages(store: MemoryStore, *messages: Event) -> None:
    """Let the store show messages of one application, as if the loop had published them."""
    application = messages[0].application
    stored = (await View(store, PARTITIONS).states([application]))[application]
    before = None if stored is None else stored.state
    after = before or State(application=application)
    entries: list[tuple[str, HistoryEntry]] = []
    for message in messages:
        after = remember(after, message, HistoryLimits())
        entries += history_entries(message, after)
    events = [(kind_of(each), application, each.model_dump_json()) for each in messages]
    change = state_change(before, after, documents(*messages))
    await store.write(changed={("state", application): change.fields}, entries=entries, events=events)
