"""The diagnosers of `responsive`, one function each, and their inputs: the request and the remembered readings."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from weir_predictor.flow import arrivals_at, flow_of, ratios_of
from weir_sdk import Request

from .parameters import (
    MAX_NUMBER,
    FixedReplica,
    LagDiagnoser,
    LatencyDiagnoser,
    RateDiagnoser,
    ResponsiveParameters,
    SaturationDiagnoser,
)

MAX_READINGS = 120
RESTORING = ("warming-up", "catching-up", "restarting", "stalled", "not-running")


class Reading(BaseModel):
    """One cycle. Records/s of the busiest node; None is unknown."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    at: float = Field(ge=0, le=1e11)
    taken: float | None = None
    arriving: float | None = None
    blocked: float | None = None
    """Share of the busiest thread."""


class Memory(BaseModel):
    model_config = ConfigDict(extra="forbid")

    replicas: int | None = None
    readings: list[Reading] = Field(default_factory=list, max_length=MAX_READINGS)
    """Since this parallelism runs, oldest first."""
    recommended_at: float | None = Field(default=None, ge=0, le=1e11)
    """When the expected latency last recommended more."""

    def document(self) -> dict[str, Any]:
        return self.model_dump(exclude_defaults=True)


@dataclass(frozen=True)
class Inputs:
    """Inputs of the diagnosers, derived from the request once; None is unknown."""

    request: Request
    parameters: ResponsiveParameters
    now: float
    run_seconds: float | None
    arriving: float | None
    lag_records: float | None
    growth: float | None
    sustained: float | None
    """μ: records/s at all sources at which the first operator is full."""
    restoring: str | None
    objective_seconds: float | None
    memory: Memory

    def window(self, seconds: float, until: float = 0.0) -> list[Reading] | None:
        """Return the readings of a window that ended `until` seconds ago; None if it is not covered."""
        ends = self.now - until
        found = [r for r in self.memory.readings if ends - seconds < r.at <= ends]
        covered = bool(self.memory.readings) and self.memory.readings[0].at <= ends - seconds
        return found if covered and found else None


def inputs_of(request: Request, parameters: ResponsiveParameters, memory: Memory) -> Inputs:
    analysis, now = request.analysis, request.now.timestamp()
    analysed = {source.operator: source for source in analysis.sources}
    sources = [analysed.get(name) for name in request.topology.sources]
    arriving = total([None if s is None else s.arrival_rate.proven for s in sources])
    operators = {o.operator: o for o in analysis.operators}
    heads = [operators.get(name) for name in request.topology.sources]
    taken = total([None if o is None else o.input_rate.value for o in heads])
    skew = _skew(request)
    n = request.replicas
    if memory.replicas != n:
        memory = Memory(replicas=n, recommended_at=memory.recommended_at)
    reading = Reading(
        at=now,
        taken=None if taken is None else _number(taken / n * skew),
        arriving=None if arriving is None else _number(arriving / n * skew),
        blocked=_blocked(request),
    )
    memory = memory.model_copy(update={"readings": _kept(memory.readings, reading, parameters)})
    return Inputs(
        request=request,
        parameters=parameters,
        now=now,
        run_seconds=None if analysis.run is None else (request.now - analysis.run.running_since).total_seconds(),
        arriving=arriving,
        lag_records=total([None if s is None else s.lag_records.proven for s in sources]),
        growth=_sum([None if s is None else s.lag_growth.proven for s in sources]),
        sustained=_sustained(request),
        restoring=next((code for code in RESTORING if any(s.code == code for s in analysis.symptoms)), None),
        objective_seconds=request.policy.spec.objective.bound_seconds,
        memory=memory,
    )


def total(values: Sequence[float | None]) -> float | None:
    """Return the sum, at least 0; None if a value is unknown or the sum is not finite."""
    added = sum(math.nan if value is None else value for value in values)
    return max(0.0, added) if values and math.isfinite(added) else None


def _kept(before: Sequence[Reading], newest: Reading, parameters: ResponsiveParameters) -> list[Reading]:
    """Return the readings of the longest window and the one before, which proves its coverage; thinned out if too many."""
    max_window = 0.0
    for d in parameters.diagnosers:
        if isinstance(d, RateDiagnoser):
            max_window = max(max_window, d.window_seconds)
        elif isinstance(d, SaturationDiagnoser):
            max_window = max(max_window, d.window_seconds * d.num_windows)
    readings = [*(r for r in before if r.at < newest.at), newest]
    outside = [i for i, r in enumerate(readings) if r.at <= newest.at - max_window]
    readings = readings[outside[-1] if outside else 0 :]
    if len(readings) > MAX_READINGS:
        # The reading closest to its neighbours adds the smallest information; the ends stay.
        gaps = {i: readings[i + 1].at - readings[i - 1].at for i in range(1, len(readings) - 1)}
        del readings[min(gaps, key=lambda i: gaps[i])]
    return readings


def _sustained(request: Request) -> float | None:
    """Return records/s at all sources at which the first operator is full, in the present mix; None without rates."""
    analysis = request.analysis
    flow = flow_of(request.topology, ratios_of(analysis))
    rates = {s.operator: max(0.0, s.arrival_rate.proven or 0.0) for s in analysis.sources}
    whole = sum(rates.values())
    mix = {name: rate / whole for name, rate in rates.items()} if 0 < whole < math.inf else dict.fromkeys(rates, 1.0)
    full = []
    for operator in analysis.operators:
        rate, share = operator.true_processing_rate.value, arrivals_at(flow, operator.operator, mix)
        if rate is not None and rate > 0 and share is not None and share > 0:
            full.append(rate / share)
    minimum = min(full, default=math.inf)
    return minimum if math.isfinite(minimum) and minimum > 0 else None


def _skew(request: Request) -> float:
    """Return the skew of the busiest operator; 1 if unknown."""
    available = [
        (o.utilization.value, o.skew.value)
        for o in request.analysis.operators
        if o.utilization.value is not None and o.skew.value is not None and o.operator in request.current
    ]
    return min(1000.0, max(1.0, max(available, default=(0.0, 1.0))[1]))


def _blocked(request: Request) -> float | None:
    """Return the share of time that the busiest thread is not busy; None if unknown for an operator."""
    operators = {o.operator: o for o in request.analysis.operators}
    busy = 0.0
    for name in request.topology.names:
        found = operators.get(name)
        if found is None or found.utilization.value is None:
            return None
        skew = found.skew.value
        busy = max(busy, found.utilization.value * max(1.0, 1.0 if skew is None else skew))
    return round(1 - min(1.0, busy), 4)


def _number(value: float) -> float | None:
    return round(value, 2) if value < MAX_NUMBER else None


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum as `total` does, but it may be negative."""
    available = [value for value in values if value is not None]
    added = sum(available) if available and len(available) == len(values) else math.inf
    return added if math.isfinite(added) else None


DEFAULT_LATENCY_SECONDS = 60.0


@dataclass(frozen=True)
class Opinion:
    """`replicas` is what a diagnoser wants; None: nothing. `unknown`: what it would have had to know."""

    replicas: float | None = None
    reason: str = ""
    unknown: str | None = None


def _rate(inputs: Inputs, d: RateDiagnoser) -> Opinion:
    readings = inputs.window(d.window_seconds)
    if readings is None:
        return Opinion()
    arriving = d.type == "ARRIVAL_RATE_SCALE_UP"
    values = [r.arriving if arriving else r.taken for r in readings]
    available = [value for value in values if value is not None]
    what = "the arrival rate" if arriving else "the processing rate"
    if len(available) != len(values):
        return Opinion(unknown=what, reason="a reading of its window is missing")
    mean, n = sum(available) / len(available), inputs.request.replicas
    text = f"{what} of the busiest node is {mean:,.0f} records/s over {d.window_seconds:.0f} s, and the limit {d.rate:,.0f}"
    if d.type == "PROCESSING_RATE_SCALE_DOWN":
        return Opinion(n - 1 if n > 1 else None, text) if mean < d.rate else Opinion()
    return Opinion(n + 1, text) if mean > d.rate else Opinion()


def _lag(inputs: Inputs, d: LagDiagnoser) -> Opinion:
    if inputs.growth is None or inputs.arriving is None:
        what = "the growth of lag" if inputs.growth is None else "the arrival rate"
        return Opinion(unknown=what, reason="a source does not report it")
    if inputs.growth <= d.min_growth_share * inputs.arriving or inputs.growth <= 0:
        return Opinion()
    return Opinion(inputs.request.replicas + 1, f"lag grows by {inputs.growth:,.0f} records/s")


def _latency(inputs: Inputs, d: LatencyDiagnoser) -> Opinion:
    if inputs.run_seconds is not None and inputs.run_seconds < d.grace_seconds:
        return Opinion()
    for what, value in (("the arrival rate", inputs.arriving), ("the lag", inputs.lag_records)):
        if value is None:
            return Opinion(unknown=what, reason="a source does not report it")
    arriving, lag, sustained = inputs.arriving or 0.0, inputs.lag_records or 0.0, inputs.sustained
    if not sustained:
        return Opinion(unknown="what the replicas sustain", reason="no operator's true processing rate is known yet")
    maximum = d.max_expected_latency_seconds or inputs.objective_seconds or DEFAULT_LATENCY_SECONDS
    expected = max(0.0, lag + (arriving - sustained) * d.projection_seconds) / sustained
    if expected <= maximum:
        return Opinion()
    last = inputs.memory.recommended_at
    if last is not None and 0 <= inputs.now - last < d.stagger_seconds:
        return Opinion()
    n, strategy = inputs.request.replicas, d.scale_up_strategy
    if isinstance(strategy, FixedReplica):
        wanted = float(n + strategy.replicas)
    elif strategy.type == "SCALE_TO_MAX":
        wanted = float(max(n, inputs.request.max_replicas))
    else:
        demand = arriving + max(0.0, lag - maximum * arriving) / d.scale_down_buffer_seconds
        wanted = n * demand / sustained
        if math.isfinite(wanted):
            wanted = float(math.ceil(wanted - 1e-9))
    late = f"records are expected to wait {expected:,.0f} s ({d.projection_seconds:.0f} s from now), and the limit is {maximum:,.0f}"
    return Opinion(wanted, late) if wanted > n else Opinion()


def _saturation(inputs: Inputs, d: SaturationDiagnoser) -> Opinion:
    if inputs.run_seconds is not None and inputs.run_seconds < d.grace_seconds:
        return Opinion()
    minimum = 1.0
    for i in range(d.num_windows):
        readings = inputs.window(d.window_seconds, i * d.window_seconds)
        if readings is None:
            return Opinion()
        available = [r.blocked for r in readings if r.blocked is not None]
        if len(available) != len(readings):
            return Opinion(unknown="the busy share of every operator", reason="a reading of its windows is missing")
        minimum = min(minimum, sum(available) / len(available))
    n = inputs.request.replicas
    if minimum <= d.threshold or n == 1:
        return Opinion()
    span_seconds = d.num_windows * d.window_seconds
    return Opinion(n - 1, f"all threads were blocked for {minimum:.0%} of the last {span_seconds:.0f} s or more")


DIAGNOSERS: Mapping[str, Callable[[Inputs, Any], Opinion]] = {
    "PROCESSING_RATE_SCALE_UP": _rate,
    "PROCESSING_RATE_SCALE_DOWN": _rate,
    "ARRIVAL_RATE_SCALE_UP": _rate,
    "LAG_SCALE_UP": _lag,
    "EXPECTED_LATENCY": _latency,
    "THREAD_SATURATION": _saturation,
}
UPWARDS = frozenset({"PROCESSING_RATE_SCALE_UP", "ARRIVAL_RATE_SCALE_UP", "LAG_SCALE_UP", "EXPECTED_LATENCY"})
