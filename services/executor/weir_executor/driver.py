"""Protocols of the executor: fence, driver of a kind of target, knowledge service."""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from weir_contracts import ActionState, InstanceRef, Outcome, Parallelism, Subject

from .core.messages import NO_GROUP
from .core.observed import (
    Accepted,
    Conflict,
    DepartedMember,
    Evicted,
    PolicyReading,
    Recorded,
    Refusal,
    Rejected,
    Snapshot,
    TargetChanged,
    Unanswered,
)


class Fence(Protocol):
    """Check that a driver calls directly before each change.

    Unless the result is None, the driver changes nothing and returns it as its own response.
    """

    async def begin(self) -> Refusal | Unanswered | None:
        """Check before the first change of a request."""

    async def go_on(self) -> Unanswered | None:
        """Check before each further change of the same request, which only the partition's owner may complete."""


class WithoutGroups:
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

    Its snapshots say what else it can do (`Snapshot.can_trigger_checkpoint`, `can_restart_instances`), and the core asks
    for nothing else.
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

    async def evict(self, subject: Subject, members: Sequence[DepartedMember]) -> Evicted | Unanswered:
        """Remove those of the members from the application's group whose process has still ended; idempotent.

        Called only for members that a snapshot names as `departed`. Returns those that are removed, and `Unanswered` if
        there are none.
        """

    async def close(self) -> None: ...


class Knowledge(Protocol):
    """The executor's requests to the knowledge service."""

    async def policy(self, application: str) -> PolicyReading:
        """Read the current policy."""

    async def outcome(self, application: str) -> Outcome | Unanswered | None:
        """Return the newest stored outcome, or None."""

    async def record(self, action: ActionState, version: int) -> Recorded | Conflict | Unanswered:
        """Store the action if the stored one has `version` (0: none is stored)."""

    async def ping(self) -> None:
        """Return if the service is usable, raise otherwise."""

    async def close(self) -> None: ...
