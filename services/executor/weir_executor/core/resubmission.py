"""Actions that stop a job with a savepoint and run its successor from it, for a job that cannot be rescaled in place.

Invariants: a job is stopped only by a plan that is still wanted. Once its stop may be under way the action ends only with a
job that runs, or with a sentence that names the savepoint or its folder. The successor and the job that replaces it have ids
that follow from the action's, so that each is started once, and the second one only after Flink has refused the first or shows
that it does not run. A successor that has completed a checkpoint is not replaced: the savepoint would repeat what it has
processed.
"""

from datetime import datetime, timedelta

from weir_contracts import (
    MAX_SENTENCE,
    Parallelism,
    Resubmission,
    after_colon,
    bounded,
    changes,
    derive_id,
    fitted,
    short_name,
    sizes,
)
from weir_engines.driver import (
    LINEAGE_CHARACTERS,
    Accepted,
    Refusal,
    Rejected,
    Snapshot,
    Stopped,
    Unanswered,
    lineage_of,
)
from weir_executor.core.observed import RunJob, Step, StopJob

from .history import rollback_target
from .in_flight import InFlight
from .table import Event, EventName, JobStop, RequestAccepted, Timed

FAILED = "savepoint-failed"
"""Code of an end because the job could not be stopped with a savepoint, so that it runs on."""
SLOW = "savepoint-slow"
"""Code of a savepoint that is under way for longer than expected."""
RUN_SLOW = "run-slow"
"""Code of a run that is not answered for longer than expected."""
MAX_LOCATION = 80
"""Characters of a savepoint's location in a sentence, of its end. The action's state has all of it."""


def resubmission_refusal(snapshot: Snapshot, wanted: Parallelism) -> Refusal | None:
    """Return why the job may not be stopped for a parallelism, or None."""
    there, topology = snapshot.jobs, snapshot.topology
    if there is None:
        return None
    if there.refusal is not None:
        return there.refusal
    if topology is None or not there.jar:
        return Refusal("unreachable", "the job's graph or its jar cannot be read")
    for operator in topology.operators:
        limit, p = operator.max_parallelism, wanted.get(operator.name, 1)
        if limit is not None and p > limit:
            return Refusal("key-groups", f"{short_name(operator.name)} has {limit} key groups and cannot run at {p}")
    levels = set(wanted.values())
    if there.has_one_parallelism and len(levels) > 1:
        return Refusal(
            "unsupported",
            "this version of Flink runs a jar with one parallelism for all operators: set target.flink.resubmit.uniform",
        )
    return None


def begin(case: InFlight, deadline_at: datetime) -> Step:
    """Record which job is stopped and what follows it, then stop it."""
    action, there, topology = case.action, case.snapshot.jobs, case.snapshot.topology
    if there is not None and there.is_over:
        return case.end("outdated", f"the job is {there.state}", "other-deployment")
    refusal = resubmission_refusal(case.snapshot, action.wanted)
    if refusal is not None and refusal.code == "unreachable":
        return case.stay()  # the intent expires with its plan
    if refusal is not None or there is None or topology is None:
        return case.end("outdated", refusal.sentence if refusal else "the job is not observed", "outdated")
    lineage = lineage_of(there.newest)
    record = Resubmission(
        stopped_job=there.newest,
        successor=lineage + derive_id(action.id, "successor").hex[:LINEAGE_CHARACTERS],
        restored=lineage + derive_id(action.id, "restored").hex[:LINEAGE_CHARACTERS],
        jar=there.jar,
        parallelism=there.parallelism,
        vertices={operator.name: operator.id for operator in topology.operators},
    )
    sentence = fitted(f"stopping the job with a savepoint for {changes(action.before, action.wanted)}")
    return case.go(JobStop("to-stop", sentence, deadline_at, record), StopJob())


def step(case: InFlight) -> Step | None:
    """Return the step of an action that stops its job; None: the phase's usual step."""
    record = case.action.resubmission
    if record is None:
        return None
    match case.action.phase:
        case "preparing":
            return _preparing(case, record)
        case "applying":
            return _applying(case, record)
        case "verifying":
            return _verifying(case, record)
        case "rolling-back":
            return _rolling_back(case, record)
    return None


def _preparing(case: InFlight, record: Resubmission) -> Step:
    """Wait until the job is stopped. Only Flink's answer ends that: a stop under way may complete at any time."""
    is_accepted = record.stop_requested_at is not None
    match case.observed.answer:
        case Stopped(at, savepoint):
            return _stopped(case, record, at, savepoint)
        case Accepted(at):
            return _stopping(case, record, at)
        case Unanswered(is_sent=True) if not is_accepted:
            return _stopping(case, record, case.now)
        case Rejected(reason):
            there = case.snapshot.jobs
            state = f"is {there.state}" if there is not None and there.is_over else "runs on"
            return case.end("rejected", fitted(f"the job {state}, its savepoint failed: {reason}"), FAILED)
        case Refusal("unreachable") if is_accepted and not case.is_late:
            return case.stay()  # one that was not answered may still begin
        case Refusal(code, sentence):
            return case.end("contested" if code == "contested" else "outdated", _with_savepoint(sentence, record), code)
    if not case.snapshot.reachable:
        return _out_of_sight(case, record) if is_accepted or case.is_late else case.stay()
    return _replaced(case, record) or case.stay(StopJob(begins=not (is_accepted or case.is_late)))


def _stopping(case: InFlight, record: Resubmission, at: datetime) -> Step:
    if record.stop_requested_at is None:
        limit = case.limit()
        sentence = f"the savepoint is under way, expected within {limit.total_seconds():.0f} s"
        changed = record.model_copy(update={"stop_requested_at": at})
        return case.go(JobStop("stopping", sentence, at + limit, changed))
    if not case.is_late or case.action.code == SLOW:
        return case.stay()
    seconds = (case.now - record.stop_requested_at).total_seconds()
    return case.go(Event("waiting", f"the savepoint is still under way after {seconds:.0f} s", code=SLOW))


def _stopped(case: InFlight, record: Resubmission, at: datetime, savepoint: str) -> Step:
    stop_requested_at = record.stop_requested_at or case.action.checked_at or at
    changed = record.model_copy(
        update={"savepoint": savepoint, "stopped_at": at, "stop_requested_at": stop_requested_at}
    )
    deadline_at = case.now + timedelta(seconds=case.rules.request_retry_seconds)
    sentence = _with_savepoint(f"running {changes(case.action.before, case.action.wanted)}", changed)
    return case.go(JobStop("stopped", sentence, deadline_at, changed), RunJob(case.action.wanted))


def _applying(case: InFlight, record: Resubmission) -> Step:
    """Run the successor. One that is refused, or not started in time, is replaced by the former parallelism."""
    action, there = case.action, case.snapshot.jobs
    change = changes(action.before, action.wanted)
    match case.observed.answer:
        case Accepted(at):
            return _requested(case, "accepted", at, change)
        case Rejected(reason):
            return _restore(case, record, f"the engine refused: {reason}")
        case Refusal(code, sentence):
            return case.end("contested" if code == "contested" else "outdated", _with_savepoint(sentence, record), code)
    if not case.snapshot.reachable:
        return _out_of_sight(case, record)
    if there is not None and there.newest == record.successor:
        return _requested(case, "found-requested", action.checked_at or case.now, change)
    replaced = _replaced(case, record)
    if replaced is not None:
        return replaced
    # Not the former parallelism instead: a run that was not answered may still submit the successor.
    return _repeated(case, record, _run(case))


def _run(case: InFlight, *, former: bool = False) -> RunJob:
    return RunJob(rollback_target(case.action) if former else case.action.wanted, former)


def _requested(case: InFlight, name: EventName, at: datetime, change: str, code: str = "") -> Step:
    limit = _limit(case)
    sentence = f"requested {change}, which has {limit.total_seconds():.0f} s to run"
    return case.go(RequestAccepted(name, sentence, at + limit, at, code=code))


def _limit(case: InFlight) -> timedelta:
    """Return the time limit of a start, while the cluster may show no job whose settings say more."""
    analysis, rules = case.observed.analysis, case.rules
    restart = None if analysis is None else analysis.restart_times.seconds
    usual = rules.restart_estimate_seconds if restart is None else restart
    return timedelta(seconds=rules.container_start_seconds + max(rules.deadline_floor_seconds, usual))


def _restore(case: InFlight, record: Resubmission, reason: str) -> Step:
    """Run the former parallelism from the savepoint."""
    sentence = f"{bounded(reason, 110)}: back to {sizes(rollback_target(case.action))}"
    return case.go(Timed("not-running", sentence, case.now + _limit(case)), _run(case, former=True))


def _verifying(case: InFlight, record: Resubmission) -> Step | None:
    """Return the step of a successor that does not run, or None: it is observed as any job."""
    snapshot, there = case.snapshot, case.snapshot.jobs
    if not snapshot.reachable or there is None:
        return None
    replaced = _replaced(case, record)
    if replaced is not None:
        return replaced
    is_there = there.newest == record.successor
    if is_there and there.is_over:
        if there.state != "FAILED":
            return case.end("gone", f"the job is {there.state}", "job-gone")
        return case.roll_back("not-running", f"the successor is FAILED{after_colon(snapshot.reason)}")
    if is_there and snapshot.deployment is not None:
        runs_at = snapshot.deployment.requested
        if runs_at not in (None, case.action.wanted):
            own = changes(case.action.wanted, runs_at or {})
            return case.roll_back("below-requested", bounded(f"the jar's code sets {own}", 110))
        return None
    if not case.is_late or (is_there and case.action.running_at is not None):
        return case.stay()  # one that has run and is recovered by a new JobManager has no graph for a while
    state = f"is {there.state}" if is_there else "is missing"
    return case.roll_back("not-running", f"past the deadline the successor {state}")


def _rolling_back(case: InFlight, record: Resubmission) -> Step:
    """Run the former parallelism from the savepoint, in place of the successor."""
    action, snapshot, there = case.action, case.snapshot, case.snapshot.jobs
    target = rollback_target(action)
    is_requested = action.rollback_requested_at is not None
    if not is_requested:
        again = f"{sizes(target)} again"
        match case.observed.answer:
            case Accepted(at):
                return _requested(case, "accepted", at, again, "rollback-requested")
            case Rejected() if not case.is_late:
                return case.stay()  # the main method may lack what comes back, such as its brokers: it is run again
            case Rejected(reason):
                sentence = _with_savepoint(f"the job is stopped, the engine refused: {reason}", record)
                return case.end("rejected", sentence, "rollback-rejected")
            case Refusal(code, sentence):
                return case.end("contested", _with_savepoint(sentence, record), code)
    if not snapshot.reachable or there is None:
        return _out_of_sight(case, record)
    replaced = _replaced(case, record)
    if replaced is not None:
        return replaced
    is_there = there.newest == record.restored
    if is_there and not is_requested:
        return _requested(case, "found-requested", case.now, f"{sizes(target)} again", "rollback-requested")
    if is_there and snapshot.runs(target):
        return case.end("restored", _with_savepoint(f"{sizes(target)} runs again", record), "rolled-back")
    if is_there and there.is_over:
        sentence = _with_savepoint(f"{sizes(target)} was started again and is {there.state}", record)
        return case.end("stuck", sentence, "rollback-stuck")
    if not is_requested:
        return _repeated(case, record, _run(case, former=True))
    if not case.is_late:
        return case.stay()
    state = there.state if is_there else "missing"
    sentence = _with_savepoint(f"{sizes(target)} was started again but does not run, it is {state}", record)
    return case.end("stuck", sentence, "rollback-stuck")


def _repeated(case: InFlight, record: Resubmission, run: RunJob) -> Step:
    """Repeat a run until Flink answers it, as long as for a cluster that is unreachable."""
    waited = case.now - (case.action.checked_at or case.action.started_at)
    if case.is_late and case.action.code != RUN_SLOW:
        sentence = f"Flink has not answered a run of {sizes(run.parallelism)} for {waited.total_seconds():.0f} s, it is repeated"
        return case.go(Event("waiting", _with_savepoint(sentence, record), code=RUN_SLOW), run)
    if waited <= timedelta(seconds=case.rules.stopped_limit_seconds):
        return case.stay(run)
    sentence = f"the job is stopped, {sizes(run.parallelism)} was not started in {waited.total_seconds() / 3600:.0f} h"
    code = "rollback-unreachable" if run.former else "unreachable"
    return case.end("unreachable", _with_savepoint(sentence, record), code)


def _replaced(case: InFlight, record: Resubmission) -> Step | None:
    """Return the end of an action whose job another client replaced, or None."""
    there = case.snapshot.jobs
    if there is None:
        text = "the policy does not say any more how the job is run"
        return case.end("gone", _with_savepoint(text, record, may_be_stopped=True), "job-gone")
    if there.newest in (record.stopped_job, record.successor, record.restored):
        return None
    if not there.newest:
        return None  # Flink forgets a stopped job, and leaves out one whose JobMaster is slow: its answer to the stop counts
    sentence = f"job {record.stopped_job} was replaced by {there.newest}"
    return case.end("gone", _with_savepoint(sentence, record), "job-gone")


def _out_of_sight(case: InFlight, record: Resubmission) -> Step:
    """Wait for a cluster that is unreachable while the job is, or may be, stopped."""
    action = case.action
    unobserved = case.now - (action.checked_at or action.started_at)
    if unobserved <= timedelta(seconds=case.rules.stopped_limit_seconds):
        return case.stay()
    hours = unobserved.total_seconds() / 3600
    sentence = f"the target was unreachable for {hours:.0f} h while its job is stopped"
    return case.end("unreachable", _with_savepoint(sentence, record), "unreachable")


def _with_savepoint(text: str, record: Resubmission, *, may_be_stopped: bool = False) -> str:
    """Return a sentence that ends with the savepoint, whatever of `text` has to be cut for it."""
    location = record.savepoint
    if location is None and record.stop_requested_at is None and not may_be_stopped:
        return fitted(text)
    if location is None:
        note = f"; if the job is stopped, its savepoint is in {record.folder}"
    else:
        note = f"; savepoint {location if len(location) <= MAX_LOCATION else '…' + location[1 - MAX_LOCATION :]}"
    return bounded(text, MAX_SENTENCE - len(note)) + note
