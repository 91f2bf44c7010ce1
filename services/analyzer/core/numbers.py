"""Small numeric pieces that every part of the analysis needs."""

import math
from collections.abc import Iterable, Sequence

from weir_contracts import Estimate, unknown


def estimate(
    value: float | None, basis: str, confidence: float, samples: int = 0, window_seconds: float | None = None
) -> Estimate:
    """An estimate; a value that is no finite number becomes unknown."""
    if value is None or not math.isfinite(value):
        return unknown(basis)
    return Estimate(
        value=round(value, 6),
        basis=basis,
        confidence=round(min(1.0, max(0.0, confidence)), 3),
        samples=samples,
        window_seconds=None if window_seconds is None else round(max(0.0, window_seconds), 3),
    )


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Least-squares slope of y over x; None with fewer than two distinct x."""
    n = len(points)
    if n < 2:
        return None
    x0, y0 = points[0]
    sum_x = sum_y = sum_xx = sum_xy = 0.0
    for x, y in points:
        dx, dy = x - x0, y - y0
        sum_x += dx
        sum_y += dy
        sum_xx += dx * dx
        sum_xy += dx * dy
    spread = sum_xx - sum_x * sum_x / n
    if spread <= 1e-9:
        return None
    return (sum_xy - sum_x * sum_y / n) / spread


def total(values: Iterable[float | None]) -> float | None:
    """The sum; None as soon as one part is unknown, and for nothing at all."""
    result, seen = 0.0, False
    for value in values:
        if value is None:
            return None
        result, seen = result + value, True
    return result if seen else None


def interpolate(x: float, knots: Sequence[tuple[float, float]]) -> float:
    """Piecewise linear through `knots` (sorted by x), constant outside."""
    x0, y0 = knots[0]
    if x <= x0:
        return y0
    for x1, y1 in knots[1:]:
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
        x0, y0 = x1, y1
    return y0


def told(value: float | None) -> str:
    """A number as people read it in a sentence: `1,234`, `12.3`, `0.034`."""
    if value is None:
        return "unknown"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 1:
        return f"{value:,.1f}"
    return f"{value:.3g}"
