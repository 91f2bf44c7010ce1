"""An action in flight with its observed state: its deadlines, computed from the cluster's settings, and the steps that
phases share.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from weir_contracts import (
    MAX_SENTENCE,
    ActionState,
    Analysis,
    Deployment,
    Parallelism,
    bounded,
    changes,
    counted,
    listed,
    sizes,
)
from weir_engines.driver import Evicted, Snapshot, contested
from weir_executor.core.observed import Evict, Instruction, Observed, Request, RunJob, Step, TriggerCheckpoint, writer

from .history import rollback_target
from .parameters import Rules
from .table import Event, EventName, RequestAccepted, Timed, move

# Flink 2.x, where the cluster does not say otherwise (`jobmanager.adaptive-scheduler.…`).
DEFAULT_COOLDOWN_SECONDS = 30.0
DEFAULT_STABILIZATION_SECONDS = 60.0
DEFAULT_CHECKPOINT_FAILURES = 2
UNKNOWN_CHECKPOINT_SECONDS = 10.0

PROGRESSED = "not-rolled-back"
"""Code of an end with a successor that does not run as it should, but has completed a checkpoint."""
SLACK_SECONDS = 0.5
"""Tolerance for engine times, which are rounded to milliseconds and read from another clock."""
MAX_GAP_SECONDS = 5.0
"""A gap in observations longer than this does not count against a deadline."""
_WITHOUT_RELEASE = frozenset({"gone", "contested", "unreachable", "stuck", "rejected"})
"""Events that end an action at once, whatever TaskManagers it brought."""
MAX_INSTANCE_LENGTH = 20
"""Characters of an instance's id in a list of them."""


@dataclass(frozen=True)
class InFlight:
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
        kept = self._kept_managers() if name in _WITHOUT_RELEASE else ""
        return self.go(Event(name, bounded(sentence, MAX_SENTENCE - len(kept)) + kept, code=code))

    def _kept_managers(self) -> str:
        """Return the note on TaskManagers that an end without their release leaves; empty if it leaves none."""
        action, there = self.action, self.snapshot.managers
        change = action.managers
        if change is None or action.phase not in ("verifying", "releasing", "rolling-back"):
            return ""
        is_done = action.phase == "releasing" and change.wanted < change.before
        goal = change.wanted if is_done else change.before
        if there is None or there.wanted is None:
            return "; TaskManagers are kept" if is_done or change.wanted > change.before else ""
        beyond = there.wanted - goal
        return f"; {counted(beyond, 'TaskManager')} {'is' if beyond == 1 else 'are'} kept" if beyond > 0 else ""

    def accepted(self, name: EventName, at: datetime, change: str, code: str = "") -> Step:
        """Wait for the requested parallelism to run; a rescale may wait for a checkpoint, so trigger one."""
        limit = self.limit()
        sentence = f"requested {change}, which has {limit.total_seconds():.0f} s to run"
        return self.go(RequestAccepted(name, sentence, at + limit, at, code=code), self.checkpoint())

    def roll_back(self, name: EventName, reason: str, code: str = "") -> Step:
        """Roll back, unless the target takes no request: a rollout may itself be the reason for what was observed."""
        target, refusal = rollback_target(self.action), self.snapshot.refusal
        if refusal is not None:
            sentence = f"not rolled back to {sizes(target)}: {refusal.sentence}"
            return self.end("contested", sentence, refusal.code)
        deployment = self.snapshot.deployment
        points = None if self.action.resubmission is None or deployment is None else deployment.checkpoints
        if points is not None and points.completed:
            kept = f"not rolled back: a return would repeat what {counted(points.completed, 'checkpoint')} of the successor hold"
            return self.end("stuck", kept, PROGRESSED)
        deadline_at = self.now + timedelta(seconds=self.rules.unobserved_limit_seconds)
        request = Request(target) if self.action.resubmission is None else RunJob(target, former=True)
        return self.go(Timed(name, f"{reason}: back to {sizes(target)}", deadline_at, code=code), request)

    def contested(self, requested: Parallelism) -> Step:
        by = writer(self.snapshot.writers, self.action.wanted, requested)
        return self.end("contested", contested(changes(self.action.wanted, requested), by).sentence)

    def limit(self) -> timedelta:
        """Return the time limit of a rescale."""
        deployment = self.snapshot.deployment
        if deployment is None:
            return timedelta(seconds=self.rules.deadline_floor_seconds)
        analysis = self.observed.analysis
        unit = analysis.policy.spec.target.unit if analysis else None
        slots = 1 if unit is None else unit.slots
        starts = successive_starts(deployment, self.action.before, self.action.wanted, slots)
        return rescale_limit(deployment, analysis, self.rules, starts=starts) + self._start_again()

    def _start_again(self) -> timedelta:
        """Return the time for TaskManagers that a rollback brings again."""
        change, there = self.action.managers, self.snapshot.managers
        if self.action.phase != "rolling-back" or change is None or there is None or there.wanted is None:
            return timedelta()
        missing = max(0, change.before - there.wanted)
        return timedelta(seconds=self.rules.container_start_seconds) * (
            missing if there.one_by_one else min(1, missing)
        )

    def checkpoint(self, requested_at: datetime | None = None) -> TriggerCheckpoint | None:
        """Return the instruction to trigger a checkpoint if the driver can, the engine does not, and, for a waiting rescale,
        one is due."""
        if not self.snapshot.can_trigger_checkpoint or self.snapshot.engine_triggers_checkpoint:
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
            names = listed([bounded(instance, MAX_INSTANCE_LENGTH) for instance in instances])
            verb = "which has ended" if len(instances) == 1 else "which have ended"
            return self.go(Event("evicted", f"evicted {counted(len(answer.members), 'member')} of {names}, {verb}"))
        if not self.snapshot.departed or self.is_late:
            return None
        return self.stay(Evict(self.snapshot.departed))

    def job_lost(self) -> Step | None:
        """Return the end of the action if its job has ended or was replaced, or None."""
        there = self.snapshot.deployment
        if not self.snapshot.reachable:
            return None
        if there is None:
            sentence = f"the job is missing: {self.snapshot.reason}"
        elif there.job_id != self.action.deployment.job_id:
            sentence = f"job {self.action.deployment.job_id} was replaced by {there.job_id}"
        elif there.is_final:
            sentence = f"the job is {there.state}"
        else:
            return None
        code = "job-failed" if there is not None and there.health == "failed" else "job-gone"
        return self.end("gone", sentence, code)

    def present(self) -> "tuple[InFlight, Deployment] | Step":
        """Return the situation after an observation of the action's job, or the step if the job is not observed.

        A gap in observations extends the deadline. An unreachable target is waited for up to
        `unobserved_limit_seconds`.
        """
        action, snapshot, now = self.action, self.snapshot, self.now
        if not snapshot.reachable:
            unobserved = now - (action.checked_at or action.started_at)
            if unobserved <= timedelta(seconds=self.rules.unobserved_limit_seconds):
                return self.stay()
            minutes = unobserved.total_seconds() / 60
            sentence = f"the target was unreachable for {minutes:.0f} min: {snapshot.reason}"
            return self.end("unreachable", sentence)
        lost = self.job_lost()
        if lost is not None or snapshot.deployment is None:
            return lost or self.stay()
        gap, deadline_at = now - (action.checked_at or now), action.deadline_at
        if deadline_at is not None and gap > timedelta(seconds=MAX_GAP_SECONDS):
            deadline_at += gap
        checked = action.model_copy(update={"checked_at": now, "deadline_at": deadline_at})
        return replace(self, action=checked), snapshot.deployment


def _or_default(seconds: float | None, default: float) -> float:
    return default if seconds is None else seconds


def cooldown_seconds(deployment: Deployment) -> float:
    """Return the engine's cooldown after a rescale."""
    return _or_default(deployment.rescale.cooldown_seconds, DEFAULT_COOLDOWN_SECONDS)


def stabilization_seconds(deployment: Deployment) -> float:
    """Return how long the engine waits for missing slots before it rescales to the available ones."""
    return _or_default(deployment.rescale.stabilization_seconds, DEFAULT_STABILIZATION_SECONDS)


def trigger_delay_seconds(deployment: Deployment) -> float:
    """Return how long the engine waits for a checkpoint: by default (failures + 1) · interval, 0 without checkpoints."""
    configured = deployment.rescale.max_trigger_delay_seconds
    if configured is not None:
        return configured
    interval = deployment.checkpoints.interval_seconds if deployment.checkpoints else None
    return 0.0 if interval is None else (DEFAULT_CHECKPOINT_FAILURES + 1) * interval


def successive_starts(
    deployment: Deployment, before: Parallelism, wanted: Parallelism, slots_of_instance: int = 1
) -> int:
    """Return the number of instances that start, or stop, one after another; 1 if they all do at once.

    Several workloads change at the same time, each pod by pod if it is a StatefulSet that keeps their order.
    """
    if not any(each.one_by_one for each in deployment.workloads):
        return 1
    ordered = {each.name for each in deployment.workloads if each.one_by_one}
    names = ordered & wanted.keys() or wanted.keys()  # the pods of a Flink job run all operators
    changed = max((abs(wanted[name] - before.get(name, wanted[name])) for name in names), default=0)
    return max(1, -(-changed // slots_of_instance))


def rescale_limit(deployment: Deployment, analysis: Analysis | None, rules: Rules, *, starts: int = 1) -> timedelta:
    """Return the time limit of a rescale: cooldown + stabilisation + trigger delay + checkpoint + restart, at least the
    floor.

    A rescale by instances, such as pods, gets their `starts`, one after another, on top; so does one for
    which the cluster starts TaskManagers, or the complete cluster again.
    """
    duration = deployment.checkpoints.last_duration_seconds if deployment.checkpoints else None
    restart = analysis.restart_times.seconds if analysis else None
    total = (
        cooldown_seconds(deployment)
        + stabilization_seconds(deployment)
        + trigger_delay_seconds(deployment)
        + (_or_default(duration, UNKNOWN_CHECKPOINT_SECONDS) if deployment.takes_checkpoints else 0.0)
        + _or_default(restart, rules.restart_estimate_seconds)
    )
    by_instances = analysis is not None and analysis.policy.spec.target.unit is not None
    rescale = deployment.rescale
    starts_first = (
        not deployment.takes_checkpoints or by_instances or rescale.max_slots is not None or rescale.by_restart
    )
    start = starts * rules.container_start_seconds if starts_first else 0.0
    return timedelta(seconds=start + max(rules.deadline_floor_seconds, total))


def checkpoint_is_due(snapshot: Snapshot, requested_at: datetime, now: datetime) -> bool:
    """Return whether a checkpoint should be triggered for a requested rescale that has not begun.

    The engine rescales when a checkpoint completes after the request, but not during its cooldown, and while it lacks
    slots not before its stabilisation time; slots may come later than the request. So each of these
    instants needs one completed checkpoint after it.
    """
    deployment = snapshot.deployment
    if deployment is None or not snapshot.all_running or snapshot.checkpoint_in_progress is not False:
        return False
    if snapshot.running_since is not None and snapshot.running_since > requested_at:
        return False  # a new execution: the rescale has happened, or a failure did its work
    ready_at = requested_at
    if snapshot.running_since is not None:
        cooled_at = snapshot.running_since + timedelta(seconds=cooldown_seconds(deployment) + SLACK_SECONDS)
        ready_at = max(requested_at, cooled_at)
    stabilized_at = ready_at + timedelta(seconds=stabilization_seconds(deployment) + SLACK_SECONDS)
    last = snapshot.checkpoint_completed_at
    instants = [requested_at, ready_at, stabilized_at]
    if snapshot.resourced_at is not None:
        instants.append(snapshot.resourced_at)
    return any(instant <= now and (last is None or last < instant) for instant in instants)
