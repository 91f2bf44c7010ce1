"""What an operator can do at a parallelism it may never have run with.

`C(p) = c·p / (1 + s·(p − 1))` (Amdahl's form: c one subtask's rate, s the serial share; ceiling c/s). `p / C(p)` is linear in `1/c`
and `s/c`, so both come from a weighted non-negative least squares fit. With a single p seen the curve is linear: a
second parameter fitted on one point would be invented. A coherence term (USL's κ) only where more subtasks were seen to do less: a
control loop sees few, close p, on which a free κ extrapolates worse than a straight line. Then it takes the place of s,
`C(p) = c·p / (1 + κ·p·(p − 1))`, and there is a parallelism beyond which more do less.
"""

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

import numpy as np
from weir_contracts import CapacityPoint, OperatorAnalysis

LEAST_CONFIDENCE = 0.05
FALLEN = 0.9
"""Of what fewer subtasks do: from below this share on it is no noise that more do less. The executor rolls back by the same."""
FALL_COUNTS = timedelta(hours=1)
SATURATED_WEIGHT = 2.0
"""A measurement under saturation is an observation; one from busy time an extrapolation."""


class CapacityCurve(NamedTuple):
    """`per_subtask_seconds` is 1/c, `serial_seconds` is s/c, `coherence_seconds` is κ/c, all in seconds per record."""

    per_subtask_seconds: float
    serial_seconds: float = 0.0
    confidence: float = 0.0
    points: int = 1
    coherence_seconds: float = 0.0

    def rate(self, parallelism: int) -> float:
        """Records/s the whole operator sustains at `parallelism`; grows with it up to `best`."""
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
        """The smallest parallelism that sustains `demand` records/s; None if none does."""
        if demand <= 0:
            return 1
        if self.coherence_seconds > 0:
            return next((p for p in range(1, (self.best or 1) + 1) if self.rate(p) >= demand * (1 - 1e-9)), None)
        left = 1 - demand * self.serial_seconds
        if left <= 1e-9:
            return None
        exact = demand * (self.per_subtask_seconds - self.serial_seconds) / left
        return max(1, math.ceil(exact - 1e-9))


def curve_of(operator: OperatorAnalysis) -> CapacityCurve | None:
    """The curve through what was seen of an operator; None if nothing was.

    It goes exactly through the best knowledge at the present parallelism, and takes its shape from all of it.
    """
    trusted = [point for point in operator.capacities if point.confidence >= LEAST_CONFIDENCE]
    now, parallelism = operator.true_processing_rate, operator.parallelism
    # An estimate may be negative or 0; such a rate says nothing of what the operator can do.
    rate = now.value if now.value is not None and now.value > 0 and now.confidence >= LEAST_CONFIDENCE else None
    # Most are seen as they run and nowhere else: the line through that point.
    if not trusted:
        return CapacityCurve(parallelism / rate, 0.0, now.confidence) if rate else None
    if len(trusted) == 1 and trusted[0].parallelism == parallelism:
        return CapacityCurve(parallelism / trusted[0].records_per_second, 0.0, trusted[0].confidence)
    seen = [(p.parallelism, p.records_per_second, _weight(p.confidence, p.saturated)) for p in trusted]
    confidences = [point.confidence for point in trusted]
    if rate and all(p != parallelism for p, _, _ in seen):
        seen.append((parallelism, rate, now.confidence))
        confidences.append(now.confidence)
    curve = _falling(seen, max(confidences)) if _falls(trusted) else _fit(seen, max(confidences))
    here = next((rate for p, rate, _ in seen if p == parallelism), None)
    if here is None:
        return curve
    scale = curve.rate(parallelism) / here
    return CapacityCurve(
        curve.per_subtask_seconds * scale,
        curve.serial_seconds * scale,
        curve.confidence,
        curve.points,
        curve.coherence_seconds * scale,
    )


def _weight(confidence: float, saturated: bool) -> float:
    return confidence * (SATURATED_WEIGHT if saturated else 1.0)


def _falls(points: Sequence[CapacityPoint]) -> bool:
    """Whether more subtasks were seen to do clearly less than fewer, both as full as they get and within the last hour: it may
    have been a bad hour, and what is believed for ever is never tried again."""
    newest = max((p.measured_at for p in points), default=None)
    full = sorted(
        (p.parallelism, p.records_per_second)
        for p in points
        if p.saturated and newest is not None and newest - p.measured_at <= FALL_COUNTS
    )
    best = 0.0
    for _, rate in full:
        if rate < FALLEN * best:
            return True
        best = max(best, rate)
    return False


def _falling(seen: Sequence[tuple[int, float, float]], confidence: float) -> CapacityCurve:
    own, coherence = _weighted(seen, [p * (p - 1.0) for p, _, _ in seen])
    if own <= 0 or coherence <= 0:
        return _fit(seen, confidence)
    return CapacityCurve(own, 0.0, confidence, len({p for p, _, _ in seen}), coherence)


def _fit(seen: Sequence[tuple[int, float, float]], confidence: float) -> CapacityCurve:
    distinct = {p for p, _, _ in seen}
    if len(distinct) == 1:
        p = next(iter(distinct))
        mean = sum(rate * weight for _, rate, weight in seen) / sum(weight for _, _, weight in seen)
        return CapacityCurve(p / mean, 0.0, confidence, 1)
    own, serial = _weighted(seen, [p - 1.0 for p, _, _ in seen])
    if own <= serial:
        # A serial share above 1 is no curve of this family: more subtasks would do less than one. Noise; go linear.
        values, weights = _rows(seen)
        return CapacityCurve(float(np.average(values, weights=weights)), 0.0, confidence, len(distinct))
    return CapacityCurve(own, serial, confidence, len(distinct))


def _rows(seen: Sequence[tuple[int, float, float]]) -> tuple[np.ndarray, np.ndarray]:
    """p / C(p) and its weights. Relative errors: a row's weight is divided by the row's own value."""
    values = np.array([p / rate for p, rate, _ in seen])
    return values, np.sqrt(np.array([weight for _, _, weight in seen])) / values


def _weighted(seen: Sequence[tuple[int, float, float]], second: Sequence[float]) -> tuple[float, float]:
    """The fit of p / C(p) by a constant and a multiple of `second`, neither below 0."""
    values, weights = _rows(seen)
    matrix = np.array([[1.0, each] for each in second])
    return _non_negative(matrix * weights[:, None], values * weights)


def _non_negative(matrix: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Least squares of two unknowns that may not be below 0: the free optimum if it is allowed, else the better of the two edges
    (the problem is convex, so it cannot lie inside)."""
    free, *_ = np.linalg.lstsq(matrix, values, rcond=None)
    if free.min() >= 0:
        return float(free[0]), float(free[1])
    alone = [max(0.0, float(column @ values) / float(column @ column)) for column in matrix.T]
    edges = [(alone[0], 0.0), (0.0, alone[1])]
    return min(edges, key=lambda edge: float(np.sum((matrix @ np.array(edge) - values) ** 2)))
