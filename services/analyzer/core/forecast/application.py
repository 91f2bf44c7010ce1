"""Forecasts of all sources of an application, and its own horizon."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import ceil

from weir_contracts import Observation, SourceForecast

from services.analyzer.core.history import columns_of, sum_of
from services.analyzer.core.state import LogHistory

from .report import forecast_of
from .series import MINUTE_SECONDS, SeriesState, observed
from .state import MAX_SOURCES, MAX_WAIT_SECONDS, ForecastState

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
        if arrived is None and rate is not None and gap_seconds and not _has_log(history, name):
            arrived = at - gap_seconds, rate * gap_seconds
        if arrived is not None and (name in series or len(series) < MAX_SOURCES):
            start, records = arrived
            usual = at - start <= max(3 * interval, 2 * MINUTE_SECONDS)
            before, own_minutes = series.get(name), 1
            if before is None or at >= MINUTE_SECONDS * (before.minute + 1):  # else it is not needed
                own_minutes = ceil(own_horizon_seconds(state, observation, restart_seconds) / MINUTE_SECONDS)
            series[name] = observed(before, start, at, records if usual else None, own_minutes)
    return ForecastState(_kept(series, estimated), state.asked_at, state.wait_seconds)


def forecasts_of(state: ForecastState, sources: Iterable[str], at: float) -> list[SourceForecast]:
    """Return the forecasts of the sources that have one."""
    series = state.series
    found = [forecast_of(series[name], name, at) for name in sources if name in series]
    return [each for each in found if each is not None]


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
    observed_now = deployment.observed
    awaited = any(wanted > observed_now.get(name, 0) for name, wanted in deployment.requested.items())
    if awaited:
        return state if state.asked_at is not None else replace(state, asked_at=at)
    if state.asked_at is None:
        return state
    waited = at - state.asked_at
    if waited > MAX_WAIT_SECONDS:
        return replace(state, asked_at=None)
    before = waited if state.wait_seconds is None else state.wait_seconds
    return replace(state, asked_at=None, wait_seconds=round(before + _WEIGHT * (waited - before), 3))


def _has_log(history: LogHistory, name: str) -> bool:
    return bool(columns_of(history.keys, name))


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


def _kept(series: dict[str, SeriesState], present: Mapping[str, float | None]) -> dict[str, SeriesState]:
    """Return the series of present sources; those of others go once there are too many."""
    if len(series) < MAX_SOURCES:
        return series
    return {name: each for name, each in series.items() if name in present} or series
