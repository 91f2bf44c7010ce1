"""The fence: checks directly before every side effect of an executor.

Invariant: a replica writes an outcome, claims an action, requests a parallelism, restarts an instance, triggers a
checkpoint, stops or runs a job, evicts members or changes a workload or the number of TaskManagers only while the group
has confirmed its ownership of the application's partition within the session timeout, on its own monotonic clock. A
request forward also needs a plan that has not expired and a policy, read again just then, in mode `act` and of the plan's
version. A rollback, a release of TaskManagers, a request that has begun, and the successor of a stopped job need no
policy. The driver compares the target's requirements in the request itself. docs/adr/0006 names the window that remains.
"""

from collections.abc import Mapping

from weir_contracts import ActionState
from weir_engines.driver import Refusal, Unanswered
from weir_executor.knowledge import Knowledge
from weir_runtime.bus import Consumer
from weir_runtime.clock import Clock

from .applications import Application
from .core.gate import still_wanted

CONFIRMED_SECONDS = 4.0
"""How long a confirmation must last: a side effect has this long to leave."""


POLICY_SECONDS = 2.0
"""How old a policy may be: a process that stood still, or slow brokers, may have outlasted a pause by the user."""


class LostPartition(Exception):
    """Another replica owns the application now and continues from the outcomes; this one drops it."""


class Ownership:
    """Which applications the group confirms as this replica's. `consumer` is None until it has joined."""

    def __init__(self, own: Mapping[str, Application], clock: Clock) -> None:
        self._own = own
        self._clock = clock
        self.consumer: Consumer | None = None

    def keeps(self, app: Application) -> bool:
        """Whether no loss was reported to this replica."""
        return self._own.get(app.id) is app

    async def unconfirmed(self, app: Application) -> Unanswered | None:
        """Return None while the partition is certain to be this replica's for `CONFIRMED_SECONDS`, else the reason.

        Raises `LostPartition` if another replica has it.
        """
        until = None
        if self.consumer is not None and self.keeps(app):
            until = await self.consumer.confirmed_until(app.partition, CONFIRMED_SECONDS)
        if not self.keeps(app):
            raise LostPartition(f"{app.id}: partition {app.partition} is another executor's")
        # The clock once more: the process may have stood still between the answer and this line.
        if until is None or self._clock.monotonic() >= until:
            return Unanswered(f"partition {app.partition} is not confirmed by the brokers")
        return None


class ActionFence:
    """Fence of one action: a request forward, to what the plan wants, or a rollback or release."""

    def __init__(
        self,
        app: Application,
        action: ActionState,
        ownership: Ownership,
        knowledge: Knowledge,
        clock: Clock,
        *,
        refusal: Refusal | None = None,
    ) -> None:
        """`refusal` is a reason, found before, why no request forward may begin."""
        self._app = app
        self._action = action
        self._ownership = ownership
        self._knowledge = knowledge
        self._clock = clock
        self._refusal = refusal

    async def begin(self) -> Refusal | Unanswered | None:
        record = self._action.resubmission
        if record is not None and record.savepoint is not None:
            return await self.go_on()
        if self._refusal is not None:
            return self._refusal
        if self._action.phase in ("rolling-back", "releasing"):
            return await self.go_on()
        asked_at = self._clock.monotonic()
        policy = await self._knowledge.policy(self._app.id)
        held = await self.go_on()
        refusal = still_wanted(self._action, policy, None, self._clock.now(), self._app.planned_version)
        if refusal is None and not policy.reachable:
            return Unanswered(f"the policy cannot be read from knowledge: {policy.reason}")
        age_seconds = self._clock.monotonic() - asked_at
        if refusal is None and held is None and age_seconds > POLICY_SECONDS:
            return Unanswered(f"the policy was read {age_seconds:.1f} s ago")
        return refusal or held

    async def go_on(self) -> Unanswered | None:
        return await self._ownership.unconfirmed(self._app)
