"""Outcome: each transition of an action, and each refusal of a plan."""

from datetime import datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from .base import (
    MAX_ORDER,
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
from .deployment import DeploymentRef, InstanceRef

Phase = Literal[
    "intended",
    "preparing",
    "applying",
    "verifying",
    "releasing",
    "verified",
    "rolling-back",
    "rolled-back",
    "superseded",
    "refused",
    "failed",
]
"""intended: recorded, nothing done. preparing: TaskManagers that the request needs are brought, or the job is stopped with a
savepoint; only where the policy says so. applying: the request is being sent. verifying: the engine accepted the request; the executor
waits for it to run and checks it. releasing: TaskManagers that the job no longer needs go, then the action ends.
rolling-back: the former parallelism was requested. All others are final."""

MAX_RESTARTS = 5
FORGOTTEN_AFTER = timedelta(days=7)
"""Minimum retention of an application's newest outcome in its topic."""
TERMINAL: frozenset[str] = frozenset({"verified", "rolled-back", "superseded", "refused", "failed"})


class QuarantinedVector(Message):
    """Parallelism vector that was rolled back and is not applied again for a time."""

    parallelism: Parallelism
    """The vector, in subtasks by operator."""
    until: Timestamp
    """End of the quarantine."""
    strikes: Annotated[int, Field(ge=1)]
    """Number of rollbacks of the vector; each doubles the length of the quarantine."""
    because: Sentence
    """Reason of the last rollback."""


class OperatorBaseline(Message):
    """Rates of an operator before an action, for the verification to compare with."""

    operator: OperatorName
    capacity_records_per_second: NonNegative | None = None
    """Capacity at the former parallelism, in records/s. None: unknown."""
    input_rate: NonNegative | None = None
    """Records/s that the operator took in. None: unknown."""


class _Transition(Message):
    """Last transition of an action."""

    id: UUID
    application: ApplicationId
    plan_id: UUID
    """Id of the plan that was executed or refused."""
    observation_id: UUID
    """Id of the observation that the plan rests on."""
    phase: Phase
    """Phase that the action reached; verified, rolled-back, superseded, refused and failed are final."""
    code: Code
    """Reason of the transition, for programs."""
    sentence: Sentence
    """Reason of the transition, for people."""

    @property
    def terminal(self) -> bool:
        """Whether the phase is final."""
        return self.phase in TERMINAL


class ActionEnding(Message):
    """End of an action, decided before its TaskManagers are released."""

    phase: Literal["verified", "rolled-back", "failed"]
    """Phase that follows `releasing`."""
    code: Code
    """Reason, for programs."""
    sentence: Sentence
    """Reason, for people."""


class ManagerChange(Message):
    """Number of TaskManagers that an action changes: brought before its request, or released once it runs."""

    before: Annotated[int, Field(ge=0, le=MAX_ORDER)]
    """Number requested before the action."""
    wanted: Annotated[int, Field(ge=0, le=MAX_ORDER)]
    """Number that the action's parallelism needs. Equal to `before`: they were requested, but their slots were missing."""
    brought_at: Timestamp | None = None
    """Time at which the target accepted the larger number. None: not yet, or fewer are needed."""
    ready_at: Timestamp | None = None
    """Time at which all their slots were first observed registered. None: not yet."""
    ending: ActionEnding | None = None
    """End of the action once its TaskManagers are released. None: none are released yet."""

    @property
    def start_seconds(self) -> float | None:
        """Time in seconds from the request for the TaskManagers until their slots were registered; None until then, or if they
        were requested before the action."""
        if self.brought_at is None or self.ready_at is None or self.wanted <= self.before:
            return None
        return max(0.0, (self.ready_at - self.brought_at).total_seconds())


_EngineId = Annotated[str, Field(pattern=r"^[0-9A-Za-z_-]{1,64}$")]


class Resubmission(Message):
    """Job that an action stops with a savepoint, and the jobs that continue from it."""

    stopped_job: _EngineId
    """Id of the job that is stopped."""
    successor: _EngineId
    """Id of the job with the wanted parallelism, derived from the action's id: it is started once."""
    restored: _EngineId
    """Id of the job with the former parallelism, which is started if the successor does not run."""
    jar: Annotated[str, Field(max_length=400)]
    """Id of the jar that both run."""
    parallelism: Annotated[int | None, Field(ge=1, le=MAX_ORDER)] = None
    """Parallelism that the stopped job was started with. None: unknown."""
    vertices: Annotated[dict[OperatorName, _EngineId], Field(max_length=1000, fail_fast=True)]
    """Id of each operator's vertex, which the same jar gives again."""
    stop_requested_at: Timestamp | None = None
    """Time at which the engine accepted the stop, or at which it was sent and not answered. None: not yet."""
    savepoint: Annotated[str | None, Field(max_length=2000)] = None
    """Location of the savepoint. None: it is not complete."""
    stopped_at: Timestamp | None = None
    """Time at which the savepoint was first observed complete, and the job stopped. None: not yet."""

    @property
    def folder(self) -> str:
        """Folder of the savepoint in the policy's directory, by which it is known to be this action's."""
        return f"weir-{self.successor[16:]}"


class ActionState(_Transition):
    """Complete state of one action, from which another executor continues it after a crash."""

    id: UUID
    """Id of the action, derived from the plan's id: a plan is executed once."""
    attempt_id: UUID
    """Id of the executor process that wrote this version. After a conflict it shows a process its own earlier write."""
    version: Annotated[int, Field(ge=1, le=MAX_ORDER)]
    """Version of the state, one more with each write; a write must name the version it replaces (compare-and-swap)."""
    cluster: Annotated[str | None, Field(max_length=2100)] = None
    """Address of the cluster on which the action restarts a job. None: unknown."""
    deployment: DeploymentRef
    """Deployment that the plan was made for."""
    before: Parallelism
    """Parallelism before the action, in subtasks by operator."""
    wanted: Parallelism
    """Parallelism that the action requests, in subtasks by operator."""
    instance: InstanceRef | None = None
    """Instance that the action restarts, while `wanted` is what is requested already. None: it changes the parallelism."""
    managers: ManagerChange | None = None
    """TaskManagers that the action brings or releases. None: their number does not change, or Weir does not set it."""
    resubmission: Resubmission | None = None
    """Job that the action stops and runs again with the wanted parallelism. None: it changes the running job."""
    started_at: Timestamp
    """Time at which the action was recorded."""
    requested_at: Timestamp | None = None
    """Time at which the engine accepted the request. None: not yet."""
    running_at: Timestamp | None = None
    """Time at which the wanted parallelism was first observed to run. None: not yet."""
    checked_at: Timestamp | None = None
    """Time of the last check of the action. None: never."""
    deadline_at: Timestamp | None = None
    """Deadline of the current phase. None: it has none."""
    finished_at: Timestamp | None = None
    """Time at which the action reached a final phase. None: not yet."""
    restarts_before: Count | None = None
    """Number of the job's restarts before the action. None: unknown."""
    baselines: Annotated[list[OperatorBaseline], Field(max_length=1000)] = Field(default_factory=list)
    """Rates of the operators before the action."""
    rollback_requested_at: Timestamp | None = None
    """Time at which the rollback was requested. None: no rollback."""

    @property
    def has_run(self) -> bool:
        """Whether the wanted parallelism has run: from then on a newer plan may end the action, and it does not count against
        the limits of concurrent actions. While TaskManagers of an action that failed are given back, none may."""
        ending = None if self.managers is None else self.managers.ending
        moves = self.phase == "verifying" or (
            self.phase == "releasing" and ending is not None and ending.phase == "verified"
        )
        return moves and self.running_at is not None

    @property
    def restart_seconds(self) -> float | None:
        """Time in seconds from the engine's acceptance until the wanted parallelism ran; None until it ran."""
        if self.change_began_at is None or self.running_at is None:
            return None
        return (self.running_at - self.change_began_at).total_seconds()

    @property
    def change_began_at(self) -> datetime | None:
        """Time at which the engine accepted the request, or the stop that precedes it; None until then."""
        stopped = None if self.resubmission is None else self.resubmission.stop_requested_at
        return stopped or self.requested_at


class Outcome(_Transition):
    """One transition of an action, or the refusal of a plan. The newest outcome of an application holds the state of
    all its actions, so that a compacted topic is enough to rebuild the executor's store."""

    at: Timestamp
    """Time of the transition."""
    before: Parallelism = Field(default_factory=dict)
    """Parallelism before the action, in subtasks by operator."""
    wanted: Parallelism = Field(default_factory=dict)
    """Parallelism that the action requests, in subtasks by operator."""
    instance: InstanceRef | None = None
    """Instance that the action restarts, or was to restart. None: it changes the parallelism."""
    observed: Parallelism | None = None
    """Parallelism observed at the transition, in subtasks by operator. None: unknown."""
    restart_seconds: NonNegative | None = None
    """Time in seconds from the engine's acceptance until the wanted parallelism ran. None: it does not run yet."""
    action: ActionState | None = None
    """State of the action after the transition. None: the plan was refused before an action began."""
    last_action: ActionState | None = None
    """Newest action of the application, if `action` is None. None: there is none, or it is `action`."""
    last_written: Parallelism | None = None
    """Requirements that Weir wrote last; different ones in the engine were written by another program or user."""
    quarantine: Annotated[list[QuarantinedVector], Field(max_length=50)] = Field(default_factory=list)
    """Vectors of the application that were rolled back and are not applied again for a time."""
    restarts_seconds: Annotated[list[NonNegative], Field(max_length=MAX_RESTARTS)] = Field(default_factory=list)
    """Times of the application's last rescales from request to running, in seconds, newest first."""
    original: Parallelism | None = None
    """Requirements of the newest action's job before Weir first changed them. None: unknown."""
    instance_restarted_at: Timestamp | None = None
    """Time at which the target accepted the application's last restart of an instance. None: none, or unknown."""
    contested_since: Timestamp | None = None
    """Time since which the engine has requirements that Weir did not write: of the last such write that was seen. None:
    it has Weir's."""
    contested_requested: Parallelism | None = None
    """Those requirements. None: it has Weir's, or they are unknown."""
    contests: Count = 0
    """Number of times in a row that another client wrote after Weir, without an action that succeeded in between."""
    epoch: Annotated[int, Field(ge=0, le=MAX_ORDER)] = 0
    """Number of times that another executor had taken the application over."""
    sequence: Annotated[int, Field(ge=0, le=MAX_ORDER)] = 0
    """Number of earlier outcomes of the application that its executor had read."""

    @property
    def newest_action(self) -> ActionState | None:
        """Newest action of the application as of this outcome; None if there is none."""
        return self.action if self.action is not None else self.last_action

    @property
    def order(self) -> "OutcomeOrder":
        """Key by which `precedes` compares two outcomes of an application."""
        return (self.epoch, self.sequence), self.at, self.id.int


def following(number: int, count: int = 1) -> int:
    """Return the number `count` after this one, at most `MAX_ORDER`."""
    return min(number + count, MAX_ORDER)


OutcomeOrder = tuple[tuple[int, int], datetime, int]
"""Epoch and sequence, time, id."""


def precedes(one: OutcomeOrder, other: OutcomeOrder) -> bool:
    """Return whether `other` is newer, whatever the order in which the two were read.

    An executor that lost an application may publish an outcome after the new holder's, which has the higher epoch. The
    time decides beyond the retention, after which both may start at 0 again.
    """
    if abs(one[1] - other[1]) > FORGOTTEN_AFTER:
        return one[1] < other[1]
    return one < other
