"""`make bench-forecast`: the analyzer's forecast on entire recordings, compared with the last value.

    python -m bench.forecast [FOLDER WITH MORE RECORDINGS ...]

Each recording is taken in minute by minute from its beginning, without anything learned before. Between its samples the
load is straight, as the load generator makes it; forecasts for less than the distance of two samples are therefore
easier than they look, and marked so.

- WAPE: sum of the absolute errors of the forecast rate over the sum of the rates.
- Peak: highest mean rate of a minute within the horizon; its underestimate and overestimate over the sum of the peaks.
- Coverage: share of all minutes with a bound whose horizon's peak stayed at or below the bound; and of those whose peak
  is in the upper quarter of the recording's, where growth would be decided.

The cost is the CPU time of one thread, of all that the analyzer does for the forecast of a source with 12 partitions
that is observed every 5 s: taking in, forecasting, writing and reading the state.
"""

import argparse
import hashlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view
from pydantic_core import from_json, to_json
from rich.console import Console
from rich.table import Table

from bench.cost import observation
from bench.results_file import log, write
from weir_analyzer.core import offsets
from weir_analyzer.core.forecast.application import ForecastState, advanced, forecast_of, forecasts_of
from weir_analyzer.core.forecast.series import SeriesState, observed
from weir_analyzer.core.offsets import LogHistory
from weir_contracts import PEAK_CONFIDENCE
from weir_replay.trace import BUNDLED, Recording, load

LEADS = (1, 10, 30)
"""Minutes ahead at which the forecast rate is judged."""
HORIZONS = (1, 10, 30)
"""Minutes of the horizons whose peaks are judged."""
WORSE, COVERAGE_OFF, HIGH_COVERAGE, MICROSECONDS = 1.02, 0.03, 0.85, 50.0
"""Targets: error over that of the last value, distance of the coverage from 0.9, coverage of the upper quarter from
which a bound is trusted, cost of an observation."""
MIDNIGHT_SECONDS = 1_893_456_000.0
"""A Tuesday; profiles need days and weeks, and no year."""
SAMPLES_PER_MINUTE = 6
INTERVAL_SECONDS, OBSERVATIONS = 5.0, 6_000
"""Of the cost: the default interval, for more than eight hours."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Judged:
    """Forecasts of a recording, a row for each minute."""

    rates: Floats
    """Mean rate of each minute."""
    expected: Floats
    """Rate that was expected `LEADS` minutes later, made at the end of the minute."""
    peaks: Floats
    """Peak expected within each of `HORIZONS`."""
    bounds: Floats
    """Bound of it; NaN: none yet."""
    methods: dict[str, float]
    """Share of the time in which each method was the best."""
    learned_bytes: int


def minutes_of(recording: Recording) -> Floats:
    """Return the mean rate of each complete minute of a recording."""
    count = int(recording.offsets_seconds[-1] // 60)
    step = 60 / SAMPLES_PER_MINUTE
    times = step * (np.arange(count * SAMPLES_PER_MINUTE) + 0.5)
    rates = np.interp(times, recording.offsets_seconds, recording.values) / recording.step_seconds
    means: Floats = rates.reshape(count, SAMPLES_PER_MINUTE).mean(axis=1)
    return means


def judged(rates: Floats) -> Judged:
    """Forecast at the end of each minute."""
    expected, peaks, bounds = (np.full((len(rates), len(each)), np.nan) for each in (LEADS, HORIZONS, HORIZONS))
    methods: dict[str, int] = {}
    state: SeriesState | None = None
    for i, rate in enumerate(rates.tolist()):
        start = MIDNIGHT_SECONDS + 60.0 * i
        state = observed(state, start, start + 60.0, 60.0 * rate, max(HORIZONS))
        found = forecast_of(state, "source", start + 60.0)
        if found is None:
            raise RuntimeError(f"no forecast after minute {i}")
        path = {point.after_seconds: point.records_per_second for point in found.path}
        expected[i] = [path[60.0 * lead - 30.0] for lead in LEADS]
        for j, minutes in enumerate(HORIZONS):
            horizon = found.within(60.0 * minutes)
            if horizon is None or horizon.horizon_seconds != 60.0 * minutes:
                raise RuntimeError(f"no horizon of {minutes} min")
            peaks[i, j] = horizon.peak
            if horizon.peak_upper is not None:
                bounds[i, j] = horizon.peak_upper
        methods[found.method] = methods.get(found.method, 0) + 1
    learned = 0 if state is None else len(to_json(state.learned()))
    shares = {name: round(count / len(rates), 3) for name, count in sorted(methods.items())}
    return Judged(rates, expected, peaks, bounds, shares, learned)


def figures_of(found: Judged, step_seconds: float) -> dict[str, Any]:
    """Return the errors of a recording's forecasts and of the last value's."""
    rates = found.rates
    document: dict[str, Any] = {"minutes": len(rates), "step_seconds": step_seconds}
    for j, lead in enumerate(LEADS):
        actual, last, expected = rates[lead:], rates[:-lead], found.expected[:-lead, j]
        errors = [float(np.abs(each - actual).sum() / actual.sum()) for each in (expected, last)]
        document[f"ahead_{lead}_min"] = {
            "wape": round(errors[0], 5),
            "wape_of_last_value": round(errors[1], 5),
            "over_last_value": round(errors[0] / errors[1], 4) if errors[1] else None,
            "between_samples": 60 * lead < step_seconds,
        }
    for j, minutes in enumerate(HORIZONS):
        max_rates = sliding_window_view(rates[1:], minutes).max(axis=1)
        count = len(max_rates)
        bounded = ~np.isnan(found.bounds[:count, j])
        bound, inside = found.bounds[:count, j][bounded], max_rates[bounded]
        # A message has six digits: a rate that equals its bound stays at it.
        covered, high = inside <= bound * (1 + 1e-5), inside >= np.quantile(max_rates, 0.75)
        document[f"peak_{minutes}_min"] = {
            **_misses("", found.peaks[:count, j], max_rates),
            **_misses("_of_last_value", rates[:count], max_rates),
            "coverage": round(float(covered.mean()), 4),
            "coverage_of_upper_quarter": round(float(covered[high].mean()), 4),
            "bounded_share": round(float(bounded.mean()), 4),
            "bound_over_peak": round(float(bound.sum() / inside.sum()), 4),
        }
    return {**document, "methods": found.methods, "learned_bytes": found.learned_bytes}


def _misses(suffix: str, expected: Floats, max_rates: Floats) -> dict[str, float]:
    under, over = (
        np.maximum(0.0, each).sum() / max_rates.sum() for each in (max_rates - expected, expected - max_rates)
    )
    return {f"under{suffix}": round(float(under), 4), f"over{suffix}": round(float(over), 4)}


def cost() -> dict[str, float]:
    """Return the CPU microseconds of one observation, and the bytes of its state."""
    observations = [observation(i, interval_seconds=INTERVAL_SECONDS) for i in range(OBSERVATIONS)]
    state, log_ends, source = ForecastState(), LogHistory(), observations[0].partitions[0].operator
    spent = {"take_in": 0.0, "forecast": 0.0, "state": 0.0}
    for each in observations:
        at = each.observed_at.timestamp()
        log_ends = offsets.extend(log_ends, each.partitions, at, INTERVAL_SECONDS)
        began = time.process_time()
        state = advanced(state, each, log_ends, {source: None}, restart_seconds=4.0, gap_seconds=INTERVAL_SECONDS)
        taken = time.process_time()
        forecasts_of(state, [source], at)
        made = time.process_time()
        state = ForecastState.from_json(from_json(to_json(state.to_json())))
        spent["take_in"] += taken - began
        spent["forecast"] += made - taken
        spent["state"] += time.process_time() - made
    each_us = {f"{name}_microseconds": round(1e6 * total / OBSERVATIONS, 2) for name, total in spent.items()}
    whole = round(sum(each_us.values()), 2)
    return {**each_us, "microseconds": whole, "state_bytes": len(to_json(state.to_json()))}


def misses(results: dict[str, Any]) -> list[str]:
    """Return a sentence for each target that is missed."""
    found = []
    for name, series in results["series"].items():
        for lead in LEADS:
            ratio = series[f"ahead_{lead}_min"]["over_last_value"]
            if ratio is not None and ratio > WORSE:
                found.append(f"{name}: error at {lead} min is {ratio:.3f} times that of the last value")
        for minutes in HORIZONS:
            coverage = series[f"peak_{minutes}_min"]["coverage"]
            if abs(coverage - PEAK_CONFIDENCE) > COVERAGE_OFF:
                found.append(f"{name}: coverage of the peak within {minutes} min is {coverage:.1%}")
            if (high := series[f"peak_{minutes}_min"]["coverage_of_upper_quarter"]) < HIGH_COVERAGE:
                found.append(f"{name}: coverage of the upper quarter's peaks within {minutes} min is {high:.1%}")
    if results["cost"]["microseconds"] > MICROSECONDS:
        found.append(f"an observation costs {results['cost']['microseconds']:.0f} µs")
    return found


def recordings(folders: Sequence[Path]) -> dict[str, Path]:
    """Return the CSV files of the folders by name, each content once."""
    found: dict[str, Path] = {}
    contents: set[str] = set()
    for path in [path for folder in (BUNDLED, *folders) for path in sorted(folder.glob("*.csv"))]:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        if content not in contents:
            contents.add(content)
            found[path.stem if path.stem not in found else str(path)] = path
    return found


def table(series: dict[str, Any]) -> Table:
    drawn = Table("recording", "min", "WAPE", "last value", "peak under", "over", "last under", "over", "coverage")
    for name, found in series.items():
        for lead in LEADS:
            ahead, peak = found[f"ahead_{lead}_min"], found[f"peak_{lead}_min"]
            shares = [ahead["wape"], ahead["wape_of_last_value"], peak["under"], peak["over"]]
            shares += [peak["under_of_last_value"], peak["over_of_last_value"], peak["coverage"]]
            drawn.add_row(name, str(lead), *[f"{share:.2%}" for share in shares])
    return drawn


def main() -> int:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="folders with more recordings than the bundled ones")
    arguments = parser.parse_args()
    series = {}
    for name, path in recordings(arguments.folders).items():
        log(f"{name}: {path}")
        recording = load(path)
        series[name] = figures_of(judged(minutes_of(recording)), recording.step_seconds)
    log("cost of an observation")
    results: dict[str, Any] = {"series": series, "cost": cost()}
    results["misses"] = misses(results)
    Console(width=110).print(table(series))
    for sentence in results["misses"]:
        log(f"missed: {sentence}")
    log(f"written: {write('forecast', 'make bench-forecast', results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
