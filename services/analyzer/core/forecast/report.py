"""The forecast as a message, at any instant after the minute that it was made at."""

from collections.abc import Callable
from math import floor, log10

from pydantic import TypeAdapter
from weir_contracts import MAX_NUMBER, MIN_NUMBER, SourceForecast

from .band import unit_of
from .flow import LOW_SHARE
from .methods import LEADS, METHODS
from .model import Outlook
from .series import MINUTE_SECONDS, SeriesState
from .text import outlook_from_text

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
    found: list[dict[str, object]] = []
    for minutes, point, middle, bound, coverage, judged in outlook.horizons:
        max_rate, after = rates[point], _MIDDLES[point] - elapsed
        unit = unit_of(max_rate, outlook.usual)
        peak, upper = _inside(max_rate + middle * unit), None
        if bound is not None:
            upper = _inside(max_rate + bound * unit)
            peak = round((peak if peak < upper else upper) * scale) / scale
            upper = round(upper * scale) / scale
        found.append(
            {
                "horizon_seconds": MINUTE_SECONDS * minutes,
                "peak": peak,
                "peak_upper": upper,
                "peak_at_seconds": after / 1000 if after > 0 else 0.0,
                "coverage": coverage,
                "judged": judged,
            }
        )
    return found


def _inside(rate: float) -> float:
    """Return the rate within the bounds of messages."""
    return 0.0 if rate < MIN_NUMBER else rate if rate < MAX_NUMBER else MAX_NUMBER
