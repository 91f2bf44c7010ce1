"""Memory of the load's course: whether it rises from cycle to cycle, its looks, and the operators' shares of it."""

import json
from collections import deque
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from weir_predictor import Scenario, seconds_until_capacity
from weir_sdk import Request

from .tuning import MAX_CYCLE_SECONDS, MAX_DRIFT, MAX_RISE, MIN_RISE, RISES, SHARES_SECONDS, SLOWING, STEADY_SECONDS

MAX_LOOKS = 128
MAX_SECONDS = 1920.0
"""Arrivals that are remembered: half an hour at an interval of 15 s."""
MAX_SHARES = 8_000
"""Characters of the shares that are remembered. A larger graph has none, and its load is never steady."""
Look = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Memory(BaseModel):
    """Memory of `rate` from one cycle to the next."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    arrivals: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Records/s of all sources in the last cycle."""
    rises: int = Field(default=0, ge=0, le=1000)
    """Cycles in a row in which they rose."""
    step: float = Field(default=0.0, allow_inf_nan=False)
    """Records/s by which they rose in the last cycle."""
    looked_at: float | None = Field(default=None, allow_inf_nan=False)
    """Time of the newest look, in s since 1970."""
    looks: tuple[tuple[Look, Look], ...] = Field(default=(), max_length=1000)
    """Seconds since the look before and records/s since then, oldest first."""
    growth_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Seconds from the request for more slots until they counted, in the last growth that was observed."""
    shares: dict[str, float] = Field(default_factory=dict)
    """Records that arrive at each operator per record of all sources, as at `shares_since`."""
    shares_since: float | None = Field(default=None, allow_inf_nan=False)
    """Time since which no share has changed by more than a tenth, in s since 1970."""


def noticed(request: Request, memory: Memory) -> dict[str, Any]:
    """Return what a cycle changes of the memory. A cycle without a reading says nothing."""
    now = request.analysis.arrival_rate.value
    if now is None or now < 0:
        return {}
    before = memory.arrivals
    if before is None or now <= before * (1 + MIN_RISE):
        return {"arrivals": now, "rises": 0, "step": 0.0}
    slows = memory.rises > 0 and now - before < SLOWING * memory.step
    return {"arrivals": now, "rises": 1 if slows else min(1000, memory.rises + 1), "step": now - before}


def seconds_until_growth(request: Request, scenario: Scenario, memory: Memory) -> float:
    """Return the seconds from one look to the next, and from a growth that is decided then until its capacity counts."""
    takes = seconds_until_capacity(request.outcomes, scenario.topology, scenario.restart, memory.growth_seconds)
    return takes + request.policy.spec.interval.total_seconds()


def rise_of(request: Request, memory: Memory, seconds: float) -> float:
    """Return the share by which arrivals will be higher in so many seconds and a cycle, by their measured trend; 0
    unless they have risen for several cycles."""
    now = request.analysis.arrival_rate.value
    interval = request.policy.spec.interval.total_seconds()
    if memory.rises < RISES or not now or interval > MAX_CYCLE_SECONDS:
        return 0.0
    trends = [source.arrival_rate_trend.value or 0.0 for source in request.analysis.sources]
    return min(MAX_RISE, max(0.0, sum(trends) * (seconds + interval) / now))


def looked(request: Request, memory: Memory) -> dict[str, Any]:
    """Return what this cycle's arrivals change of the memory. A gap of several cycles begins a new history."""
    now, at = request.analysis.arrival_rate.value, request.analysis.observed_at.timestamp()
    if now is None or now < 0:
        return {}
    before, interval = memory.looked_at, request.policy.spec.interval.total_seconds()
    gap = None if before is None else at - before
    if gap is None or not 0 < gap <= 3 * interval:
        return {"looked_at": at, "looks": ()}
    looks = (*memory.looks, (round(gap, 1), round(now, 1)))[-MAX_LOOKS:]
    excess = sum(seconds for seconds, _ in looks) - MAX_SECONDS
    while excess > 0:
        excess -= looks[0][0]
        looks = looks[1:]
    return {"looked_at": at, "looks": looks}


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
