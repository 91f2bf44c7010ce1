"""Numeric helpers shared by all parts of the analysis. Points are tuples that begin with their time, oldest first."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import repeat
from operator import mul, sub
from typing import Any, TypeVar

from pydantic import TypeAdapter
from weir_contracts import MAX_NUMBER, Estimate, unknown

_VALIDATED: Callable[[object], Estimate] = TypeAdapter(Estimate).validator.validate_python
"""Makes an estimate of a dictionary in two thirds of its constructor's time; an observation makes a hundred of them."""
MAX_LEARNED = 1000
"""Operators, and edges, of which something learned is kept."""
_rounded = lru_cache(maxsize=256)(round)
"""Rounds confidences and windows, which the operators of an observation share."""
P = TypeVar("P", bound=tuple[Any, ...])
T = TypeVar("T")


def estimate(
    value: float | None, basis: str, confidence: float, samples: int = 0, window_seconds: float | None = None
) -> Estimate:
    """Return an estimate within the bounds of messages; a value beyond them is unknown, a longer basis is cut."""
    basis = basis[:300]
    if value is None or not -MAX_NUMBER <= value <= MAX_NUMBER:
        return unknown(basis)
    if window_seconds is not None:
        window_seconds = _rounded(window_seconds, 3) if window_seconds > 0 else 0.0
    return _VALIDATED(
        {
            "value": round(value, 6),
            "basis": basis,
            "confidence": 0.0 if confidence <= 0 else _rounded(confidence, 3) if confidence < 1 else 1.0,
            "samples": samples,
            "window_seconds": window_seconds,
        }
    )


def at_least(
    bound: float | None, reason: str, confidence: float, samples: int = 0, window_seconds: float | None = None
) -> Estimate:
    """Return an unknown value, for this reason, with the lower bound that its known part proves; None: nothing does."""
    found = estimate(bound, reason, confidence, samples, window_seconds)
    return found.model_copy(update={"value": None, "lower_bound": found.value})


@lru_cache(maxsize=4)  # the operators of one observation share their samples' times
def slope_weights(times: tuple[float, ...]) -> list[float] | None:
    """Return weights whose sum of products with y is the least-squares slope of y over `times`; None without any
    spread."""
    if len(times) < 2:
        return None
    first = times[0]
    mean = sum([time - first for time in times]) / len(times)
    off = [time - first - mean for time in times]
    spread = sum([each * each for each in off])
    return [each / spread for each in off] if spread > 1e-9 else None


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Least-squares slope of y over x; None with fewer than two distinct x."""
    if len(points) < 2:
        return None
    times, values = zip(*points, strict=True)
    weights = slope_weights(times)
    return None if weights is None else weighted(weights, values)


def weighted(weights: Sequence[float], values: Sequence[float | None]) -> float | None:
    """Return the sum of the weights' products with the values less the first one; None if a value is unknown."""
    try:
        result: float = sum(map(mul, weights, map(sub, values, repeat(values[0]))))
    except TypeError:
        return None
    return result


def since(points: Sequence[P], at: float, minimum: int = 0) -> list[P]:
    """Return the points from `at` on, at least the last `minimum`."""
    inside = [point for point in points if point[0] >= at]
    return inside if len(inside) >= minimum else list(points[-minimum:])


def thinned(points: list[P], limit: int) -> list[P]:
    """Drop points until `limit` are left, each time the one whose neighbours are closest; both ends stay."""
    while len(points) > limit:
        drop = min(range(1, len(points) - 2), key=lambda i: points[i + 1][0] - points[i - 1][0])
        points = points[:drop] + points[drop + 1 :]
    return points


def newest(learned: dict[str, T], measured_at: Callable[[T], float]) -> dict[str, T]:
    """Return at most `MAX_LEARNED` of what was learned; the oldest go."""
    if len(learned) <= MAX_LEARNED:
        return learned
    names = sorted(learned, key=lambda name: measured_at(learned[name]))[-MAX_LEARNED:]
    return {name: learned[name] for name in names}


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
