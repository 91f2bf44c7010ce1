"""The forecast as a message, at any instant after the minute that it was made at."""

from collections.abc import Callable
from math import floor, log10

from pydantic import TypeAdapter
from weir_contracts import MAX_NUMBER, SourceForecast

from .band import unit_of
from .flow import LOW_SHARE
from .methods import LEADS, METHODS
from .model import Horizon, Outlook
from .series import MINUTE_SECONDS, SeriesState

_VALIDATED: Callable[[object], SourceForecast] = TypeAdapter(SourceForecast).validator.validate_python
_MAX_AGE_SECONDS = 1800.0
"""Without a known rate for longer there is no forecast."""
_MIDDLES = [MINUTE_SECONDS * (float(lead) - 0.5) for lead in LEADS]
"""Seconds from the end of a minute to the middle of the one `LEADS` later."""
_DIGITS = 6


def forecast_of(state: SeriesState, operator: str, at: float) -> SourceForecast | None:
    """Return the forecast of a source; None before a whole minute is known, and long after the last one."""
    outlook = state.outlook
    if outlook is None or not 0 <= at - MINUTE_SECONDS * outlook.minute <= _MAX_AGE_SECONDS:
        return None
    elapsed = at - MINUTE_SECONDS * outlook.minute
    moved = _moved(state, outlook)
    rates = [max(0.0, rate + gain * moved) for rate, gain in zip(outlook.path, outlook.gains, strict=True)]
    return _VALIDATED(
        {
            "operator": operator,
            "method": METHODS[outlook.method],
            "path": [
                {"after_seconds": round(after - elapsed, 3), "records_per_second": _rounded(rate)}
                for after, rate in zip(_MIDDLES, rates, strict=False)
                if after >= elapsed
            ],
            "horizons": [_horizon(each, outlook, rates, elapsed) for each in outlook.horizons],
        }
    )


def _moved(state: SeriesState, outlook: Outlook) -> float:
    """Return by how much the mean of the last 60 s has moved since the last whole minute.

    The beginning of an outage does not count: its minute is not known to be one yet.
    """
    if outlook.disturbed or state.minute != outlook.minute or not state.seconds:
        return 0.0
    rate = state.records / state.seconds
    if rate < LOW_SHARE * min(outlook.lowest, outlook.last):
        return 0.0
    return min(1.0, state.seconds / MINUTE_SECONDS) * (rate - outlook.last)


def _horizon(horizon: Horizon, outlook: Outlook, rates: list[float], elapsed: float) -> dict[str, object]:
    inside = sum(1 for lead in LEADS if lead <= horizon.minutes)
    i = max(range(inside), key=rates.__getitem__)
    unit = unit_of(rates[i], outlook.usual)
    peak, upper = max(0.0, rates[i] + horizon.middle * unit), None
    if horizon.bound is not None:
        upper = max(0.0, rates[i] + horizon.bound * unit)
        peak = min(peak, upper)
    return {
        "horizon_seconds": MINUTE_SECONDS * horizon.minutes,
        "peak": _rounded(peak),
        "peak_upper": None if upper is None else _rounded(upper),
        "peak_at_seconds": round(max(0.0, _MIDDLES[i] - elapsed), 3),
        "coverage": None if horizon.coverage is None else round(horizon.coverage, 4),
        "judged": horizon.judged,
    }


def _rounded(rate: float) -> float:
    """Return a rate with six significant digits, within the bounds of messages."""
    if rate <= 0:
        return 0.0
    rate = min(rate, MAX_NUMBER)
    return round(rate, _DIGITS - 1 - floor(log10(rate)))
