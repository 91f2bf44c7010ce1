"""Arrivals to come: a source's rate over time, and the analysis' forecasts as such.

Decisions use forecasts whose upper bound is trusted (`coming`): once enough past peaks have been judged and about as many
of them stayed below it as it promises. A source without such a bound is assumed to stay as it is. Questions of users are
answered by all forecasts, with their upper edges where these are known (`ahead_of`).
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from weir_contracts import Analysis, PeakForecast, SourceForecast

MIN_RAMP_SECONDS = 1e-6
"""A rate that changes in less time is a step."""
MIN_COVERAGE = 0.85
"""Share of past peaks below their bound from which a bound for 0.9 of them counts: chance explains no less over
`MIN_JUDGED` peaks and many more."""
MAX_COVERAGE = 0.97
"""Share of past peaks below their bound above which the bound is not that of 0.9 of them: it says how far off a single
one was, such as the first jump of a load."""
MIN_FOLLOWED, NOW_SECONDS = 0.5, 90.0
"""Share of the rate that is forecast for these next seconds, below which the load does not follow its forecast: an outage
upstream, or a day unlike the others."""
MIN_JUDGED = 30
"""Past peaks that were judged: with fewer a share says little."""


@dataclass(frozen=True)
class ArrivalPath:
    """Rate of a source from now on. It changes evenly from point to point, stays at the first rate before them and at
    the last rate behind them; two points of one time are a step."""

    seconds: tuple[float, ...]
    """Times from now in seconds, ascending."""
    rates: tuple[float, ...]
    """Records/s at each of the times."""

    def __post_init__(self) -> None:
        if not self.seconds or len(self.seconds) != len(self.rates):
            raise ValueError(f"{len(self.seconds)} times and {len(self.rates)} rates are no path")
        if not all(math.isfinite(n) and n >= 0 for n in (*self.seconds, *self.rates)):
            raise ValueError("a path's times and rates are finite and not negative")
        if any(later < earlier for earlier, later in zip(self.seconds, self.seconds[1:], strict=False)):
            raise ValueError("a path's times ascend")

    @property
    def is_constant(self) -> bool:
        """Whether the rate never changes."""
        return min(self.rates) == max(self.rates)

    def rate_at(self, seconds: float) -> float:
        """Return records/s at one time; at a step the rate behind it."""
        return float(self.rates_at(np.array([seconds]))[0])

    def rates_at(self, times: np.ndarray) -> np.ndarray:
        """Return records/s at each time."""
        knots, rates, slopes, _ = self._pieces
        at = np.searchsorted(knots, times, side="right") - 1
        found: np.ndarray = rates[at] + slopes[at] * (times - knots[at])
        return found

    def arrived_by(self, times: np.ndarray) -> np.ndarray:
        """Return records that arrive from now until each time."""
        knots, rates, slopes, arrived = self._pieces
        at = np.searchsorted(knots, times, side="right") - 1
        since = times - knots[at]
        found: np.ndarray = arrived[at] + since * (rates[at] + 0.5 * slopes[at] * since)
        return found

    def within(self, horizon_seconds: float) -> list[float]:
        """Return the times before the horizon's end at which the rate begins to change otherwise."""
        return [at for at in self.seconds if 0 < at < horizon_seconds]

    def max_rate(self, horizon_seconds: float) -> float:
        """Return the highest records/s before the horizon's end."""
        inside = [rate for at, rate in zip(self.seconds, self.rates, strict=True) if at <= horizon_seconds]
        return max(self.rate_at(0.0), self.rate_at(horizon_seconds), *inside)

    def later(self, seconds: float) -> "ArrivalPath":
        """Return the path as it is so many seconds from now."""
        left = [(at - seconds, rate) for at, rate in zip(self.seconds, self.rates, strict=True) if at > seconds]
        return ArrivalPath((0.0, *(at for at, _ in left)), (self.rate_at(seconds), *(rate for _, rate in left)))

    def scaled(self, factor: float) -> "ArrivalPath":
        """Return the path with each rate times `factor`."""
        return ArrivalPath(self.seconds, tuple(rate * factor for rate in self.rates))

    @cached_property
    def _pieces(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Times, the rate from each of them on with its change per second, and the records that arrived until then."""
        knots, rates = np.array([0.0, *self.seconds]), np.array([self.rates[0], *self.rates])
        lengths, rises = np.diff(knots), np.diff(rates)
        slopes = np.divide(rises, lengths, out=np.zeros_like(rises), where=lengths > MIN_RAMP_SECONDS)
        arrived = np.cumsum(lengths * (rates[:-1] + rates[1:]) / 2)
        return knots, rates, np.append(slopes, 0.0), np.insert(arrived, 0, 0.0)


def union_of(times: np.ndarray, others: Iterable[float]) -> np.ndarray:
    """Return the times and the others in order, each once."""
    return np.union1d(times, np.fromiter(others, float))


@dataclass(frozen=True)
class Ahead:
    """Arrivals to come of the sources that have a forecast."""

    seconds: float
    """Time from the observation that all of these forecasts reach."""
    expected: Mapping[str, ArrivalPath]
    upper: Mapping[str, ArrivalPath] | None
    """The expected rates raised to the upper bounds of their peaks. None: a source's bound is unknown."""
    upper_seconds: float
    """Time from the observation for which these bounds are known; behind it their distance stays. 0: unknown."""


def ahead_of(analysis: Analysis, arrivals: Mapping[str, float]) -> Ahead | None:
    """Return the forecasts of the sources in `arrivals`, whose present records/s the paths begin with; None: no source
    has one."""
    found = {source: forecast for source in arrivals if (forecast := analysis.forecast(source)) and forecast.path}
    if not found:
        return None
    expected = {source: _expected(forecast, arrivals[source]) for source, forecast in found.items()}
    upper = {source: _upper(forecast, expected[source]) for source, forecast in found.items()}
    known = {source: path for source, path in upper.items() if path is not None}
    reach = min(path.seconds[-1] for path in expected.values())
    bounded = min(max((h.horizon_seconds for h in _bounded(forecast)), default=0.0) for forecast in found.values())
    return Ahead(reach, expected, known if len(known) == len(upper) else None, bounded)


def _bounded(forecast: SourceForecast) -> list[PeakForecast]:
    return [each for each in forecast.horizons if each.peak_upper is not None]


def _expected(forecast: SourceForecast, rate_now: float) -> ArrivalPath:
    points = sorted((point.after_seconds, point.records_per_second) for point in forecast.path)
    later = [(at, rate) for at, rate in points if at > 0]
    return _path([(0.0, rate_now), *later])


def _upper(forecast: SourceForecast, expected: ArrivalPath) -> ArrivalPath | None:
    """Raise each point by the distance of its horizon's peak from its upper bound. The bound is reached where the peak is
    expected."""
    bounded = _bounded(forecast)
    if not bounded:
        return None
    points = {0.0: expected.rates[0]}
    for at, rate in zip(expected.seconds[1:], expected.rates[1:], strict=True):
        # The shortest horizon that contains the time, else the longest.
        horizon = next((each for each in bounded if each.horizon_seconds >= at), bounded[-1])
        points[at] = rate + max(0.0, (horizon.peak_upper or 0.0) - horizon.peak)
    for each in bounded:
        at = each.peak_at_seconds
        if 0 < at <= expected.seconds[-1]:
            points[at] = max(points.get(at, 0.0), each.peak_upper or 0.0, expected.rate_at(at))
    return _path(sorted(points.items()))


def _path(points: list[tuple[float, float]]) -> ArrivalPath:
    return ArrivalPath(tuple(at for at, _ in points), tuple(rate for _, rate in points))


@dataclass(frozen=True)
class Course:
    """Rates of one source over the time to come: straight lines between points of (seconds from now, records/s)."""

    points: Sequence[tuple[float, float]]
    above: float = 0.0
    """Records/s from the highest of the points to the peak's upper bound."""
    above_from_seconds: float = 0.0
    """Time of the expected peak, from which on the bound lies so much above; until then the distance grows evenly."""

    def expected(self, seconds: float) -> float:
        """Return the expected records/s at a time."""
        i = bisect_right(self.points, seconds, key=lambda point: point[0])
        if i == 0:
            return self.points[0][1]
        if i == len(self.points):
            return self.points[-1][1]
        (began, before), (ends, after) = self.points[i - 1], self.points[i]
        return before + (after - before) * (seconds - began) / (ends - began)

    def upper(self, seconds: float) -> float:
        """Return the upper bound of the records/s at a time."""
        share = 1.0 if seconds >= self.above_from_seconds else seconds / self.above_from_seconds
        return self.expected(seconds) + self.above * share


@dataclass(frozen=True)
class Coming:
    """Arrivals of all sources within a horizon."""

    horizon_seconds: float
    courses: Mapping[str, Course]

    def expected(self, seconds: float) -> dict[str, float]:
        """Return the expected records/s of each source at a time."""
        return {source: course.expected(seconds) for source, course in self.courses.items()}

    def upper(self, seconds: float) -> dict[str, float]:
        """Return the upper bound of each source's records/s at a time."""
        return {source: course.upper(seconds) for source, course in self.courses.items()}


def is_believed(peak: PeakForecast) -> bool:
    """Return whether a horizon's bound is trusted."""
    return (
        peak.peak_upper is not None
        and peak.coverage is not None
        and MIN_COVERAGE <= peak.coverage <= MAX_COVERAGE
        and peak.judged >= MIN_JUDGED
    )


def has_believed(analysis: Analysis) -> bool:
    """Return whether the bound of any forecast is believed: else nothing is known to come."""
    return any(is_believed(peak) for forecast in analysis.forecasts for peak in forecast.horizons)


def coming(analysis: Analysis, arrivals: Mapping[str, float], seconds: float) -> Coming | None:
    """Return what arrives within `seconds`, or within the longest horizon if that is shorter; `arrivals` is the present
    rate of each source. None: no bound is believed."""
    courses: dict[str, Course] = {}
    horizon = seconds
    for source, rate in arrivals.items():
        forecast = analysis.forecast(source)
        if forecast is None:
            continue
        peak = forecast.within(seconds) or (forecast.horizons[-1] if forecast.horizons else None)
        if peak is None or not is_believed(peak) or not _is_followed(forecast, rate):
            continue
        horizon = min(horizon, peak.horizon_seconds)
        courses[source] = _course(forecast, peak, rate)
    if not courses:
        return None
    return Coming(horizon, {source: courses.get(source) or Course([(0.0, rate)]) for source, rate in arrivals.items()})


def _is_followed(forecast: SourceForecast, rate: float) -> bool:
    """Return whether the load is about as high as its forecast says it is now."""
    first = next(iter(forecast.path), None)
    return first is None or first.after_seconds > NOW_SECONDS or rate >= MIN_FOLLOWED * first.records_per_second


def _course(forecast: SourceForecast, peak: PeakForecast, rate: float) -> Course:
    """Begin at the present rate: it was measured."""
    points = [(0.0, rate)]
    points += [(p.after_seconds, p.records_per_second) for p in forecast.path if p.after_seconds > 0]
    # Times of the same value would divide by zero.
    points = points[:1] + [later for earlier, later in pairwise(points) if later[0] > earlier[0]]
    max_forecast = max(rate for at, rate in points if at <= peak.horizon_seconds)
    above = (peak.peak_upper or 0.0) - max_forecast
    return Course(points, max(0.0, above), peak.peak_at_seconds)
