"""Capacity of an operator at any parallelism, from its measured points.

`C(p) = c·p / (1 + s·(p − 1))`: c one subtask's rate, s the share that does not scale. `p / C(p)` is linear in p − 1, so both come from a
weighted least squares fit of relative errors. With a single p points the curve is a straight line through 0: a second
parameter fitted on one point would be invented. The curve goes exactly through what is known at the present parallelism.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from weir_contracts import OperatorAnalysis

MIN_CONFIDENCE = 0.05
"""What is believed less is not used."""
SATURATED_WEIGHT = 2.0
"""A measurement under saturation is an observation; one from busy time an extrapolation."""


@dataclass(frozen=True)
class _Point:
    parallelism: int
    rate: float
    weight: float


def capacity_at(operator: OperatorAnalysis, parallelism: int) -> float | None:
    """Return the records/s that an operator sustains at `parallelism` with all subtasks; None if unknown."""
    points = [
        _Point(p.parallelism, p.records_per_second, p.confidence * (SATURATED_WEIGHT if p.saturated else 1.0))
        for p in operator.capacities
        if p.confidence >= MIN_CONFIDENCE
    ]
    now = operator.true_processing_rate
    here = next((s.rate for s in points if s.parallelism == operator.parallelism), None)
    if here is None and now.value and now.confidence >= MIN_CONFIDENCE:
        here = now.value
        points.append(_Point(operator.parallelism, now.value, now.confidence))
    if not points:
        return None
    own, shared = _fit(points)
    rate = parallelism / (own + shared * (parallelism - 1))
    if here is None:
        return rate
    fitted = operator.parallelism / (own + shared * (operator.parallelism - 1))
    return rate * here / fitted


def _fit(points: Sequence[_Point]) -> tuple[float, float]:
    """1/c and s/c in seconds per record, neither below 0 and s not above 1."""
    if len({s.parallelism for s in points}) == 1:
        mean = sum(s.rate * s.weight for s in points) / sum(s.weight for s in points)
        return points[0].parallelism / mean, 0.0
    # Minimise Σ w·(1 − (a + b·(p−1))·C/p)²: with x = C/p and z = (p−1)·C/p these are the normal equations.
    rows = [(s.rate / s.parallelism, (s.parallelism - 1) * s.rate / s.parallelism, s.weight) for s in points]
    xx, xz, zz = (
        sum(w * x * x for x, _, w in rows),
        sum(w * x * z for x, z, w in rows),
        sum(w * z * z for _, z, w in rows),
    )
    x, z = sum(w * x for x, _, w in rows), sum(w * z for _, z, w in rows)
    spread = xx * zz - xz * xz
    if spread > 0:
        own, shared = (x * zz - z * xz) / spread, (z * xx - x * xz) / spread
        if shared < 0:
            return x / xx, 0.0  # more than their share is noise: the best straight line
        if own > shared:
            return own, shared
    # More subtasks would do less than one: noise, too.
    roots = [(s.parallelism / s.rate, s.weight**0.5 * s.rate / s.parallelism) for s in points]
    return sum(value * weight for value, weight in roots) / sum(weight for _, weight in roots), 0.0
