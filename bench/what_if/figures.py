"""Predicted and measured figures. Pure."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weir_contracts import WhatIf

from services.analyzer.core.numbers import slope

Series = Sequence[tuple[float, float]]
"""Values by seconds since the change was made, in order."""

LAST_SHARE = 1 / 3
"""Of the horizon: throughput and utilisation are compared where the restart is over."""
FALLS_BEHIND = 0.03
"""Seconds by which the lag at the sink grows each second at the end where a job does not keep up: so much less than arrives is taken in.
Told by the probe; a source's own positions are up to a second late, which is a tenth of the time looked at."""


@dataclass(frozen=True)
class Measured:
    """What the job did. The lag at the source is Weir's own reading; the one at the sink is an independent probe's, and holds the way
    through the job, windows included."""

    source_lag: Series
    sink_lag: Series
    positions: Series
    """Records taken in by the source, cumulative."""
    utilisation: Mapping[str, float | None]
    """Busy shares in the last part of the horizon."""


def compared(answer: WhatIf, measured: Measured) -> dict[str, Any]:
    """One question: what was said, what was seen, and how far apart they are."""
    prediction = answer.prediction
    horizon = prediction.horizon_seconds if prediction else max((at for at, _ in measured.sink_lag), default=0.0)
    since = horizon * (1 - LAST_SHARE)
    predicted: Series = [(p.at_seconds, p.lag_seconds) for p in prediction.points] if prediction else []
    rates = [p.throughput for p in prediction.points if p.at_seconds > since] if prediction else []
    throughput = rate_within(measured.positions, since, horizon)
    growth = rate_within(measured.sink_lag, since, horizon)
    busy = {o.operator: o.utilisation for o in answer.operators}
    return {
        "sentence": answer.sentence,
        "throughput": _pair(sum(rates) / len(rates) if rates else None, throughput),
        "utilisation": {
            name: _pair(busy.get(name), share, relative=False) for name, share in measured.utilisation.items()
        },
        "keeps_up": {
            "predicted": answer.keeps_up,
            "measured": None if growth is None else growth <= FALLS_BEHIND,
        },
        "max_lag_seconds": {
            where: _pair(prediction.max_lag_seconds if prediction else None, _highest(seen))
            for where, seen in (("source", measured.source_lag), ("sink", measured.sink_lag))
        },
        "final_lag_seconds": {
            where: _pair(prediction.final_lag_seconds if prediction else None, at(seen, horizon))
            for where, seen in (("source", measured.source_lag), ("sink", measured.sink_lag))
        },
        "mean_lag_difference_seconds": {
            "source": mean_difference(predicted, measured.source_lag),
            "sink": mean_difference(predicted, measured.sink_lag),
        },
        "notes": answer.notes,
        "unknown": [f"{gap.operator}: {gap.what}: {gap.because}" for gap in answer.unknown],
    }


def summary(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Over all questions: how many were answered, how many verdicts were right, and the largest and the mean errors."""
    verdicts = [pair["keeps_up"] for pair in pairs if pair["keeps_up"]["predicted"] is not None]
    right = sum(1 for verdict in verdicts if verdict["predicted"] == verdict["measured"])
    return {
        "questions": len(pairs),
        "answered": len(verdicts),
        "verdicts_right": right,
        "throughput_relative_error": _errors([pair["throughput"]["relative_error"] for pair in pairs]),
        "utilisation_error": _errors([each["error"] for pair in pairs for each in pair["utilisation"].values()]),
        "mean_lag_difference_seconds": {
            where: _errors([pair["mean_lag_difference_seconds"][where] for pair in pairs])
            for where in ("source", "sink")
        },
    }


def rate_within(series: Series, since: float, until: float) -> float | None:
    """How much a series grows each second within these, by least squares, since any reading may be late; None where there are no two."""
    return slope([(t, value) for t, value in series if since <= t <= until])


def at(series: Series, seconds: float) -> float | None:
    """The last value that is known by then."""
    index = bisect_right(series, (seconds, float("inf")))
    return series[index - 1][1] if index else None


def mean_difference(predicted: Series, measured: Series) -> float | None:
    """Mean absolute difference, of the measured values and the predicted ones of the same time (interpolated)."""
    if not predicted or not measured:
        return None
    differences = [abs(between(predicted, t) - value) for t, value in measured]
    return round(sum(differences) / len(differences), 2)


def between(series: Series, seconds: float) -> float:
    """Linear between the neighbours, constant beyond the ends."""
    index = bisect_right(series, (seconds, float("inf")))
    if index == 0 or index == len(series):
        return series[min(index, len(series) - 1)][1]
    (before, low), (after, high) = series[index - 1], series[index]
    return low + (high - low) * (seconds - before) / (after - before)


def _highest(series: Series) -> float | None:
    return max((value for _, value in series), default=None)


def _pair(predicted: float | None, measured: float | None, *, relative: bool = True) -> dict[str, float | None]:
    known = predicted is not None and measured is not None
    error = predicted - measured if predicted is not None and measured is not None else None
    found = {"predicted": _short(predicted), "measured": _short(measured), "error": _short(error)}
    if relative:
        # A share of next to nothing says nothing.
        tells = known and measured is not None and abs(measured) >= 1
        found["relative_error"] = _short(error / measured) if tells and error is not None and measured else None
    return found


def _errors(values: Sequence[float | None]) -> dict[str, float | int | None]:
    known = [abs(value) for value in values if value is not None]
    if not known:
        return {"count": 0, "mean": None, "max": None}
    return {"count": len(known), "mean": _short(sum(known) / len(known)), "max": _short(max(known))}


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
