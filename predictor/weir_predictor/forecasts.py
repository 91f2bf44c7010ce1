"""The analysis' forecasts as arrival paths: the expected rates, and their upper edge."""

from collections.abc import Mapping
from dataclasses import dataclass

from weir_contracts import Analysis, PeakForecast, SourceForecast

from .arrivals import ArrivalPath


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
        points[at] = rate + _margin(_horizon_at(at, bounded))
    for each in bounded:
        at = each.peak_at_seconds
        if 0 < at <= expected.seconds[-1]:
            points[at] = max(points.get(at, 0.0), each.peak_upper or 0.0, expected.rate_at(at))
    return _path(sorted(points.items()))


def _horizon_at(seconds: float, bounded: list[PeakForecast]) -> PeakForecast:
    """Return the shortest horizon with an upper bound that contains the time, else the longest."""
    return next((each for each in bounded if each.horizon_seconds >= seconds), bounded[-1])


def _margin(horizon: PeakForecast) -> float:
    return max(0.0, (horizon.peak_upper or 0.0) - horizon.peak)


def _path(points: list[tuple[float, float]]) -> ArrivalPath:
    return ArrivalPath(tuple(at for at, _ in points), tuple(rate for _, rate in points))
