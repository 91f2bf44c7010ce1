"""Applications of the owned partitions, and this process's view of the fleet."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog

from weir_contracts import ActionState, Outcome, Plan, Subject, precedes
from weir_runtime.messages import new_traceparent

from .core.history import ActionHistory
from .core.limits import Fleet, Recommendation, recommendation_after
from .core.parameters import Rules


@dataclass
class Application:
    """One application of an owned partition. Its action changes only under `lock`."""

    id: str
    partition: int
    history: ActionHistory = field(default_factory=ActionHistory)
    subject: Subject | None = None
    """Target of the action in flight, kept even if the policy is deleted."""
    admitted: UUID | None = None
    """Id of the action that this process admitted, and so checked itself. An action of another process is known from the
    topic alone."""
    planned_version: int | None = None
    previous: ActionState | None = None
    """The action before the current one."""
    traceparent: str | None = None
    """Trace of the action's plan."""
    checkpoint_triggered_at: float | None = None
    evicted_at: float | None = None
    """Monotonic time of the last eviction that was tried."""
    resumed: bool = True
    """Whether another process, or an earlier run of this one, began the action."""
    recalled: bool = False
    """Whether the history was restored from the topic of outcomes or from knowledge."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    task: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> bool:
        return self.history.action is not None and not self.history.action.terminal

    @property
    def trace(self) -> str | None:
        """Trace of the action; an action of another process gets the trace of its observation."""
        action = self.history.action
        return self.traceparent or (new_traceparent(action.observation_id) if action is not None else None)

    @property
    def log(self) -> Any:
        """Log with this application and its action's trace."""
        return structlog.get_logger("executor").bind(application=self.id, traceparent=self.trace)

    @property
    def driven(self) -> bool:
        """Whether a task runs its action."""
        return self.task is not None and not self.task.done()


class NewestOutcomes:
    """The newest outcome of every application of the fleet, in any order of reading."""

    def __init__(self) -> None:
        self.latest: dict[str, Outcome] = {}
        self.buried: set[str] = set()
        """Applications whose last record is an older outcome: compaction of the topic would keep it, and other replicas count
        its action."""
        self._noted = asyncio.Event()

    def note(self, application: str, outcome: Outcome | None) -> None:
        """Process the next record of the topic; None is a tombstone."""
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

    def note_unpublished(self, outcome: Outcome) -> None:
        """Keep an outcome that the brokers did not accept, to be published again unless a newer one is."""
        self.latest[outcome.application] = outcome
        self.buried.add(outcome.application)

    async def wait_for(self, action: ActionState, timeout_seconds: float) -> bool:
        """Wait until an action has been read back from the topic; return False at the timeout."""

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
    """Applications by id. The service updates `published`."""

    def __init__(self, published: NewestOutcomes, rules: Rules) -> None:
        self.own: dict[str, Application] = {}
        self.published = published
        self._reserved: dict[str, str] = {}
        self._recommendations: dict[str, Recommendation] = {}
        self._rules = rules

    def get(self, application: str, partition: int) -> Application:
        """Return the application, created if it is new."""
        return self.own.setdefault(application, Application(application, partition))

    def of(self, partitions: Iterable[int]) -> list[Application]:
        wanted = frozenset(partitions)
        return [app for app in self.own.values() if app.partition in wanted]

    def forget(self, app: Application) -> None:
        """Drop an application whose partition another replica owns."""
        self.own.pop(app.id, None)
        self._reserved.pop(app.id, None)
        self._recommendations.pop(app.id, None)

    def note_recommendation(self, plan: Plan, now: datetime) -> None:
        """Record a plan's recommendation. Holds and advice count, too, since the fleet's share is taken of all
        applications."""
        self._recommendations[plan.application] = recommendation_after(
            self._recommendations.get(plan.application), plan, now, self._rules
        )
        if len(self._recommendations) > 2 * len(self.own) + 100:
            life = timedelta(seconds=self._rules.fleet_hold_seconds)
            self._recommendations = {a: w for a, w in self._recommendations.items() if now - w.at <= life}

    def reserve(self, application: str, cluster: str) -> None:
        """Count an action that is about to be published."""
        self._reserved[application] = cluster

    def release(self, application: str) -> None:
        """Stop counting a reservation; the application's history counts from now on."""
        self._reserved.pop(application, None)

    def fleet(self, intent: ActionState | None = None) -> Fleet:
        """Return the actions whose application does not run again yet, and recent recommendations; for an intent, leave out
        later intents.

        Every replica orders intents the same way, so that all let the same ones continue.
        """
        actions = [action for action in self._in_flight() if not action.has_run]
        if intent is not None:
            first = (intent.started_at, intent.id)
            actions = [a for a in actions if a.phase != "intended" or (a.started_at, a.id) < first]
        reserved = self._reserved if intent is None else {}
        return Fleet({**{a.application: a.cluster for a in actions}, **reserved}, dict(self._recommendations))

    def _in_flight(self) -> list[ActionState]:
        """Return actions in flight; those of other replicas as published last."""
        others = (
            outcome.newest_action
            for application, outcome in self.published.latest.items()
            if application not in self.own
        )
        actions = (*others, *(app.history.action for app in self.own.values()))
        return [action for action in actions if action is not None and not action.terminal]
