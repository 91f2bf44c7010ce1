"""Events of ScalingPolicy resources, as `kubectl describe` shows them: refused documents, actions, and changed reasons.

What was recorded is kept for each resource, so that a reason that lasts is recorded once, and one that comes back counts in
the series of its event. A new process learns from the resource's status which reason was recorded.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from weir_contracts import Outcome, OutcomeOrder, Plan, precedes
from weir_contracts.planning import NO_OPINION
from weir_engines.kubernetes.values import mapping

from .resource_conditions import Refusal, camel_case
from .resource_status import Resource

EVENTS_OF = timedelta(hours=1)
"""Age up to which an outcome is recorded: Kubernetes keeps events for an hour."""
SERIES_SECONDS = 3000.0
"""Age from which an event gets no further repetition: Kubernetes may delete it."""
PAUSE_SECONDS = 60.0
"""Minimum time between two changed reasons of a policy, and between two repetitions of an event."""
MAX_NOTE_BYTES = 1024
"""Maximum of the API server."""
_NEVER = float("-inf")
_REPORTED = frozenset({"verifying", "verified", "rolling-back", "rolled-back", "superseded", "refused", "failed"})
"""Phases of actions that are events: what the target accepted, and how it ended."""
_WARNINGS = frozenset({"refused", "failed", "rolling-back", "rolled-back"})


@dataclass(frozen=True)
class ResourceEvent:
    """Event of a resource."""

    key: str
    """The same key is the same event, also of another process."""
    action: str
    """What Weir did, or was to do."""
    reason: str
    note: str
    is_warning: bool
    source: Outcome | Plan | Refusal
    """What it is about."""
    series: str = ""
    """Events of the same series are repetitions of its first one. Empty: it is no repetition of any."""


@dataclass(frozen=True)
class Due:
    """An event to write: a new one, or the `count`th occurrence of one that was written."""

    event: ResourceEvent
    count: int = 1


@dataclass(frozen=True)
class _Series:
    """The event of a series. Times are monotonic seconds."""

    event: ResourceEvent
    count: int
    begun_at: float
    written_at: float


@dataclass
class RecordedEvents:
    """What was recorded of a resource."""

    reason: str | None = None
    """Code of the last recorded plan."""
    failure: str = field(default="", init=False)
    """Why the last event could not be written."""
    _reason_at: float = field(default=_NEVER, init=False)
    _outcome: OutcomeOrder | None = field(default=None, init=False)
    """The last recorded outcome."""
    _refused: str = field(default="", init=False)
    """Key of the last recorded refusal of the document."""
    _series: dict[str, _Series] = field(default_factory=dict, init=False)

    @classmethod
    def of(cls, resource: Resource) -> "RecordedEvents":
        """Return what an earlier process recorded, by the status that it wrote."""
        code = mapping(resource.status.get("decision")).get("code")
        return cls(code if isinstance(code, str) else None)

    def lacks(self, outcome: Outcome | None, now: datetime) -> bool:
        """Return whether an outcome is an event that was not recorded."""
        if outcome is None or outcome.phase not in _REPORTED or now - outcome.at >= EVENTS_OF:
            return False
        return self._outcome is None or precedes(self._outcome, outcome.order)

    def pending(
        self,
        resource: Resource,
        refusal: Refusal | None,
        outcomes: Iterable[Outcome],
        plan: Plan | None,
        *,
        now: datetime,
        now_seconds: float,
    ) -> list[ResourceEvent]:
        """Return the events that were not recorded, oldest first: of the document's refusal, of outcomes, and of a plan with
        another reason than the last one, at most one a minute. A change that is made is no such event: its action is."""
        found = []
        if refusal is None:
            self._refused = ""
        else:
            key = f"{resource.uid[:8]}-{resource.generation}-{refusal.reason.lower()}"
            if key != self._refused:
                found.append(
                    ResourceEvent(key, "Accept", "NotAccepted", refusal.sentence, is_warning=True, source=refusal)
                )
        new = {each.id: each for each in outcomes if self.lacks(each, now)}
        found += [_of_outcome(each) for each in sorted(new.values(), key=lambda each: each.order)]
        if plan is not None and plan.code != self.reason:
            if plan.kind != "hold" and plan.mode == "act":
                self.reason = plan.code
            elif now_seconds - self._reason_at >= PAUSE_SECONDS:
                found.append(_of_plan(plan))
        return found

    def due(self, event: ResourceEvent, now_seconds: float) -> Due | None:
        """Return how an event is to be written; None if its series has a newer one."""
        series = self._series.get(event.series)
        if series is None or now_seconds - series.begun_at >= SERIES_SECONDS:
            return Due(event)
        return None if now_seconds - series.written_at < PAUSE_SECONDS else Due(series.event, series.count + 1)

    def wrote(self, event: ResourceEvent, due: Due | None, now_seconds: float) -> None:
        """Note that an event is recorded. `due`: what was written; None: nothing."""
        if isinstance(event.source, Outcome):
            self._outcome = event.source.order
        elif isinstance(event.source, Plan):
            self.reason, self._reason_at = event.source.code, now_seconds
        else:
            self._refused = event.key
        if due is not None and event.series:
            before = self._series.get(event.series)
            begun_at = now_seconds if due.count == 1 or before is None else before.begun_at
            self._series[event.series] = _Series(due.event, due.count, begun_at, now_seconds)


def _of_outcome(outcome: Outcome) -> ResourceEvent:
    """Return the event of a refused plan, or of a transition of an action."""
    action = "Scale" if outcome.instance is None else "RestartInstance"
    note = f"{outcome.code}: {outcome.sentence}"
    series = f"refused {outcome.code}" if outcome.phase == "refused" else ""
    reason, is_warning = camel_case(outcome.phase), outcome.phase in _WARNINGS
    return ResourceEvent(outcome.id.hex, action, reason, note, is_warning, outcome, series)


def _of_plan(plan: Plan) -> ResourceEvent:
    """Return the event of a changed reason: a hold, or what Weir would do."""
    action = "Hold" if plan.kind == "hold" else "Advise"
    is_warning = plan.kind == "hold" and plan.code in NO_OPINION - {"paused"}
    reason, series = camel_case(plan.code), f"{action} {plan.code}"
    return ResourceEvent(plan.id.hex, action, reason, plan.sentence, is_warning, plan, series)
