"""Where the sources of a job resume: at its last checkpoint.

Flink commits offsets to the brokers after a checkpoint, and not at all if the job restarts right then, as it does when it
is rescaled. The positions that were read last before that checkpoint began are closer to where it resumes.
"""

from weir_contracts import Observation

from .history import key_of
from .state import CheckpointState, RunState

_READINGS = 2
"""Readings of the positions that are kept: a checkpoint usually begins less than two intervals before it is seen."""


def advanced(
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
