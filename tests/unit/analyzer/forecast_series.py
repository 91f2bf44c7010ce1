"""Series of minutes for tests of the forecast."""

from collections.abc import Callable, Iterable

from weir_analyzer.core.forecast.application import forecast_of
from weir_analyzer.core.forecast.series import SeriesState, observed
from weir_contracts import SourceForecast

MIDNIGHT = 1_893_456_000.0
"""A Tuesday, in seconds since the epoch."""
DAY = 1440
"""Minutes of a day."""


class Source:
    """A source whose records are counted once an interval."""

    def __init__(self, interval_seconds: float = 60.0, own_minutes: int = 10) -> None:
        self.at = MIDNIGHT
        self.state: SeriesState | None = None
        self._interval, self._own = interval_seconds, own_minutes

    def take(self, rates: Iterable[float | None]) -> "Source":
        """Take in the mean rates of intervals. None: an interval without a reading."""
        for rate in rates:
            end = self.at + self._interval
            records = None if rate is None else rate * self._interval
            self.state = observed(self.state, self.at, end, records, self._own)
            self.at = end
        return self

    def wait(self, seconds: float) -> "Source":
        """Let time pass without observations; the next one knows nothing of the time between."""
        self.at += seconds
        return self

    @property
    def forecast(self) -> SourceForecast:
        """The forecast now."""
        assert self.state is not None
        found = forecast_of(self.state, "orders", self.at)
        assert found is not None
        return found

    def rate_in(self, minutes: float) -> float:
        """Return the expected rate of the point of the path that is nearest to `minutes` from now."""
        point = min(self.forecast.path, key=lambda each: abs(each.after_seconds - 60 * minutes))
        return point.records_per_second


def days(count: float, rate_at: Callable[[int], float]) -> list[float]:
    """Return the rates of the minutes of some days; `rate_at` is called with the minute since the first midnight."""
    return [rate_at(minute) for minute in range(round(count * DAY))]
