"""A load that rises from cycle to cycle: how much higher it will be when new capacity counts."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from weir_predictor import Comparison, seconds_until_capacity
from weir_sdk import Request

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


def seconds_until_growth(request: Request, comparison: Comparison, memory: Memory) -> float:
    """Return the seconds from one look to the next, and from a growth that is decided then until its capacity counts."""
    takes = seconds_until_capacity(request.outcomes, comparison.topology, comparison.restart, memory.growth_seconds)
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
