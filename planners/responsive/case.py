"""Inputs of the diagnosers of `responsive`: the request and the remembered readings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from weir_planner import Request

from planners.answer import Answer, total
from predictor.flow import arrivals_at, flow_of

from .parameters import MAX_NUMBER, RateDiagnoser, ResponsiveParameters, SaturationDiagnoser

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
    wished_at: float | None = Field(default=None, ge=0, le=1e11)
    """When the expected latency last wanted more."""

    def document(self) -> dict[str, Any]:
        return self.model_dump(exclude_defaults=True)


@dataclass(frozen=True)
class Case:
    """The request, read once; None is unknown, and `why` has the reason."""

    request: Request
    answer: Answer
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


def case_of(request: Request, parameters: ResponsiveParameters, memory: Memory) -> Case:
    analysis, now = request.analysis, request.now.timestamp()
    analysed = {source.operator: source for source in analysis.sources}
    sources = [analysed.get(name) for name in request.topology.sources]
    arriving = total([None if s is None else s.arrival_rate.value for s in sources])
    operators = {o.operator: o for o in analysis.operators}
    heads = [operators.get(name) for name in request.topology.sources]
    taken = total([None if o is None else o.input_rate.value for o in heads])
    skew = _skew(request)
    n = request.replicas
    if memory.replicas != n:
        memory = Memory(replicas=n, wished_at=memory.wished_at)
    reading = Reading(
        at=now,
        taken=None if taken is None else _number(taken / n * skew),
        arriving=None if arriving is None else _number(arriving / n * skew),
        blocked=_blocked(request),
    )
    return Case(
        request=request,
        answer=Answer(request),
        parameters=parameters,
        now=now,
        run_seconds=None if analysis.run is None else (request.now - analysis.run.running_since).total_seconds(),
        arriving=arriving,
        lag_records=total([None if s is None else s.lag_records.value for s in sources]),
        growth=_sum([None if s is None else s.lag_growth.value for s in sources]),
        sustained=_sustained(request),
        restoring=next((code for code in RESTORING if any(s.code == code for s in analysis.symptoms)), None),
        objective_seconds=request.policy.spec.objective.bound_seconds,
        memory=memory.model_copy(update={"readings": _kept(memory.readings, reading, parameters)}),
    )


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
    flow = flow_of(request.topology, {(e.source, e.target): e.selectivity.value for e in analysis.edges})
    rates = {s.operator: max(0.0, s.arrival_rate.value or 0.0) for s in analysis.sources}
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
