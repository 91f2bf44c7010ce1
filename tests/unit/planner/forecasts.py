"""Forecasts for tests: a course of rates, and horizons with their bounds as the analyzer publishes them."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.unit.planner.build import SOURCE
from weir_contracts import ForecastPoint, PeakForecast, SourceForecast

HORIZONS = (60.0, 300.0, 600.0, 1800.0)
POINTS = 31


def forecast(
    course: Callable[[float], float],
    *,
    operator: str = SOURCE,
    above: float = 1.1,
    horizons: Sequence[float] = HORIZONS,
    **of_peaks: Any,
) -> SourceForecast:
    """Return the forecast of a source whose expected rate after s seconds is `course(s)`; each peak's bound is `above`
    times as high, and was kept by 0.9 of 200 peaks unless `of_peaks` says otherwise."""
    longest = max(horizons)
    times = [longest * i / (POINTS - 1) for i in range(POINTS)]
    found = []
    for horizon in horizons:
        looks = [horizon * i / 100 for i in range(101)]
        at = max(looks, key=course)
        peak: dict[str, Any] = {"peak": course(at), "peak_upper": above * course(at), "coverage": 0.9, "judged": 200}
        found.append(PeakForecast(horizon_seconds=horizon, peak_at_seconds=at, **{**peak, **of_peaks}))
    path = [ForecastPoint(after_seconds=at, records_per_second=course(at)) for at in times]
    return SourceForecast(operator=operator, method="daily-profile", path=path, horizons=found)


def rising(to: float, at: float, *, since: float = 800.0, over: float = 60.0) -> Callable[[float], float]:
    """Return a course that rises from `since` to `to` within `over` seconds, until `at`."""
    return lambda s: since + (to - since) * min(1.0, max(0.0, (s - at + over) / over))
