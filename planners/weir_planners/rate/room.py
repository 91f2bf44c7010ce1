"""Room that a steady load needs: what it rises by in the time that a growth takes."""

import json
from collections import deque
from dataclasses import replace
from typing import Any

from weir_predictor import Comparison
from weir_sdk import Request

from .rising import MIN_RISE, RISES, Memory, seconds_until_growth

STEADY_SECONDS = 120.0
"""Shortest time in which arrivals have to be known before the rises in it say how much room they need."""
SHARES_SECONDS = 240.0
"""Time in which each operator has to get the same share of the arrivals: behind a window it is only seen over several."""
MAX_DRIFT = 0.1
"""Change of an operator's share of the arrivals from which its own load is not as steady as they are: windows that give
out at once, selectivities that drift."""
MAX_NOISE = 0.1
"""Share of the arrivals: if they rise by more in the time of a growth, a growth that is due does not wait."""
WAITING_SHARE = 0.25
"""Share of the objective: a growth waits for the next cycle if lag stays below it until that growth counts."""
TREND_TIMES = 3.0
"""Length of each of the two windows whose means give the trend, in times of a growth. Shorter ones show noise."""
MAX_SHARES = 8_000
"""Characters of the shares that are remembered. A larger graph has none, and its load is never steady."""


def with_room(request: Request, comparison: Comparison, memory: Memory) -> Comparison:
    """Return the comparison with as much free capacity as the load rose by in the time that a growth takes, if that is less
    than `max_utilization` leaves; `target_utilization` rises by as much. A policy that sets either keeps them."""
    arriving = sum(comparison.model.arrivals.values())
    if not _may_have_less_room(comparison) or arriving <= 0:
        return comparison
    rise = _rise_until_growth(memory, seconds_until_growth(request, comparison, memory))
    if rise is None:
        return comparison
    saved = max(0.0, arriving / (arriving + rise) - comparison.max_utilization)
    limits = {name: getattr(comparison, name) + saved for name in ("max_utilization", "target_utilization")}
    return replace(comparison, assumptions=comparison.assumptions.model_copy(update=limits))


def may_wait(request: Request, comparison: Comparison, memory: Memory, utilization: float) -> bool:
    """Return whether a growth at this utilization may wait until the next cycle: the load rises by no more than noise, and
    lag would stay small even if the load went on rising as its mean does. `comparison` is that before `with_room`.

    An application that shrank to the mean of a noisy load would otherwise grow and shrink with the noise.
    """
    limit, lag = comparison.limit_seconds, comparison.analysis.lag_seconds.value
    if limit is None or lag is None or memory.rises >= RISES or not _may_have_less_room(comparison):
        return False
    takes = seconds_until_growth(request, comparison, memory)
    rise = _rise_until_growth(memory, takes)
    if rise is None or rise > MAX_NOISE * sum(comparison.model.arrivals.values()):
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


def _may_have_less_room(comparison: Comparison) -> bool:
    """Return whether the room is the default one, and the objective a lag: a latency needs it for the queues themselves."""
    chosen = comparison.assumptions.model_fields_set & {"max_utilization", "target_utilization"}
    return comparison.objective.max_lag is not None and not chosen


def steady_margin(request: Request, comparison: Comparison, memory: Memory) -> float | None:
    """Return the share by which to raise a steady load (below 0: to lower it) before an application shrinks: up to the mean
    of a stabilisation window, and by no more than the largest rise in it, which is 0 while the load falls. None: the load
    rose by more than noise, or is not known for long enough."""
    arriving, behavior = sum(comparison.model.arrivals.values()), request.policy.spec.behavior
    if not _may_have_less_room(comparison) or arriving <= 0:
        return None
    window = behavior.scale_down.stabilization.total_seconds()
    rise = max_rise(memory, window, window)
    if rise is None or rise > MIN_RISE * arriving:
        return None
    return min(arriving + rise, mean_of(memory, window)) / arriving - 1


def shared(request: Request, memory: Memory) -> dict[str, Any]:
    """Return the memory's changes: the operators' shares of the arrivals if one has changed, and since when they hold."""
    if request.topology is None or request.deployment is None:
        return {}
    model, _ = request.model
    arriving, before = sum(model.arrivals.values()), memory.shares
    if arriving <= 0:
        return {}
    shares = {name: round(load / arriving, 4) for name, load in model.loads.items()}
    if shares.keys() == before.keys() and all(
        abs(share - before[name]) <= MAX_DRIFT * before[name] for name, share in shares.items()
    ):
        return {}
    # A character of a name takes up to twelve as JSON, its number and punctuation less than thirty.
    may_be_large = 12 * sum(map(len, shares)) + 30 * len(shares) > MAX_SHARES
    if may_be_large and len(json.dumps(shares)) > MAX_SHARES:
        return {"shares": {}, "shares_since": None}
    return {"shares": shares, "shares_since": request.analysis.observed_at.timestamp()}


def max_rise(memory: Memory, within_seconds: float, known_seconds: float) -> float | None:
    """Return the largest rise of arrivals within `within_seconds`, in records/s, during the last `known_seconds` or
    `STEADY_SECONDS`, whichever is longer. None: the memory is shorter, or an operator's share of the arrivals has changed
    in that time or in the last `SHARES_SECONDS`."""
    since, known_seconds = memory.shares_since, max(STEADY_SECONDS, known_seconds)
    if since is None or memory.looked_at is None or memory.looked_at - since < max(SHARES_SECONDS, known_seconds):
        return None
    left, first = known_seconds, len(memory.looks)
    while left > 0 and first > 0:
        first -= 1
        left -= memory.looks[first][0]
    if left > 0:
        return None
    at, rise, minima = 0.0, 0.0, deque[tuple[float, float]]()
    for seconds, rate in memory.looks[first:]:
        at += seconds
        while minima and minima[0][0] < at - max(within_seconds, seconds):
            minima.popleft()
        while minima and minima[-1][1] >= rate:
            minima.pop()
        minima.append((at, rate))
        rise = max(rise, rate - minima[0][1])
    return rise


def mean_of(memory: Memory, seconds: float) -> float:
    """Return the mean of the last `seconds` of arrivals in records/s; 0 if none are remembered."""
    left, weight, total = seconds, 0.0, 0.0
    for length, rate in reversed(memory.looks):
        if left <= 0:
            break
        left, weight, total = left - length, weight + length, total + length * rate
    return total / weight if weight > 0 else 0.0
