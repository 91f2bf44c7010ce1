"""Small numeric pieces that every part of the analysis needs."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from pydantic import TypeAdapter
from weir_contracts import MAX_NUMBER, Estimate, unknown

_VALIDATED: Callable[[object], Estimate] = TypeAdapter(Estimate).validator.validate_python
"""Makes an estimate of a dictionary in two thirds of its constructor's time; an observation makes a hundred of them."""


def estimate(
    value: float | None, basis: str, confidence: float, samples: int = 0, window_seconds: float | None = None
) -> Estimate:
    """Return an estimate within the bounds of messages; a value beyond them is unknown, a longer basis is cut."""
    basis = basis[:300]
    if value is None or not -MAX_NUMBER <= value <= MAX_NUMBER:
        return unknown(basis)
    return _VALIDATED(
        {
            "value": round(value, 6),
            "basis": basis,
            "confidence": 0.0 if confidence <= 0 else round(confidence, 3) if confidence < 1 else 1.0,
            "samples": samples,
            "window_seconds": None
            if window_seconds is None
            else round(window_seconds, 3)
            if window_seconds > 0
            else 0.0,
        }
    )


@lru_cache(maxsize=4)  # the operators of one observation share their samples' times
def slope_weights(times: tuple[float, ...]) -> list[float] | None:
    """Return weights whose sum of products with y is the least-squares slope of y over `times`; None without any spread."""
    if len(times) < 2:
        return None
    first = times[0]
    mean = sum([time - first for time in times]) / len(times)
    off = [time - first - mean for time in times]
    spread = sum([each * each for each in off])
    return [each / spread for each in off] if spread > 1e-9 else None


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Least-squares slope of y over x; None with fewer than two distinct x."""
    weights = slope_weights(tuple([x for x, _ in points]))
    if weights is None:
        return None
    first = points[0][1]
    return sum([weight * (y - first) for weight, (_, y) in zip(weights, points, strict=True)])


def total(values: Iterable[float | None]) -> float | None:
    """The sum; None as soon as one part is unknown, and for nothing at all."""
    result, observed = 0.0, False
    for value in values:
        if value is None:
            return None
        result, observed = result + value, True
    return result if observed else None


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


def formatted(value: float | None) -> str:
    """A number as people read it in a sentence: `1,234`, `12.3`, `0.034`."""
    if value is None:
        return "unknown"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 1:
        return f"{value:,.1f}"
    return f"{value:.3g}"
