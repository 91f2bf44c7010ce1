"""What became of a plan: every transition of an action, and refusals."""

from datetime import datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from .base import (
    ApplicationId,
    Code,
    Count,
    Message,
    NonNegative,
    OperatorName,
    Parallelism,
    Sentence,
    Timestamp,
)
from .deployment import DeploymentRef

Phase = Literal[
    "intended",
    "applying",
    "verifying",
    "verified",
    "rolling-back",
    "rolled-back",
    "superseded",
    "refused",
    "failed",
]
"""intended: recorded, nothing done. applying: the request is on its way or was sent. verifying: accepted by the engine; waiting
for it to run, then watching it. verified, rolled-back, superseded, refused, failed: the end."""

MAX_RESTARTS = 5
FORGOTTEN_AFTER = timedelta(days=7)
"""How long the topic of outcomes keeps the newest of an application at least."""
TERMINAL: frozenset[str] = frozenset({"verified", "rolled-back", "superseded", "refused", "failed"})


class QuarantinedVector(Message):
    """A parallelism vector that was rolled back: not to be tried again before `until`."""

    parallelism: Parallelism
    until: Timestamp
    strikes: Annotated[int, Field(ge=1)]
    """How often it was rolled back; the time doubles with each."""
    because: Sentence


class OperatorBaseline(Message):
    """How an operator did before an action, to judge it by afterwards."""

    operator: OperatorName
    capacity_records_per_second: NonNegative | None = None
    input_rate: NonNegative | None = None


class ActionState(Message):
    """One action's progress, whole: enough to go on after a crash. `version` guards compare-and-swap."""

    id: UUID
    """Derived from the plan's id: a plan is acted on once."""
    application: ApplicationId
    attempt_id: UUID
    """Of the executor's process that wrote this: a conflict that shows my own id was a success."""
    plan_id: UUID
    observation_id: UUID
    version: Annotated[int, Field(ge=1)]
    phase: Phase
    cluster: Annotated[str | None, Field(max_length=2100)] = None
    """URL of the cluster on which it restarts a job; None: an earlier version wrote it."""
    deployment: DeploymentRef
    before: Parallelism
    wanted: Parallelism
    started_at: Timestamp
    requested_at: Timestamp | None = None
    """When the engine accepted the request."""
    running_at: Timestamp | None = None
    """When the wanted parallelism was first seen RUNNING."""
    checked_at: Timestamp | None = None
    deadline_at: Timestamp | None = None
    """Of the present phase."""
    finished_at: Timestamp | None = None
    restarts_before: Count | None = None
    baselines: Annotated[list[OperatorBaseline], Field(max_length=1000)] = Field(default_factory=list)
    rollback_requested_at: Timestamp | None = None
    code: Code
    sentence: Sentence

    @property
    def terminal(self) -> bool:
        """Whether nothing more will happen."""
        return self.phase in TERMINAL

    @property
    def restart_seconds(self) -> float | None:
        """From the engine's acceptance to the wanted parallelism RUNNING."""
        if self.requested_at is None or self.running_at is None:
            return None
        return (self.running_at - self.requested_at).total_seconds()


class Outcome(Message):
    """One transition of an action, or the refusal of a plan. The latest of an application tells all that is known about its
    actions, so that an empty store can be rebuilt from the compacted topic."""

    id: UUID
    application: ApplicationId
    plan_id: UUID
    observation_id: UUID
    at: Timestamp
    phase: Phase
    code: Code
    sentence: Sentence
    before: Parallelism = Field(default_factory=dict)
    wanted: Parallelism = Field(default_factory=dict)
    observed: Parallelism | None = None
    restart_seconds: NonNegative | None = None
    action: ActionState | None = None
    """None for a plan refused before it became an action."""
    last_action: ActionState | None = None
    """The application's newest action, carried along by a refusal."""
    last_written: Parallelism | None = None
    """Requirements that Weir wrote last: others mean that somebody else scales, too."""
    quarantine: Annotated[list[QuarantinedVector], Field(max_length=50)] = Field(default_factory=list)
    restarts_seconds: Annotated[list[NonNegative], Field(max_length=MAX_RESTARTS)] = Field(default_factory=list)
    """What the application's last rescales took from request to RUNNING, newest first."""
    original: Parallelism | None = None
    """Requirements of the newest action's job when Weir first acted on it."""
    contested_since: Timestamp | None = None
    """Since when the requirements are another's; None: they are not."""
    epoch: Count | None = None
    """How often another executor took the application over before this was written; None: an earlier version wrote it."""
    sequence: Count | None = None
    """Outcomes of the application before this one, as far as its executor knew them."""

    @property
    def terminal(self) -> bool:
        """Whether this ends its action."""
        return self.phase in TERMINAL

    @property
    def newest_action(self) -> ActionState | None:
        """The application's newest action as of this outcome."""
        return self.action if self.action is not None else self.last_action

    @property
    def order(self) -> "OutcomeOrder":
        """What `precedes` compares two outcomes of an application by."""
        if self.epoch is None or self.sequence is None:
            return None, self.at, self.id.int
        return (self.epoch, self.sequence), self.at, self.id.int


OutcomeOrder = tuple[tuple[int, int] | None, datetime, int]
"""(epoch, sequence) if known, time, id."""


def precedes(one: OutcomeOrder, other: OutcomeOrder) -> bool:
    """Return whether `other` is newer, in whatever order the two were read.

    An executor that lost an application may still publish an outcome after the new holder has: the new holder's counts. The
    time decides if one has no numbers, and beyond the topic's retention, after which numbers may have begun again.
    """
    if one[0] is None or other[0] is None or abs(one[1] - other[1]) > FORGOTTEN_AFTER:
        return one[1] < other[1]
    return one < other
