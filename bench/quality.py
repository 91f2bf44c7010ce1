"""`make bench-quality`: how well the loop holds a simulated application over the bundled recordings, compared with a
parallelism for the peak, one for the mean, and the reactive utilization rule of autoscaling/v2 (target 0.7, tolerance
0.1, 15 s, 5 min of stabilization).

Days of each recording around its highest point, at their own speed; the same simulated application, load and restarts
for all. Then a day of one of them on applications with a maximum of 8, 64 and 500 subtasks (`sizes.py`). The same seed
gives the same figures on every machine. Results are in bench/results/quality.json, curves of the recordings in
quality.svg.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.compare.rules import STATIC_UTILIZATION, Busy, Reactive
from bench.results_file import RESULTS, write
from bench.sizes import SIZES, Size
from weir_replay.figure import Panel, write_svg
from weir_replay.options import DAY_SECONDS, START_UTILIZATION, Replay, ReplayOptions, prepare
from weir_replay.run import POINTS, Meter, Point, Score, run, run_panels
from weir_replay.simulator import Simulation
from weir_replay.simulator.capacity import OfflineOptimum
from weir_replay.trace import BUNDLED, LoadTrace, Recording

HPA_PERIOD_SECONDS = 15.0
INTERVAL_SECONDS = 15.0
"""Of Weir: it looks as often as the rule does."""
SIZED_TRACE, SIZED_DAYS = "nyc_taxi", 1.0
"""Recording, and simulated days of it, on the applications of several sizes."""
STRATEGIES = ("weir", "static-peak", "static-mean", "reactive")

Shares = Mapping[str, float | None]


@dataclass(frozen=True)
class Held:
    """Result of a strategy on one recording."""

    trace: str
    strategy: str
    score: Score
    points: list[Point]


def around_the_peak(trace: str, options: ReplayOptions) -> Replay:
    """The days of a recording around its highest point, begun at a midnight of the recording."""
    prepared = prepare(replace(options, trace=trace))
    shape = prepared.trace.shape
    if not isinstance(shape, Recording):
        raise TypeError(f"{trace}: is a shape, not a recording")
    peak = shape.offsets_seconds[shape.values.index(shape.peak)]
    latest = shape.period_seconds - prepared.duration_seconds
    start = min(max(0.0, peak - prepared.duration_seconds / 2), max(0.0, latest))
    start -= start % DAY_SECONDS
    return begun_with(prepared, replace(prepared.trace, start_seconds=start))


def sized(prepared: Replay, size: Size) -> Replay:
    """The same recording, as high as an application of another size carries."""
    load, policy = replace(prepared.trace, peak_rate=size.peak_rate), size.bounded(prepared.policy)
    return begun_with(replace(prepared, application=size.application(), policy=policy), load)


def begun_with(prepared: Replay, load: LoadTrace) -> Replay:
    """The replay of another load, with the parallelism that its beginning needs."""
    bound = prepared.policy.spec.bounds
    first = OfflineOptimum(prepared.job, bound.max).parallelism(load.rate_at(0.0) / START_UTILIZATION)
    return replace(prepared, trace=load, application=prepared.job.started_with(first))


def static(prepared: Replay, rate: float) -> Held:
    """A parallelism that carries `rate` at 80 %, all the time."""
    optimum = OfflineOptimum(prepared.job, prepared.policy.spec.bounds.max)
    application = prepared.job.started_with(optimum.parallelism(rate / STATIC_UTILIZATION))
    return _held(replace(prepared, application=application), lambda _at, current, _shares: dict(current), 60.0)


def reactive(prepared: Replay) -> Held:
    """The rule of the Horizontal Pod Autoscaler on each operator's own utilization."""
    bounds = prepared.policy.spec.bounds
    rule = Reactive(min_parallelism=bounds.min, max_parallelism=bounds.max)
    return _held(prepared, rule.decide, HPA_PERIOD_SECONDS)


def _held(
    prepared: Replay, decide: Callable[[float, Mapping[str, int], Shares], dict[str, int]], period_seconds: float
) -> Held:
    simulation = Simulation(prepared.job, prepared.trace.rate_at, step_seconds=prepared.step_seconds)
    meter = _meter(prepared, simulation)
    before: dict[str, Busy] = {}
    rescales, at = 0, 0.0
    while at < prepared.duration_seconds - 1e-6:
        at = min(at + period_seconds, prepared.duration_seconds)
        simulation.advance(at)
        if simulation.state != "RUNNING":
            continue
        now = _busy(simulation)
        shares = {name: busy.since(before.get(name, busy)) for name, busy in now.items()}
        before = now
        # While a request is being done the rule does not ask again.
        if simulation.requested == simulation.observed:
            wanted = decide(at, simulation.observed, shares)
            if wanted != simulation.observed and simulation.request(wanted) is None:
                rescales += 1
    return Held("", "", meter.score(rescales), meter.points)


def _busy(simulation: Simulation) -> dict[str, Busy]:
    flow = simulation.flow
    columns = zip(
        simulation.application.operators, flow.busy_ms, flow.blocked_ms, flow.idle_ms, flow.parallelism, strict=True
    )
    return {operator.name: Busy(busy, idle, blocked, p) for operator, busy, blocked, idle, p in columns}


def _meter(prepared: Replay, simulation: Simulation) -> Meter:
    return Meter(
        simulation,
        OfflineOptimum(prepared.job, prepared.policy.spec.bounds.max),
        prepared.policy.spec.objective,
        max(10.0, prepared.duration_seconds / POINTS),
    )


def held(trace: str, strategy: str, options: ReplayOptions, size: str | None = None) -> Held:
    """One strategy over one recording, on an application of `SIZES` if one is named."""
    prepared = around_the_peak(trace, options)
    if size is not None:
        prepared, trace = sized(prepared, SIZES[size]), f"{trace}, {size}"
    rates = [prepared.trace.rate_at(minute * 60.0) for minute in range(int(prepared.duration_seconds // 60))]
    match strategy:
        case "weir":
            result = run(prepared, seed=options.seed, noise=options.noise)
            found = Held(trace, strategy, result.score, result.points)
        case "static-peak":
            found = static(prepared, max(rates))
        case "static-mean":
            found = static(prepared, sum(rates) / len(rates))
        case _:
            found = reactive(prepared)
    return replace(found, trace=trace, strategy=strategy)


def table(results: list[Held]) -> Table:
    """The figures, for a person."""
    drawn = Table("recording", "strategy", "violation", "slot-seconds", "times the optimum", "rescales", "largest lag")
    for column in drawn.columns[2:]:
        column.justify = "right"
    for result in results:
        score = result.score
        drawn.add_row(
            result.trace,
            result.strategy,
            f"{score.violation_share or 0.0:.3%}",
            f"{score.slot_seconds:,.0f}",
            f"{score.times_optimum or 0.0:.2f}",
            str(score.rescales),
            f"{score.max_lag_seconds:,.0f} s",
        )
    return drawn


def figure_panels(results: list[Held], objective_seconds: float | None) -> list[Panel]:
    """Return the curves of Weir's and the reactive rule's runs."""
    return [
        replace(panel, title=f"{result.trace}, {result.strategy}: {panel.title}")
        for result in results
        if result.strategy in ("weir", "reactive")
        for panel in run_panels(result.points, objective_seconds)
    ]


def _figures(result: Held) -> dict[str, Any]:
    return {"trace": result.trace, "strategy": result.strategy, **result.score.to_document()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=7.0, help="simulated days of each recording (default 7)")
    parser.add_argument("--topology", default="chain", help="of the application (default chain)")
    parser.add_argument("--peak-rate", type=float, default=2400.0, help="records/s at the highest point (default 2400)")
    parser.add_argument("--seed", type=int, default=0, help="of the noise in the readings")
    arguments = parser.parse_args()
    options = ReplayOptions(
        trace="",
        topology=arguments.topology,
        interval_seconds=INTERVAL_SECONDS,
        peak_rate=arguments.peak_rate,
        duration_seconds=arguments.days * DAY_SECONDS,
        seed=arguments.seed,
    )
    results = []
    traces = sorted(path.stem for path in BUNDLED.glob("*.csv"))
    for trace in traces:
        for strategy in STRATEGIES:
            print(f"{trace} under {strategy}", flush=True)
            results.append(held(trace, strategy, options))
    a_day = replace(options, duration_seconds=min(arguments.days, SIZED_DAYS) * DAY_SECONDS)
    for size in SIZES:
        for strategy in STRATEGIES:
            print(f"{SIZED_TRACE} on {size} under {strategy}", flush=True)
            results.append(held(SIZED_TRACE, strategy, a_day, size))
    Console(width=110).print(table(results))
    objective = results[0].score.objective_seconds
    figure = figure_panels([result for result in results if result.trace in traces], objective)
    write_svg(RESULTS / "quality.svg", "Weir and a reactive rule on the bundled recordings", figure)
    about = {
        "days": arguments.days,
        "interval_seconds": INTERVAL_SECONDS,
        "topology": arguments.topology,
        "peak_rate": arguments.peak_rate,
    }
    figures = {**about, "objective_seconds": objective, "results": [_figures(result) for result in results]}
    print(f"written: {write('quality', 'make bench-quality', figures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
