"""Arrivals to come: the analysis' forecasts whose upper bound is trusted.

A bound is trusted once enough past peaks have been judged and about as many of them stayed below it as it promises. A
source without such a bound is assumed to stay as it is.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from weir_contracts import Analysis, Outcome, PeakForecast, SourceForecast, Topology

from .model import Restart

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
        peak = None if forecast is None else _horizon(forecast, seconds)
        if forecast is None or peak is None or not is_believed(peak) or not _is_followed(forecast, rate):
            continue
        horizon = min(horizon, peak.horizon_seconds)
        courses[source] = _course(forecast, peak, rate)
    if not courses:
        return None
    return Coming(horizon, {source: courses.get(source) or Course([(0.0, rate)]) for source, rate in arrivals.items()})


def _horizon(forecast: SourceForecast, seconds: float) -> PeakForecast | None:
    return forecast.within(seconds) or (forecast.horizons[-1] if forecast.horizons else None)


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


def growth_seconds(outcomes: Sequence[Outcome], topology: Topology) -> float | None:
    """Return the usual seconds of the growths in `outcomes`, from the request for more slots until they process records;
    None: there is none."""
    slots, grown = topology.slots, dict[object, float]()
    for outcome in outcomes:
        seconds, action = outcome.restart_seconds, outcome.action
        known = set(topology.names) <= set(outcome.before) & set(outcome.wanted)
        if seconds is not None and action is not None and known and slots(outcome.wanted) > slots(outcome.before):
            grown.setdefault(action.id, seconds)
    return median(grown.values()) if grown else None


def seconds_until_capacity(
    outcomes: Sequence[Outcome], topology: Topology, restart: Restart, remembered: float | None = None
) -> float:
    """Return the seconds from a request for more slots until they process records: the usual time of the growths in
    `outcomes`, else of an earlier one that is `remembered`, else of any rescale."""
    found = growth_seconds(outcomes, topology)
    if found is None:
        found = remembered
    if found is not None:
        return max(restart.seconds, found)
    return max([restart.seconds, *(outcomes[0].restarts_seconds if outcomes else [])])
