"""Restarts: how long one takes, and where the sources of a job resume.

A downtime is learned from runs: from the end of the last run's samples to the start of the new one. The end lies
somewhere between the last observation that found it running and the first that did not (or the new run's start): the
middle is taken, unless nothing was observed for so long that it would measure the gap (the brokers were away) and not
the restart.

A job resumes at its last checkpoint. Flink commits offsets to the brokers after a checkpoint, and not at all if the job
restarts right then, as it does when it is rescaled. The positions that were read last before that checkpoint began are
closer to where it resumes.
"""

from dataclasses import dataclass, field, replace

from weir_contracts import Deployment, Observation

from .offsets import key_of
from .run import RunState

_WEIGHT_RESCALE = 0.5
_WEIGHT_OTHER = 0.2
_MAX_RESTART_SECONDS = 600.0
"""A longer absence is an outage, not a restart to learn from."""
_MAX_MOVING_SECONDS = 6 * 3600.0
"""A longer restore or warm-up is none to learn from."""
_MAX_UNOBSERVED_SECONDS = 90.0
"""After a longer gap in the observations before a new run, the end of the last run is unknown."""


@dataclass(frozen=True, slots=True)
class RestartState:
    """Learned downtimes, and where the present one began."""

    seconds: float | None = None
    last_seconds: float | None = None
    samples: int = 0
    running_at: float | None = None
    """Last observation of the latest run."""
    down_at: float | None = None
    """First observation since then that found the job not running."""
    still_down_at: float | None = None
    """The latest such observation."""
    restore_seconds: float | None = None
    """Learned time in which the tasks of a group restore their state."""
    restoring_since: float | None = None
    """First observation of the present restore."""
    warm_up_seconds: float | None = None
    """Learned time in which a group warms up state before its tasks move."""
    warming_since: float | None = None
    """First observation of the present warm-up."""


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The last completed checkpoint of the job, and the sources' positions by partition."""

    completed_at: float | None = None
    """By the engine's clock."""
    offsets: dict[str, int] = field(default_factory=dict)
    """Positions that were read last before it began: it contains at least these."""
    latest: tuple[tuple[float, dict[str, int]], ...] = ()
    """Time and positions of the latest readings in the present run."""


def observed_down(restarts: RestartState, at: float) -> RestartState:
    """An observation that found the job not running."""
    return replace(restarts, down_at=at if restarts.down_at is None else restarts.down_at, still_down_at=at)


def observed_running(restarts: RestartState, at: float) -> RestartState:
    """An observation within a run."""
    return replace(restarts, running_at=at, down_at=None, still_down_at=None)


def observed_new_run(restarts: RestartState, running_since: float, at: float, rescaled: bool) -> RestartState:
    """The first observation of another run of the same job: learn the downtime between the runs.

    A rescale weighs most, since rescales are predicted from it; a crash adds the engine's restart delay.
    """
    downtime = _downtime(restarts, running_since)
    if downtime is None or downtime > _MAX_RESTART_SECONDS:
        return observed_running(restarts, at)
    if restarts.seconds is None:
        smoothed = downtime
    else:
        weight = _WEIGHT_RESCALE if rescaled else _WEIGHT_OTHER
        smoothed = restarts.seconds + weight * (downtime - restarts.seconds)
    return replace(
        restarts,
        seconds=round(smoothed, 3),
        last_seconds=round(downtime, 3),
        samples=restarts.samples + 1,
        running_at=at,
        down_at=None,
        still_down_at=None,
    )


def observed_group(restarts: RestartState, deployment: Deployment | None, at: float) -> RestartState:
    """Learn how long the tasks of a consumer group restore their state, and how long state is warmed up before they move:
    until the first observation without. What is unknown neither begins nor ends."""
    if deployment is None or deployment.group is None:
        return restarts
    left = [instance.restore_remaining_records for instance in deployment.instances]
    known = bool(left) and all(records is not None for records in left)
    if any(left):
        restarts = restarts if restarts.restoring_since is not None else replace(restarts, restoring_since=at)
    elif known and restarts.restoring_since is not None:
        seconds = _smoothed(restarts.restore_seconds, at - restarts.restoring_since)
        restarts = replace(restarts, restore_seconds=seconds, restoring_since=None)
    if deployment.group.probing_rebalance_at is not None:
        return restarts if restarts.warming_since is not None else replace(restarts, warming_since=at)
    if restarts.warming_since is None or deployment.group.state != "Stable":
        return restarts  # no member carries the time while the group rebalances
    seconds = _smoothed(restarts.warm_up_seconds, at - restarts.warming_since)
    return replace(restarts, warm_up_seconds=seconds, warming_since=None)


def _smoothed(before: float | None, seconds: float) -> float | None:
    if not 0 < seconds <= _MAX_MOVING_SECONDS:
        return before
    return round(seconds if before is None else before + _WEIGHT_RESCALE * (seconds - before), 3)


def _downtime(restarts: RestartState, running_since: float) -> float | None:
    if restarts.running_at is None:
        return None
    # all tasks run only after the last observation that found some missing, whatever the job's own start says
    end = max(running_since, restarts.still_down_at or running_since)
    latest_begin = end if restarts.down_at is None else min(restarts.down_at, end)
    earliest_begin = min(restarts.running_at, latest_begin)
    if latest_begin - earliest_begin > _MAX_UNOBSERVED_SECONDS:
        return None
    begin = (earliest_begin + latest_begin) / 2
    return max(0.0, end - begin)


_READINGS = 2
"""Readings of the positions that are kept: a checkpoint usually begins less than two intervals before it is seen."""


def with_checkpoint(
    state: CheckpointState, observation: Observation, at: float, run: RunState | None, *, is_fresh_run: bool
) -> CheckpointState:
    """Take in one observation. `run` is the present one, None outside of a run."""
    completed_at, offsets, latest = state.completed_at, state.offsets, state.latest
    if (times := _last_checkpoint(observation, at)) is not None:
        began_at, last_completed_at = times
        if is_fresh_run and run is not None and began_at >= run.started_at:
            latest = ()  # the checkpoint is the new run's, which may have resumed behind what the old one had read
        if last_completed_at != completed_at:
            completed_at = last_completed_at
            offsets = next((read for read_at, read in reversed(latest) if read_at <= began_at), offsets)
    if is_fresh_run:
        latest = ()
    if run is not None:
        read = {key_of(p): p.current_offset for p in observation.partitions if p.current_offset is not None}
        latest = (*latest, (at, read))[-_READINGS:] if read else latest
    return CheckpointState(completed_at, offsets, latest)


def _last_checkpoint(observation: Observation, at: float) -> tuple[float, float] | None:
    """Return when the last completed checkpoint began, by the monitor's clock, and was completed, by the engine's."""
    points = None if observation.deployment is None else observation.deployment.checkpoints
    if points is None or points.last_completed_at is None or points.last_duration_seconds is None:
        return None
    completed_at = points.last_completed_at.timestamp()
    ahead = 0.0 if observation.source_time is None else at - observation.source_time.timestamp()
    return completed_at + ahead - points.last_duration_seconds, completed_at
