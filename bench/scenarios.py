"""`make bench-quality`, `make bench-planners`, `make bench-ahead`: the benchmarks of `scenarios.yaml` on the simulator.

    python -m bench planners                                                     everything, into bench/results
    python -m bench planners --planners rate,hpa --traces step --topologies chain    a part of it, printed only
    python -m bench planners --requests      what 1,000 requests through `rate` and all guards cost, and where
    python -m bench ahead --traces nyc_taxi --new-slot-seconds 180 --days 2

Everything takes about 15 (quality), 25 (planners) and 50 minutes (ahead) of one core; it is spread over all of them.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import cost
from bench.results_file import RESULTS, write
from bench.simulated import LOADS, PEAK_RATE, SCENARIOS, Held, Scenario, Situation, held
from bench.strategies import elasticity
from weir_replay.figure import Curve, Panel, nice_top, write_svg
from weir_replay.run import run_panels

Run = tuple[Situation, str, int]
"""Situation, strategy, seed."""
MAX_ROWS = 60
"""Maximum number of results that an entire benchmark prints one by one; with more it prints the summary alone."""
LATE_OF_WITHOUT, MORE_SLOTS = 1 / 3, 1.1
"""Aim of the forecast where new slots take `SLOW_SECONDS` or more: at most this share of the late time without it, and at
most this factor on the slots."""
SLOW_SECONDS = 60.0


def main() -> int:
    """Measure, print and keep."""
    arguments = _arguments()
    if arguments.requests:
        figures = {**cost.measure_requests(), "profile": cost.profile()}
        print(write("planner_requests", "python -m bench planners --requests", figures).read_text())
        return 0 if figures["within_budget"] else 1
    name: str = arguments.scenario
    scenario = SCENARIOS[name]
    if arguments.days is not None:
        recordings = scenario.recordings.model_copy(update={"days": arguments.days})
        scenario = scenario.model_copy(update={"recordings": recordings})
    runs, whole = _runs(scenario, arguments)
    found: dict[Run, Held] = {}
    for result in _held(scenario, runs, arguments.workers, arguments.seconds):
        found[result.situation, result.strategy, result.seed] = result
        print(f"{len(found):>4}/{len(runs)}  {_line(result)}", flush=True)
        if whole and (scenario.keeps_parts or len(found) == len(runs)):
            keep(name, scenario, [found[each] for each in runs if each in found], arguments.seed or 0)
    # In the order of `runs`, not of their ends.
    results = [found[run] for run in runs]
    Console(width=118).print(summary(results))
    if not whole or len(results) <= MAX_ROWS:
        Console(width=118).print(table(results))
    for pair in pairs(results):
        print(f"{pair['trace']}, slots after {pair['new_slot_seconds']:g} s: {pair['sentence']}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=sorted(SCENARIOS))
    parser.add_argument("--requests", action="store_true", help="only measure what 1,000 plans cost")
    parser.add_argument("--planners", help="only these strategies, with commas")
    parser.add_argument("--traces", help="only these, with commas")
    parser.add_argument("--topologies", help="only these, with commas")
    parser.add_argument("--new-slot-seconds", help="only slots that come after so many seconds, with commas")
    parser.add_argument("--days", type=float, help="days of each recording")
    parser.add_argument("--seconds", type=float, help="only the first simulated seconds of each run")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: a core each)")
    parser.add_argument("--seed", type=int, help="of the noise in the readings (default: 0, and 0 to 4 for rate)")
    return parser.parse_args()


def _runs(scenario: Scenario, arguments: argparse.Namespace) -> tuple[list[Run], bool]:
    """Return the runs that the options select, and whether these are all runs of the benchmark."""
    situations = scenario.situations()
    strategies = _chosen("--planners", arguments.planners, scenario.contestants())
    traces = _chosen("--traces", arguments.traces, [s.trace for s in situations])
    topologies = _chosen("--topologies", arguments.topologies, [s.topology for s in situations])
    delays = _chosen("--new-slot-seconds", arguments.new_slot_seconds, [_delay(s) for s in situations])
    seeds = None if arguments.seed is None else [arguments.seed]
    chosen = [s for s in situations if s.trace in traces and s.topology in topologies and _delay(s) in delays]
    runs = [(s, each, seed) for s in chosen for each in strategies for seed in seeds or scenario.seeds_of(each)]
    given = (arguments.planners, arguments.traces, arguments.topologies, arguments.new_slot_seconds)
    whole = not any((*given, arguments.days, arguments.seconds)) and (seeds is None or not scenario.seeds)
    return runs, whole


def _delay(situation: Situation) -> str:
    return f"{situation.new_slot_seconds or 0:g}"


def _chosen(option: str, text: str | None, allowed: Sequence[str]) -> list[str]:
    """Return the names that an option lists, all by default. Exits for an unknown name."""
    if text is None:
        return list(allowed)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in allowed:
            sys.exit(f"{option}: {name!r} is none of {', '.join(dict.fromkeys(allowed))}")
    return names


def _held(scenario: Scenario, runs: Sequence[Run], workers: int, seconds: float | None) -> Iterator[Held]:
    """Yield the results in the order in which the runs end."""
    with ProcessPoolExecutor(max_workers=max(1, workers)) as pool:
        submitted = [
            pool.submit(held, scenario, situation, strategy, seed=seed, duration_seconds=seconds)
            for situation, strategy, seed in runs
        ]
        for done in as_completed(submitted):
            yield done.result()


def _line(result: Held) -> str:
    situation, score = result.situation, result.score
    slots = "" if situation.new_slot_seconds is None else f", slots after {situation.new_slot_seconds:g} s"
    where = f"{situation.trace} on {situation.topology} every {situation.interval_seconds:g} s{slots}"
    late = f"late {result.late_seconds:,.0f} s, {score.slot_seconds:,.0f} slot-seconds"
    return f"{where} under {result.strategy}, seed {result.seed}: {late}"


def sums(strategy: str, results: Sequence[Held]) -> dict[str, Any]:
    """Return one strategy's figures over all situations. Every situation counts the same."""
    scores = [result.score for result in results]
    hours = sum(score.seconds for score in scores) / 3600
    elastic = [elasticity(result.points) for result in results]

    def mean(values: Sequence[float]) -> float:
        return round(sum(values) / max(1, len(values)), 4)

    return {
        "planner": strategy,
        "situations": len(scores),
        "violation_share": mean([score.violation_share or 0.0 for score in scores]),
        "worst_violation_share": max((score.violation_share or 0.0 for score in scores), default=0.0),
        "times_optimum": mean([score.times_optimum or 0.0 for score in scores]),
        "of_peak": mean([score.slot_seconds / max(1e-9, score.peak_slot_seconds) for score in scores]),
        "rescales_per_hour": round(sum(score.rescales for score in scores) / max(1e-9, hours), 2),
        "largest_lag_seconds": max((score.max_lag_seconds for score in scores), default=0.0),
        **{key: mean([e[key] for e in elastic if key in e]) for key in (elastic[0] if elastic else {})},
    }


def _by_strategy(results: Sequence[Held]) -> dict[str, list[Held]]:
    return {name: [r for r in results if r.strategy == name] for name in dict.fromkeys(r.strategy for r in results)}


def summary(results: Sequence[Held]) -> Table:
    """Each strategy over all situations, for a person."""
    columns = ("strategy", "late", "at worst", "times the optimum", "of the peak's", "rescales/h", "largest lag")
    title = "means over all situations; late: share of the time above the objective of lag"
    drawn = Table(*columns, "under", "over", title=title)
    for column in drawn.columns[1:]:
        column.justify = "right"
    for name, of_one in _by_strategy(results).items():
        s = sums(name, of_one)
        drawn.add_row(
            name,
            f"{s['violation_share']:.2%}",
            f"{s['worst_violation_share']:.1%}",
            f"{s['times_optimum']:.2f}",
            f"{s['of_peak']:.0%}",
            f"{s['rescales_per_hour']:.1f}",
            f"{s['largest_lag_seconds']:,.0f} s",
            f"{s.get('under_accuracy_percent', 0.0):.1f} %",
            f"{s.get('over_accuracy_percent', 0.0):.0f} %",
        )
    return drawn


def table(results: Sequence[Held]) -> Table:
    """Each result, for a person."""
    columns = ("load", "topology", "interval", "strategy", "late", "times the optimum", "rescales", "largest lag")
    drawn = Table(*columns, "plans")
    for r in results:
        codes = ", ".join(f"{n} {code}" for code, n in list(r.codes.items())[:4])
        times, late = r.score.times_optimum or 0.0, r.score.violation_share or 0.0
        where = (r.situation.trace, r.situation.topology, f"{r.situation.interval_seconds:g} s", r.strategy)
        drawn.add_row(
            *where, f"{late:.2%}", f"{times:.2f}", str(r.score.rescales), f"{r.score.max_lag_seconds:,.0f} s", codes
        )
    return drawn


def pairs(results: Sequence[Held]) -> list[dict[str, Any]]:
    """Return the figures of each two runs that differ only in their forecasts."""
    having = {(r.situation, r.seed): r for r in results if r.strategy == "with-forecast"}
    without = [r for r in results if r.strategy == "without-forecast" and (r.situation, r.seed) in having]
    return [_pair(r, having[r.situation, r.seed]) for r in without]


def _pair(without: Held, having: Held) -> dict[str, Any]:
    late, before = having.late_seconds, without.late_seconds
    more_slots = having.score.slot_seconds / max(1e-9, without.score.slot_seconds)
    grown_ahead = having.codes.get("before-the-peak", 0)
    if before == 0:
        sentence = "never late without the forecast: nothing to gain"
    elif grown_ahead == 0:
        sentence = "no plan grew before a forecast peak: the forecast saved nothing"
    else:
        sentence = f"late {late / before:.0%} of the time without the forecast"
    if (without.situation.new_slot_seconds or 0.0) < SLOW_SECONDS:
        is_met = late <= before and more_slots <= 1.0
    else:
        is_met = late <= before * LATE_OF_WITHOUT and more_slots <= MORE_SLOTS
    return {
        "trace": without.situation.trace,
        "new_slot_seconds": without.situation.new_slot_seconds,
        "late_seconds_without": round(before, 1),
        "late_seconds_with": round(late, 1),
        "slots_with_over_without": round(more_slots, 4),
        "grown_ahead": grown_ahead,
        "is_met": is_met,
        "sentence": sentence,
        "without": {**without.score.to_document(), "plans": dict(without.codes)},
        "with": {**having.score.to_document(), "plans": dict(having.codes)},
    }


def keep(name: str, scenario: Scenario, results: Sequence[Held], seed: int) -> None:
    """Write bench/results/NAME.json, and the curves once all is measured."""
    document = {"quality": _quality, "planners": _planners, "ahead": _ahead}[name]
    about = {"interval_seconds": scenario.interval_seconds, "peak_rate": PEAK_RATE}
    print(f"written: {write(name, f'make bench-{name}', {**about, **document(scenario, results, seed)})}")


def _quality(scenario: Scenario, results: Sequence[Held], seed: int) -> dict[str, Any]:
    objective = results[0].score.objective_seconds
    panels = [
        replace(panel, title=f"{result.situation.trace}, {result.strategy}: {panel.title}")
        for result in results
        if result.situation.days is None and result.strategy in ("weir", "reactive")
        for panel in run_panels(result.points, objective)
    ]
    write_svg(RESULTS / "quality.svg", "Weir and a reactive rule on the bundled recordings", panels)
    rows = []
    for result in results:
        situation = result.situation
        case = situation.trace if situation.days is None else f"{situation.trace}, {situation.topology}"
        rows.append({"trace": case, "strategy": result.strategy, **result.score.to_document()})
    days = {"days": scenario.recordings.days, "topology": results[0].situation.topology}
    return {**days, "objective_seconds": objective, "results": rows}


def _planners(scenario: Scenario, results: Sequence[Held], seed: int) -> dict[str, Any]:
    for trace, topology in _drawn(scenario):
        situation = Situation(trace, topology, scenario.interval_seconds)
        drawn = [r for r in results if r.situation == situation and r.seed == 0]
        write_svg(RESULTS / f"planners-{trace}.svg", f"Slots held over {trace}, {topology}", figure_panels(drawn))
    names = scenario.contestants()
    rows = [
        {
            "trace": r.situation.trace,
            "topology": r.situation.topology,
            "interval_seconds": r.situation.interval_seconds,
            "seed": r.seed,
            "planner": r.strategy,
            **r.score.to_document(),
            **elasticity(r.points),
            "plans": dict(r.codes),
            "outcomes": dict(r.ends),
        }
        for r in results
    ]
    return {
        "recordings_speedup": scenario.recordings.speedup,
        "pattern_seconds": LOADS["step"].seconds,
        "seeds": {name: list(scenario.seeds_of(name)) for name in names},
        "parameters": {name: dict(scenario.parameters.get(name, {})) for name in names},
        "summary": [sums(name, of_one) for name, of_one in _by_strategy(results).items()],
        "results": rows,
    }


def _drawn(scenario: Scenario) -> list[tuple[str, str]]:
    """Return each load with the application whose curves are drawn: the chain, or the middle one of several sizes."""
    topologies: dict[str, list[str]] = {}
    for situation in scenario.situations():
        topologies.setdefault(situation.trace, []).append(situation.topology)
    return [(trace, "chain" if "chain" in names else "stepped-64") for trace, names in topologies.items()]


def _ahead(scenario: Scenario, results: Sequence[Held], seed: int) -> dict[str, Any]:
    found = pairs(results)
    return {
        "days": scenario.recordings.days,
        "seed": seed,
        "weeks": len(scenario.situations()),
        "measured": len(found),
        "met": sum(pair["is_met"] for pair in found),
        "results": found,
    }


def figure_panels(results: Sequence[Held]) -> list[Panel]:
    """Return the slots each strategy held over the offline optimum, one panel each under the load, on one axis."""
    if not results:
        return []
    max_slots = nice_top(max(p.slots for result in results for p in result.points))
    arrivals = [(p.at_seconds, p.arrivals) for p in results[0].points]
    panels = [Panel("records/s", [Curve("arrivals", "load", arrivals)], height=100)]
    for result in results:
        score = result.score
        figures = (
            f"{result.strategy}: late {score.violation_share or 0.0:.1%}, "
            f"{score.times_optimum or 0.0:.2f} times the optimum, {score.rescales} rescales"
        )
        curves = [
            Curve("offline optimum", "optimum", [(p.at_seconds, p.optimum_slots) for p in result.points], stepped=True),
            Curve("held", "held", [(p.at_seconds, p.slots) for p in result.points]),
        ]
        panels.append(Panel(figures, curves, top=max_slots, height=90))
    return panels


if __name__ == "__main__":
    sys.exit(main())
