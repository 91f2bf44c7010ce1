"""An action in flight with its observed state: what every phase asks of the two, and the steps that phases share."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from weir_contracts import ActionState, Deployment, Parallelism, changes

from . import messages
from .deadlines import checkpoint_is_due, rescale_limit, successive_starts
from .history import rollback_target
from .observed import Evict, Evicted, Instruction, Observed, Request, Snapshot, Step, TriggerCheckpoint, contested
from .rules import Rules
from .table import Event, EventName, RequestAccepted, Timed, move

MAX_GAP_SECONDS = 5.0
"""A gap in observations longer than this does not count against a deadline."""


@dataclass(frozen=True)
class Situation:
    """An action that has not ended, and the observed state that its next step depends on."""

    action: ActionState
    observed: Observed
    now: datetime
    rules: Rules

    @property
    def snapshot(self) -> Snapshot:
        return self.observed.snapshot

    @property
    def is_late(self) -> bool:
        """Whether the deadline of the phase has passed."""
        return self.action.deadline_at is not None and self.now > self.action.deadline_at

    def stay(self, instruction: Instruction | None = None) -> Step:
        return Step(self.action, instruction=instruction)

    def go(self, event: Event, instruction: Instruction | None = None) -> Step:
        return Step(move(self.action, event, self.now), event, instruction)

    def end(self, name: EventName, sentence: str, code: str = "") -> Step:
        return self.go(Event(name, sentence, code=code))

    def accepted(self, name: EventName, at: datetime, change: str, code: str = "") -> Step:
        """Wait for the requested parallelism to run; a rescale may wait for a checkpoint, so trigger one."""
        limit = self.limit()
        sentence = messages.requested(change, limit.total_seconds())
        return self.go(RequestAccepted(name, sentence, at + limit, at, code=code), self.checkpoint())

    def roll_back(self, name: EventName, reason: str, code: str = "") -> Step:
        """Roll back, unless the target takes no request: a rollout may itself be the reason for what was observed."""
        target, refusal = rollback_target(self.action), self.snapshot.refusal
        if refusal is not None:
            return self.end("contested", messages.not_rolled_back(target, refusal.sentence), refusal.code)
        deadline_at = self.now + timedelta(seconds=self.rules.unobserved_limit_seconds)
        return self.go(Timed(name, messages.back_to(reason, target), deadline_at, code=code), Request(target))

    def contested(self, requested: Parallelism) -> Step:
        by = messages.writer(self.snapshot.writers, self.action.wanted, requested)
        return self.end("contested", contested(changes(self.action.wanted, requested), by).sentence)

    def limit(self) -> timedelta:
        """Return the time limit of a rescale."""
        deployment = self.snapshot.deployment
        if deployment is None:
            return timedelta(seconds=self.rules.deadline_floor_seconds)
        analysis = self.observed.analysis
        unit = analysis.policy.spec.target.unit if analysis else None
        slots = 1 if unit is None or deployment.engine == "service" else unit.slots
        starts = successive_starts(deployment, self.action.before, self.action.wanted, slots)
        return rescale_limit(deployment, analysis, self.rules, starts=starts)

    def checkpoint(self, requested_at: datetime | None = None) -> TriggerCheckpoint | None:
        """Return the instruction to trigger a checkpoint if the driver can and, for a waiting rescale, one is due."""
        if not self.snapshot.can_trigger_checkpoint:
            return None
        due = requested_at is None or checkpoint_is_due(self.snapshot, requested_at, self.now)
        return TriggerCheckpoint() if due else None

    def eviction(self) -> Step | None:
        """Report members that were evicted, or evict those whose process has ended; None if there are none.

        A phase that is past its deadline ends instead.
        """
        answer = self.observed.answer
        if isinstance(answer, Evicted):
            instances = list(dict.fromkeys(member.instance for member in answer.members))
            return self.go(Event("evicted", messages.evicted(instances, len(answer.members))))
        if not self.snapshot.departed or self.is_late:
            return None
        return self.stay(Evict(self.snapshot.departed))

    def job_lost(self) -> Step | None:
        """Return the end of the action if its job has ended or was replaced, or None."""
        there = self.snapshot.deployment
        if not self.snapshot.reachable:
            return None
        if there is None:
            sentence = messages.job_missing(self.snapshot.reason)
        elif there.job_id != self.action.deployment.job_id:
            sentence = messages.job_replaced(self.action.deployment.job_id, there.job_id)
        elif there.is_final:
            sentence = messages.job_state(there.state)
        else:
            return None
        code = "job-failed" if there is not None and there.health == "failed" else "job-gone"
        return self.end("gone", sentence, code)

    def present(self) -> "tuple[Situation, Deployment] | Step":
        """Return the situation after an observation of the action's job, or the step if the job is not observed.

        A gap in observations extends the deadline. An unreachable target is waited for up to
        `unobserved_limit_seconds`.
        """
        action, snapshot, now = self.action, self.snapshot, self.now
        if not snapshot.reachable:
            unobserved = now - (action.checked_at or action.started_at)
            if unobserved <= timedelta(seconds=self.rules.unobserved_limit_seconds):
                return self.stay()
            return self.end("unreachable", messages.unreachable_for(unobserved, snapshot.reason))
        lost = self.job_lost()
        if lost is not None or snapshot.deployment is None:
            return lost or self.stay()
        gap, deadline_at = now - (action.checked_at or now), action.deadline_at
        if deadline_at is not None and gap > timedelta(seconds=MAX_GAP_SECONDS):
            deadline_at += gap
        checked = action.model_copy(update={"checked_at": now, "deadline_at": deadline_at})
        return replace(self, action=checked), snapshot.deployment
