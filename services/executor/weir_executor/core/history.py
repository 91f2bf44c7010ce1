"""History of an application's actions, and the outcome that records each transition.

Invariant: the history is `recall` folded over the published outcomes, since each outcome holds everything needed to
continue. Outcomes of two owners of an application may be read in any order: the newest by `precedes` counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from weir_contracts import (
    MAX_RESTARTS,
    MAX_SENTENCE,
    ActionState,
    Outcome,
    OutcomeOrder,
    Parallelism,
    Plan,
    QuarantinedVector,
    bounded,
    derive_id,
    following,
    precedes,
)
from weir_engines.driver import Refusal, Snapshot
from weir_executor.core.observed import Conflict, Recorded, Step

from .parameters import Rules
from .table import ROLLBACK_EVENTS, Lost, RequestAccepted

NOT_PREPARED = ("managers-late", "savepoint-failed", "not-rolled-back")
"""Codes of failures after which a vector is quarantined like one that was rolled back."""
MAX_ANSWERED = 20
MAX_QUARANTINE = 50


@dataclass(frozen=True)
class ActionHistory:
    """One application's newest action, and the state that outlives it."""

    action: ActionState | None = None
    last_written: Parallelism | None = None
    """Requirements that Weir wrote last to the newest action's job; None if it wrote none."""
    original: Parallelism | None = None
    """Requirements of that job before Weir first acted on it; a restarted engine falls back to them."""
    quarantine: tuple[QuarantinedVector, ...] = ()
    restarts_seconds: tuple[float, ...] = ()
    """Seconds from request to RUNNING of the last rescales, newest first."""
    instance_restarted_at: datetime | None = None
    """When the target accepted the last restart of an instance."""
    contested_since: datetime | None = None
    contested_requested: Parallelism | None = None
    """Requirements of another client, since `contested_since`."""
    contests: int = 0
    """Times in a row that another client wrote after Weir."""
    answered: tuple[UUID, ...] = ()
    """Ids of the plans that were answered last."""
    newest: OutcomeOrder | None = None
    """Place of the newest outcome that was read."""
    epoch: int = 0
    """Epoch of the outcomes that this process writes."""

    @property
    def sequence(self) -> int:
        """Sequence number of the next outcome."""
        return 0 if self.newest is None else following(self.newest[0][1])

    def ours(self, job_id: str) -> list[Parallelism]:
        """Return the requirements that Weir set for this job, newest first; empty if it wrote none."""
        action = self.action
        if action is None or action.deployment.job_id != job_id or self.last_written is None:
            return []
        found = [self.last_written]
        if self.original is not None:
            found.append(self.original)
        if action.phase == "failed":  # either of the two may have been applied
            found += [action.wanted, rollback_target(action)]
        return found


@dataclass(frozen=True)
class Transition:
    """History after a transition, and the outcome to publish."""

    history: ActionHistory
    outcome: Outcome


def rollback_target(action: ActionState) -> Parallelism:
    """Return the requirements before the action, or else the parallelism that ran."""
    return action.before if action.deployment.requested is None else action.deployment.requested


def expected(action: ActionState) -> Parallelism:
    """Return the requirements that the action's next request replaces."""
    return action.wanted if action.phase == "rolling-back" else rollback_target(action)


def recall(history: ActionHistory, outcome: Outcome) -> ActionHistory:
    """Return the history after an outcome of this process or of the topic.

    An outcome older than the newest one only answers its plan.
    """
    answered = tuple(dict.fromkeys((outcome.plan_id, *history.answered)))[:MAX_ANSWERED]
    if history.newest is not None and precedes(outcome.order, history.newest):
        return replace(history, answered=answered)
    action = outcome.newest_action or history.action
    return replace(
        history,
        action=action,
        last_written=outcome.last_written,
        original=_original(history, action) if outcome.original is None else outcome.original,
        quarantine=tuple(outcome.quarantine),
        restarts_seconds=tuple(outcome.restarts_seconds),
        instance_restarted_at=outcome.instance_restarted_at,
        contested_since=outcome.contested_since or (outcome.at if outcome.code == "contested" else None),
        contested_requested=outcome.contested_requested,
        contests=outcome.contests,
        answered=answered,
        newest=outcome.order,
        epoch=max(history.epoch, outcome.epoch),
    )


def taken_over(history: ActionHistory) -> ActionHistory:
    """Return the history with the next epoch, so that this process's outcomes are newer than all earlier owners'."""
    return replace(history, epoch=following(history.epoch))


def record_transition(
    history: ActionHistory, step: Step, snapshot: Snapshot | None, now: datetime, rules: Rules
) -> Transition:
    """Return the outcome of a step with an event, and the history after it."""
    action, rival = step.action, step.event.rival if isinstance(step.event, Lost) else None
    after = replace(
        history,
        last_written=_written(history, step),
        quarantine=_quarantine(history, step, snapshot, now, rules),
        restarts_seconds=_restarts(history, action),
        original=_original(history, action),
        instance_restarted_at=_instance_restarted_at(history, step),
        **_contest(history, action.phase, action.code, snapshot, now),
    )
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
        instance=action.instance,
        observed=_observed(snapshot),
        restart_seconds=action.restart_seconds,
        action=None if step.name == "lost" else action,
        last_action=rival,
        **_carried(after),
    )
    return Transition(recall(history, outcome), outcome)


def record_refusal(
    history: ActionHistory, plan: Plan, refusal: Refusal, snapshot: Snapshot | None, now: datetime
) -> Transition:
    """Return the outcome of a refused plan, which repeats the state of the application's last outcome."""
    after = replace(history, **_contest(history, "refused", refusal.code, snapshot, now))
    outcome = Outcome(
        id=derive_id(plan.id, "refused"),
        application=plan.application,
        plan_id=plan.id,
        observation_id=plan.observation_id,
        at=now,
        phase="refused",
        code=refusal.code,
        sentence=bounded(refusal.sentence, MAX_SENTENCE),
        before=plan.current,
        wanted=plan.approved or {},
        instance=plan.restarts,
        observed=_observed(snapshot),
        last_action=history.action,
        **_carried(after),
    )
    return Transition(recall(history, outcome), outcome)


def _carried(history: ActionHistory) -> dict[str, Any]:
    """Return the fields by which an outcome repeats the history."""
    return {
        "last_written": history.last_written,
        "quarantine": list(history.quarantine),
        "restarts_seconds": list(history.restarts_seconds),
        "original": history.original,
        "instance_restarted_at": history.instance_restarted_at,
        "contested_since": history.contested_since,
        "contested_requested": history.contested_requested,
        "contests": history.contests,
        "epoch": history.epoch,
        "sequence": history.sequence,
    }


def _original(history: ActionHistory, action: ActionState | None) -> Parallelism | None:
    last = history.action
    if action is None or (last is not None and last.deployment.job_id == action.deployment.job_id):
        return history.original
    return rollback_target(action)


def _contest(history: ActionHistory, phase: str, code: str, snapshot: Snapshot | None, now: datetime) -> dict[str, Any]:
    """Return since when another client controls the requirements, with which, and how often in a row; none once an action
    of Weir begins."""
    if code != "contested":
        ends = {"contested_since": None, "contested_requested": None} if phase == "applying" else {}
        return {**ends, **({"contests": 0} if phase == "verified" else {})}
    deployment = None if snapshot is None else snapshot.deployment
    there = history.contested_requested if deployment is None else deployment.requested
    known = history.contested_requested
    if history.contested_since is not None and (known is None or known == there):
        return {"contested_requested": there}
    contests = history.contests + (history.contested_since is None)
    return {"contested_since": now, "contested_requested": there, "contests": contests}


def _instance_restarted_at(history: ActionHistory, step: Step) -> datetime | None:
    if isinstance(step.event, RequestAccepted) and step.action.instance is not None:
        return step.event.at
    return history.instance_restarted_at


def _observed(snapshot: Snapshot | None) -> Parallelism | None:
    return snapshot.deployment.observed if snapshot is not None and snapshot.deployment is not None else None


def _written(history: ActionHistory, step: Step) -> Parallelism | None:
    action = step.action
    last = history.action
    if last is not None and last.deployment.job_id != action.deployment.job_id:
        return None  # requirements went with their job
    if isinstance(step.event, RequestAccepted) and action.instance is None:
        return action.wanted if action.phase == "verifying" else rollback_target(action)
    return history.last_written


def _restarts(history: ActionHistory, action: ActionState) -> tuple[float, ...]:
    """Return the restart times; each action counts once, when its time is first measured."""
    took, before = action.restart_seconds, history.action
    if action.instance is not None:
        return history.restarts_seconds  # the others have run on
    if took is None or (before is not None and before.id == action.id and before.restart_seconds is not None):
        return history.restarts_seconds
    return (took, *history.restarts_seconds)[:MAX_RESTARTS]


def _quarantine(
    history: ActionHistory, step: Step, snapshot: Snapshot | None, now: datetime, rules: Rules
) -> tuple[QuarantinedVector, ...]:
    forget = timedelta(seconds=rules.quarantine_max_seconds)
    kept = tuple(vector for vector in history.quarantine if now < vector.until + forget)
    failed_for_good = (
        step.name == "gone"
        and step.action.requested_at is not None
        and snapshot is not None
        and snapshot.deployment is not None
        and snapshot.deployment.health == "failed"
        and snapshot.deployment.job_id == step.action.deployment.job_id
    )
    not_prepared = step.name in ("given-up", "late", "rejected", "stuck") and step.action.code in NOT_PREPARED
    if step.name not in ROLLBACK_EVENTS and not failed_for_good and not not_prepared:
        return kept
    return strike(kept, step.action.wanted, step.action.sentence, now, rules)[:MAX_QUARANTINE]


def strike(
    kept: Sequence[QuarantinedVector], parallelism: Parallelism, reason: str, now: datetime, rules: Rules
) -> tuple[QuarantinedVector, ...]:
    """Add a vector, for twice its last quarantine up to the maximum; newest first."""
    strikes = 1 + max((v.strikes for v in kept if v.parallelism == parallelism), default=0)
    doubled = rules.quarantine_first_seconds * 2.0 ** min(strikes - 1, 30)
    until = now + timedelta(seconds=min(doubled, rules.quarantine_max_seconds))
    new = QuarantinedVector(parallelism=parallelism, until=until, strikes=strikes, because=reason)
    return (new, *(other for other in kept if other.parallelism != parallelism))


@dataclass(frozen=True)
class CompareAndSwap:
    """Repeat the compare-and-swap against this version (0: nothing is stored)."""

    version: int


def resolve_conflict(
    action: ActionState, current: ActionState | None, previous: ActionState | None
) -> Recorded | Conflict | CompareAndSwap:
    """Return what a conflict means. `previous` is the application's action before this one in the topic of outcomes.

    This process's attempt id in the stored action means that an earlier try succeeded and its response was lost.
    Knowledge may lag behind the topic, or have been emptied: then the stored action is outdated and no conflict.
    """
    if current is None:
        return CompareAndSwap(0)
    is_older = current.version < action.version
    same_action = current.id == action.id
    if same_action and current.attempt_id == action.attempt_id and not is_older:
        return Recorded()
    is_outdated = previous is not None and current.id == previous.id
    if is_older and (current.terminal or same_action or is_outdated):
        return CompareAndSwap(current.version)
    return Conflict(current)
