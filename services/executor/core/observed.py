"""What an action is judged by: the target as it was seen, and how the last instruction was answered."""

from dataclasses import dataclass
from datetime import datetime

from weir_contracts import ActionState, Analysis, Deployment, Parallelism, ScalingPolicy, Topology

from .table import Event


@dataclass(frozen=True)
class Refusal:
    """A code for programs and a sentence for people."""

    code: str
    sentence: str


def contested(there: str) -> Refusal:
    """Refusal because the requirements are not what the action expects; `there` says what they are."""
    return Refusal("contested", f"somebody else set the requirements meanwhile: {there}")


@dataclass(frozen=True)
class Snapshot:
    """The target at one instant. All times are on this executor's clock, engine times shifted by the driver."""

    at: datetime
    reachable: bool
    deployment: Deployment | None = None
    """None although reachable: the cluster has no such job."""
    all_running: bool = False
    """State RUNNING and every subtask running (or finished)."""
    running_since: datetime | None = None
    """When the present execution began."""
    steady_since: datetime | None = None
    """When a subtask last changed its state: since then all of them run, if they do."""
    checkpoint_completed_at: datetime | None = None
    checkpoint_in_progress: bool | None = None
    because: str = ""
    """Why it could not be reached or found."""
    topology: Topology | None = None
    """The graph that runs, where the driver tells it."""
    resourced_at: datetime | None = None
    """Since when the engine has all the slots that are requested, while it does not use them; None: it lacks some, or waits for none."""
    unsupported: str = ""
    """Why this executor cannot act on it; empty: it can."""
    restartable: bool = False
    """Some of what is requested has stopped, and asking again would start it."""

    def runs(self, wanted: Parallelism) -> bool:
        """Whether every subtask of exactly this parallelism runs."""
        return self.all_running and self.deployment is not None and self.deployment.observed == wanted


@dataclass(frozen=True)
class PolicyReading:
    """The policy as knowledge has it now. `policy is None` although reachable: there is none."""

    reachable: bool
    policy: ScalingPolicy | None = None
    because: str = ""


@dataclass(frozen=True)
class Record:
    """Claim the action in knowledge by compare-and-swap."""


@dataclass(frozen=True)
class Request:
    """Ask the engine for this parallelism."""

    parallelism: Parallelism


@dataclass(frozen=True)
class TriggerCheckpoint:
    """Trigger a checkpoint: a rescale waits for one to complete."""


Instruction = Record | Request | TriggerCheckpoint


@dataclass(frozen=True)
class Recorded:
    """Knowledge holds the intent as mine."""


@dataclass(frozen=True)
class Conflict:
    """Somebody else's action is there."""

    current: ActionState | None


@dataclass(frozen=True)
class Accepted:
    """The engine took the request, at this time."""

    at: datetime


@dataclass(frozen=True)
class Rejected:
    """The engine refused for good; the reason is its own."""

    reason: str


@dataclass(frozen=True)
class Unanswered:
    """No answer, or one that says nothing: it may have been done or not. Trying again is the answer."""

    reason: str


Answer = Recorded | Conflict | Accepted | Rejected | Unanswered | Refusal
"""A refusal: the fence let nothing through, for good."""


@dataclass(frozen=True)
class Observed:
    """All that is known at one step."""

    snapshot: Snapshot
    analysis: Analysis | None = None
    """The newest of the application."""
    policy: PolicyReading | None = None
    """Read only where the user's word counts: before anything is done."""
    planned_version: int | None = None
    """The policy version of the plan, while the process that admitted it still lives."""
    answer: Answer | None = None
    """To the instruction of the step before."""
    crowded: Refusal | None = None
    """Why an intent has to give way to other actions."""
    contended: bool = False
    """Whether it fits only if intents of other replicas give way to it, or these are not known yet."""


@dataclass(frozen=True)
class Step:
    """One step's result. `event is None`: nothing moved, and `action` differs at most in its bookkeeping."""

    action: ActionState
    event: Event | None = None
    instruction: Instruction | None = None
    rival: ActionState | None = None
    """The action that holds the application when a claim was lost."""
