"""Capacity of an operator at parallelisms with which it may never have run.

`C(p) = c·p / (1 + s·(p − 1))` (Amdahl's form: c one subtask's rate, s the serial share; ceiling c/s), fitted in
`fit.py`. With a single measured p the bend is the usual one of other applications. A coherence term (USL's κ) only where
more subtasks were measured to do less: on the few close p of a control loop a free κ extrapolates worse than a straight
line. Then it replaces s, `C(p) = c·p / (1 + κ·p·(p − 1))`, and beyond some parallelism more subtasks do less.

Partitions and key groups are not divided: with G of them the busiest of p subtasks has ⌈G/p⌉, so that p subtasks do what
G/⌈G/p⌉ equally loaded ones would. C has steps: of 12 partitions, 7 to 11 subtasks do what 6 do. The curve is one of
equally loaded subtasks; what was measured between two steps is a measurement of as many as that.

Records of a hot key are processed by one subtask: with the share h of all records, the busiest subtask does 1 + h·(p − 1)
times the mean, and saturates first. So a skew that was measured, beyond that of the steps, divides C(p) by as much, at
every parallelism.

Each curve has an interval at each parallelism: it widens with the points' spread, age and lack of saturation, and with
the distance from them.

A nearly idle operator gives no rate for a curve, but a lower bound: at its low utilization it does what it takes in, so
it can do so much more. A lower bound shows that a parallelism suffices, never that it does not.
"""

import math
from collections.abc import Container, Iterable, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from weir_contracts import CapacityPoint, OperatorAnalysis, Topology, even_subtasks, parallelism_for

from .fit import DISTANCE_ERROR, NOISE, PRIOR, Measurement, Prior, fitted, sensitivity

MIN_CONFIDENCE = 0.05
FALLEN = 0.9
"""Share of what fewer subtasks do, below which a fall is no noise. The executor rolls back by the same."""
FALL_COUNTS = timedelta(hours=1)
"""Age up to which a fall counts: it may have been a bad hour, and a parallelism that is never tried is never measured
again."""
SATURATED_WEIGHT = 2.0
"""Weight of a measurement under saturation, which is an observation; one from busy time is an extrapolation."""
HOURLY_ERROR = 0.05
"""Relative error that each hour adds to a measurement: state grows, neighbours come and go."""
MAX_AGE_HOURS = 24.0
NOTABLE_SKEW = 0.05
"""By how much the busiest subtask has to be busier than the mean for its share of records to be larger."""
MAX_HOT_SHARE = 0.95
MAX_BEST = 1e9
"""Largest parallelism from which a curve may fall: beyond it the fall is a rounding error."""
DEVIATIONS = 1.645
"""Standard errors from the curve to the edges of its interval: nine of ten measurements lie within."""


class CapacityCurve(NamedTuple):
    """`per_subtask_seconds` is 1/c, `serial_seconds` is s/c, `coherence_seconds` is κ/c, all in seconds per record."""

    per_subtask_seconds: float
    serial_seconds: float = 0.0
    confidence: float = 0.0
    points: int = 1
    coherence_seconds: float = 0.0
    level_error: float = 0.0
    """Relative standard error at the measured parallelisms."""
    shape_error: float = 0.0
    """Standard error of the serial share's logarithm."""
    pivot: float = 0.0
    """`fit.sensitivity` at the measured parallelisms."""
    measured: tuple[float, ...] = ()
    """The measured parallelisms as equally loaded subtasks, least first."""
    hot_share: float = 0.0
    """Share of the records that one subtask gets beyond its equal part."""
    shares: int | None = None
    """Number of indivisible shares of the work: partitions, tasks, key groups. None: it is divided evenly."""

    def rate(self, parallelism: int) -> float:
        """Return records/s that the operator sustains at `parallelism`; grows with it, in steps, up to `best`."""
        subtasks = even_subtasks(parallelism, self.shares)
        more = subtasks - 1
        shared = more * (self.serial_seconds + self.coherence_seconds * subtasks)
        return subtasks / (self.per_subtask_seconds + shared) / (1 + self.hot_share * more)

    def lower(self, parallelism: int) -> float:
        """Return the lower edge of the interval around `rate`."""
        return self.rate(parallelism) * math.exp(-DEVIATIONS * self.error(parallelism))

    def upper(self, parallelism: int) -> float:
        """Return the upper edge of the interval around `rate`."""
        return self.rate(parallelism) * math.exp(DEVIATIONS * self.error(parallelism))

    def error(self, parallelism: int) -> float:
        """Return the relative standard error of `rate`; 0 if the curve was not measured."""
        if not self.measured:
            return 0.0
        share, subtasks = self.serial_seconds / self.per_subtask_seconds, even_subtasks(parallelism, self.shares)
        shape = self.shape_error * (sensitivity(share, subtasks) - self.pivot)
        distance = 0.0 if subtasks in self.measured else min([abs(math.log(subtasks / p)) for p in self.measured])
        return math.hypot(self.level_error, shape, DISTANCE_ERROR * distance)

    @property
    def best(self) -> int | None:
        """The parallelism beyond which more subtasks do less; None: there is none."""
        falls = self.coherence_seconds + self.serial_seconds * self.hot_share
        return _best(self) if falls > 0 else None

    @property
    def ceiling(self) -> float:
        """Records/s that no parallelism exceeds; infinite for a linear curve without steps."""
        most = self.best or self.shares
        if most is not None:
            return self.rate(most)
        limit = self.serial_seconds + self.hot_share * self.per_subtask_seconds
        return math.inf if limit <= 0 else 1 / limit

    def needed(self, demand: float) -> int | None:
        """Return the smallest parallelism that sustains `demand` records/s; None if none does."""
        if demand <= 0:
            return 1
        if self.coherence_seconds > 0:
            return next((p for p in range(1, (self.best or 1) + 1) if self.rate(p) >= demand * (1 - 1e-9)), None)
        # (c + s·q)·(1 + h·q)·demand = 1 + q for the q = p − 1 further subtasks: the smaller root
        own, shared, hot = self.per_subtask_seconds, self.serial_seconds, self.hot_share
        missing, left = demand * own - 1, 1 - demand * (shared + own * hot)
        if missing <= 0:
            return 1
        if left <= 1e-9:
            return None
        if hot == 0:
            return parallelism_for(1 + missing / left, self.shares)
        root = left * left - 4 * missing * demand * shared * hot
        if root < 0:
            return None
        found = parallelism_for(1 + 2 * missing / (left + math.sqrt(root)), self.shares)
        # Rounded up, it may lie beyond the larger root.
        return None if found is None or self.rate(found) < demand * (1 - 1e-9) else found

    @property
    def even(self) -> "CapacityCurve":
        """The curve without steps: if the work were divided evenly."""
        return self._replace(shares=None)

    def straightest(self, parallelism: int) -> "CapacityCurve":
        """Return the curve of the same capacity at `parallelism` that bends least within the interval of its shape."""
        share = self.serial_seconds / self.per_subtask_seconds
        least, more = share * math.exp(-DEVIATIONS * self.shape_error), even_subtasks(parallelism, self.shares) - 1
        own = self.per_subtask_seconds * (1 + share * more) / (1 + least * more)
        return self._replace(per_subtask_seconds=own, serial_seconds=own * least)

    def surely_needed(self, demand: float, limit: int, margin: float = 0.0) -> int | None:
        """Return the smallest parallelism up to `limit` whose lower edge sustains `demand`, which may be `margin` higher;
        None if none does. Two independent errors are as one of the root of their squares."""
        return _surely_needed(self, demand, limit, margin)


@lru_cache(maxsize=1024)  # a steady load asks again in each cycle
def _surely_needed(curve: CapacityCurve, demand: float, limit: int, margin: float) -> int | None:
    first = curve.needed(demand)
    if first is None:
        return None
    higher = math.log1p(margin)

    def is_enough(p: int) -> bool:
        error = math.hypot(DEVIATIONS * curve.error(p), higher)
        return curve.rate(p) * math.exp(-error) >= demand * (1 - 1e-9)

    return next((p for p in range(first, limit + 1) if is_enough(p)), None)


@lru_cache(maxsize=4096)  # each plan asks several times
def _best(curve: CapacityCurve) -> int:
    own, shared, hot = curve.per_subtask_seconds, curve.serial_seconds, curve.hot_share
    falls = curve.coherence_seconds + shared * hot
    exact = min(MAX_BEST, math.sqrt(max(0.0, own - shared) * (1 - hot) / falls))
    if curve.shares is None:
        return max(max(1, math.floor(exact)), math.ceil(exact), key=curve.rate)
    above = parallelism_for(exact, curve.shares) or curve.shares
    below = math.ceil(even_subtasks(max(1, above - 1), curve.shares))
    return max(below, above, key=curve.rate)


def curve_of(operator: OperatorAnalysis, shares: int | None = None) -> CapacityCurve | None:
    """Return the curve through what was measured of an operator; None if nothing was. `shares` is the number of indivisible
    shares of its work, if there are any."""
    trusted = [point for point in operator.capacities if point.confidence >= MIN_CONFIDENCE]
    points, confidence, is_measured = _measurements(trusted, shares), 0.0, False
    for point in trusted:
        confidence = point.confidence if point.confidence > confidence else confidence
        is_measured = is_measured or point.parallelism == operator.parallelism
    now = operator.true_processing_rate
    # An estimate may be negative or 0; such a rate says nothing of what the operator can do.
    if not is_measured and now.value is not None and now.value > 0 and now.confidence >= MIN_CONFIDENCE:
        subtasks = even_subtasks(operator.parallelism, shares)
        points.append(Measurement(subtasks, now.value, 1 / now.confidence))
        confidence = max(confidence, now.confidence)
    if not points:
        return None
    curve = _falling(points, confidence) if len(trusted) > 1 and _falls(trusted, shares) else None
    curve = curve or curve_through(tuple(points), confidence, _hot_share(trusted, shares))
    return curve if shares is None else curve._replace(shares=shares)


def _hot_share(points: Sequence[CapacityPoint], shares: int | None) -> float:
    """Return the share of records that one subtask gets beyond its equal part, by least squares of the measured skews;
    0 if no skew is more than a difference between gauges. A skew between two steps is partly, or all, that of the step."""
    max_excess = products = squares = 0.0
    for point in points:
        subtasks = even_subtasks(point.parallelism, shares)
        skew, more = point.skew, subtasks - 1
        if skew is not None and more > 0:
            excess, weight = skew * subtasks / point.parallelism - 1, point.confidence
            max_excess = excess if excess > max_excess else max_excess
            products += weight * more * excess
            squares += weight * more * more
    return 0.0 if max_excess < NOTABLE_SKEW else min(MAX_HOT_SHARE, max(0.0, products / squares))


def _measurements(trusted: Sequence[CapacityPoint], shares: int | None) -> list[Measurement]:
    newest, found = max([p.measured_at for p in trusted]) if len(trusted) > 1 else None, []
    for point in trusted:
        variance = 1 / (point.confidence * (SATURATED_WEIGHT if point.saturated else 1.0))
        if newest is not None and point.measured_at < newest:
            hours = min(MAX_AGE_HOURS, (newest - point.measured_at).total_seconds() / 3600)
            variance += (HOURLY_ERROR * hours / NOISE) ** 2
        subtasks = even_subtasks(point.parallelism, shares)
        found.append(Measurement(subtasks, point.records_per_second, round(variance, 3)))
    return found


def _falls(points: Sequence[CapacityPoint], shares: int | None) -> bool:
    """Whether more subtasks were measured to do clearly less than fewer, both saturated and within the last hour."""
    newest = max(p.measured_at for p in points)
    full = [
        (even_subtasks(p.parallelism, shares), p.records_per_second)
        for p in points
        if p.saturated and newest - p.measured_at <= FALL_COUNTS
    ]
    best = 0.0
    for _, rate in sorted(full):
        if rate < FALLEN * best:
            return True
        best = max(best, rate)
    return False


@lru_cache(maxsize=4096)  # measurements stay for many cycles
def curve_through(
    points: tuple[Measurement, ...], confidence: float, hot_share: float = 0.0, prior: Prior = PRIOR
) -> CapacityCurve:
    """Return the curve through one or more measurements, at which one subtask got `hot_share` beyond its equal part."""
    even = points
    if hot_share > 0:
        even = tuple([each._replace(rate=each.rate * (1 + hot_share * (each.subtasks - 1))) for each in points])
    rate, share, level_error, shape_error, pivot = fitted(even, prior)
    measured = tuple(sorted({point.subtasks for point in points}))
    return CapacityCurve(
        1 / rate, share / rate, confidence, len(measured), 0.0, level_error, shape_error, pivot, measured, hot_share
    )


def _falling(points: Sequence[Measurement], confidence: float) -> CapacityCurve | None:
    own, coherence = _weighted(points)
    if own <= 0 or coherence <= 0:
        return None
    measured = tuple(sorted({point.subtasks for point in points}))
    return CapacityCurve(own, 0.0, confidence, len(measured), coherence, 2 * NOISE, 0.0, 0.0, measured)


def _weighted(points: Sequence[Measurement]) -> tuple[float, float]:
    """Fit p / C(p) by a constant and a multiple of p·(p − 1), neither below 0: the free optimum if it is allowed, else
    the better of the two edges (the problem is convex, so it cannot lie inside). Errors are relative."""
    values = np.array([p / rate for p, rate, _ in points])
    weights = np.sqrt(np.array([1 / variance for _, _, variance in points])) / values
    matrix = np.array([[1.0, p * (p - 1.0)] for p, _, _ in points]) * weights[:, None]
    values = values * weights
    free, *_ = np.linalg.lstsq(matrix, values, rcond=None)
    if free.min() >= 0:
        return float(free[0]), float(free[1])
    alone = [max(0.0, float(column @ values) / float(column @ column)) for column in matrix.T]
    edges = [(alone[0], 0.0), (0.0, alone[1])]
    return min(edges, key=lambda edge: float(np.sum((matrix @ np.array(edge) - values) ** 2)))


class LowerBound(NamedTuple):
    """A lower bound of capacity, and the parallelism at which it was found."""

    records_per_second: float
    """Rate of the whole operator, if its load were even."""
    parallelism: int
    shares: int | None = None
    """As in `CapacityCurve`."""

    @property
    def line(self) -> CapacityCurve:
        """The linear curve through the lower bound."""
        return CapacityCurve(self.parallelism / self.records_per_second, shares=self.shares)

    def rate(self, parallelism: int) -> float:
        """Return a lower bound of records/s that the operator sustains at `parallelism`. Fewer subtasks do at least
        their share, because more of them share something; that more subtasks do more was not measured."""
        return self.line.rate(min(parallelism, self.parallelism))


def lower_bounds_of(
    operators: Iterable[OperatorAnalysis], curves: Container[str], topology: Topology
) -> dict[str, LowerBound]:
    """Return the lower bounds of the operators without a curve, as far as they are known."""
    bounds = {
        o.operator: LowerBound(o.min_processing_rate.value or 0.0, o.parallelism, topology.work_shares(o.operator))
        for o in operators
        if o.operator not in curves and o.min_processing_rate is not None
    }
    return {name: bound for name, bound in bounds.items() if bound.records_per_second > 0}
