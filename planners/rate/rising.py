"""A load that rises from cycle to cycle: how much higher it will be when new capacity counts."""

import json
from collections import deque
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from weir_planner import Request

MIN_RISE = 0.05
"""Share by which arrivals have to be higher than a cycle ago to count as risen: more than noise."""
RISES = 3
"""Cycles in a row after which it is a rise: a step that falls into one of them looks like two."""
MAX_CYCLE_SECONDS = 10.0
"""Interval above which a rise is not extrapolated: after several such cycles it is as likely to be over, as with the
surges of the Twitter recording at 15 s."""
SLOWING = 0.7
"""Share of the rise before, below which a rise is taken to end."""
MAX_RISE = 1.0
"""Share of the load that is added at most: a trend ends some time."""

STEADY_SECONDS = 120.0
"""Shortest time in which arrivals have to be known before the rises in it say how much room they need."""
SHARES_SECONDS = 240.0
"""Time in which each operator has to get the same share of the arrivals: behind a window it is only seen over several."""
MAX_DRIFT = 0.1
"""Change of an operator's share of the arrivals from which its own load is not as steady as they are: windows that give
out at once, selectivities that drift."""
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
    """Time since which no share has changed by more than `MAX_DRIFT`, in s since 1970."""


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


def rise_of(request: Request, memory: Memory, seconds: float) -> float:
    """Return the share by which arrivals will be higher in so many seconds and a cycle, by their measured trend; 0
    unless they have risen for several cycles."""
    now = request.analysis.arrival_rate.value
    interval = request.policy.spec.interval.total_seconds()
    if memory.rises < RISES or not now or interval > MAX_CYCLE_SECONDS:
        return 0.0
    trends = [source.arrival_rate_trend.value or 0.0 for source in request.analysis.sources]
    return min(MAX_RISE, max(0.0, sum(trends) * (seconds + interval) / now))


def shared(request: Request, memory: Memory) -> dict[str, Any]:
    """Return what this cycle's flow changes of the memory."""
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
    if len(json.dumps(shares)) > MAX_SHARES:
        return {"shares": {}, "shares_since": None}
    return {"shares": shares, "shares_since": request.analysis.observed_at.timestamp()}


def largest_rise(memory: Memory, within_seconds: float, known_seconds: float) -> float | None:
    """Return by how many records/s arrivals rose at most in `within_seconds` during the last `known_seconds`, or
    `STEADY_SECONDS` if that is longer; None if less is remembered, or the operators' shares of them have changed within
    that and `SHARES_SECONDS`."""
    since, known_seconds = memory.shares_since, max(STEADY_SECONDS, known_seconds)
    if since is None or memory.looked_at is None or memory.looked_at - since < max(SHARES_SECONDS, known_seconds):
        return None
    left, first = known_seconds, len(memory.looks)
    while left > 0 and first > 0:
        first -= 1
        left -= memory.looks[first][0]
    if left > 0:
        return None
    at, largest, lowest = 0.0, 0.0, deque[tuple[float, float]]()
    for seconds, rate in memory.looks[first:]:
        at += seconds
        while lowest and lowest[0][0] < at - max(within_seconds, seconds):
            lowest.popleft()
        while lowest and lowest[-1][1] >= rate:
            lowest.pop()
        lowest.append((at, rate))
        largest = max(largest, rate - lowest[0][1])
    return largest


def mean_of(memory: Memory, seconds: float) -> float:
    """Return the mean of the last `seconds` of arrivals in records/s; 0 if none are remembered."""
    left, weight, total = seconds, 0.0, 0.0
    for length, rate in reversed(memory.looks):
        if left <= 0:
            break
        left, weight, total = left - length, weight + length, total + length * rate
    return total / weight if weight > 0 else 0.0
