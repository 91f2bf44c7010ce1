"""Small numeric pieces that every part of the analysis needs."""

from collections.abc import Iterable, Sequence

from weir_contracts import Estimate, unknown, within


def estimate(
    value: float | None, basis: str, confidence: float, samples: int = 0, window_seconds: float | None = None
) -> Estimate:
    """An estimate; a value that is beyond the bounds of messages becomes unknown."""
    bounded = within(value)
    if bounded is None:
        return unknown(basis)
    return Estimate(
        value=round(bounded, 6),
        basis=basis,
        confidence=round(min(1.0, max(0.0, confidence)), 3),
        samples=samples,
        window_seconds=None if window_seconds is None else round(max(0.0, window_seconds), 3),
    )


def slope_weights(times: Sequence[float]) -> list[float] | None:
    """Weights whose sum of products with y is the least-squares slope of y over `times`; None without any spread."""
    if len(times) < 2:
        return None
    first = times[0]
    mean = sum([time - first for time in times]) / len(times)
    off = [time - first - mean for time in times]
    spread = sum([each * each for each in off])
    return [each / spread for each in off] if spread > 1e-9 else None


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Least-squares slope of y over x; None with fewer than two distinct x."""
    weights = slope_weights([x for x, _ in points])
    if weights is None:
        return None
    first = points[0][1]
    return sum([weight * (y - first) for weight, (_, y) in zip(weights, points, strict=True)])


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
