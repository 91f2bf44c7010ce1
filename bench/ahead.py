"""`make bench-ahead`: a week of each bundled recording on the simulator, with new slots that come after 5, 60 and 180 s,
decided with the analyzer's forecasts and without.

    python -m bench.ahead                                     everything, into bench/results/ahead.json
    python -m bench.ahead --traces nyc_taxi --seconds 180     a part of it, printed only

The week lies around the recording's highest point and begins at a midnight; the application is looked at once a minute.
A made series has a peak at nine each day, which a forecast can know from the third day on.
Both runs have the same load, readings, guards and executor. Slots count from the moment at which they are asked for.
Everything takes about 50 minutes of one core; the same seed gives the same figures on every machine.
"""

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.quality import around_the_peak, begun_with
from bench.results_file import write
from weir_contracts import Analysis
from weir_replay.options import DAY_SECONDS, Replay, ReplayOptions, prepare
from weir_replay.run import Score, run
from weir_replay.trace import BUNDLED, LoadTrace, Recording

DAYS = 7.0
INTERVAL_SECONDS = 60.0
NEW_SLOT_SECONDS = (5.0, 60.0, 180.0)
PEAK_RATE = 2400.0
NOISE = 0.02
LATE_OF_WITHOUT, MORE_SLOTS = 1 / 3, 1.1
"""Asked where new slots take a minute and more: at most this share of the late time without, for so many slots."""
SLOW_SECONDS = 60.0


NINE = "daily-peak-at-nine"
"""A made series that the forecast can know from its third day on: `peaks_at_nine`."""
NINE_LOW, NINE_RISE_MINUTES, NINE_HOLD_MINUTES = 0.2, 6, 90


def peaks_at_nine(days: int = 8, seed: int = 9) -> Recording:
    """Return a series by the minute with a rise to five times the load at nine o'clock each day, give or take a tenth of
    its height."""
    chance = random.Random(seed)
    values: list[float] = []
    for _ in range(days):
        height = chance.uniform(0.9, 1.0)
        for minute in range(24 * 60):
            since = minute - 9 * 60
            until = 2 * NINE_RISE_MINUTES + NINE_HOLD_MINUTES - since
            share = min(1.0, max(0.0, min(since, until) / NINE_RISE_MINUTES))
            values.append((NINE_LOW + (height - NINE_LOW) * share) * chance.uniform(0.97, 1.03))
    return Recording(tuple(60.0 * i for i in range(len(values))), tuple(values))


class Case(NamedTuple):
    """One run."""

    trace: str
    new_slot_seconds: float
    has_forecast: bool


@dataclass(frozen=True)
class Held:
    """Result of one run."""

    case: Case
    score: Score
    codes: dict[str, int]
    wall_seconds: float

    @property
    def late_seconds(self) -> float:
        return (self.score.violation_share or 0.0) * self.score.seconds


def prepared(trace: str, new_slot_seconds: float, days: float, topology: str = "chain") -> Replay:
    """The week, on a cluster whose new slots come so late."""
    options = ReplayOptions(
        trace="",
        topology=topology,
        interval_seconds=INTERVAL_SECONDS,
        peak_rate=PEAK_RATE,
        duration_seconds=days * DAY_SECONDS,
    )
    if trace == NINE:
        replay = begun_with(prepare(replace(options, trace="step")), LoadTrace(peaks_at_nine(), PEAK_RATE))
    else:
        replay = around_the_peak(trace, options)
    cluster = replay.job.cluster
    waits = max(cluster.stabilization_seconds, new_slot_seconds)
    application = replay.job.on(new_slot_seconds=new_slot_seconds, stabilization_seconds=waits)
    return replace(replay, application=application)


def without_forecasts(message: Any) -> Any:
    """Return the message as it was before there were forecasts."""
    return message.model_copy(update={"forecasts": []}) if isinstance(message, Analysis) else message


def held(case: Case, days: float, seed: int) -> Held:
    replay = prepared(case.trace, case.new_slot_seconds, days)
    result = run(replay, seed=seed, noise=NOISE, carry=None if case.has_forecast else without_forecasts)
    return Held(case, result.score, result.codes, result.wall_seconds)


def _all_held(
    cases: Sequence[Case], days: float, seed: int, workers: int, keep: Callable[[Sequence[Held]], object]
) -> list[Held]:
    """Hold each case; `keep` gets what has been held so far after each."""
    found: dict[Case, Held] = {}
    with ProcessPoolExecutor(max_workers=max(1, workers)) as pool:
        submitted = {pool.submit(held, case, days, seed): case for case in cases}
        for done in as_completed(submitted):
            case = submitted[done]
            found[case] = done.result()
            with_or_without = "with" if case.has_forecast else "without"
            print(
                f"{len(found):>3}/{len(cases)}  {case.trace}, {case.new_slot_seconds:g} s, {with_or_without}: "
                f"late {found[case].late_seconds:,.0f} s, {found[case].score.slot_seconds:,.0f} slot-seconds, "
                f"{found[case].wall_seconds:.0f} s of this machine; {found[case].codes}",
                flush=True,
            )
            keep([found[case] for case in cases if case in found])
    return [found[case] for case in cases]


class Pair(NamedTuple):
    """Both runs of a week."""

    without: Held
    having: Held

    @property
    def more_slots(self) -> float:
        """Slot-seconds with forecasts over those without."""
        return self.having.score.slot_seconds / max(1e-9, self.without.score.slot_seconds)

    @property
    def grown_ahead(self) -> int:
        """Plans that grew before a forecast peak."""
        return self.having.codes.get("before-the-peak", 0)

    @property
    def sentence(self) -> str:
        """Late time without the forecast and with it, as a sentence."""
        late, before = self.having.late_seconds, self.without.late_seconds
        if before == 0:
            return "never late without the forecast: nothing to gain"
        if self.grown_ahead == 0:
            return "no plan grew before a forecast peak: the forecast saved nothing"
        return f"late {late / before:.0%} of the time without the forecast"

    @property
    def is_met(self) -> bool:
        """Whether the forecast brings what is asked of it."""
        late, before = self.having.late_seconds, self.without.late_seconds
        if self.without.case.new_slot_seconds < SLOW_SECONDS:
            return late <= before and self.more_slots <= 1.0
        return late <= before * LATE_OF_WITHOUT and self.more_slots <= MORE_SLOTS


def pairs(results: Sequence[Held]) -> list[Pair]:
    """Return the runs that only differ in their forecasts."""
    having = {r.case: r for r in results if r.case.has_forecast}
    return [
        Pair(r, having[r.case._replace(has_forecast=True)])
        for r in results
        if not r.case.has_forecast and r.case._replace(has_forecast=True) in having
    ]


def table(found: Sequence[Pair]) -> Table:
    """The figures, for a person."""
    drawn = Table(
        "recording", "slots come after", "late without", "late with", "slots", "rescales", "grown ahead", "met"
    )
    for column in drawn.columns[1:]:
        column.justify = "right"
    for without, having in found:
        pair = Pair(without, having)
        drawn.add_row(
            without.case.trace,
            f"{without.case.new_slot_seconds:g} s",
            f"{without.late_seconds:,.0f} s",
            f"{having.late_seconds:,.0f} s",
            f"{pair.more_slots:.3f} ×",
            f"{without.score.rescales} → {having.score.rescales}",
            str(pair.grown_ahead),
            "yes" if pair.is_met else "no",
        )
    return drawn


def _figures(pair: Pair) -> dict[str, Any]:
    case = pair.without.case
    return {
        "trace": case.trace,
        "new_slot_seconds": case.new_slot_seconds,
        "late_seconds_without": round(pair.without.late_seconds, 1),
        "late_seconds_with": round(pair.having.late_seconds, 1),
        "slots_with_over_without": round(pair.more_slots, 4),
        "grown_ahead": pair.grown_ahead,
        "is_met": pair.is_met,
        "sentence": pair.sentence,
        "without": {**pair.without.score.to_document(), "plans": pair.without.codes},
        "with": {**pair.having.score.to_document(), "plans": pair.having.codes},
    }


def main() -> int:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", help="only these, with commas")
    parser.add_argument("--seconds", help="only slots that come after so many seconds, with commas")
    parser.add_argument("--forecast", choices=("with", "without"), help="only one of the two runs")
    parser.add_argument("--days", type=float, default=DAYS, help="days of each recording (default 7)")
    parser.add_argument("--seed", type=int, default=0, help="of the noise in the readings (default 0)")
    parser.add_argument("--workers", type=int, default=1, help="processes (default 1)")
    arguments = parser.parse_args()
    names = [NINE, *sorted(path.stem for path in BUNDLED.glob("*.csv"))]
    traces = arguments.traces.split(",") if arguments.traces else names
    if unknown := sorted(set(traces) - set(names)):
        sys.exit(f"--traces: {unknown[0]!r} is none of {', '.join(names)}")
    seconds = [float(each) for each in arguments.seconds.split(",")] if arguments.seconds else list(NEW_SLOT_SECONDS)
    kinds = {"with": (True,), "without": (False,), None: (False, True)}[arguments.forecast]
    # Both runs of a week one after the other, and first where new slots take long.
    longest_first = sorted(seconds, reverse=True)
    cases = [Case(trace, each, kind) for each in longest_first for trace in traces for kind in kinds]
    whole = not any((arguments.traces, arguments.seconds, arguments.forecast)) and arguments.days == DAYS

    def keep(held_so_far: Sequence[Held]) -> None:
        if whole:
            _keep(pairs(held_so_far), len(cases) // 2, arguments.seed)

    results = _all_held(cases, arguments.days, arguments.seed, arguments.workers, keep)
    Console(width=118).print(table(pairs(results)))
    return 0


def _keep(found: Sequence[Pair], weeks: int, seed: int) -> None:
    about = {
        "days": DAYS,
        "interval_seconds": INTERVAL_SECONDS,
        "peak_rate": PEAK_RATE,
        "seed": seed,
        "weeks": weeks,
        "measured": len(found),
        "met": sum(pair.is_met for pair in found),
        "results": [_figures(pair) for pair in found],
    }
    write("ahead", "make bench-ahead", about)


if __name__ == "__main__":
    sys.exit(main())
