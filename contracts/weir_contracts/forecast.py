"""Forecast of the arrivals at a source: expected rates, and the highest rate within each horizon with its bound."""

from typing import Annotated, Literal

from pydantic import Field

from .base import Code, Count, Message, NonNegative, OperatorName, Seconds, Share

ForecastMethod = Literal["last-value", "smoothing", "damped-trend", "daily-profile", "weekly-profile"]
"""Methods that the analyzer of this version publishes."""

PEAK_CONFIDENCE = 0.9
"""Share of the horizons whose highest rate is to stay at or below its bound `peak_upper`."""
MAX_PATH_POINTS = 32
MAX_HORIZONS = 8


class ForecastPoint(Message):
    """Expected rate at one time to come."""

    after_seconds: Seconds
    """Time from the observation, in seconds."""
    records_per_second: NonNegative
    """Expected arrivals at all partitions of the source together, in records/s."""


class PeakForecast(Message):
    """Highest rate of a source within one horizon: the time from the observation until `horizon_seconds` later."""

    horizon_seconds: Annotated[Seconds, Field(gt=0)]
    """Length of the horizon, in seconds."""
    peak: NonNegative
    """Expected highest rate within the horizon, in records/s."""
    peak_upper: NonNegative | None = None
    """Upper bound of the highest rate within the horizon, in records/s: 0.9 of such rates stay at or below it
    (conformal, from the errors of past peaks). None: the history is too short for it."""
    peak_at_seconds: Seconds
    """Time from the observation until the highest rate of the expected path within the horizon, in seconds."""
    coverage: Share | None = None
    """Share of past high peaks that stayed at or below their bound, 0 to 1. A peak is high if it was expected or came in
    the upper part of the load, where growth is decided: quiet minutes do not count. None: none has been judged yet."""
    judged: Count = 0
    """Number of past high peaks that `coverage` rests on."""


class SourceForecast(Message):
    """Forecast of one source's arrival rate. Rates are in records/s of all its partitions together."""

    operator: OperatorName
    method: Code
    """Method with the smallest recent error on this source: one of `ForecastMethod`, or a code of a newer version."""
    path: Annotated[list[ForecastPoint], Field(max_length=MAX_PATH_POINTS)] = Field(default_factory=list)
    """Expected rates over the longest horizon, in order of time."""
    horizons: Annotated[list[PeakForecast], Field(max_length=MAX_HORIZONS)] = Field(default_factory=list)
    """Highest rates within several horizons, shortest first: fixed ones, and the time that this application needs until
    new capacity counts."""

    def within(self, seconds: float) -> PeakForecast | None:
        """Return the shortest horizon of at least `seconds`; None if all are shorter."""
        return next((each for each in self.horizons if each.horizon_seconds >= seconds), None)
