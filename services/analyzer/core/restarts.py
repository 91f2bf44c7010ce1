"""How long the application is away when it restarts, learned from its runs.

From the end of the last run's samples to the start of the new one. The end lies somewhere between the last observation
that found it running and the first that did not (or the new run's start): the middle is taken, unless nothing was seen for so long
that it would measure the gap (the brokers were away) and not the restart.
"""

from dataclasses import replace

from .memory import RestartMemory
from .settings import AnalysisSettings

_WEIGHT_RESCALE = 0.5
_WEIGHT_OTHER = 0.2


def observed_down(memory: RestartMemory, at: float) -> RestartMemory:
    """An observation that found the job not running."""
    return replace(memory, down_at=at if memory.down_at is None else memory.down_at, still_down_at=at)


def observed_running(memory: RestartMemory, at: float) -> RestartMemory:
    """An observation within a run."""
    return replace(memory, running_at=at, down_at=None, still_down_at=None)


def observed_new_run(
    memory: RestartMemory, running_since: float, at: float, rescaled: bool, settings: AnalysisSettings
) -> RestartMemory:
    """The first observation of another run of the same job: what lay between is a downtime.

    A rescale's counts most: that is what the number is for; a crash adds the engine's restart delay.
    """
    downtime = _downtime(memory, running_since, settings)
    if downtime is None or downtime > settings.max_restart_seconds:
        return observed_running(memory, at)
    if memory.seconds is None:
        smoothed = downtime
    else:
        weight = _WEIGHT_RESCALE if rescaled else _WEIGHT_OTHER
        smoothed = memory.seconds + weight * (downtime - memory.seconds)
    return RestartMemory(round(smoothed, 3), round(downtime, 3), memory.samples + 1, running_at=at)


def _downtime(memory: RestartMemory, running_since: float, settings: AnalysisSettings) -> float | None:
    if memory.running_at is None:
        return None
    # all tasks run only after the last observation that found some missing, whatever the job's own start says
    end = max(running_since, memory.still_down_at or running_since)
    latest_begin = end if memory.down_at is None else min(memory.down_at, end)
    earliest_begin = min(memory.running_at, latest_begin)
    if latest_begin - earliest_begin > settings.max_unobserved_seconds:
        return None
    begin = (earliest_begin + latest_begin) / 2
    return max(0.0, end - begin)
