"""Steps of an action: each observation of the target leads to at most one transition.

Invariants: a terminal action takes no step. A request asks for `wanted` in phase `applying` and for `rollback_target`
in phase `rolling-back`, and in no other phase. Only the events in `ROLLBACK_EVENTS` roll back, and only a target that
refuses no request.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from weir_contracts import (
    MAX_SENTENCE,
    ActionState,
    Deployment,
    InstanceRef,
    Parallelism,
    after_colon,
    bounded,
    changes,
    counted,
    derive_id,
    fitted,
    short_name,
    sizes,
)
from weir_engines.driver import Accepted, Refusal, Rejected
from weir_executor.core.observed import Conflict, Observed, PolicyReading, Record, Recorded, Request, Restart, Step

from . import managers, resubmission
from .capacity import judge
from .gate import intention, still_wanted
from .history import rollback_target
from .in_flight import InFlight
from .parameters import Rules
from .table import LEGAL, Event, Lost, Running, TakenOver, Timed, move


def next_step(action: ActionState, observed: Observed, now: datetime, rules: Rules) -> Step:
    """Return the step that `observed` leads to at `now`: without event if the action has ended or nothing is new."""
    if action.terminal:
        return Step(action)
    case = InFlight(action, observed, now, rules)
    return resubmission.step(case) or _STEPS[action.phase](case)


def resume(action: ActionState, attempt_id: UUID, now: datetime) -> Step:
    """Continue an action that another process began.

    Only an intent gets this process's attempt id, which the compare-and-swap that follows goes by.
    """
    if action.phase != "intended" or action.attempt_id == attempt_id:
        return Step(action)
    sentence = f"taken over: {intention(action.before, action.wanted, action.instance)}"
    event = TakenOver("resumed", sentence, attempt_id)
    return Step(move(action, event, now), event)


def supersede(action: ActionState, now: datetime) -> Step:
    """End an action that runs, for a newer plan; without event while that is not allowed."""
    if not action.has_run:
        return Step(action)
    took = "" if action.restart_seconds is None else f" after {action.restart_seconds:.1f} s"
    sentence = f"a newer plan follows; {changes(action.before, action.wanted)} ran{took}"
    change = action.managers
    if action.phase == "releasing" and change is not None:
        sentence = fitted(sentence, f"; up to {counted(change.before - change.wanted, 'TaskManager')} kept")
    event = Event("superseded", sentence, code="superseded-running")
    return Step(move(action, event, now), event)


def late_rollback(
    action: ActionState, observed: Observed, now: datetime, attempt_id: UUID, rules: Rules
) -> Step | None:
    """Return a new action that rolls a verified one back, or None if there is no reason or it is too late.

    The reason: the first warm window, which comes after verification, shows less capacity than before.
    """
    snapshot, policy = observed.snapshot, observed.policy
    if not is_watched(action, now, rules):
        return None
    deployment = snapshot.deployment
    if deployment is None or deployment.job_id != action.deployment.job_id or not snapshot.runs(action.wanted):
        return None
    if deployment.requested not in (None, action.wanted) or snapshot.refusal is not None:
        return None
    if policy is None or policy.policy is None:
        return None
    comparison = judge(action, observed.analysis, rules)
    if comparison.kind != "worse" or policy.policy.spec.mode != "act":
        return None
    sentence = f"{comparison.sentence}: back to {sizes(rollback_target(action))}"
    event = Event("worse", sentence, code="capacity-worse")
    rollback = action.model_copy(
        update={
            "id": derive_id(action.id, "late-rollback"),
            "attempt_id": attempt_id,
            "version": action.version + 1,
            "phase": LEGAL[(None, event.name)],
            "started_at": now,
            "checked_at": now,
            "finished_at": None,
            "deadline_at": now + timedelta(seconds=rules.unobserved_limit_seconds),
            "restarts_before": deployment.restarts,
            "code": event.code,
            "sentence": bounded(event.sentence, MAX_SENTENCE),
        }
    )
    return Step(rollback, event, Request(rollback_target(action)))


def unpublished(action: ActionState, reason: str, now: datetime) -> Step:
    """End an action whose outcome the brokers refuse for good, without its baselines, which may be what is too large;
    without event if it has ended."""
    if action.terminal:
        return Step(action)
    event = Event("unpublished", f"its outcome cannot be written: {reason}", code="outcome-refused")
    return Step(move(action.model_copy(update={"baselines": []}), event, now), event)


def is_watched(action: ActionState, now: datetime, rules: Rules) -> bool:
    """Return whether a verified action may still be rolled back."""
    if action.phase != "verified" or action.finished_at is None or not action.baselines:
        return False
    return now - action.finished_at <= timedelta(seconds=rules.capacity_watch_seconds)


def _intended(case: InFlight) -> Step:
    action, observed, answer = case.action, case.observed, case.observed.answer
    if isinstance(answer, Recorded):
        deadline_at = case.now + timedelta(seconds=case.rules.request_retry_seconds)
        deadline_at = min(deadline_at, action.deadline_at or deadline_at)
        instance = action.instance
        setting = f"setting {changes(action.before, action.wanted)}"
        if instance is None and case.snapshot.jobs is not None:
            return resubmission.begin(case, deadline_at)
        if instance is None:
            return managers.begin(case, setting, deadline_at, Request(action.wanted))
        return case.go(Timed("recorded", f"restarting {short_name(instance.id)}", deadline_at), Restart(instance))
    if isinstance(answer, Conflict):
        return case.go(
            Lost("lost", "another executor holds an action of this application", answer.current, code="in-flight")
        )
    if isinstance(answer, Rejected):
        return case.end("rejected", f"knowledge does not store the intent: {answer.reason}", "intent-rejected")
    policy = observed.policy or PolicyReading(False, reason="not read")
    refusal = observed.crowded or still_wanted(action, policy, case.snapshot, case.now, observed.planned_version)
    if refusal is not None:
        return case.end("outdated", refusal.sentence, refusal.code)
    if not policy.reachable or not case.snapshot.reachable or observed.contended:
        return case.stay()
    return case.stay(Record())


def _change(action: ActionState) -> Request | Restart:
    return Request(action.wanted) if action.instance is None else Restart(action.instance)


def _applying(case: InFlight) -> Step:
    action, snapshot = case.action, case.snapshot
    change = changes(action.before, action.wanted)
    if action.instance is not None:
        change = f"a restart of {short_name(action.instance.id)}"
    match case.observed.answer:
        case Accepted(at):
            return case.accepted("accepted", at, change)
        case Rejected(reason):
            return managers.give_up(case, "rejected", _refused(change, reason))
        case Refusal(code, sentence):
            return managers.give_up(case, "contested" if code == "contested" else "outdated", sentence, code)
    lost = case.job_lost()
    if lost is not None:
        return managers.give_up(case, "gone", lost.action.sentence, lost.action.code)
    if snapshot.reachable and snapshot.deployment is not None:
        requested = snapshot.deployment.requested
        if requested == action.wanted and (action.instance is None or snapshot.is_replaced(action.instance)):
            # The request went out right after this phase began, so that is nearer to its acceptance than now is.
            return case.accepted("found-requested", action.checked_at or case.now, change)
        target = rollback_target(action)
        if requested is not None and not _mixes(requested, target, action.wanted):
            foreign = case.contested(requested).action
            return managers.give_up(case, "contested", foreign.sentence, foreign.code)
        if snapshot.refusal is not None:
            sentence = _unfinished(snapshot.refusal.sentence, target, requested or target)
            return managers.give_up(case, "outdated", sentence, snapshot.refusal.code)
        if not case.is_late:
            return case.stay(_change(action))
    if not case.is_late:
        return case.stay()
    sentence = f"the request was not sent or not answered before {action.deadline_at:%H:%M:%S}"
    if not snapshot.reachable:
        sentence += after_colon(snapshot.reason)
    target, there = rollback_target(action), snapshot.deployment
    return managers.give_up(case, "unreachable", _unfinished(sentence, target, (there and there.requested) or target))


def _refused(request: str, reason: str) -> str:
    """The engine's own reason comes first: it is what a reader cannot know."""
    return fitted(f"the engine refused: {reason}", f"; asked for {request}")


def _unfinished(sentence: str, before: Parallelism, there: Parallelism) -> str:
    """Add the requirements that were written before a request ended early."""
    return sentence if before == there else f"{sentence}; {changes(before, there)} was written before"


def _verifying(case: InFlight) -> Step:
    present = case.present()
    if isinstance(present, Step):
        return present
    case, deployment = present
    action, snapshot = case.action, case.snapshot
    if deployment.requested not in (None, action.wanted):
        return case.contested(deployment.requested or {})
    eviction = case.eviction()
    if eviction is not None:
        return eviction
    if action.instance is not None:
        return _restarting(case, action.instance)
    extra = _extra_restarts(action, deployment) or 0
    if extra >= case.rules.restart_loop and _is_looping(case):
        return case.roll_back("restart-loop", f"the job restarted {counted(extra, 'time')} beyond the rescale itself")
    if snapshot.runs(action.wanted):
        return _began_to_run(case) if action.running_at is None else _settling(case, action.running_at)
    if case.is_late and snapshot.all_running:
        missing = changes(action.wanted, deployment.observed)
        sentence = f"past the deadline the job runs below the requested parallelism ({missing})"
        return case.roll_back("below-requested", sentence)
    progress = snapshot.progress
    if case.is_late:
        reason = progress.sentence if progress else ""
        reason = reason or f"the job is {deployment.state} and not all of its tasks run"
        return case.roll_back("not-running", f"past the deadline {reason}")
    if action.requested_at is None or action.running_at is not None:
        return case.stay()
    checkpoint = case.checkpoint(action.requested_at)
    if progress is not None and progress.is_worse_than(action.code):
        sentence = f"waiting for {changes(action.before, action.wanted)}: {progress.sentence}"
        return case.go(Event("waiting", sentence, code=progress.code), checkpoint)
    return case.stay(checkpoint)


def _restarting(case: InFlight, instance: InstanceRef) -> Step:
    """Wait until another process has the instance's place. Nothing else was changed, so there is nothing to roll back."""
    action, snapshot = case.action, case.snapshot
    is_replaced = snapshot.is_replaced(instance)
    if is_replaced and snapshot.runs(action.wanted):
        return _began_to_run(case) if action.running_at is None else _settling(case, action.running_at)
    if not case.is_late:
        return case.stay()
    progress = snapshot.progress.sentence if is_replaced and snapshot.progress else ""
    sentence = f"past the deadline the restart of {short_name(instance.id)} is not complete: "
    return case.end("stuck", sentence + (progress or "its process still runs"), "restart-failed")


def _began_to_run(case: InFlight) -> Step:
    """Record when the wanted parallelism began to run."""
    requested_at = case.action.change_began_at
    began = min(max(case.snapshot.steady_since or case.now, requested_at or case.now), case.now)
    took = (began - (requested_at or began)).total_seconds()
    action = case.action
    done = changes(action.before, action.wanted) if action.instance is None else _in_place_of(action.instance)
    sentence = f"{done} is running, {took:.1f} s after the request"
    return case.go(Running("running", sentence, case.now + case.limit(), began))


def _in_place_of(instance: InstanceRef) -> str:
    return f"the instance in place of {short_name(instance.id)}"


def _settling(case: InFlight, running_at: datetime) -> Step:
    """Verify once the wanted parallelism ran without a restart for a while, with the capacity it had before."""
    # From here on the deadline is for running again after a restart.
    case = replace(case, action=case.action.model_copy(update={"deadline_at": case.now + case.limit()}))
    comparison = judge(case.action, case.observed.analysis, case.rules)
    if comparison.kind == "worse":
        return case.roll_back("worse", comparison.sentence, code="capacity-worse")
    steady_since = max(running_at, case.snapshot.steady_since or case.now)
    if case.now - steady_since < timedelta(seconds=case.rules.settle_seconds):
        return case.stay()
    took, instance = case.action.restart_seconds or 0.0, case.action.instance
    if instance is not None:
        sentence = f"{_in_place_of(instance)} settled, {took:.1f} s from request to running"
        return case.end("healthy", sentence, code="verified")
    return managers.settle(
        case,
        "healthy",
        f"{changes(case.action.before, case.action.wanted)} settled, {took:.1f} s from request to running",
        "verified",
        "; capacity holds" if comparison.kind == "fine" else "; capacity is not judged yet",
        f": {comparison.sentence}",
    )


def _rolling_back(case: InFlight) -> Step:
    target = rollback_target(case.action)
    again = f"{sizes(target)} again"
    if case.action.rollback_requested_at is None:
        match case.observed.answer:
            case Accepted(at):
                return case.accepted("accepted", at, again, code="rollback-requested")
            case Rejected(reason):
                sentence = _refused(f"the return to {sizes(target)}", reason)
                return case.end("rejected", sentence, code="rollback-rejected")
            case Refusal(code, sentence):
                return case.end("contested", sentence, code)
    present = case.present()
    if isinstance(present, Step):
        return present
    case, deployment = present
    action, requested = case.action, deployment.requested
    if requested is not None and not _mixes(requested, target, action.wanted):
        return case.contested(requested)
    if action.rollback_requested_at is not None:
        return case.eviction() or _returning(case, action.rollback_requested_at, deployment.state)
    if requested == target:
        return case.accepted("found-requested", case.now, again, code="rollback-requested")
    if not case.is_late:
        return case.stay(Request(target))
    sentence = f"the request to return to {sizes(target)} was not answered"
    return case.end("unreachable", sentence, code="rollback-unreachable")


def _returning(case: InFlight, requested_at: datetime, state: str) -> Step:
    target = rollback_target(case.action)
    if case.snapshot.runs(target) or case.snapshot.runs(case.action.before):
        return managers.settle(case, "restored", f"{sizes(target)} runs again", "rolled-back")
    if case.is_late:
        progress = case.snapshot.progress.sentence if case.snapshot.progress else ""
        reason = progress or f"the job is {state}"
        sentence = f"{sizes(target)} was requested again but does not run, {reason}: check the job"
        return case.end("stuck", sentence, code="rollback-stuck")
    return case.stay(managers.brings_back(case) or case.checkpoint(requested_at))


def _mixes(requested: Parallelism, one: Parallelism, other: Parallelism) -> bool:
    """Return whether each operator's requirement is of one of two vectors: a driver may write operators one after
    another."""
    return requested.keys() == one.keys() and all(p in (one[name], other.get(name)) for name, p in requested.items())


def _extra_restarts(action: ActionState, deployment: Deployment) -> int | None:
    """Return the restarts beyond the rescale's own; None while either count is unknown."""
    count, before = deployment.restarts, action.restarts_before
    if action.resubmission is not None:
        return count  # the successor is another job, and its first start is none
    return None if count is None or before is None or count < before else max(0, count - before - 1)


def _is_looping(case: InFlight) -> bool:
    """Return whether the restarts are due to the new parallelism: they persist, continue, and no slots are missing.

    The loss of a TaskManager restarts a job several times, too, until the cluster has noticed and while slots are
    missing.
    """
    action, snapshot, analysis = case.action, case.snapshot, case.observed.analysis
    began = action.running_at or action.requested_at or case.now
    if case.now - began < timedelta(seconds=case.rules.restart_loop_seconds):
        return False
    steady = case.now - (snapshot.steady_since or case.now)
    if snapshot.all_running and steady >= timedelta(seconds=case.rules.settle_seconds / 2):
        return False
    slots = analysis.deployment.slots if analysis and analysis.deployment else None
    if slots is None or analysis is None or analysis.topology is None:
        return True
    return slots.total >= analysis.topology.slots(action.before)


_STEPS: dict[str, Callable[[InFlight], Step]] = {
    "intended": _intended,
    "preparing": managers.preparing,
    "applying": _applying,
    "verifying": _verifying,
    "releasing": managers.releasing,
    "rolling-back": _rolling_back,
}
