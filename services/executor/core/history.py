"""What is remembered of an application's actions, and the outcome that tells each move.

Everything needed to go on is in each outcome, so that memory is `recall` folded over them. Outcomes of two holders of
an application may be read in any order: the newest by `precedes` counts.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from weir_contracts import MAX_RESTARTS, ActionState, Outcome, Parallelism, Plan, QuarantinedVector, derive_id, precedes

from .messages import short
from .observed import Conflict, Recorded, Refusal, Snapshot, Step
from .rules import Rules
from .table import ROLLBACK_EVENTS

MAX_ANSWERED = 20
MAX_QUARANTINE = 50


@dataclass(frozen=True)
class ActionHistory:
    """One application's: the newest action and what must outlive it."""

    action: ActionState | None = None
    last_written: Parallelism | None = None
    """Requirements that Weir wrote last to the newest action's job; None: none yet."""
    original: Parallelism | None = None
    """Requirements of that job when Weir first acted on it: what it falls back to when the engine forgets."""
    quarantine: tuple[QuarantinedVector, ...] = ()
    restarts_seconds: tuple[float, ...] = ()
    """Of the last rescales, from request to RUNNING, newest first."""
    contested_since: datetime | None = None
    answered: tuple[UUID, ...] = ()
    """Newest plan ids that got their answer."""
    newest: Outcome | None = None
    """The outcome that all this is from."""
    epoch: int = 0
    """Of the outcomes that this process writes."""

    @property
    def sequence(self) -> int:
        """Of the next outcome."""
        return 0 if self.newest is None else (self.newest.sequence or 0) + 1

    def ours(self, job_id: str) -> list[Parallelism]:
        """Requirements of this job that are Weir's doing, newest first; empty: nothing was written yet."""
        action = self.action
        if action is None or action.deployment.job_id != job_id or self.last_written is None:
            return []
        found = [self.last_written]
        if self.original is not None:
            found.append(self.original)
        if action.phase == "failed":  # which of the two came through is not known
            found += [action.wanted, rollback_target(action)]
        return found


@dataclass(frozen=True)
class Transition:
    """Memory after a move, and what to tell of it."""

    history: ActionHistory
    outcome: Outcome


def rollback_target(action: ActionState) -> Parallelism:
    """What was requested before the action, or else what was running."""
    return action.before if action.deployment.requested is None else action.deployment.requested


def expected(action: ActionState) -> Parallelism:
    """The requirements that the action's next request replaces."""
    return action.wanted if action.phase == "rolling-back" else rollback_target(action)


def recall(history: ActionHistory, outcome: Outcome) -> ActionHistory:
    """Return memory after an outcome: this process's own, or one read from the topic.

    An outcome that is older than the newest one only answers its plan.
    """
    answered = tuple(dict.fromkeys((outcome.plan_id, *history.answered)))[:MAX_ANSWERED]
    if history.newest is not None and precedes(outcome.order, history.newest.order):
        return replace(history, answered=answered)
    action = outcome.newest_action or history.action
    return ActionHistory(
        action=action,
        last_written=outcome.last_written,
        original=_original(history, action) if outcome.original is None else outcome.original,
        quarantine=tuple(outcome.quarantine),
        restarts_seconds=tuple(outcome.restarts_seconds),
        contested_since=outcome.contested_since or (outcome.at if outcome.code == "contested" else None),
        answered=answered,
        newest=outcome,
        epoch=max(history.epoch, outcome.epoch or 0),
    )


def taken_over(history: ActionHistory) -> ActionHistory:
    """Return recalled memory for this process, whose outcomes are newer than all of the holders before."""
    return replace(history, epoch=history.epoch + 1)


def record_transition(
    history: ActionHistory, step: Step, snapshot: Snapshot | None, now: datetime, rules: Rules
) -> Transition:
    """The outcome of a step that moved, and memory with it."""
    action = step.action
    outcome = Outcome(
        id=derive_id(action.id, f"{action.version}:{action.phase}:{action.attempt_id}:{history.epoch}"),
        application=action.application,
        plan_id=action.plan_id,
        observation_id=action.observation_id,
        at=now,
        phase=action.phase,
        code=action.code,
        sentence=action.sentence,
        before=action.before,
        wanted=action.wanted,
        observed=_observed(snapshot),
        restart_seconds=action.restart_seconds,
        action=None if step.event == "lost" else action,
        last_action=step.rival,
        last_written=_written(history, step),
        quarantine=_quarantine(history, step, snapshot, now, rules),
        restarts_seconds=_restarts(history, action),
        original=_original(history, action),
        contested_since=_contested_since(history, action.phase, action.code, now),
        epoch=history.epoch,
        sequence=history.sequence,
    )
    return Transition(recall(history, outcome), outcome)


def record_refusal(
    history: ActionHistory, plan: Plan, refusal: Refusal, snapshot: Snapshot | None, now: datetime
) -> Transition:
    """The outcome of a plan that did not become an action; it carries along what the application's last one told."""
    outcome = Outcome(
        id=derive_id(plan.id, "refused"),
        application=plan.application,
        plan_id=plan.id,
        observation_id=plan.observation_id,
        at=now,
        phase="refused",
        code=refusal.code,
        sentence=short(refusal.sentence),
        before=plan.current,
        wanted=plan.approved or {},
        observed=_observed(snapshot),
        last_action=history.action,
        last_written=history.last_written,
        quarantine=list(history.quarantine),
        restarts_seconds=list(history.restarts_seconds),
        original=history.original,
        contested_since=_contested_since(history, "refused", refusal.code, now),
        epoch=history.epoch,
        sequence=history.sequence,
    )
    return Transition(recall(history, outcome), outcome)


def _original(history: ActionHistory, action: ActionState | None) -> Parallelism | None:
    last = history.action
    if action is None or (last is not None and last.deployment.job_id == action.deployment.job_id):
        return history.original
    return rollback_target(action)


def _contested_since(history: ActionHistory, phase: str, code: str, now: datetime) -> datetime | None:
    """Return since when others set the requirements; an action of Weir's own that begins ends that."""
    if code == "contested":
        return history.contested_since or now
    return None if phase == "applying" else history.contested_since


def _observed(snapshot: Snapshot | None) -> Parallelism | None:
    return snapshot.deployment.observed if snapshot is not None and snapshot.deployment is not None else None


def _written(history: ActionHistory, step: Step) -> Parallelism | None:
    action = step.action
    last = history.action
    if last is not None and last.deployment.job_id != action.deployment.job_id:
        return None  # requirements went with their job
    if step.event in ("accepted", "found-requested"):
        return action.wanted if action.phase == "verifying" else rollback_target(action)
    return history.last_written


def _restarts(history: ActionHistory, action: ActionState) -> list[float]:
    """Each action counts once, when it is first known how long it took."""
    took, before = action.restart_seconds, history.action
    if took is None or (before is not None and before.id == action.id and before.restart_seconds is not None):
        return list(history.restarts_seconds)
    return [took, *history.restarts_seconds][:MAX_RESTARTS]


def _quarantine(
    history: ActionHistory, step: Step, snapshot: Snapshot | None, now: datetime, rules: Rules
) -> list[QuarantinedVector]:
    forget = timedelta(seconds=rules.quarantine_longest_seconds)
    kept = [vector for vector in history.quarantine if now < vector.until + forget]
    failed_for_good = (
        step.event == "gone"
        and step.action.requested_at is not None
        and snapshot is not None
        and snapshot.deployment is not None
        and snapshot.deployment.state == "FAILED"
        and snapshot.deployment.job_id == step.action.deployment.job_id
    )
    if step.event not in ROLLBACK_EVENTS and not failed_for_good:
        return kept
    return strike(kept, step.action.wanted, step.action.sentence, now, rules)[:MAX_QUARANTINE]


def strike(
    kept: list[QuarantinedVector], parallelism: Parallelism, because: str, now: datetime, rules: Rules
) -> list[QuarantinedVector]:
    """Quarantine a vector, twice as long as the last time up to the longest; newest first."""
    strikes = 1 + max((v.strikes for v in kept if v.parallelism == parallelism), default=0)
    doubled = rules.quarantine_first_seconds * 2.0 ** min(strikes - 1, 30)
    until = now + timedelta(seconds=min(doubled, rules.quarantine_longest_seconds))
    new = QuarantinedVector(parallelism=parallelism, until=until, strikes=strikes, because=because)
    return [new, *(replaced for replaced in kept if replaced.parallelism != parallelism)]


@dataclass(frozen=True)
class CompareAndSwap:
    """Try again against this version (0: nothing there)."""

    version: int


def resolve_conflict(
    action: ActionState, current: ActionState | None, known: ActionState | None
) -> Recorded | Conflict | CompareAndSwap:
    """Read a conflict. `known` is the newest action of the application in the outcome topic before this one.

    My own attempt id there means that an earlier try came through and only its answer was lost. Knowledge may lag behind
    the topic, or have been emptied: then what is there is no rival, only old.
    """
    if current is None:
        return CompareAndSwap(0)
    is_older = current.version < action.version
    same_action = current.id == action.id
    if same_action and current.attempt_id == action.attempt_id and not is_older:
        return Recorded()
    known_to_have_moved_on = known is not None and current.id == known.id
    if is_older and (current.terminal or same_action or known_to_have_moved_on):
        return CompareAndSwap(current.version)
    return Conflict(current)
