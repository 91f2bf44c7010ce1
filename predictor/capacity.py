"""Capacity of an operator at parallelisms with which it may never have run.

`C(p) = c·p / (1 + s·(p − 1))` (Amdahl's form: c one subtask's rate, s the serial share; ceiling c/s). `p / C(p)` is
linear in `1/c` and `s/c`, so both come from a weighted non-negative least squares fit. With a single measured p the
curve is linear: a second parameter fitted on one point would be invented. A coherence term (USL's κ) only where more
subtasks were measured to do less: on the few close p of a control loop a free κ extrapolates worse than a straight
line. Then it replaces s, `C(p) = c·p / (1 + κ·p·(p − 1))`, and beyond some parallelism more subtasks do less.

A nearly idle operator gives no rate for a curve, but a lower bound: at its low utilization it does what it takes in, so
it can do so much more. A lower bound shows that a parallelism suffices, never that it does not.
"""

import math
from collections.abc import Container, Iterable, Sequence
from datetime import timedelta
from typing import NamedTuple

import numpy as np
from weir_contracts import CapacityPoint, OperatorAnalysis

MIN_CONFIDENCE = 0.05
FALLEN = 0.9
"""Share of what fewer subtasks do, below which a fall is no noise. The executor rolls back by the same."""
FALL_COUNTS = timedelta(hours=1)
"""Age up to which a fall counts: it may have been a bad hour, and a parallelism that is never tried is never measured
again."""
SATURATED_WEIGHT = 2.0
"""Weight of a measurement under saturation, which is an observation; one from busy time is an extrapolation."""


class CapacityCurve(NamedTuple):
    """`per_subtask_seconds` is 1/c, `serial_seconds` is s/c, `coherence_seconds` is κ/c, all in seconds per record."""

    per_subtask_seconds: float
    serial_seconds: float = 0.0
    confidence: float = 0.0
    points: int = 1
    coherence_seconds: float = 0.0

    def rate(self, parallelism: int) -> float:
        """Return records/s that the operator sustains at `parallelism`; grows with it up to `best`."""
        shared = self.serial_seconds * (parallelism - 1) + self.coherence_seconds * parallelism * (parallelism - 1)
        return parallelism / (self.per_subtask_seconds + shared)

    @property
    def best(self) -> int | None:
        """The parallelism beyond which more subtasks do less; None: there is none."""
        if self.coherence_seconds <= 0:
            return None
        exact = math.sqrt(max(0.0, self.per_subtask_seconds - self.serial_seconds) / self.coherence_seconds)
        return max(max(1, math.floor(exact)), math.ceil(exact), key=self.rate)

    @property
    def ceiling(self) -> float:
        """Records/s that no parallelism exceeds; infinite for a linear curve."""
        if self.best is not None:
            return self.rate(self.best)
        return math.inf if self.serial_seconds <= 0 else 1 / self.serial_seconds

    def needed(self, demand: float) -> int | None:
        """Return the smallest parallelism that sustains `demand` records/s; None if none does."""
        if demand <= 0:
            return 1
        if self.coherence_seconds > 0:
            return next((p for p in range(1, (self.best or 1) + 1) if self.rate(p) >= demand * (1 - 1e-9)), None)
        left = 1 - demand * self.serial_seconds
        if left <= 1e-9:
            return None
        exact = demand * (self.per_subtask_seconds - self.serial_seconds) / left
        return max(1, math.ceil(exact - 1e-9))

    def scaled(self, factor: float) -> "CapacityCurve":
        """Return the curve with each rate divided by `factor`."""
        own, serial, confidence, points, coherence = self
        return CapacityCurve(own * factor, serial * factor, confidence, points, coherence * factor)


def curve_of(operator: OperatorAnalysis) -> CapacityCurve | None:
    """Return the curve through what was measured of an operator; None if nothing was.

    It goes exactly through the best value at the present parallelism, and takes its shape from all of them.
    """
    trusted = [point for point in operator.capacities if point.confidence >= MIN_CONFIDENCE]
    now, parallelism = operator.true_processing_rate, operator.parallelism
    # An estimate may be negative or 0; such a rate says nothing of what the operator can do.
    rate = now.value if now.value is not None and now.value > 0 and now.confidence >= MIN_CONFIDENCE else None
    # Most operators were measured at their present parallelism only: the line through that point.
    if not trusted:
        return CapacityCurve(parallelism / rate, 0.0, now.confidence) if rate else None
    if len(trusted) == 1 and trusted[0].parallelism == parallelism:
        return CapacityCurve(parallelism / trusted[0].records_per_second, 0.0, trusted[0].confidence)
    points = [
        (p.parallelism, p.records_per_second, p.confidence * (SATURATED_WEIGHT if p.saturated else 1.0))
        for p in trusted
    ]
    confidences = [point.confidence for point in trusted]
    here = next((rate for p, rate, _ in points if p == parallelism), None)
    if rate and here is None:
        here = rate
        points.append((parallelism, rate, now.confidence))
        confidences.append(now.confidence)
    curve = _falling(points, max(confidences)) if _falls(trusted) else _fit(points, max(confidences))
    return curve if here is None else curve.scaled(curve.rate(parallelism) / here)


def _falls(points: Sequence[CapacityPoint]) -> bool:
    """Whether more subtasks were measured to do clearly less than fewer, both saturated and within the last hour."""
    newest = max(p.measured_at for p in points)
    full = [
        (p.parallelism, p.records_per_second) for p in points if p.saturated and newest - p.measured_at <= FALL_COUNTS
    ]
    best = 0.0
    for _, rate in sorted(full):
        if rate < FALLEN * best:
            return True
        best = max(best, rate)
    return False


def _falling(points: Sequence[tuple[int, float, float]], confidence: float) -> CapacityCurve:
    own, coherence = _weighted(points, [p * (p - 1.0) for p, _, _ in points])
    if own <= 0 or coherence <= 0:
        return _fit(points, confidence)
    return CapacityCurve(own, 0.0, confidence, len({p for p, _, _ in points}), coherence)


def _fit(points: Sequence[tuple[int, float, float]], confidence: float) -> CapacityCurve:
    distinct = {p for p, _, _ in points}
    if len(distinct) == 1:
        p = next(iter(distinct))
        mean = sum(rate * weight for _, rate, weight in points) / sum(weight for _, _, weight in points)
        return CapacityCurve(p / mean, 0.0, confidence, 1)
    own, serial = _weighted(points, [p - 1.0 for p, _, _ in points])
    if own <= serial:
        # A serial share above 1 is no curve of this family: more subtasks would do less than one. Noise; go linear.
        values, weights = _rows(points)
        return CapacityCurve(float(np.average(values, weights=weights)), 0.0, confidence, len(distinct))
    return CapacityCurve(own, serial, confidence, len(distinct))


def _rows(points: Sequence[tuple[int, float, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Return p / C(p) and its weights, divided by the row's own value: errors are relative."""
    values = np.array([p / rate for p, rate, _ in points])
    return values, np.sqrt(np.array([weight for _, _, weight in points])) / values


def _weighted(points: Sequence[tuple[int, float, float]], second: Sequence[float]) -> tuple[float, float]:
    """Fit p / C(p) by a constant and a multiple of `second`, neither below 0: the free optimum if it is allowed, else
    the better of the two edges (the problem is convex, so it cannot lie inside)."""
    values, weights = _rows(points)
    matrix, values = np.array([[1.0, each] for each in second]) * weights[:, None], values * weights
    free, *_ = np.linalg.lstsq(matrix, values, rcond=None)
    if free.min() >= 0:
        return float(free[0]), float(free[1])
    alone = [max(0.0, float(column @ values) / float(column @ column)) for column in matrix.T]
    edges = [(alone[0], 0.0), (0.0, alone[1])]
    return min(edges, key=lambda edge: float(np.sum((matrix @ np.array(edge) - values) ** 2)))


class LowerBound(NamedTuple):
    """A lower bound of capacity, and the parallelism at which it was found."""

    records_per_second: float
    """Rate of the whole operator."""
    parallelism: int

    def rate(self, parallelism: int) -> float:
        """Return a lower bound of records/s that the operator sustains at `parallelism`. Fewer subtasks do at least
        their share, because more of them share something; that more subtasks do more was not measured."""
        return self.records_per_second * min(1.0, parallelism / self.parallelism)


def lower_bounds_of(operators: Iterable[OperatorAnalysis], curves: Container[str]) -> dict[str, LowerBound]:
    """Return the lower bounds of the operators without a curve, as far as they are known."""
    bounds = {
        o.operator: LowerBound(o.min_processing_rate.value or 0.0, o.parallelism)
        for o in operators
        if o.operator not in curves and o.min_processing_rate is not None
    }
    return {name: bound for name, bound in bounds.items() if bound.records_per_second > 0}
