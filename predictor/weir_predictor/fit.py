"""Fit of Amdahl's form to measured capacities, and how far off it may be.

`ln C(p) = ln c + ln p − ln(1 + s·(p − 1))`. Errors are relative to capacity, so the fit is one of logarithms. The serial
share s begins from a prior, which is what published applications contend (`make bench-capacity`): their shares are
log-normal. A single point so gives the usual curve through it, and each further one moves the shape as far as its noise
allows. The posterior of s is summed over a grid, which needs no iteration that could fail.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import NamedTuple


class Prior(NamedTuple):
    """Contention before an application was measured: ln s is normal."""

    serial_share: float
    """Median of s."""
    deviation: float
    """Standard deviation of ln s."""


PRIOR = Prior(0.025, 0.9)
"""Geometric mean and spread of the serial shares of the curves in bench/capacity."""
NOISE = 0.04
"""Usual relative error of one measurement under saturation, and of Amdahl's form itself."""
NOISE_POINTS = 3.0
"""Number of measurements that the usual error weighs as much as."""
DISTANCE_ERROR = 0.06
"""Relative error that each e-fold distance from the measured parallelisms adds: the form may not hold so far off."""
MAX_SERIAL_SHARE = 0.9
"""Beyond 1 more subtasks would do less than one."""
GRID = tuple(k / 4 for k in range(-12, 15))
"""Deviations from the prior's mean at which the posterior is evaluated."""


class Measurement(NamedTuple):
    """Capacity of so many equally loaded subtasks."""

    subtasks: float
    rate: float
    variance: float
    """Of its relative error, over that of a usual measurement."""


class Fitted(NamedTuple):
    """The curve, and the errors of its level and shape."""

    per_subtask_rate: float
    serial_share: float
    level_error: float
    """Relative standard error where the curve is measured."""
    shape_error: float
    """Standard error of ln s."""
    pivot: float
    """Sensitivity to ln s at the measured parallelisms, where level and shape are independent."""


def sensitivity(serial_share: float, subtasks: float) -> float:
    """Return by how much ln C falls as ln s grows."""
    shared = serial_share * (subtasks - 1)
    return shared / (1 + shared)


def fitted(points: tuple[Measurement, ...], prior: Prior = PRIOR) -> Fitted:
    """Return the fit of one or more measurements."""
    weights = [1 / point.variance for point in points]
    total = sum(weights)
    if len({point.subtasks for point in points}) == 1:
        share = prior.serial_share
        level = sum(weight * math.log(p.rate) for weight, p in zip(weights, points, strict=True)) / total
        level -= _shape(share, points[0].subtasks)
        error = NOISE * math.sqrt(1 + 1 / total)
        return Fitted(math.exp(level), share, error, prior.deviation, sensitivity(share, points[0].subtasks))
    rows = [(point.subtasks, math.log(point.rate), weight) for point, weight in zip(points, weights, strict=True)]
    share, deviation, squares = _posterior(rows, total, prior)
    level = sum(weight * (y - _shape(share, p)) for p, y, weight in rows) / total
    variance = (NOISE_POINTS * NOISE**2 + squares) / (NOISE_POINTS + len(points) - 1)
    pivot = sum(weight * sensitivity(share, p) for p, _, weight in rows) / total
    return Fitted(math.exp(level), share, math.sqrt(variance * (1 + 1 / total)), deviation, pivot)


def _shape(serial_share: float, subtasks: float) -> float:
    return math.log(subtasks) - math.log1p(serial_share * (subtasks - 1))


@lru_cache(maxsize=64)
def _shares(prior: Prior) -> tuple[float, ...]:
    """Return the serial share at each deviation of `GRID`."""
    return tuple([min(MAX_SERIAL_SHARE, prior.serial_share * math.exp(prior.deviation * each)) for each in GRID])


@lru_cache(maxsize=4096)  # each cycle measures the same parallelisms
def _shapes(subtasks: float, prior: Prior) -> tuple[float, ...]:
    return tuple([_shape(share, subtasks) for share in _shares(prior)])


@lru_cache(maxsize=64)
def _log_shares(prior: Prior) -> tuple[float, ...]:
    return tuple([math.log(share) for share in _shares(prior)])


def _posterior(rows: Sequence[tuple[float, float, float]], total: float, prior: Prior) -> tuple[float, float, float]:
    """Return the median of s, the deviation of ln s, and the weighted squares that remain."""
    usual, half_freedom = NOISE_POINTS * NOISE**2, (NOISE_POINTS + len(rows) - 1) / 2
    weights = [weight for _, _, weight in rows]
    columns = [[y - shape for shape in _shapes(p, prior)] for p, y, _ in rows]
    all_squares, costs = list[float](), list[float]()
    for deviations, off in zip(GRID, zip(*columns, strict=True), strict=True):
        level = sum(map(mul, off, weights)) / total
        squares = sum([weight * (value - level) ** 2 for value, weight in zip(off, weights, strict=True)])
        all_squares.append(squares)
        # Student's t: points that agree better than usual say more of the shape, those that disagree say less.
        costs.append(half_freedom * math.log1p(squares / usual) + deviations**2 / 2)
    minimum, log_shares = min(costs), _log_shares(prior)
    likely = [math.exp(minimum - cost) for cost in costs]
    whole = sum(likely)
    mean = sum(map(mul, likely, log_shares)) / whole
    variance = sum([weight * (each - mean) ** 2 for weight, each in zip(likely, log_shares, strict=True)]) / whole
    remaining = sum(map(mul, likely, all_squares)) / whole
    return math.exp(mean), math.sqrt(variance), remaining
