"""Fenced effects on the targets: each instruction of the core goes to the driver of the application's target.

The invariant of `fence` holds directly before each effect.
"""

from collections.abc import Mapping

from weir_contracts import ActionState, ScalingPolicy, Subject
from weir_engines.driver import Driver, Evicted, Refusal, Snapshot, Unanswered
from weir_executor.core.observed import Answer, Evict, Provide, Request, Restart, RunJob, StopJob, TriggerCheckpoint
from weir_executor.knowledge import Knowledge
from weir_runtime.clock import Clock
from weir_runtime.reach import Reach

from .applications import Application
from .core.history import expected
from .fence import ActionFence, Ownership

TRIGGER_PAUSE_SECONDS = 2.0
"""Pause between two triggers: Flink shows a triggered checkpoint only after a refresh of its statistics."""
EVICT_PAUSE_SECONDS = 2.0
"""Pause between two evictions of one application's members: each rebalances the group."""


def _logged(answer: Answer) -> dict[str, str | None]:
    """Return an answer as a line of the log has it."""
    reason = answer.sentence if isinstance(answer, Refusal) else getattr(answer, "reason", None)
    return {"answer": type(answer).__name__.lower(), "reason": reason}


class Targets:
    """The targets of the applications, each through the driver of its kind. `policies` is a view that the service
    updates."""

    def __init__(
        self,
        drivers: Mapping[str, Driver],
        knowledge: Knowledge,
        clock: Clock,
        *,
        ownership: Ownership,
        policies: Mapping[str, ScalingPolicy],
        reach: Reach,
    ) -> None:
        self._drivers = drivers
        self._knowledge = knowledge
        self._clock = clock
        self._ownership = ownership
        self._policies = policies
        self._reach = reach

    async def observe(self, app: Application) -> Snapshot:
        """Observe the target of an application's action."""
        subject = self._subject(app)
        if subject is None:
            reason = "the policy was deleted, so the target is unknown"
            return Snapshot(self._clock.now(), reachable=True, reason=reason)
        return await self.observe_subject(subject)

    async def observe_subject(self, subject: Subject) -> Snapshot:
        """Observe the target that a policy names, if its namespace may name it."""
        refused = self._refused(subject)
        if refused is not None:
            return Snapshot(self._clock.now(), reachable=False, reason=refused.sentence, refusal=refused)
        return await self._driver(subject).observe(subject)

    async def carry_out(
        self,
        app: Application,
        action: ActionState,
        instruction: Request | Provide | StopJob | RunJob | Restart | Evict | TriggerCheckpoint,
        version: str | None,
        refusal: Refusal | None = None,
    ) -> Answer | None:
        """Return the target's answer, or None: only the next observation shows what the instruction led to.

        A change is made on the condition that the target has `version` (None: no condition). `refusal` says why a job may not be
        stopped; a stop that is under way is followed all the same.
        """
        subject = self._subject(app)
        if subject is None:
            return Unanswered("the target is unknown")
        if (refused := self._refused(subject)) is not None:
            return refused
        match instruction:
            case Request() | Provide() | Restart():
                return await self._change(app, subject, action, instruction, version)
            case StopJob() | RunJob():
                return await self._resubmit(app, subject, action, instruction, refusal)
            case Evict():
                return await self._evict(app, subject, instruction)
            case TriggerCheckpoint():
                await self._trigger_checkpoint(app, subject, action)
                return None

    async def _change(
        self,
        app: Application,
        subject: Subject,
        action: ActionState,
        instruction: Request | Provide | Restart,
        version: str | None,
    ) -> Answer:
        fence = ActionFence(app, action, self._ownership, self._knowledge, self._clock)
        driver, job_id = self._driver(subject), action.deployment.job_id
        answer: Answer
        if isinstance(instruction, Request):
            answer = await driver.request(
                subject, job_id, instruction.parallelism, expected(action), fence, version=version
            )
        elif isinstance(instruction, Provide):
            change = action.managers
            numbers = (
                (instruction.managers,) if change is None else (change.before, change.wanted, instruction.managers)
            )
            expected_managers = range(min(numbers), max(numbers) + 1)
            answer = await driver.provide(subject, job_id, instruction.managers, expected_managers, fence)
        else:
            answer = await driver.restart(subject, job_id, instruction.instance, action.id, fence, version=version)
        app.log.info(
            "requested",
            action_id=str(action.id),
            parallelism=instruction.parallelism if isinstance(instruction, Request) else None,
            managers=instruction.managers if isinstance(instruction, Provide) else None,
            instance=instruction.instance.id if isinstance(instruction, Restart) else None,
            **_logged(answer),
        )
        return answer

    async def _resubmit(
        self,
        app: Application,
        subject: Subject,
        action: ActionState,
        instruction: StopJob | RunJob,
        refusal: Refusal | None,
    ) -> Answer:
        record, driver = action.resubmission, self._driver(subject)
        if record is None:
            return Unanswered("the action has no record of the job to stop")
        fence = ActionFence(app, action, self._ownership, self._knowledge, self._clock, refusal=refusal)
        answer: Answer
        if isinstance(instruction, StopJob):
            answer = await driver.stop(subject, record, action.id, fence, begins=instruction.begins)
        else:
            answer = await driver.run(subject, record, instruction.parallelism, fence, former=instruction.former)
        app.log.info(
            "stop" if isinstance(instruction, StopJob) else "run",
            action_id=str(action.id),
            job_id=record.stopped_job if isinstance(instruction, StopJob) else record.successor,
            **_logged(answer),
        )
        return answer

    async def _trigger_checkpoint(self, app: Application, subject: Subject, action: ActionState) -> None:
        now = self._clock.monotonic()
        if app.checkpoint_triggered_at is not None and now - app.checkpoint_triggered_at < TRIGGER_PAUSE_SECONDS:
            return
        if await self._ownership.unconfirmed(app) is not None:
            return
        app.checkpoint_triggered_at = now
        problem = await self._driver(subject).trigger_checkpoint(subject, action.deployment.job_id)
        if problem is not None:
            app.checkpoint_triggered_at = None
            app.log.info("checkpoint-trigger-failed", reason=problem)

    async def _evict(self, app: Application, subject: Subject, instruction: Evict) -> Evicted | None:
        """Return the members that were removed, or None; the next observation shows who is left."""
        now = self._clock.monotonic()
        if app.evicted_at is not None and now - app.evicted_at < EVICT_PAUSE_SECONDS:
            return None
        if await self._ownership.unconfirmed(app) is not None:
            return None
        app.evicted_at = now
        answer = await self._driver(subject).evict(subject, instruction.members)
        if isinstance(answer, Evicted):
            return answer
        app.log.warning("eviction-failed", members=len(instruction.members), reason=answer.reason)
        return None

    def _refused(self, subject: Subject) -> Refusal | None:
        """Return why the target cannot be scaled: the policy has none, or may not name it. Knowledge checks the latter as well, by
        its own settings."""
        if subject.target.driver is None:
            return Refusal(
                "no-target", "the policy names no target, so Weir cannot scale the application: name one in spec.target"
            )
        found = self._reach.refusal(subject)
        return None if found is None else Refusal("out-of-reach", f"{found[0]}: {found[1]}")

    def _subject(self, app: Application) -> Subject | None:
        if app.subject is None and app.id in self._policies:
            app.subject = self._policies[app.id].subject
        return app.subject

    def _driver(self, subject: Subject) -> Driver:
        """Return the driver of a target that `_refused` does not refuse."""
        return self._drivers[subject.target.driver or ""]
