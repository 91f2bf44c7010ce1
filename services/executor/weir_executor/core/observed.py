"""Observed state that an action is judged by: the target, and the response to the last instruction."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from weir_contracts import (
    ActionState,
    Analysis,
    InstanceRef,
    Parallelism,
    ScalingPolicy,
)
from weir_engines.driver import (
    Accepted,
    DepartedMember,
    Evicted,
    Refusal,
    Rejected,
    Snapshot,
    Stopped,
    TargetChanged,
    Unanswered,
)

from .table import Event, EventName


def writer(writers: Mapping[str, str] | None, ours: Parallelism, there: Parallelism) -> str:
    """Return the client that set the first requirement that differs; empty if unknown."""
    return next((by for name, by in (writers or {}).items() if by and there.get(name) != ours.get(name)), "")


@dataclass(frozen=True)
class PolicyReading:
    """The policy in knowledge now; `policy` is None while reachable if there is none."""

    reachable: bool
    policy: ScalingPolicy | None = None
    reason: str = ""
    at: datetime | None = None
    """Time of the response by knowledge's clock; None if it names none."""

    def latest(self, now: datetime) -> datetime:
        """Return the later of this process's time and knowledge's, so that a plan has expired as soon as one clock says
        so: a clock that is behind prolongs no plan."""
        return now if self.at is None else max(now, self.at)


@dataclass(frozen=True)
class Record:
    """Store the action in knowledge by compare-and-swap."""


@dataclass(frozen=True)
class Request:
    """Request this parallelism from the engine."""

    parallelism: Parallelism


@dataclass(frozen=True)
class Provide:
    """Request this number of TaskManagers of the target that runs them."""

    managers: int


@dataclass(frozen=True)
class StopJob:
    """Stop the job with a savepoint, or find out how far that is."""

    begins: bool = True
    """Whether to request the stop if none of this action is under way."""


@dataclass(frozen=True)
class RunJob:
    """Run the successor of a stopped job from its savepoint."""

    parallelism: Parallelism
    former: bool = False
    """Whether it replaces a successor that does not run."""


@dataclass(frozen=True)
class Restart:
    """Restart this instance."""

    instance: InstanceRef


@dataclass(frozen=True)
class TriggerCheckpoint:
    """Trigger a checkpoint, since a rescale waits for one to complete."""


@dataclass(frozen=True)
class Evict:
    """Remove members whose process has ended from the application's group."""

    members: tuple[DepartedMember, ...]


Instruction = Record | Request | Provide | StopJob | RunJob | Restart | TriggerCheckpoint | Evict


@dataclass(frozen=True)
class Recorded:
    """Knowledge stores the intent with this process's attempt id."""


@dataclass(frozen=True)
class Conflict:
    """Knowledge stores the action of another executor."""

    current: ActionState | None


Answer = Recorded | Conflict | Accepted | Stopped | Rejected | TargetChanged | Evicted | Unanswered | Refusal

"""A `Refusal` is the fence's: the instruction will not be carried out."""


@dataclass(frozen=True)
class Observed:
    """Input of one step."""

    snapshot: Snapshot
    analysis: Analysis | None = None
    """The application's newest analysis."""
    policy: PolicyReading | None = None
    """Read only before the request, while the policy may still withdraw the intent."""
    planned_version: int | None = None
    """The plan's policy version; None after the process that admitted it has ended."""
    answer: Answer | None = None
    """Response to the instruction of the step before."""
    crowded: Refusal | None = None
    """Refusal of an intent that yields to other actions."""
    contended: bool = False
    """Whether the intent fits only if intents of other replicas yield, or these are not read yet."""


@dataclass(frozen=True)
class Step:
    """Result of one step. Without an `event` the phase is unchanged and `action` differs at most in its bookkeeping.

    Invariants: a parallelism is requested in the phases `applying` and `rolling-back` only, an instance is restarted in
    `applying` only, members are evicted in `verifying` and `rolling-back` only, and the number of TaskManagers changes in
    `preparing`, `releasing` and `rolling-back` only. A job is stopped in `preparing` only, and run in `applying` and
    `rolling-back` only.
    """

    action: ActionState
    event: Event | None = None
    instruction: Instruction | None = None

    def __post_init__(self) -> None:
        if isinstance(self.instruction, Request) and self.action.phase not in ("applying", "rolling-back"):
            raise ValueError(f"{self.action.application}: a request in phase {self.action.phase!r}")
        if isinstance(self.instruction, RunJob) and self.action.phase not in ("applying", "rolling-back"):
            raise ValueError(f"{self.action.application}: a start of a job in phase {self.action.phase!r}")
        if isinstance(self.instruction, StopJob) and self.action.phase != "preparing":
            raise ValueError(f"{self.action.application}: a stop of the job in phase {self.action.phase!r}")
        if isinstance(self.instruction, Restart) and self.action.phase != "applying":
            raise ValueError(f"{self.action.application}: a restart in phase {self.action.phase!r}")
        if isinstance(self.instruction, Provide) and self.action.phase not in (
            "preparing",
            "releasing",
            "rolling-back",
        ):
            raise ValueError(f"{self.action.application}: a change of TaskManagers in phase {self.action.phase!r}")
        if isinstance(self.instruction, Evict) and self.action.phase not in ("verifying", "rolling-back"):
            raise ValueError(f"{self.action.application}: an eviction in phase {self.action.phase!r}")

    @property
    def name(self) -> EventName | None:
        return self.event.name if self.event is not None else None
