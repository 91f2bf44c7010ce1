"""The compact part of an analysis that seeds a lost state; only the analyzer reads it."""

from typing import Any

from weir_contracts import MAX_NUMBER, MAX_SECONDS, Analysis, within

from .capacity import MIN_RATE
from .forecast.state import ForecastState
from .numbers import MAX_LEARNED
from .state import AnalyzerState, Point, Ratio, RestartState

LEARNED_VERSION = 1


def learned_of(state: AnalyzerState) -> dict[str, Any]:
    """Capacities, selectivities, restart times and the models of the forecasts; the log-end history is not part of
    it."""
    return {
        "version": LEARNED_VERSION,
        "job_id": state.job_id,
        "dropped": state.dropped,
        "capacities": {
            name: [
                [
                    p.parallelism,
                    round(p.rate, 6),
                    p.confidence,
                    p.saturated,
                    p.samples,
                    p.at,
                    p.job_id,
                    round(p.taken, 6),
                    p.skew,
                ]
                for p in curve
            ]
            for name, curve in state.capacities.items()
        },
        "selectivities": {edge: [round(r.value, 6), r.confidence, r.at] for edge, r in state.selectivities.items()},
        "restarts": [state.restarts.seconds, state.restarts.last_seconds, state.restarts.samples],
        "forecasts": state.forecasts.learned(),
        "moves": [state.restarts.restore_seconds, state.restarts.warm_up_seconds],
    }


def seed(analysis: Analysis) -> AnalyzerState | None:
    """A state to go on from: what the analysis's own `learned` says, and its time, so that a replay is ignored.

    None after the application's end. An unreadable or foreign `learned` seeds the time only.
    """
    if analysis.status == "ended":
        return None
    at = analysis.observed_at.timestamp()
    try:
        return _read(analysis.learned, at)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return AnalyzerState(observed_at=at)


def _read(learned: dict[str, Any], at: float) -> AnalyzerState:
    if learned["version"] != LEARNED_VERSION:
        return AnalyzerState(observed_at=at)
    capacities = {
        str(name): tuple(
            Point(
                int(p[0]),
                float(p[1]),
                float(p[2]),
                bool(p[3]),
                int(p[4]),
                float(p[5]),
                str(p[6]),
                # earlier versions do not have these
                taken=within(p[7], MAX_NUMBER) or 0.0 if len(p) > 7 else 0.0,
                skew=within(p[8], MAX_NUMBER) if len(p) > 8 else None,
            )
            for p in curve
        )
        for name, curve in list(learned["capacities"].items())[:MAX_LEARNED]
    }
    if any(
        not (MIN_RATE <= p.rate <= MAX_NUMBER and p.parallelism >= 1) for curve in capacities.values() for p in curve
    ):
        raise ValueError("capacities are out of bounds")
    seconds, last_seconds, samples = learned["restarts"]
    restore_seconds, warm_up_seconds = learned.get("moves") or (None, None)
    return AnalyzerState(
        observed_at=at,
        dropped=int(learned["dropped"]),
        job_id=str(learned["job_id"]),
        capacities=capacities,
        selectivities={
            str(edge): Ratio(float(r[0]), float(r[1]), float(r[2])) for edge, r in learned["selectivities"].items()
        },
        restarts=RestartState(
            within(seconds, MAX_SECONDS),
            within(last_seconds, MAX_SECONDS),
            int(samples),
            restore_seconds=within(restore_seconds, MAX_SECONDS),
            warm_up_seconds=within(warm_up_seconds, MAX_SECONDS),
        ),
        forecasts=ForecastState.seeded(learned.get("forecasts", {})),
    )
