"""Deadline of a rescale, computed from the cluster's settings."""

from datetime import datetime, timedelta

from weir_contracts import Analysis, Deployment, Parallelism

from .observed import Snapshot
from .rules import Rules

# Flink 2.x, where the cluster does not say otherwise (`jobmanager.adaptive-scheduler.…`).
DEFAULT_COOLDOWN_SECONDS = 30.0
DEFAULT_STABILIZATION_SECONDS = 60.0
DEFAULT_CHECKPOINT_FAILURES = 2
UNKNOWN_CHECKPOINT_SECONDS = 10.0

SLACK_SECONDS = 0.5
"""Tolerance for engine times, which are rounded to milliseconds and read from another clock."""


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
    which the cluster starts TaskManagers. Only Flink has checkpoints.
    """
    is_flink = deployment.engine == "flink"
    duration = deployment.checkpoints.last_duration_seconds if deployment.checkpoints else None
    restart = analysis.restart_times.seconds if analysis else None
    total = (
        cooldown_seconds(deployment)
        + stabilization_seconds(deployment)
        + trigger_delay_seconds(deployment)
        + (_or_default(duration, UNKNOWN_CHECKPOINT_SECONDS) if is_flink else 0.0)
        + _or_default(restart, rules.restart_estimate_seconds)
    )
    by_instances = analysis is not None and analysis.policy.spec.target.unit is not None
    starts_first = not is_flink or by_instances or deployment.rescale.max_slots is not None
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
