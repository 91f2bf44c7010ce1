"""Knowledge in memory, for tests and for running the loop in one process. It passes the suite of the real one."""

from datetime import datetime

from weir_contracts import ActionState, Outcome, ScalingPolicy
from weir_executor.core.observed import Conflict, PolicyReading, Recorded, Unanswered


class MemoryKnowledge:
    """Policies and actions of a knowledge service. `away` makes it unreachable, `lost_answers` loses the responses to
    that many stored actions."""

    def __init__(self) -> None:
        self.policies: dict[str, ScalingPolicy] = {}
        self.actions: dict[str, ActionState] = {}
        self.outcomes: dict[str, Outcome] = {}
        """The newest outcomes, as read from their topic."""
        self.away: str | None = None
        self.lost_answers = 0

    async def policy(self, application: str) -> PolicyReading:
        if self.away:
            return PolicyReading(reachable=False, reason=self.away)
        return PolicyReading(reachable=True, policy=self.policies.get(application))

    async def outcome(self, application: str) -> Outcome | Unanswered | None:
        return Unanswered(self.away) if self.away else self.outcomes.get(application)

    async def record(self, action: ActionState, version: int) -> Recorded | Conflict | Unanswered:
        if self.away:
            return Unanswered(self.away)
        current = self.actions.get(action.application)
        if (current.version if current else 0) != version:
            return Conflict(current)
        self.actions[action.application] = action
        if self.lost_answers > 0:
            self.lost_answers -= 1
            return Unanswered("the answer was lost")
        return Recorded()

    async def ping(self) -> None:
        if self.away:
            raise ConnectionError(self.away)

    async def close(self) -> None:
        return None

    def set_mode(self, application: str, mode: str, at: datetime) -> ScalingPolicy:
        """Change a policy's mode as the knowledge service does: a new version, made at `at`."""
        policy = self.policies[application]
        metadata = policy.metadata.model_copy(update={"version": (policy.metadata.version or 0) + 1, "updated_at": at})
        spec = policy.spec.model_copy(update={"mode": mode})
        changed = policy.model_copy(update={"metadata": metadata, "spec": spec})
        self.policies[application] = changed
        return changed
