"""What this process holds: its applications while it owns their partitions, and its view of the whole fleet."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from weir_contracts import ActionState, Outcome, Plan, Target, precedes

from runtime.envelope import new_traceparent

from .core import ActionHistory, Fleet, Recommendation, Rules, recommendation_after


@dataclass
class Application:
    """One application of an owned partition. Only whoever holds `lock` moves its action."""

    id: str
    partition: int
    history: ActionHistory = field(default_factory=ActionHistory)
    target: Target | None = None
    """Of the action in flight: it stays what it was even if the policy is deleted meanwhile."""
    planned_version: int | None = None
    previous: ActionState | None = None
    """The action before the present one."""
    traceparent: str | None = None
    """Of the plan that the action follows."""
    checkpoint_triggered_at: float | None = None
    resumed: bool = True
    """The action was begun by another process, or by an earlier life of this one."""
    recalled: bool = False
    """Memory is what the topic of outcomes, or else knowledge, has of it."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    task: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> bool:
        return self.history.action is not None and not self.history.action.terminal

    @property
    def trace(self) -> str | None:
        """Of its action; one that was begun by another process has the trace of the reading it follows from."""
        action = self.history.action
        return self.traceparent or (new_traceparent(action.observation_id) if action is not None else None)

    @property
    def driven(self) -> bool:
        """Whether a task moves its action now."""
        return self.task is not None and not self.task.done()


class NewestOutcomes:
    """The newest outcome of every application of the fleet, in whatever order they are read."""

    def __init__(self) -> None:
        self.latest: dict[str, Outcome] = {}
        self.buried: set[str] = set()
        """Applications of which an older outcome came last: compaction of the topic would keep only that one."""
        self._noted = asyncio.Event()

    def note(self, application: str, outcome: Outcome | None) -> None:
        """Take the next record of the topic; None: a tombstone."""
        self._noted.set()
        newest = self.latest.get(application)
        if outcome is None:
            self.latest.pop(application, None)
        elif newest is not None and precedes(outcome.order, newest.order):
            self.buried.add(application)
            return
        else:
            self.latest[application] = outcome
        self.buried.discard(application)

    async def wait_for(self, action: ActionState, timeout_seconds: float) -> bool:
        """Wait until an action has been read back from the topic; False when the time passes first."""

        def is_read() -> bool:
            newest = self.latest.get(action.application)
            read = newest.newest_action if newest is not None else None
            return read is not None and read.id == action.id and read.version >= action.version

        try:
            async with asyncio.timeout(timeout_seconds):
                while not is_read():
                    self._noted.clear()
                    await self._noted.wait()
        except TimeoutError:
            return False
        return True


class Applications:
    """All of them, by id. `told` is kept fresh by the service."""

    def __init__(self, published: NewestOutcomes, rules: Rules) -> None:
        self.own: dict[str, Application] = {}
        self.published = published
        self._reserved: dict[str, str] = {}
        self._recommendations: dict[str, Recommendation] = {}
        self._rules = rules

    def get(self, application: str, partition: int) -> Application:
        """The application, known or new."""
        return self.own.setdefault(application, Application(application, partition))

    def of(self, partitions: Iterable[int]) -> list[Application]:
        """Those of some partitions."""
        wanted = frozenset(partitions)
        return [app for app in self.own.values() if app.partition in wanted]

    def forget(self, app: Application) -> None:
        """Its partition belongs to somebody else now."""
        self.own.pop(app.id, None)
        self._reserved.pop(app.id, None)
        self._recommendations.pop(app.id, None)

    def note_recommendation(self, plan: Plan, now: datetime) -> None:
        """Every plan counts, holds and advice included: they are the fleet that a shrinking share is taken of."""
        self._recommendations[plan.application] = recommendation_after(
            self._recommendations.get(plan.application), plan, now, self._rules
        )
        if len(self._recommendations) > 2 * len(self.own) + 100:
            life = timedelta(seconds=self._rules.fleet_hold_seconds)
            self._recommendations = {a: w for a, w in self._recommendations.items() if now - w.at <= life}

    def reserve(self, application: str, cluster: str) -> None:
        """Count an action that is about to be told."""
        self._reserved[application] = cluster

    def release(self, application: str) -> None:
        """It was told, or not; either way its memory counts from now on."""
        self._reserved.pop(application, None)

    def fleet(self, intent: ActionState | None = None) -> Fleet:
        """Return all actions in flight and recent wishes; for an intent, leave out later intents.

        Every replica orders intents the same way, so that of those that do not all fit each lets the same go on.
        """
        actions = self._in_flight()
        if intent is not None:
            first = (intent.started_at, intent.id)
            actions = [a for a in actions if a.phase != "intended" or (a.started_at, a.id) < first]
        reserved = self._reserved if intent is None else {}
        return Fleet({**{a.application: a.cluster for a in actions}, **reserved}, dict(self._recommendations))

    def _in_flight(self) -> list[ActionState]:
        """Of applications that are not owned here as they were published last."""
        others = (
            outcome.newest_action
            for application, outcome in self.published.latest.items()
            if application not in self.own
        )
        actions = (*others, *(app.history.action for app in self.own.values()))
        return [action for action in actions if action is not None and not action.terminal]
