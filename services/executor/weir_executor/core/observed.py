"""Observed state that an action is judged by: the target, and the response to the last instruction."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from weir_contracts import (
    ActionState,
    Analysis,
    Deployment,
    InstanceRef,
    Parallelism,
    ScalingPolicy,
    Topology,
    short_name,
)

from .table import Event, EventName


@dataclass(frozen=True)
class Refusal:
    """Reason why a plan is not applied: a code for programs and a sentence for users."""

    code: str
    sentence: str


def contested(there: str, by: str = "") -> Refusal:
    """Return the refusal for requirements that differ from the expected ones; `there` describes them, `by` names the
    writer."""
    return Refusal("contested", f"{short_name(by) or 'another client'} set the requirements meanwhile: {there}")


def writer(writers: Mapping[str, str] | None, ours: Parallelism, there: Parallelism) -> str:
    """Return the client that set the first requirement that differs; empty if unknown."""
    return next((by for name, by in (writers or {}).items() if by and there.get(name) != ours.get(name)), "")


_NORMAL_CODES = ("instances-pending", "pods-pending")
PROGRESS_CODES = (*_NORMAL_CODES, "unschedulable", "quota", "image", "pods-crashing", "out-of-memory")
"""Reasons for which requested instances do not run yet, by increasing severity. The first two are normal, and not
reported."""


@dataclass(frozen=True)
class Progress:
    """Reason why requested instances do not run yet."""

    code: str
    """One of `PROGRESS_CODES`."""
    sentence: str

    def is_worse_than(self, code: str) -> bool:
        """Return whether `code` is none of the reasons, or a less severe one, so that an action reports each at most
        once."""
        reported = PROGRESS_CODES.index(code) if code in PROGRESS_CODES else len(_NORMAL_CODES) - 1
        return PROGRESS_CODES.index(self.code) > reported


@dataclass(frozen=True)
class DepartedMember:
    """Member of a consumer group whose process has ended for certain, while the brokers still wait for it."""

    id: str
    """Id at the group's coordinator; a process that joins again gets another one."""
    instance: str
    """Instance that it belonged to."""
    static_id: str | None = None
    """`group.instance.id`; None for a dynamic member."""
    uid: str | None = None
    """Identity of what ran its process, which has another one by now; None: nothing has the instance's id."""


@dataclass(frozen=True)
class RunningInstance:
    """Instance of a consumer group whose process has not ended."""

    id: str
    members: tuple[str, ...] = ()
    """Ids of its members at the group's coordinator."""
    uid: str | None = None
    """Identity of what runs it; None: its id belongs to one process only."""


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
    """Start of the present execution."""
    steady_since: datetime | None = None
    """Last state change of a subtask; all subtasks run since then if `all_running`."""
    checkpoint_completed_at: datetime | None = None
    checkpoint_in_progress: bool | None = None
    reason: str = ""
    """Reason why the target was not reached or not found."""
    topology: Topology | None = None
    """The running graph; None if the driver does not report it."""
    resourced_at: datetime | None = None
    """Start of the time in which the engine has, but does not use, all requested slots; None: slots are missing or in
    use."""
    refusal: Refusal | None = None
    """Reason why no request may begin, forward or back; None: it may."""
    progress: Progress | None = None
    """Reason why requested instances do not run; None: they run, or none is known."""
    writers: Mapping[str, str] | None = None
    """Client that last set each operator's requirements, empty for Weir; without an operator if its client is unknown.
    None: the target does not record it."""
    can_trigger_checkpoint: bool = False
    """Whether the driver can trigger a checkpoint of the deployment, which a rescale waits for."""
    version: str | None = None
    """Version of the target for a conditional request, in the driver's own format; None if the driver has no versions.
    """

    departed: tuple[DepartedMember, ...] = ()
    """Members of the application's group to evict, so that their tasks move at once."""
    can_restart_instances: bool = False
    """Whether the driver can restart one of `instances`, and the policy lets it."""
    instances: tuple[RunningInstance, ...] = ()
    """Instances of a consumer group; empty for another application."""

    def instance_of(self, members: Collection[str]) -> RunningInstance | None:
        """Return the instance that has all of these members, or None."""
        return next((each for each in self.instances if members and set(members) <= set(each.members)), None)

    def is_replaced(self, instance: InstanceRef) -> bool:
        """Return whether the process of an instance runs no more, by the target's word."""
        return all((each.id, each.uid) != (instance.id, instance.uid) for each in self.instances)

    def runs(self, wanted: Parallelism) -> bool:
        """Return whether exactly this parallelism runs, with every subtask."""
        return self.all_running and self.deployment is not None and self.deployment.observed == wanted


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


Instruction = Record | Request | Restart | TriggerCheckpoint | Evict


@dataclass(frozen=True)
class Recorded:
    """Knowledge stores the intent with this process's attempt id."""


@dataclass(frozen=True)
class Conflict:
    """Knowledge stores the action of another executor."""

    current: ActionState | None


@dataclass(frozen=True)
class Accepted:
    """The engine accepted the request at this time."""

    at: datetime


@dataclass(frozen=True)
class Rejected:
    """The engine refused permanently, with its own reason."""

    reason: str


@dataclass(frozen=True)
class TargetChanged:
    """The target changed after the observation that the request was decided on, so nothing was sent: decide again."""

    reason: str


@dataclass(frozen=True)
class Evicted:
    """The group's coordinator removed these members."""

    members: tuple[DepartedMember, ...]


@dataclass(frozen=True)
class Unanswered:
    """No conclusive response: the instruction may have been carried out or not, so it is repeated."""

    reason: str


Answer = Recorded | Conflict | Accepted | Rejected | TargetChanged | Evicted | Unanswered | Refusal
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
    `applying` only, and members are evicted in `verifying` and `rolling-back` only.
    """

    action: ActionState
    event: Event | None = None
    instruction: Instruction | None = None

    def __post_init__(self) -> None:
        if isinstance(self.instruction, Request) and self.action.phase not in ("applying", "rolling-back"):
            raise ValueError(f"{self.action.application}: a request in phase {self.action.phase!r}")
        if isinstance(self.instruction, Restart) and self.action.phase != "applying":
            raise ValueError(f"{self.action.application}: a restart in phase {self.action.phase!r}")
        if isinstance(self.instruction, Evict) and self.action.phase not in ("verifying", "rolling-back"):
            raise ValueError(f"{self.action.application}: an eviction in phase {self.action.phase!r}")

    @property
    def name(self) -> EventName | None:
        return self.event.name if self.event is not None else None
