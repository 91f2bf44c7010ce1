"""Driver of a kind of target: the protocol that the executor acts through, its fence, and what it answers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from weir_contracts import Deployment, InstanceRef, Parallelism, Resubmission, Subject, Topology, short_name

NO_GROUP = "the application is not a consumer group"
NO_CHECKPOINTS = "the application has no checkpoints"
NO_MANAGERS = "the policy does not let Weir set the number of TaskManagers"
NO_RESUBMISSION = "the policy does not let Weir stop the job and run it again"
MAX_OBSERVED = 10_000
"""Applications whose last state is kept; a forgotten one is observed from its beginning again."""


@dataclass(frozen=True)
class Refusal:
    """Reason why a plan is not applied: a code for programs and a sentence for users."""

    code: str
    sentence: str


def contested(there: str, by: str = "") -> Refusal:
    """Return the refusal for requirements that differ from the expected ones; `there` describes them, `by` names the
    writer."""
    return Refusal("contested", f"{short_name(by) or 'another client'} set the requirements meanwhile: {there}")


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
class TaskManagers:
    """TaskManagers of a Flink job whose number the policy lets Weir set, at one instant."""

    slots: int
    """Slots of one, as the policy says."""
    max: int
    """Maximum number, as the policy says."""
    wanted: int | None = None
    """Number requested of the target that runs them; None: it could not be read."""
    registered_slots: int | None = None
    """Slots registered at the cluster; None: unknown."""
    free_slots: int | None = None
    """Those of them that no job holds, where another job than this one runs on the cluster; None: unknown, or there is none."""
    others_slots: int | None = None
    """Those of them that other jobs hold; None: unknown."""
    is_settled: bool = False
    """Whether exactly the requested number exists, and all are ready."""
    one_by_one: bool = False
    """Whether each starts only once the one before is ready."""
    releasable: int | None = None
    """Number of those that may go at once without taking slots in use; None: the last ones go, whatever runs there."""
    refusal: Refusal | None = None
    """Reason why their number may not change, nor a parallelism that depends on it; None: it may."""
    progress: Progress | None = None
    """Reason why those requested are not ready; None: they are, or none is known."""
    reason: str = ""
    """Reason why they could not be read."""

    def needed(self, slots: int) -> int:
        """Return the number of TaskManagers that have so many slots."""
        return -(-slots // self.slots)


LINEAGE_CHARACTERS = 16


def lineage_of(job_id: str) -> str:
    """Return the part of a job's id that its successors share: a deployment goes on in a successor that Weir runs, and not in
    a job that was submitted by another client."""
    return job_id[:LINEAGE_CHARACTERS]


@dataclass(frozen=True)
class Jobs:
    """Jobs of one name on a cluster where a rescale stops one and runs its successor, at one instant."""

    newest: str = ""
    """Id of the newest job; empty: there is none."""
    state: str = ""
    """Its state, as the engine names it."""
    is_over: bool = False
    """Whether it has ended."""
    jar: str = ""
    """Id of the jar that a successor runs; empty: unknown."""
    parallelism: int | None = None
    """Parallelism that the job was started with; None: unknown."""
    has_one_parallelism: bool = False
    """Whether a successor can only be given one parallelism for all operators."""
    refusal: Refusal | None = None
    """Reason why the job may not be stopped; None: it may."""


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
    engine_triggers_checkpoint: bool = False
    """Whether the engine triggers the checkpoint for a rescale itself."""
    version: str | None = None
    """Version of the target for a conditional request, in the driver's own format; None if the driver has no versions.
    """

    departed: tuple[DepartedMember, ...] = ()
    """Members of the application's group to evict, so that their tasks move at once."""
    can_restart_instances: bool = False
    """Whether the driver can restart one of `instances`, and the policy lets it."""
    instances: tuple[RunningInstance, ...] = ()
    """Instances of a consumer group; empty for another application."""
    managers: TaskManagers | None = None
    """TaskManagers that the driver brings and releases; None: it does not."""
    jobs: Jobs | None = None
    """Jobs of the application's name, which the driver stops and runs; None: it rescales the running one."""

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
class Accepted:
    """The engine accepted the request at this time."""

    at: datetime


@dataclass(frozen=True)
class Rejected:
    """The engine, or knowledge, refused permanently, with its own reason."""

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
    is_sent: bool = False
    """Whether it is known to have left, so that it may be carried out later."""


@dataclass(frozen=True)
class Stopped:
    """The job is stopped, and its state is complete at `savepoint`."""

    at: datetime
    savepoint: str


Provided = Accepted | Rejected | TargetChanged | Unanswered | Refusal


class Fence(Protocol):
    """Check that a driver calls directly before each change.

    Unless the result is None, the driver changes nothing and returns it as its own response.
    """

    async def begin(self) -> Refusal | Unanswered | None:
        """Check before the first change of a request."""

    async def go_on(self) -> Unanswered | None:
        """Check before each further change of the same request, which only the partition's owner may complete."""


class WithoutResubmission:
    """Part of a driver that rescales the running job."""

    async def stop(
        self, subject: Subject, job: Resubmission, action_id: UUID, fence: Fence, *, begins: bool = True
    ) -> Accepted | Stopped | Rejected | Unanswered | Refusal:
        return Rejected(NO_RESUBMISSION)

    async def run(
        self, subject: Subject, job: Resubmission, parallelism: Parallelism, fence: Fence, *, former: bool = False
    ) -> Accepted | Rejected | Unanswered | Refusal:
        return Rejected(NO_RESUBMISSION)


class WithoutManagers(WithoutResubmission):
    """Part of a driver that does not set the number of TaskManagers."""

    async def provide(self, subject: Subject, job_id: str, managers: int, expected: range, fence: Fence) -> Provided:
        return Rejected(NO_MANAGERS)


class WithoutGroups(WithoutManagers):
    """Part of a driver whose targets are no consumer groups: it evicts no member and restarts no instance."""

    async def evict(self, subject: Subject, members: Sequence[DepartedMember]) -> Unanswered:
        return Unanswered(NO_GROUP)

    async def restart(self, subject: Subject, job_id: str, instance: InstanceRef, *_: object, **__: object) -> Rejected:
        return Rejected(NO_GROUP)


class Unfenced:
    """Fence of a process that is the only one to act on its targets, such as a simulation's."""

    async def begin(self) -> None:
        return None

    async def go_on(self) -> None:
        return None


class Driver(Protocol):
    """One kind of target. An error or outage of the target is a response, not an exception.

    Its snapshots say what else it can do (`Snapshot.can_trigger_checkpoint`, `can_restart_instances`, `managers`, `jobs`), and
    the core asks for nothing else.
    """

    async def observe(self, subject: Subject) -> Snapshot:
        """Return the target's current state."""

    async def request(
        self,
        subject: Subject,
        job_id: str,
        parallelism: Parallelism,
        expected: Parallelism,
        fence: Fence,
        *,
        version: str | None = None,
    ) -> Accepted | Rejected | TargetChanged | Unanswered | Refusal:
        """Request a parallelism of every operator; idempotent.

        Reads the requirements itself, and refuses as `contested` if they are neither `expected` nor `parallelism`. A
        driver with versions sends the request on the condition that the target still has `version`, that of the
        snapshot that led to the request, and returns `TargetChanged` otherwise. None: no condition.
        """

    async def trigger_checkpoint(self, subject: Subject, job_id: str) -> str | None:
        """Trigger a checkpoint, which a requested rescale waits for; return None, or the reason of a failure.

        Called only if the snapshot says `can_trigger_checkpoint`.
        """

    async def restart(
        self,
        subject: Subject,
        job_id: str,
        instance: InstanceRef,
        action_id: UUID,
        fence: Fence,
        *,
        version: str | None = None,
    ) -> Accepted | Rejected | TargetChanged | Unanswered | Refusal:
        """End the process of an instance, in whose place the target starts another one; idempotent by the action's id.

        Called only if the snapshot says `can_restart_instances`. A process that has ended already is an accepted restart.
        `version` is as in `request`.
        """

    async def provide(self, subject: Subject, job_id: str, managers: int, expected: range, fence: Fence) -> Provided:
        """Request a number of TaskManagers; idempotent.

        Called only if the snapshot has `managers`. Refuses as `contested` if the number requested at present is not
        `expected`. Before TaskManagers with slots in use go, the driver has a checkpoint completed.
        """

    async def stop(
        self, subject: Subject, job: Resubmission, action_id: UUID, fence: Fence, *, begins: bool = True
    ) -> Accepted | Stopped | Rejected | Unanswered | Refusal:
        """Stop a job with a savepoint; idempotent by the action's id.

        Called only if the snapshot has `jobs`. `Accepted` while the savepoint is under way, `Rejected` once it has failed, so that
        the job runs on. A `Refusal` says that no stop of this action is under way; so does each answer without `begins`, which
        requests none.
        """

    async def run(
        self, subject: Subject, job: Resubmission, parallelism: Parallelism, fence: Fence, *, former: bool = False
    ) -> Accepted | Rejected | Unanswered | Refusal:
        """Run the successor of a stopped job from its savepoint; idempotent by the successor's id.

        Called only if the snapshot has `jobs`. `former` runs the job with the former parallelism under its own id, in place of the
        successor, which is cancelled. Refuses as `contested` while a job that is neither of them has the name.
        """

    async def evict(self, subject: Subject, members: Sequence[DepartedMember]) -> Evicted | Unanswered:
        """Remove those of the members from the application's group whose process has still ended; idempotent.

        Called only for members that a snapshot names as `departed`. Returns those that are removed, and `Unanswered` if
        there are none.
        """

    async def close(self) -> None: ...


@dataclass(frozen=True)
class _Observed:
    state: tuple[object, ...]
    since: datetime


class Steadiness:
    """Last observed state of each application."""

    def __init__(self) -> None:
        self._observed: dict[str, _Observed] = {}

    def since(self, application: str, state: tuple[object, ...], now: datetime) -> datetime:
        """Return the first observation of this state in a row."""
        previous = self._observed.get(application)
        if previous is None or previous.state != state:
            if previous is None and len(self._observed) >= MAX_OBSERVED:
                self._observed.clear()
            previous = self._observed[application] = _Observed(state, now)
        return previous.since
