"""The diagnosers of `responsive`, one function each."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .case import Case
from .parameters import FixedReplica, LagDiagnoser, LatencyDiagnoser, RateDiagnoser, SaturationDiagnoser

DEFAULT_LATENCY_SECONDS = 60.0


@dataclass(frozen=True)
class Opinion:
    """`replicas` is what a diagnoser wants; None: nothing. `unknown`: what it would have had to know."""

    replicas: float | None = None
    reason: str = ""
    unknown: str | None = None


def _rate(case: Case, d: RateDiagnoser) -> Opinion:
    readings = case.window(d.window_seconds)
    if readings is None:
        return Opinion()
    arriving = d.type == "ARRIVAL_RATE_SCALE_UP"
    values = [r.arriving if arriving else r.taken for r in readings]
    available = [value for value in values if value is not None]
    what = "the arrival rate" if arriving else "the processing rate"
    if len(available) != len(values):
        return Opinion(unknown=what, reason="a reading of its window is missing")
    mean, n = sum(available) / len(available), case.request.replicas
    text = f"{what} of the busiest node is {mean:,.0f} records/s over {d.window_seconds:.0f} s, and the limit {d.rate:,.0f}"
    if d.type == "PROCESSING_RATE_SCALE_DOWN":
        return Opinion(n - 1 if n > 1 else None, text) if mean < d.rate else Opinion()
    return Opinion(n + 1, text) if mean > d.rate else Opinion()


def _lag(case: Case, d: LagDiagnoser) -> Opinion:
    if case.growth is None or case.arriving is None:
        what = "the growth of lag" if case.growth is None else "the arrival rate"
        return Opinion(unknown=what, reason="a source does not report it")
    if case.growth <= d.least_growth_share * case.arriving or case.growth <= 0:
        return Opinion()
    return Opinion(case.request.replicas + 1, f"lag grows by {case.growth:,.0f} records/s")


def _latency(case: Case, d: LatencyDiagnoser) -> Opinion:
    if case.run_seconds is not None and case.run_seconds < d.grace_seconds:
        return Opinion()
    for what, value in (("the arrival rate", case.arriving), ("the lag", case.lag_records)):
        if value is None:
            return Opinion(unknown=what, reason="a source does not report it")
    arriving, lag, sustained = case.arriving or 0.0, case.lag_records or 0.0, case.sustained
    if not sustained:
        return Opinion(unknown="what the replicas sustain", reason="no operator's true processing rate is known yet")
    maximum = d.max_expected_latency_seconds or case.objective_seconds or DEFAULT_LATENCY_SECONDS
    expected = max(0.0, lag + (arriving - sustained) * d.projection_seconds) / sustained
    if expected <= maximum:
        return Opinion()
    wished = case.memory.wished_at
    if wished is not None and 0 <= case.now - wished < d.stagger_seconds:
        return Opinion()
    n, strategy = case.request.replicas, d.scale_up_strategy
    if isinstance(strategy, FixedReplica):
        wanted = float(n + strategy.replicas)
    elif strategy.type == "SCALE_TO_MAX":
        wanted = float(max(n, case.request.max_replicas))
    else:
        demand = arriving + max(0.0, lag - maximum * arriving) / d.scale_down_buffer_seconds
        wanted = n * demand / sustained
        if math.isfinite(wanted):
            wanted = float(math.ceil(wanted - 1e-9))
    late = f"records are expected to wait {expected:,.0f} s ({d.projection_seconds:.0f} s from now), and the limit is {maximum:,.0f}"
    return Opinion(wanted, late) if wanted > n else Opinion()


def _saturation(case: Case, d: SaturationDiagnoser) -> Opinion:
    if case.run_seconds is not None and case.run_seconds < d.grace_seconds:
        return Opinion()
    minimum = 1.0
    for i in range(d.num_windows):
        readings = case.window(d.window_seconds, i * d.window_seconds)
        if readings is None:
            return Opinion()
        available = [r.blocked for r in readings if r.blocked is not None]
        if len(available) != len(readings):
            return Opinion(unknown="the busy share of every operator", reason="a reading of its windows is missing")
        minimum = min(minimum, sum(available) / len(available))
    n = case.request.replicas
    if minimum <= d.threshold or n == 1:
        return Opinion()
    span_seconds = d.num_windows * d.window_seconds
    return Opinion(n - 1, f"all threads were blocked for {minimum:.0%} of the last {span_seconds:.0f} s or more")


DIAGNOSERS: Mapping[str, Callable[[Case, Any], Opinion]] = {
    "PROCESSING_RATE_SCALE_UP": _rate,
    "PROCESSING_RATE_SCALE_DOWN": _rate,
    "ARRIVAL_RATE_SCALE_UP": _rate,
    "LAG_SCALE_UP": _lag,
    "EXPECTED_LATENCY": _latency,
    "THREAD_SATURATION": _saturation,
}
UPWARDS = frozenset({"PROCESSING_RATE_SCALE_UP", "ARRIVAL_RATE_SCALE_UP", "LAG_SCALE_UP", "EXPECTED_LATENCY"})
