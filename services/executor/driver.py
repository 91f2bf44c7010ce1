"""How an application is scaled: what the executor needs of a kind of target, and of knowledge."""

from typing import Protocol

from weir_contracts import ActionState, Outcome, Parallelism, Target

from .core import Accepted, Conflict, PolicyReading, Recorded, Refusal, Rejected, Snapshot, Unanswered


class Fence(Protocol):
    """Check that a driver calls directly before each change. Unless it returns None, the driver changes nothing and
    returns that as its own answer."""

    async def begin(self) -> Refusal | Unanswered | None:
        """Before the first change of a request."""
        ...

    async def go_on(self) -> Unanswered | None:
        """Before each further change of the same request, which only the partition's owner may complete."""
        ...


class Unfenced:
    """Fence of a process that is the only one to act on its targets, such as a simulation's."""

    async def begin(self) -> None:
        return None

    async def go_on(self) -> None:
        return None


class Driver(Protocol):
    """One kind of target. None of these raises for what a target says or for one that is away: that is an answer, too."""

    async def observe(self, target: Target) -> Snapshot:
        """The target as it is now."""
        ...

    async def request(
        self, target: Target, job_id: str, parallelism: Parallelism, expected: Parallelism, fence: Fence
    ) -> Accepted | Rejected | Unanswered | Refusal:
        """Ask for a parallelism of every operator. Asking twice for the same does no harm.

        Reads the requirements itself, and refuses as `contested` if they are neither `expected` nor `parallelism`.
        """
        ...

    async def trigger_checkpoint(self, target: Target, job_id: str) -> str | None:
        """Help a requested rescale to begin (Flink: trigger a checkpoint); None, or why it did not work."""
        ...

    async def close(self) -> None: ...


class Knowledge(Protocol):
    """What the executor asks of the knowledge service."""

    async def policy(self, application: str) -> PolicyReading:
        """The policy in force, read now."""
        ...

    async def outcome(self, application: str) -> Outcome | Unanswered | None:
        """The newest outcome that it has; None: it has none."""
        ...

    async def record(self, action: ActionState, version: int) -> Recorded | Conflict | Unanswered:
        """Store the action if the stored one has `version` (0: there is none)."""
        ...

    async def ping(self) -> None:
        """Returns if it answers, raises otherwise."""
        ...

    async def close(self) -> None: ...
