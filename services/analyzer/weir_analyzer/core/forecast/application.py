"""Forecasts of all sources of an application: their state, its own horizon, and the message at any instant after the
minute that a forecast was made at."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, floor, log10
from typing import Any

from pydantic import TypeAdapter

from weir_analyzer.core.offsets import LogHistory, columns_of, sum_of
from weir_contracts import MAX_NUMBER, MIN_NUMBER, Observation, SourceForecast

from .band import unit_of
from .methods import LEADS, METHODS
from .model import LOW_SHARE, Outlook
from .series import MINUTE_SECONDS, SeriesState, observed, outlook_from_text

MAX_SOURCES = 16
"""Sources with a forecast; those without are planned by their present rates."""
MAX_WAIT_SECONDS = 3600.0
"""New capacity that takes longer is not coming."""


@dataclass(frozen=True, slots=True)
class ForecastState:
    """State of an application's forecasts between two observations."""

    series: dict[str, SeriesState] = field(default_factory=dict)
    asked_at: float | None = None
    """Since when more parallelism is requested than runs. None: nothing is awaited."""
    wait_seconds: float | None = None
    """Time from a request until the new parallelism ran, smoothed. None: not observed yet."""

    def to_json(self) -> list[Any]:
        """Return the state as nested lists of numbers and strings."""
        return [self.asked_at, self.wait_seconds, {name: arrivals.to_json() for name, arrivals in self.series.items()}]

    @classmethod
    def from_json(cls, stored: list[Any]) -> "ForecastState":
        """Read what `to_json` wrote."""
        asked_at, wait_seconds, series = stored
        return cls({name: SeriesState.from_json(arrivals) for name, arrivals in series.items()}, asked_at, wait_seconds)

    def learned(self) -> dict[str, Any]:
        """Return what re-seeds a lost state."""
        learned = {name: arrivals.learned() for name, arrivals in self.series.items()}
        series = {name: model for name, model in learned.items() if model is not None}
        return {"wait_seconds": self.wait_seconds, "series": series} if series else {}

    @classmethod
    def seeded(cls, learned: Mapping[str, Any]) -> "ForecastState":
        """Return the state that goes on from what `learned` returned; an unreadable one is empty."""
        try:
            wait = learned["wait_seconds"]
            return cls(
                {str(name): SeriesState.seeded(model) for name, model in [*learned["series"].items()][:MAX_SOURCES]},
                wait_seconds=None if wait is None else min(max(float(wait), 0.0), MAX_WAIT_SECONDS),
            )
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            return cls()


_PLANNING_SECONDS = 5.0
"""From an observation to the request of a rescale, besides the wait for the observation."""
_RESTART_SECONDS = 8.0
"""Restart that is assumed before one was seen, as in the predictor."""
_DRAIN_SECONDS = 30.0
"""Time to drain a backlog, unless the policy's planner has a parameter `drain_seconds`."""
_WEIGHT = 0.5


def advanced(
    state: ForecastState,
    observation: Observation,
    history: LogHistory,
    estimated: Mapping[str, float | None],
    *,
    restart_seconds: float | None,
    gap_seconds: float | None,
) -> ForecastState:
    """Take in one observation. `estimated` is the arrival rate of each source, which counts where there is no log."""
    at = observation.observed_at.timestamp()
    state = _awaited(state, observation, at)
    interval = observation.policy.spec.interval.total_seconds()
    series = dict(state.series)
    for name, rate in estimated.items():
        arrived = _arrived(history, name, at)
        if arrived is None and rate is not None and gap_seconds and not columns_of(history.keys, name):
            arrived = at - gap_seconds, rate * gap_seconds
        if arrived is not None and (name in series or len(series) < MAX_SOURCES):
            start, records = arrived
            usual = at - start <= max(3 * interval, 2 * MINUTE_SECONDS)
            before, own_minutes = series.get(name), 1
            if before is None or at >= MINUTE_SECONDS * (before.minute + 1):  # else it is not needed
                own_minutes = ceil(own_horizon_seconds(state, observation, restart_seconds) / MINUTE_SECONDS)
            series[name] = observed(before, start, at, records if usual else None, own_minutes)
    if len(series) >= MAX_SOURCES:  # those of sources that left go only now
        series = {name: arrivals for name, arrivals in series.items() if name in estimated} or series
    return ForecastState(series, state.asked_at, state.wait_seconds)


def forecasts_of(state: ForecastState, sources: Iterable[str], at: float) -> list[SourceForecast]:
    """Return the forecasts of the sources that have one."""
    series = state.series
    forecasts = [forecast_of(series[name], name, at) for name in sources if name in series]
    return [forecast for forecast in forecasts if forecast is not None]


def own_horizon_seconds(state: ForecastState, observation: Observation, restart_seconds: float | None) -> float:
    """Return the time from now until a growth that is decided now has caught up: until the plan, until the new
    capacity counts, until the backlog of that time is drained."""
    spec = observation.policy.spec
    restart = _RESTART_SECONDS if restart_seconds is None else restart_seconds
    capacity = max(restart, state.wait_seconds or 0.0)
    drain = spec.planner.parameters.get("drain_seconds", _DRAIN_SECONDS)
    drain = float(drain) if isinstance(drain, int | float) and 0 < drain <= MAX_WAIT_SECONDS else _DRAIN_SECONDS
    return spec.interval.total_seconds() + _PLANNING_SECONDS + capacity + drain


def _awaited(state: ForecastState, observation: Observation, at: float) -> ForecastState:
    """Learn from the deployment how long new parallelism takes to run after its request."""
    deployment = observation.deployment
    if deployment is None or not deployment.requested:
        return state
    if any(wanted > deployment.observed.get(name, 0) for name, wanted in deployment.requested.items()):
        return state if state.asked_at is not None else replace(state, asked_at=at)
    if state.asked_at is None:
        return state
    waited = at - state.asked_at
    if waited > MAX_WAIT_SECONDS:
        return replace(state, asked_at=None)
    before = waited if state.wait_seconds is None else state.wait_seconds
    return replace(state, asked_at=None, wait_seconds=round(before + _WEIGHT * (waited - before), 3))


def _arrived(history: LogHistory, name: str, at: float) -> tuple[float, float] | None:
    """Return since when, and how many, records were appended up to now. None: the brokers did not answer now, or not
    every partition is known at both ends (a topic made again begins with records of which nothing is known)."""
    if len(history.rows) < 2 or history.rows[-1][0] != at:
        return None
    (start, before), (_, after) = history.rows[-2:]
    columns = columns_of(history.keys, name)
    if not columns:
        return None
    try:
        return start, float(sum_of(after, columns) - sum_of(before, columns))
    except (TypeError, IndexError):
        return None


_VALIDATED: Callable[[object], SourceForecast] = TypeAdapter(SourceForecast).validator.validate_python
_MAX_AGE_SECONDS = 1800.0
"""Without a known rate for longer there is no forecast."""
_MIDDLES = [round(1000 * MINUTE_SECONDS * (lead - 0.5)) for lead in LEADS]
"""Milliseconds from the end of a minute to the middle of the one `LEADS` later."""
_DIGITS = 6


def forecast_of(state: SeriesState, operator: str, at: float) -> SourceForecast | None:
    """Return the forecast of a source; None before a complete minute is known, and long after the last one."""
    age_seconds = at - MINUTE_SECONDS * state.made_at
    if not state.outlook or not 0 <= age_seconds <= _MAX_AGE_SECONDS:
        return None
    outlook, elapsed = outlook_from_text(state.outlook), round(1000 * age_seconds)
    moved = _moved(state, outlook)
    rates = [path + gain * moved for path, gain in zip(outlook.path, outlook.gains, strict=True)]
    max_rate = max(rates)
    if min(rates) < MIN_NUMBER or max_rate >= MAX_NUMBER:
        rates = [_inside(rate) for rate in rates]
        max_rate = max(rates)
    # the factor that makes the largest rate a number of six digits, to round by
    scale = 10.0 ** (_DIGITS - 1 - floor(log10(max_rate))) if max_rate > 0 else 1.0
    return _VALIDATED(
        {
            "operator": operator,
            "method": METHODS[outlook.method],
            "path": [
                {"after_seconds": (after - elapsed) / 1000, "records_per_second": round(rate * scale) / scale}
                for after, rate in zip(_MIDDLES, rates, strict=False)
                if after >= elapsed
            ],
            "horizons": _horizons(outlook, rates, elapsed, scale),
        }
    )


def _moved(state: SeriesState, outlook: Outlook) -> float:
    """Return by how much the mean of the last 60 s has moved since the last complete minute.

    The beginning of an outage does not count: its minute is not known to be one yet.
    """
    if outlook.disturbed or state.minute != state.made_at or not state.seconds:
        return 0.0
    rate = state.records / state.seconds
    if rate < LOW_SHARE * min(outlook.lowest, outlook.last):
        return 0.0
    return min(1.0, state.seconds / MINUTE_SECONDS) * (rate - outlook.last)


def _horizons(outlook: Outlook, rates: list[float], elapsed: int, scale: float) -> list[dict[str, object]]:
    horizons: list[dict[str, object]] = []
    for minutes, point, middle, bound, coverage, judged in outlook.horizons:
        max_rate, after = rates[point], _MIDDLES[point] - elapsed
        unit = unit_of(max_rate, outlook.usual)
        peak, upper = _inside(max_rate + middle * unit), None
        if bound is not None:
            upper = _inside(max_rate + bound * unit)
            peak = round((peak if peak < upper else upper) * scale) / scale
            upper = round(upper * scale) / scale
        horizons.append(
            {
                "horizon_seconds": MINUTE_SECONDS * minutes,
                "peak": peak,
                "peak_upper": upper,
                "peak_at_seconds": after / 1000 if after > 0 else 0.0,
                "coverage": coverage,
                "judged": judged,
            }
        )
    return horizons


def _inside(rate: float) -> float:
    """Return the rate within the bounds of messages."""
    return 0.0 if rate < MIN_NUMBER else rate if rate < MAX_NUMBER else MAX_NUMBER
