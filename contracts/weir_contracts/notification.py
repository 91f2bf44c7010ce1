"""Notification for the receiver of a namespace: the `data` of a CloudEvent."""

from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from .base import VERSION, ApplicationId, Code, Derived, Message, Parallelism, Seconds, Sentence, Timestamp
from .change import MAX_CALLER

NotificationKind = Literal[
    "action-accepted",
    "action-verified",
    "action-rolling-back",
    "action-rolled-back",
    "action-failed",
    "objective-missed",
    "objective-met",
    "policy-refused",
]
"""action-accepted: the target accepted the request. action-verified: the new parallelism runs and was checked.
action-rolling-back: the executor goes back to the former parallelism. action-rolled-back: that runs again. action-failed: the
action ended without its parallelism. objective-missed: lag or latency is above the objective for longer than the receiver's
time. objective-met: it is within the objective again. policy-refused: a policy was written and is not in force."""


class Notification(Message):
    """Notification about one application. A repeated delivery has the same id."""

    id: UUID
    """Id of the notification, derived from what it is about: a receiver drops one whose id it has seen."""
    kind: NotificationKind
    application: ApplicationId
    at: Timestamp
    """Time of what it is about."""
    code: Code
    """Reason for programs."""
    sentence: Sentence
    """Reason for people."""
    plan_id: UUID | None = None
    """Plan that the action executes. None: it is not about an action."""
    action_id: UUID | None = None
    """Action. None: it is not about one."""
    before: Parallelism = Field(default_factory=dict)
    """Parallelism before the action, in subtasks by operator."""
    wanted: Parallelism = Field(default_factory=dict)
    """Parallelism that the action requests, in subtasks by operator."""
    restart_seconds: Derived | None = None
    """Time in seconds from the target's acceptance until the wanted parallelism ran. None: it does not run, or it is not about an
    action."""
    since: Timestamp | None = None
    """Time since which the objective was missed. None: it is not about an objective."""
    objective_seconds: Seconds | None = None
    """Upper bound of the objective, in seconds. None: it is not about an objective, or the policy has no bound any more."""
    measured_seconds: Derived | None = None
    """Lag or latency at `at`, in seconds; where only a lower bound is known, that. None: it is not about an objective, or unknown."""
    worst_seconds: Derived | None = None
    """Largest lag or latency since `since`, in seconds. None: it is not about an objective."""
    caller: Annotated[str | None, Field(max_length=MAX_CALLER)] = None
    """Name of the caller whose policy was refused. None: it is not about a policy."""

    @property
    def type(self) -> str:
        """CloudEvents type."""
        return f"dev.weir.{self.kind}.{VERSION}"
