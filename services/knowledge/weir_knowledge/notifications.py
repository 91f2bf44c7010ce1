"""Which notifications a message leads to, and their forms for a receiver. Pure.

An action has one notification a phase, a missed objective once when it has been missed for long enough and once when it ends,
a refused document once until another one is refused or in force. Ids are derived from what a notification is about, never
from a sentence with figures: a receiver that has seen an id drops the repetition.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, Self
from uuid import uuid5

from pydantic import Field

from weir_contracts import (
    VERSION,
    Analysis,
    Estimate,
    Message,
    Notification,
    NotificationKind,
    Outcome,
    Phase,
    bounded,
    derive_id,
    duration_text,
    format_duration,
)
from weir_contracts.base import MAX_SENTENCE_LENGTH, WEIR_NAMESPACE, Derived, Timestamp
from weir_contracts.change import MAX_CALLER

Format = Literal["cloudevents", "slack"]
KEPT = timedelta(hours=24)
"""Age at which a notification is given up, and a message is no news any more."""
KIND = "notification"
"""Kind of the documents that wait for delivery."""
CONTENT_TYPES: Mapping[Format, str] = {
    "cloudevents": "application/cloudevents+json; charset=utf-8",
    "slack": "application/json; charset=utf-8",
}
_OF_PHASES: Mapping[Phase, NotificationKind] = {
    "verifying": "action-accepted",
    "verified": "action-verified",
    "rolling-back": "action-rolling-back",
    "rolled-back": "action-rolled-back",
    "failed": "action-failed",
}
_WORDS: Mapping[NotificationKind, str] = {
    "action-accepted": "rescale accepted",
    "action-verified": "rescale verified",
    "action-rolling-back": "rolling back",
    "action-rolled-back": "rolled back",
    "action-failed": "rescale failed",
    "objective-missed": "objective missed",
    "objective-met": "objective met again",
    "policy-refused": "policy refused",
}
_SLACK_ESCAPES = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}


class Lateness(Message):
    """Time in which an application misses its objective."""

    since: Timestamp
    """First analysis above the objective."""
    at: Timestamp
    """Last analysis that proves it."""
    worst_seconds: Derived = Field(default=0.0)
    """Largest lag or latency in that time."""

    @property
    def duration(self) -> timedelta:
        return self.at - self.since


def measured(analysis: Analysis) -> Estimate:
    """Return what the objective bounds: the lag or the latency, in seconds."""
    has_max_lag = analysis.policy.spec.objective.max_lag is not None
    return analysis.lag_seconds if has_max_lag else analysis.expected_latency_seconds


def lateness_after(before: Lateness | None, analysis: Analysis) -> Lateness | None:
    """Return the lateness after an analysis; None: the objective is met, or has no bound. An unknown value ends nothing and
    begins nothing."""
    bound, value = analysis.policy.spec.objective.bound_seconds, measured(analysis)
    if bound is None or (value.value is not None and value.value <= bound):
        return None
    if value.proven is None or value.proven <= bound:
        return before
    worst = max(value.proven, 0.0 if before is None else before.worst_seconds)
    since = analysis.observed_at if before is None else before.since
    return Lateness(since=since, at=analysis.observed_at, worst_seconds=worst)


def of_analysis(
    before: Lateness | None, after: Lateness | None, analysis: Analysis, late_after: timedelta
) -> Notification | None:
    """Return the notification of an analysis that led from one lateness to the other: of the one that is the first to be late for
    `late_after`, and of the one that ends such a lateness."""
    was_late = before is not None and before.duration >= late_after
    if after is not None and after.duration >= late_after and not was_late:
        return _of_objective("objective-missed", after, analysis)
    if before is not None and was_late and after is None:
        return _of_objective("objective-met", before, analysis)
    return None


def _of_objective(
    kind: Literal["objective-missed", "objective-met"], lateness: Lateness, analysis: Analysis
) -> Notification:
    objective = analysis.policy.spec.objective
    name, bound = ("lag", objective.max_lag) if objective.max_lag is not None else ("latency", objective.max_latency)
    value = measured(analysis).proven if bound is not None else None
    is_missed, worst = kind == "objective-missed", f"{lateness.worst_seconds:,.0f} s at worst"
    lasted = duration_text(((lateness.at if is_missed else analysis.observed_at) - lateness.since).total_seconds())
    if bound is None or value is None:
        sentence = f"the objective has no bound any more; it was missed for {lasted}, {worst}"
    elif is_missed:
        at_least = "at least " if measured(analysis).value is None else ""
        sentence = (
            f"{name} is {at_least}{value:,.0f} s, above the objective of {format_duration(bound)} for {lasted}; {worst}"
        )
    else:
        sentence = (
            f"{name} is {value:,.0f} s, within the objective of {format_duration(bound)} again after {lasted}; {worst}"
        )
    return Notification(
        id=uuid5(WEIR_NAMESPACE, f"{analysis.application} {kind} {lateness.since.isoformat()}"),
        kind=kind,
        application=analysis.application,
        at=analysis.observed_at,
        code="above-objective" if is_missed else "within-objective" if bound is not None else "no-bound",
        sentence=sentence,
        since=lateness.since,
        objective_seconds=None if bound is None else bound.total_seconds(),
        measured_seconds=value,
        worst_seconds=lateness.worst_seconds,
    )


def of_outcome(outcome: Outcome, earlier: Iterable[Outcome]) -> Notification | None:
    """Return the notification of the first outcome of an action in a phase that has one; `earlier` are those of its plan."""
    action, kind = outcome.action, _OF_PHASES.get(outcome.phase)
    if action is None or kind is None:
        return None
    if any(each.phase == outcome.phase and each.action is not None and each.action.id == action.id for each in earlier):
        return None
    return Notification(
        id=derive_id(action.id, kind),
        kind=kind,
        application=outcome.application,
        at=outcome.at,
        code=outcome.code,
        sentence=outcome.sentence,
        plan_id=outcome.plan_id,
        action_id=action.id,
        before=outcome.before,
        wanted=outcome.wanted,
        restart_seconds=outcome.restart_seconds,
    )


def of_refusal(application: str, at: datetime, *, caller: str, version: int, code: str, sentence: str) -> Notification:
    """Return the notification of a refused document. The same refusal while the same version is in force has the same id."""
    return Notification(
        id=uuid5(WEIR_NAMESPACE, f"{application} refused beside {version}: {sentence}"),
        kind="policy-refused",
        application=application,
        at=at,
        code=code,
        sentence=bounded(sentence, MAX_SENTENCE_LENGTH),
        caller=caller[:MAX_CALLER],
    )


@dataclass(frozen=True, order=True)
class Waiting:
    """Place of a notification among those that wait: in the order in which they were decided."""

    decided_ms: int
    number: int
    """Among those that were decided together."""
    application: str
    id: str

    @classmethod
    def of(cls, notification: Notification, now: datetime, number: int = 0) -> Self:
        return cls(int(now.timestamp() * 1000), number, notification.application, str(notification.id))

    @classmethod
    def read(cls, key: str) -> Self:
        """Return the place that a key of the store names."""
        decided_ms, number, application, id = key.split(" ")
        return cls(int(decided_ms), int(number), application, id)

    @property
    def key(self) -> str:
        return f"{self.decided_ms:014d} {self.number:06d} {self.application} {self.id}"

    @property
    def namespace(self) -> str:
        return self.application.partition("/")[0]


def body_of(notification: Notification, form: Format, source: str) -> bytes:
    """Return the body of a request: a CloudEvent in structured mode, or a text for Slack's incoming webhook."""
    if form == "slack":
        text = f"*{notification.application}* {_WORDS[notification.kind]}: {notification.sentence}"
        return json.dumps({"text": text.translate(_SLACK_ESCAPES)}, ensure_ascii=False).encode(errors="replace")
    event = {
        "specversion": "1.0",
        "id": str(notification.id),
        "source": source,
        "type": notification.type,
        "subject": notification.application,
        "time": notification.at.isoformat(),
        "datacontenttype": "application/json",
        "dataschema": f"https://weir.dev/schemas/{VERSION}/notification.schema.json",
        "data": notification.model_dump(mode="json", exclude_defaults=True),
    }
    return json.dumps(event, ensure_ascii=False).encode(errors="replace")
