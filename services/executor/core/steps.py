"""Steps of an action: each observation of the target leads to at most one transition."""

from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

from weir_contracts import ActionState, derive_id

from . import messages
from .capacity import judge
from .deadlines import checkpoint_is_due, rescale_limit
from .gate import may_supersede, still_wanted
from .history import rollback_target
from .messages import changes, short, vector
from .observed import (
    Accepted,
    Conflict,
    Observed,
    PolicyReading,
    Record,
    Recorded,
    Refusal,
    Rejected,
    Request,
    Snapshot,
    Step,
    TriggerCheckpoint,
    contested,
)
from .rules import Rules
from .table import LEGAL, Event, move

MAX_GAP_SECONDS = 5.0
"""A gap in observations longer than this does not count against a deadline."""


def next_step(action: ActionState, observed: Observed, now: datetime, rules: Rules) -> Step:
    """Return the step that `observed` leads to at `now`: without event if the action has ended or nothing is new."""
    if action.terminal:
        return Step(action)
    return _STEPS[action.phase](action, observed, now, rules)


def resume(action: ActionState, attempt_id: UUID, now: datetime) -> Step:
    """Continue an action that another process began.

    Only an intent gets this process's attempt id, which the compare-and-swap that follows goes by.
    """
    if action.phase != "intended" or action.attempt_id == attempt_id:
        return Step(action)
    taken = move(
        action,
        "resumed",
        now,
        attempt_id=attempt_id,
        sentence=f"taken over: {messages.will_set(action.before, action.wanted)}",
    )
    return Step(taken, "resumed")


def supersede(action: ActionState, now: datetime) -> Step:
    """End an action that runs, for a newer plan; without event while that is not allowed."""
    if not may_supersede(action):
        return Step(action)
    sentence = messages.superseded(action.wanted, action.restart_seconds)
    return Step(move(action, "superseded", now, code="superseded-running", sentence=sentence), "superseded")


def late_rollback(
    action: ActionState, observed: Observed, now: datetime, attempt_id: UUID, rules: Rules
) -> Step | None:
    """Return a new action that rolls a verified one back, or None if there is no reason or it is too late.

    The reason: the first warm window, which comes after verification, shows less capacity than before.
    """
    snapshot, policy = observed.snapshot, observed.policy
    if action.phase != "verified" or action.finished_at is None or not is_watched(action, now, rules):
        return None
    deployment = snapshot.deployment
    if deployment is None or deployment.job_id != action.deployment.job_id or not snapshot.runs(action.wanted):
        return None
    if deployment.requested not in (None, action.wanted) or policy is None or policy.policy is None:
        return None
    comparison = judge(action, observed.analysis, rules)
    if comparison.kind != "worse" or policy.policy.spec.mode != "act":
        return None
    rollback = action.model_copy(
        update={
            "id": derive_id(action.id, "late-rollback"),
            "attempt_id": attempt_id,
            "version": action.version + 1,
            "phase": LEGAL[(None, "worse")],
            "started_at": now,
            "checked_at": now,
            "finished_at": None,
            "deadline_at": now + timedelta(seconds=rules.blind_patience_seconds),
            "restarts_before": deployment.restarts,
            "code": "capacity-worse",
            "sentence": short(messages.back_to(comparison.sentence, rollback_target(action))),
        }
    )
    return Step(rollback, "worse", Request(rollback_target(action)))


def is_watched(action: ActionState, now: datetime, rules: Rules) -> bool:
    """Return whether a verified action may still be rolled back."""
    if action.phase != "verified" or action.finished_at is None or not action.baselines:
        return False
    return now - action.finished_at <= timedelta(seconds=rules.capacity_watch_seconds)


def _intended(action: ActionState, observed: Observed, now: datetime, rules: Rules) -> Step:
    answer = observed.answer
    if isinstance(answer, Recorded):
        applying = move(
            action,
            "recorded",
            now,
            deadline_at=_earlier(action.deadline_at, now + timedelta(seconds=rules.request_patience_seconds)),
            sentence=f"setting {changes(action.before, action.wanted)}",
        )
        return Step(applying, "recorded", Request(action.wanted))
    if isinstance(answer, Conflict):
        lost = move(action, "lost", now, code="in-flight", sentence=messages.ACTION_ELSEWHERE)
        return Step(lost, "lost", rival=answer.current)
    policy = observed.policy or PolicyReading(False, because="not read")
    refusal = observed.crowded or still_wanted(action, policy, observed.snapshot, now, observed.planned_version)
    if refusal is not None:
        return Step(move(action, "outdated", now, code=refusal.code, sentence=refusal.sentence), "outdated")
    if not policy.reachable or not observed.snapshot.reachable or observed.contended:
        return Step(action)
    return Step(action, instruction=Record())


def _applying(action: ActionState, observed: Observed, now: datetime, rules: Rules) -> Step:
    answer, snapshot = observed.answer, observed.snapshot
    if isinstance(answer, Accepted):
        return _accepted(action, "accepted", answer.at, observed, now=now, rules=rules)
    if isinstance(answer, Rejected):
        sentence = messages.refused_by_engine(vector(action.wanted), answer.reason)
        return Step(move(action, "rejected", now, sentence=sentence), "rejected")
    if isinstance(answer, Refusal):
        event: Event = "contested" if answer.code == "contested" else "outdated"
        return Step(move(action, event, now, code=answer.code, sentence=answer.sentence), event)
    lost = _job_lost(action, snapshot, now)
    if lost is not None:
        return lost
    late = action.deadline_at is not None and now > action.deadline_at
    if snapshot.reachable and snapshot.deployment is not None:
        requested = snapshot.deployment.requested
        if requested == action.wanted:
            # The request went out right after this phase began, so that is nearer to its acceptance than now is.
            return _accepted(action, "found-requested", action.checked_at or now, observed, now=now, rules=rules)
        if requested is not None and requested != rollback_target(action):
            return _contested(action, snapshot, now)
        if not late:
            return Step(action, instruction=Request(action.wanted))
    if late:
        reason = "" if snapshot.reachable else snapshot.because
        sentence = messages.request_unanswered(action.deadline_at, reason)
        return Step(move(action, "unreachable", now, sentence=sentence), "unreachable")
    return Step(action)


def _accepted(
    action: ActionState, event: Event, at: datetime, observed: Observed, *, now: datetime, rules: Rules
) -> Step:
    limit = _limit(observed, rules)
    verifying = move(
        action,
        event,
        now,
        requested_at=at,
        deadline_at=at + limit,
        sentence=messages.requested(changes(action.before, action.wanted), limit.total_seconds()),
    )
    return Step(verifying, event, TriggerCheckpoint())


def _verifying(action: ActionState, observed: Observed, now: datetime, rules: Rules) -> Step:
    snapshot = observed.snapshot
    if not snapshot.reachable:
        return _unseen(action, snapshot, now, rules)
    lost = _job_lost(action, snapshot, now)
    if lost is not None or snapshot.deployment is None:
        return lost or Step(action)
    action = _observed_again(action, now)
    if snapshot.deployment.requested not in (None, action.wanted):
        return _contested(action, snapshot, now)
    extra = _extra_restarts(action, snapshot) or 0
    if extra >= rules.restart_loop and _is_looping(action, observed, now, rules):
        return _roll_back(action, "restart-loop", messages.restart_loop(extra), now, rules)
    if snapshot.runs(action.wanted):
        return _runs(action, observed, now, rules)
    if action.deadline_at is not None and now > action.deadline_at:
        if snapshot.all_running:
            reason = messages.below_requested(action.wanted, snapshot.deployment.observed)
            return _roll_back(action, "below-requested", reason, now, rules)
        return _roll_back(action, "not-running", messages.not_running(snapshot.deployment.state), now, rules)
    due = (
        action.requested_at is not None
        and action.running_at is None
        and checkpoint_is_due(snapshot, action.requested_at, now)
    )
    return Step(action, instruction=TriggerCheckpoint() if due else None)


def _runs(action: ActionState, observed: Observed, now: datetime, rules: Rules) -> Step:
    """Record when the wanted parallelism began to run, then whether it settled with the capacity it had before."""
    snapshot = observed.snapshot
    deadline_at = now + _limit(observed, rules)
    if action.running_at is None:
        began = min(max(snapshot.steady_since or now, action.requested_at or now), now)
        took = (began - (action.requested_at or began)).total_seconds()
        sentence = messages.running(action.wanted, took)
        return Step(
            move(action, "running", now, running_at=began, deadline_at=deadline_at, sentence=sentence), "running"
        )
    # From here on the deadline is for running again after a restart.
    action = action.model_copy(update={"deadline_at": deadline_at})
    comparison = judge(action, observed.analysis, rules)
    if comparison.kind == "worse":
        return _roll_back(action, "worse", comparison.sentence, now, rules)
    steady_since = max(action.running_at or now, snapshot.steady_since or now)
    if now - steady_since < timedelta(seconds=rules.settle_seconds):
        return Step(action)
    took = action.restart_seconds or 0.0
    sentence = messages.verified(action.wanted, took, comparison.kind == "fine", comparison.sentence)
    return Step(move(action, "healthy", now, code="verified", sentence=sentence, deadline_at=None), "healthy")


def _rolling_back(action: ActionState, observed: Observed, now: datetime, rules: Rules) -> Step:
    answer, snapshot, target = observed.answer, observed.snapshot, rollback_target(action)
    requested_before = action.rollback_requested_at is not None
    if not requested_before and isinstance(answer, Accepted):
        return _rollback_accepted(action, "accepted", answer.at, observed, now=now, rules=rules)
    if not requested_before and isinstance(answer, Rejected):
        sentence = messages.refused_by_engine(f"the return to {vector(target)}", answer.reason)
        return Step(move(action, "rejected", now, code="rollback-rejected", sentence=sentence), "rejected")
    if not requested_before and isinstance(answer, Refusal):
        return Step(move(action, "contested", now, code=answer.code, sentence=answer.sentence), "contested")
    if not snapshot.reachable:
        return _unseen(action, snapshot, now, rules)
    lost = _job_lost(action, snapshot, now)
    if lost is not None or snapshot.deployment is None:
        return lost or Step(action)
    action = _observed_again(action, now)
    requested = snapshot.deployment.requested
    if requested not in (None, target, action.wanted):
        return _contested(action, snapshot, now)
    if not requested_before:
        if requested == target:
            return _rollback_accepted(action, "found-requested", now, observed, now=now, rules=rules)
        if action.deadline_at is None or now <= action.deadline_at:
            return Step(action, instruction=Request(target))
        sentence = f"the request to return to {vector(target)} was not answered"
        return Step(move(action, "unreachable", now, code="rollback-unreachable", sentence=sentence), "unreachable")
    return _returning(action, snapshot, now)


def _returning(action: ActionState, snapshot: Snapshot, now: datetime) -> Step:
    target = rollback_target(action)
    if snapshot.runs(target) or snapshot.runs(action.before):
        return Step(
            move(action, "restored", now, code="rolled-back", sentence=f"{vector(target)} runs again"), "restored"
        )
    if action.deadline_at is not None and now > action.deadline_at:
        state = snapshot.deployment.state if snapshot.deployment else "unknown"
        sentence = messages.rollback_stuck(target, state)
        return Step(move(action, "stuck", now, code="rollback-stuck", sentence=sentence), "stuck")
    due = action.rollback_requested_at is not None and checkpoint_is_due(snapshot, action.rollback_requested_at, now)
    return Step(action, instruction=TriggerCheckpoint() if due else None)


def _rollback_accepted(
    action: ActionState, event: Event, at: datetime, observed: Observed, *, now: datetime, rules: Rules
) -> Step:
    limit = _limit(observed, rules)
    sentence = messages.requested(f"{vector(rollback_target(action))} again", limit.total_seconds())
    moved = move(
        action,
        event,
        now,
        rollback_requested_at=at,
        deadline_at=at + limit,
        code="rollback-requested",
        sentence=sentence,
    )
    return Step(moved, event, TriggerCheckpoint())


def _roll_back(action: ActionState, event: Event, reason: str, now: datetime, rules: Rules) -> Step:
    target = rollback_target(action)
    moved = move(
        action,
        event,
        now,
        code="capacity-worse" if event == "worse" else event,
        deadline_at=now + timedelta(seconds=rules.blind_patience_seconds),
        sentence=messages.back_to(reason, target),
    )
    return Step(moved, event, Request(target))


def _job_lost(action: ActionState, snapshot: Snapshot, now: datetime) -> Step | None:
    """Return the end of the action if its job has ended or was replaced, or None."""
    if not snapshot.reachable:
        return None
    there = snapshot.deployment
    if there is None:
        sentence = messages.job_missing(snapshot.because)
    elif there.job_id != action.deployment.job_id:
        sentence = messages.job_replaced(action.deployment.job_id, there.job_id)
    elif there.is_final:
        sentence = messages.job_state(there.state)
    else:
        return None
    code = "job-failed" if there is not None and there.health == "failed" else "job-gone"
    return Step(move(action, "gone", now, code=code, sentence=sentence), "gone")


def _contested(action: ActionState, snapshot: Snapshot, now: datetime) -> Step:
    requested = snapshot.deployment.requested if snapshot.deployment else None
    sentence = contested(changes(action.wanted, requested or {})).sentence
    return Step(move(action, "contested", now, sentence=sentence), "contested")


def _earlier(one: datetime | None, other: datetime) -> datetime:
    return other if one is None else min(one, other)


def _unseen(action: ActionState, snapshot: Snapshot, now: datetime, rules: Rules) -> Step:
    """Wait for an unreachable target; give up after `blind_patience_seconds`."""
    unobserved_since = action.checked_at or action.started_at
    if now - unobserved_since <= timedelta(seconds=rules.blind_patience_seconds):
        return Step(action)
    minutes = (now - unobserved_since).total_seconds() / 60
    sentence = messages.unreachable_for(minutes, snapshot.because)
    return Step(move(action, "unreachable", now, sentence=sentence), "unreachable")


def _observed_again(action: ActionState, now: datetime) -> ActionState:
    """Return the action after an observation; a gap in observations extends its deadline."""
    gap = now - (action.checked_at or now)
    if gap <= timedelta(seconds=MAX_GAP_SECONDS) or action.deadline_at is None:
        return action.model_copy(update={"checked_at": now})
    return action.model_copy(update={"checked_at": now, "deadline_at": action.deadline_at + gap})


def _extra_restarts(action: ActionState, snapshot: Snapshot) -> int | None:
    """Return the restarts beyond the rescale's own; None while either count is unknown."""
    count = snapshot.deployment.restarts if snapshot.deployment else None
    if count is None or action.restarts_before is None or count < action.restarts_before:
        return None
    return max(0, count - action.restarts_before - 1)


def _is_looping(action: ActionState, observed: Observed, now: datetime, rules: Rules) -> bool:
    """Return whether the restarts are due to the new parallelism: they persist, continue, and no slots are missing.

    The loss of a TaskManager restarts a job several times, too, until the cluster has noticed and while slots are missing.
    """
    snapshot, analysis = observed.snapshot, observed.analysis
    began = action.running_at or action.requested_at or now
    if now - began < timedelta(seconds=rules.restart_loop_seconds):
        return False
    steady = now - (snapshot.steady_since or now)
    if snapshot.all_running and steady >= timedelta(seconds=rules.settle_seconds / 2):
        return False
    slots = analysis.deployment.slots if analysis and analysis.deployment else None
    if slots is None or analysis is None or analysis.topology is None:
        return True
    return slots.total >= analysis.topology.slots(action.before)


def _limit(observed: Observed, rules: Rules) -> timedelta:
    deployment = observed.snapshot.deployment
    if deployment is None:
        return timedelta(seconds=rules.deadline_floor_seconds)
    return rescale_limit(deployment, observed.analysis, rules)


_STEPS: dict[str, Callable[[ActionState, Observed, datetime, Rules], Step]] = {
    "intended": _intended,
    "applying": _applying,
    "verifying": _verifying,
    "rolling-back": _rolling_back,
}
