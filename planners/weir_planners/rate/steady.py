"""Room that a steady load needs: what it rises by in the time that a growth takes.

Under `maxLag` a load that was steady for some minutes needs less room: as much as it rose by in the time that a growth
takes, and for a shrink 1 % above its mean.
"""

from dataclasses import replace

from weir_predictor import Scenario
from weir_sdk import Request

from .memory import Memory, max_rise, mean_of, seconds_until_growth
from .tuning import MAX_NOISE, MIN_RISE, RISES, TREND_TIMES, WAITING_SHARE


def with_room(request: Request, scenario: Scenario, memory: Memory) -> Scenario:
    """Return the scenario with as much free capacity as the load rose by in the time that a growth takes, if that is less
    than `max_utilization` leaves; `target_utilization` rises by as much. A policy that sets either keeps them."""
    arriving = sum(scenario.model.arrivals.values())
    if not _may_have_less_room(scenario) or arriving <= 0:
        return scenario
    rise = _rise_until_growth(memory, seconds_until_growth(request, scenario, memory))
    if rise is None:
        return scenario
    saved = max(0.0, arriving / (arriving + rise) - scenario.max_utilization)
    limits = {name: getattr(scenario, name) + saved for name in ("max_utilization", "target_utilization")}
    return replace(scenario, assumptions=scenario.assumptions.model_copy(update=limits))


def may_wait(request: Request, scenario: Scenario, memory: Memory, utilization: float) -> bool:
    """Return whether a growth at this utilization may wait until the next cycle: the load rises by no more than noise, and
    lag would stay small even if the load went on rising as its mean does. `scenario` is that before `with_room`.

    An application that shrank to the mean of a noisy load would otherwise grow and shrink with the noise.
    """
    limit, lag = scenario.limit_seconds, scenario.analysis.lag_seconds.value
    if limit is None or lag is None or memory.rises >= RISES or not _may_have_less_room(scenario):
        return False
    takes = seconds_until_growth(request, scenario, memory)
    rise = _rise_until_growth(memory, takes)
    if rise is None or rise > MAX_NOISE * sum(scenario.model.arrivals.values()):
        return False
    waits = request.policy.spec.interval.total_seconds() + takes
    utilization *= 1 + max(0.0, _trend(memory, TREND_TIMES * takes) * waits)
    return lag + waits * (1 - 1 / max(1.0, utilization)) <= WAITING_SHARE * limit


def _trend(memory: Memory, seconds: float) -> float:
    """Return the share by which arrivals rise per second: the mean of the last `seconds` over the mean of those before."""
    both = mean_of(memory, 2 * seconds)
    return 2 * (mean_of(memory, seconds) / both - 1) / seconds if both > 0 else 0.0


def _rise_until_growth(memory: Memory, takes_seconds: float) -> float | None:
    """Return the largest rise of arrivals in the time that a growth takes, in records/s; None as of `max_rise`."""
    return max_rise(memory, takes_seconds, 2 * takes_seconds)


def _may_have_less_room(scenario: Scenario) -> bool:
    """Return whether the room is the default one, and the objective a lag: a latency needs it for the queues themselves."""
    chosen = scenario.assumptions.model_fields_set & {"max_utilization", "target_utilization"}
    return scenario.objective.max_lag is not None and not chosen


def steady_margin(request: Request, scenario: Scenario, memory: Memory) -> float | None:
    """Return the share by which to raise a steady load (below 0: to lower it) before an application shrinks: up to the mean
    of a stabilisation window, and by no more than the largest rise in it, which is 0 while the load falls. None: the load
    rose by more than noise, or is not known for long enough."""
    arriving, behavior = sum(scenario.model.arrivals.values()), request.policy.spec.behavior
    if not _may_have_less_room(scenario) or arriving <= 0:
        return None
    window = behavior.scale_down.stabilization.total_seconds()
    rise = max_rise(memory, window, window)
    if rise is None or rise > MIN_RISE * arriving:
        return None
    return min(arriving + rise, mean_of(memory, window)) / arriving - 1
