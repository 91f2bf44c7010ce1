"""TaskManagers of an action: brought before its request, given back or released after it. Capacity comes before it is
asked for, and goes after it is no longer used.

Invariants: TaskManagers go in phase `releasing` only, and never below the number that the job's requirements need. What
cannot go is kept and reported, which is no failure.
"""

from datetime import datetime, timedelta
from typing import Literal

from weir_contracts import (
    MAX_SENTENCE,
    ActionEnding,
    ActionState,
    ManagerChange,
    Parallelism,
    after_colon,
    bounded,
    changes,
    counted,
    fitted,
)
from weir_engines.driver import Accepted, Refusal, Rejected, Snapshot, TaskManagers, contested
from weir_executor.core.observed import Provide, Request, Step

from .history import rollback_target
from .in_flight import InFlight
from .table import Ending, Event, EventName, ManagersBrought, ManagersChange, Prepared, Timed

KEPT = "managers-kept"
"""Code of an end with TaskManagers that could not be released."""
CONTESTED = "managers-contested"
"""Code of an end because another client set the number of TaskManagers meanwhile."""
LATE = "managers-late"
"""Code of an end because TaskManagers did not register in time."""
SHOWN_SECONDS = 5.0
"""How long the target may still report the number of before a request."""
_ENDS: dict[str, EventName] = {"verified": "healthy", "rolled-back": "restored", "failed": "given-back"}


def managers_counted(count: int) -> str:
    """Format as `1 TaskManager`, `3 TaskManagers`."""
    return counted(count, "TaskManager")


def managers_needed(snapshot: Snapshot, parallelism: Parallelism) -> int | None:
    """Return the number of TaskManagers with which the job has its slots next to the cluster's other jobs; None: unknown.

    A slot-sharing group takes as many slots as its largest parallelism.
    """
    there, deployment, topology = snapshot.managers, snapshot.deployment, snapshot.topology
    if there is None or deployment is None or topology is None or set(parallelism) != set(topology.names):
        return None
    others = there.others_slots or 0
    if (
        there.others_slots is None
        and snapshot.all_running
        and there.registered_slots is not None
        and there.free_slots is not None
    ):
        others = max(0, there.registered_slots - there.free_slots - topology.slots(deployment.observed))
    return there.needed(topology.slots(parallelism) + others)


def managers_refusal(snapshot: Snapshot, wanted: Parallelism) -> Refusal | None:
    """Return why an action that may need another number of TaskManagers cannot begin, or None."""
    there = snapshot.managers
    if there is None:
        return None
    if there.refusal is not None:
        return there.refusal
    if there.wanted is None:
        return Refusal("unreachable", f"the TaskManagers cannot be read: {there.reason}")
    needed = managers_needed(snapshot, wanted)
    if needed is not None and needed > max(there.max, there.wanted):
        text = f"{managers_counted(needed)} are needed, the policy allows {there.max} of {counted(there.slots, 'slot')}"
        return Refusal("slots", text)
    return None


def change_of(action: ActionState, snapshot: Snapshot) -> ManagerChange | None:
    """Return the TaskManagers that an action brings or releases; None: their number stays, or it is unknown."""
    there, needed = snapshot.managers, managers_needed(snapshot, action.wanted)
    if (
        action.instance is not None
        or needed is None
        or there is None
        or there.wanted is None
        or snapshot.topology is None
    ):
        return None
    slots = snapshot.topology.slots
    shrinks = slots(action.wanted) < slots(rollback_target(action))
    if needed > there.wanted or (shrinks and needed < there.wanted):
        return ManagerChange(before=there.wanted, wanted=needed)
    return ManagerChange(before=there.wanted, wanted=there.wanted) if _lacks_slots(there, needed) else None


def _lacks_slots(there: TaskManagers, needed: int) -> bool:
    """Return whether TaskManagers that were requested before, and are needed, have not registered yet."""
    return there.registered_slots is not None and there.registered_slots < needed * there.slots


def begin(case: InFlight, sentence: str, deadline_at: datetime, request: Request) -> Step:
    """Send the request, or first bring the TaskManagers that it needs."""
    change = change_of(case.action, case.snapshot)
    if change is None:
        return case.go(Timed("recorded", sentence, deadline_at), request)
    if change.wanted < change.before:
        return case.go(ManagersChange("recorded", sentence, deadline_at, change), request)
    missing = change.wanted - change.before
    brings = f"bringing {managers_counted(missing)}" if missing else f"waiting for {managers_counted(change.wanted)}"
    what = fitted(f"{brings} for {changes(case.action.before, case.action.wanted)}")
    return case.go(ManagersChange("short-of-managers", what, deadline_at, change), Provide(change.wanted))


def preparing(case: InFlight) -> Step:
    """Bring TaskManagers, and wait until all of their slots are registered."""
    action, change, snapshot = case.action, case.action.managers, case.snapshot
    if change is None:
        return case.end("outdated", "it is not recorded which TaskManagers are needed", "outdated")
    match case.observed.answer:
        case Accepted(at):
            return _brought(case, change, at)
        case Rejected(reason):
            return give_up(case, "rejected", f"the TaskManagers were refused: {reason}")
        case Refusal() as refusal:
            return _held(case, refusal)
    lost = case.job_lost()
    if lost is not None:
        return give_up(case, "gone", lost.action.sentence, lost.action.code)
    there = snapshot.managers
    was_seen = change.brought_at is not None and case.now - change.brought_at > timedelta(seconds=SHOWN_SECONDS)
    if there is not None and there.wanted is not None:
        if there.wanted not in (change.before, change.wanted) or (there.wanted != change.wanted and was_seen):
            # The other client's number stays, also if it is what there was before.
            return _held(case, contested(managers_counted(there.wanted)))
        if change.brought_at is None and there.wanted == change.wanted:
            return _brought(case, change, action.checked_at or case.now)
        if change.brought_at is not None and _are_ready(case, there, change) and snapshot.reachable:
            return _prepared(case, change, change.brought_at)
        if there.refusal is not None and not case.is_late:
            return give_up(case, "outdated", there.refusal.sentence, there.refusal.code)
        if not case.is_late and there.wanted == change.wanted:
            return _waiting(case, there)
    if not case.is_late:
        is_due = there is not None and there.wanted == change.before and change.brought_at is None
        return case.stay(Provide(change.wanted) if is_due else None)
    return _too_late(case, change, there)


def _held(case: InFlight, refusal: Refusal) -> Step:
    """End the action, or give back; a number that another client set stays."""
    if refusal.code == "contested":
        return case.end("contested", refusal.sentence, CONTESTED)
    return give_up(case, "outdated", refusal.sentence, refusal.code)


def _brought(case: InFlight, change: ManagerChange, at: datetime) -> Step:
    limit = timedelta(seconds=case.rules.container_start_seconds)
    there = case.snapshot.managers
    if there is not None and there.one_by_one:
        limit *= max(1, change.wanted - change.before)
    sentence = f"{managers_counted(change.wanted)} requested, which have {limit.total_seconds():.0f} s to register"
    return case.go(ManagersBrought("brought", sentence, max(at, case.now) + limit, at))


def _are_ready(case: InFlight, there: TaskManagers, change: ManagerChange) -> bool:
    needed = min(change.wanted, managers_needed(case.snapshot, case.action.wanted) or change.wanted)
    enough = there.registered_slots is not None and there.registered_slots >= needed * there.slots
    return enough and (there.is_settled or needed < change.wanted)


def _prepared(case: InFlight, change: ManagerChange, brought_at: datetime) -> Step:
    took = max(0.0, (case.now - brought_at).total_seconds())
    deadline_at = case.now + timedelta(seconds=case.rules.request_retry_seconds)
    action = case.action
    sentence = fitted(
        f"setting {changes(action.before, action.wanted)}",
        f"; {managers_counted(change.wanted)} registered {took:.1f} s after the request",
    )
    return case.go(Prepared("prepared", sentence, deadline_at, case.now), Request(action.wanted))


def _waiting(case: InFlight, there: TaskManagers) -> Step:
    progress = there.progress
    if progress is None or not progress.is_worse_than(case.action.code):
        return case.stay()
    return case.go(Event("waiting", f"waiting for TaskManagers: {progress.sentence}", code=progress.code))


def _too_late(case: InFlight, change: ManagerChange, there: TaskManagers | None) -> Step:
    snapshot = case.snapshot
    if not snapshot.reachable:
        return give_up(
            case, "unreachable", f"past the deadline the job cannot be reached{after_colon(snapshot.reason)}"
        )
    if there is None or there.wanted is None:
        reason = after_colon(there.reason if there is not None else "")
        return give_up(case, "unreachable", f"past the deadline the TaskManagers cannot be read{reason}")
    if change.brought_at is None:
        return give_up(case, "unreachable", "the request for TaskManagers was not sent or not answered in time")
    slots = there.registered_slots
    come = "an unknown number" if slots is None else f"{min(slots // there.slots, change.wanted)}"
    sentence = f"past the deadline {come} of {managers_counted(change.wanted)} registered"
    if slots is not None and slots >= change.wanted * there.slots:
        sentence = f"past the deadline not all of {managers_counted(change.wanted)} are ready"
    why = after_colon(there.progress.sentence) if there.progress is not None else ""
    return give_up(case, "late", fitted(sentence, why), LATE)


# -- give back, release ------------------------------------------------------------------------------------------------


def give_up(case: InFlight, name: EventName, sentence: str, code: str = "") -> Step:
    """End an action as failed, after what it brought is given back."""
    change, there = case.action.managers, case.snapshot.managers
    nothing = change is None or change.wanted <= change.before
    if not nothing and change is not None and there is not None and there.wanted is not None:
        nothing = there.wanted <= change.before
    if nothing:
        return case.end(name, sentence, code)
    return _release(case, "given-up", ActionEnding(phase="failed", code=code or name, sentence=fitted(sentence)))


def settle(case: InFlight, name: EventName, sentence: str, code: str, *details: str) -> Step:
    """End an action that runs as it should (`healthy`), or is undone (`restored`), after the TaskManagers that it does not
    need are released."""
    change = case.action.managers
    is_healthy = name == "healthy"
    spare = change is not None and (change.wanted < change.before if is_healthy else change.wanted > change.before)
    if not spare:
        return case.end(name, fitted(sentence, *details), code)
    phase: Literal["verified", "rolled-back"] = "verified" if is_healthy else "rolled-back"
    return _release(case, "settled", ActionEnding(phase=phase, code=code, sentence=fitted(sentence)))


def _release(case: InFlight, name: EventName, ending: ActionEnding) -> Step:
    change = case.action.managers
    count = 0 if change is None else abs(change.wanted - change.before)
    deadline_at = case.now + timedelta(seconds=case.rules.container_start_seconds) + case.limit()
    back = "gives back" if ending.phase == "failed" else "releases"
    sentence = _noted(ending.sentence, f"; {back} {managers_counted(count)}")
    return case.go(Ending(name, sentence, deadline_at, ending, code=ending.code))


def _noted(text: str, note: str, *details: str) -> str:
    """Return a sentence that ends with `note`, whatever of `text` has to be cut for it."""
    return fitted(bounded(text, MAX_SENTENCE - len(note)) + note, *details)


def releasing(case: InFlight) -> Step:
    """Release TaskManagers, then end the action as was decided before."""
    action, snapshot = case.action, case.snapshot
    change, there = action.managers, snapshot.managers
    if change is None or change.ending is None:
        return case.end("given-back", "it is not recorded which TaskManagers may go", "outdated")
    ending, answer = change.ending, case.observed.answer
    if isinstance(answer, Rejected | Refusal):
        return _end(case, ending, kept=answer.reason if isinstance(answer, Rejected) else answer.sentence)
    if ending.phase != "failed":
        lost = case.job_lost()
        expected, deployment = (
            action.wanted if ending.phase == "verified" else rollback_target(action),
            snapshot.deployment,
        )
        if lost is not None:
            return lost
        if deployment is not None and deployment.requested not in (None, expected):
            return case.contested(deployment.requested or {})
    if there is None or there.wanted is None or not snapshot.reachable:
        reason = snapshot.reason if not snapshot.reachable or there is None else there.reason
        return _end(case, ending, kept=reason or "they cannot be read") if case.is_late else case.stay()
    own, in_use = _goals(change, ending, snapshot, there)
    if there.wanted <= own:
        return _released(case, ending, there)
    return _going(case, ending, there, max(0, there.wanted - in_use))


def _released(case: InFlight, ending: ActionEnding, there: TaskManagers) -> Step:
    """End the action once the released TaskManagers have left and the job runs without them; it may restart once."""
    runs = _is_calm(case.snapshot)
    if not case.is_late and not (there.is_settled and runs):
        return case.stay()
    if ending.phase == "verified" and not runs:
        return case.roll_back("not-running", "the job does not run without the TaskManagers released")
    return _end(case, ending)


def _going(case: InFlight, ending: ActionEnding, there: TaskManagers, spare: int) -> Step:
    """Release as many of the spare ones as may go now."""
    if there.refusal is not None:
        return _end(case, ending, kept=there.refusal.sentence)
    if case.observed.answer is not None:  # the next observation shows what it led to
        return case.stay()
    if case.is_late:
        return _end(
            case,
            ending,
            kept="they did not go in time" if spare and there.releasable is None else "their slots are in use",
        )
    count = spare if there.releasable is None else min(spare, there.releasable)
    return case.stay(Provide((there.wanted or 0) - count) if count > 0 and _is_calm(case.snapshot) else None)


def _is_calm(snapshot: Snapshot) -> bool:
    """Return whether all subtasks run, or there is no job any more."""
    deployment = snapshot.deployment
    return deployment is None or deployment.is_final or snapshot.all_running


def _goals(change: ManagerChange, ending: ActionEnding, snapshot: Snapshot, there: TaskManagers) -> tuple[int, int]:
    """Return the number to release to in the end, never below what the job's requirements and its running subtasks need, and
    the one below which slots are in use now: of other jobs, or of this one, which holds unused ones for a while."""
    deployment, topology = snapshot.deployment, snapshot.topology
    goal = change.wanted if ending.phase == "verified" else change.before
    if deployment is None or deployment.is_final:
        used = there.others_slots
        if used is None and there.registered_slots is not None and there.free_slots is not None:
            used = there.registered_slots - there.free_slots
        return goal, max(goal, there.needed(used or 0))
    requested = deployment.requested or deployment.observed
    most = {name: max(p, requested.get(name, p)) for name, p in deployment.observed.items()}
    own = goal if topology is None else max(goal, there.needed(topology.slots(most)))
    return own, max(own, managers_needed(snapshot, most) or 0)


def _end(case: InFlight, ending: ActionEnding, *, kept: str = "") -> Step:
    """End the action. TaskManagers that are still there beyond its goal are reported."""
    change, there = case.action.managers, case.snapshot.managers
    goal = 0 if change is None else change.wanted if ending.phase == "verified" else change.before
    count = None if there is None or there.wanted is None else there.wanted
    beyond = count is None or count > goal
    if not beyond and count is not None:
        sentence = _noted(ending.sentence, f"; {managers_counted(count)} now")
        return case.end(_ENDS[ending.phase], sentence, ending.code)
    many = (
        "TaskManagers are"
        if count is None
        else f"{managers_counted(count - goal)} {'is' if count - goal == 1 else 'are'}"
    )
    code = ending.code if ending.phase == "failed" else KEPT
    sentence = _noted(ending.sentence, f"; {many} kept", after_colon(kept or "the job needs them"))
    return case.end(_ENDS[ending.phase], sentence, code)


def brings_back(case: InFlight) -> Provide | None:
    """Return the instruction to bring the TaskManagers again that a rollback needs; None: they are there, or Weir does not
    set their number."""
    change, there = case.action.managers, case.snapshot.managers
    if change is None or there is None or there.wanted is None or there.refusal is not None:
        return None
    if case.observed.answer is not None or case.is_late:  # once an observation
        return None
    wanted = min(change.before, max(there.max, there.wanted))
    return Provide(wanted) if there.wanted < wanted else None
