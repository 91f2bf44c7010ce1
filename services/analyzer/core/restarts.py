"""Downtime of a restart, learned from runs: from the end of the last run's samples to the start of the new one.

The end lies somewhere between the last observation that found it running and the first that did not (or the new run's
start): the middle is taken, unless nothing was observed for so long that it would measure the gap (the brokers were
away) and not the restart.
"""

from dataclasses import replace

from weir_contracts import Deployment

from .state import RestartState

_WEIGHT_RESCALE = 0.5
_WEIGHT_OTHER = 0.2
_MAX_RESTART_SECONDS = 600.0
"""A longer absence is an outage, not a restart to learn from."""
_MAX_MOVING_SECONDS = 6 * 3600.0
"""A longer restore or warm-up is none to learn from."""
_MAX_UNOBSERVED_SECONDS = 90.0
"""After a longer gap in the observations before a new run, the end of the last run is unknown."""


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
    left = [each.restore_remaining_records for each in deployment.instances]
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
