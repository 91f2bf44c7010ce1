"""`make bench-planners`: every built-in planner on the simulator over the bundled recordings and the classic patterns on
three topologies, over sawtooths, flash crowds and bursts, looked at every 10 and 60 s, and with a maximum of 8, 64 and
500 subtasks, compared with a clairvoyant planner and a parallelism for the peak. The same seed gives the same figures on
every machine.

    python -m bench.planners                        everything, into bench/results/planners.json and planners*.svg
    python -m bench.planners --planners rate,hpa --traces step --topologies chain     a part of it, printed only
    python -m bench.planners --requests             1,000 requests through `rate` and all guards, and where the time
    goes

Everything takes about 25 minutes on one core; it is spread over all of them.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.results_file import RESULTS, write
from weir_replay.figure import Curve, Panel, nice_top, write_svg

from . import contest, cost
from .contest import Held, Situation

DRAWN = "chain"
"""The topology whose curves are drawn."""
LEAP_DRAWN = "stepped-64"
"""The same, of the applications of several sizes."""


def main() -> int:
    """Measure, print and keep."""
    arguments = _arguments()
    if arguments.requests:
        figures = {**cost.measure(), "profile": cost.profile()}
        print(write("planner_requests", "python -m bench.planners --requests", figures).read_text())
        return 0 if figures["within_budget"] else 1
    planners = _chosen("--planners", arguments.planners, contest.contestants())
    traces = _chosen("--traces", arguments.traces, contest.traces())
    topologies = _chosen("--topologies", arguments.topologies, contest.topologies())
    chosen = [s for s in contest.situations() if s.trace in traces and s.topology in topologies]
    seeds = None if arguments.seed is None else [arguments.seed]
    runs = [(s, p, seed) for s in chosen for p in planners for seed in seeds or contest.seeds_of(p)]
    results = _all_held(runs, arguments.workers, arguments.seconds)
    Console(width=118).print(summary(results, planners))
    whole = seeds is None and not any((arguments.planners, arguments.traces, arguments.topologies, arguments.seconds))
    if not whole:
        Console(width=118).print(_each(results))
        return 0
    for trace in traces:
        topology = LEAP_DRAWN if trace in contest.LEAPS else DRAWN
        drawn = [r for r in results if r.situation == Situation(trace, topology) and r.seed == contest.SEEDS[0]]
        write_svg(RESULTS / f"planners-{trace}.svg", f"Slots held over {trace}, {topology}", figure_panels(drawn))
    about = {
        "interval_seconds": contest.INTERVAL_SECONDS,
        "peak_rate": contest.PEAK_RATE,
        "recordings_speedup": contest.SPEEDUP,
        "pattern_seconds": contest.PATTERN_SECONDS,
        "seeds": {name: list(contest.seeds_of(name)) for name in planners},
        "parameters": {name: dict(contest.PARAMETERS.get(name, {})) for name in planners},
        "summary": [_sums(name, [r for r in results if r.planner == name]) for name in planners],
        "results": [_figures(result) for result in results],
    }
    print(f"written: {write('planners', 'make bench-planners', about)}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", action="store_true", help="only measure what 1,000 plans cost")
    parser.add_argument("--planners", help="only these, with commas")
    parser.add_argument("--traces", help="only these, with commas")
    parser.add_argument("--topologies", help="only these, with commas")
    parser.add_argument("--seconds", type=float, help="only the first simulated seconds of each run")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: a core each)")
    parser.add_argument("--seed", type=int, help="of the noise in the readings (default: 0, and 0 to 4 for rate)")
    return parser.parse_args()


def _chosen(option: str, text: str | None, allowed: Sequence[str]) -> list[str]:
    """Return the names that an option lists, all by default. Exits for an unknown name."""
    if text is None:
        return list(allowed)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in allowed:
            sys.exit(f"{option}: {name!r} is none of {', '.join(allowed)}")
    return names


def _all_held(runs: Sequence[tuple[Situation, str, int]], workers: int, seconds: float | None) -> list[Held]:
    """In the order of `runs`, whichever is done first."""
    found: dict[tuple[Situation, str, int], Held] = {}
    with ProcessPoolExecutor(max_workers=max(1, workers)) as pool:
        submitted = {
            pool.submit(contest.held, s, p, seed=seed, duration_seconds=seconds): (s, p, seed) for s, p, seed in runs
        }
        for done in as_completed(submitted):
            found[submitted[done]] = done.result()
            situation, planner, seed = submitted[done]
            where = f"{situation.trace} on {situation.topology} every {situation.interval_seconds:g} s"
            print(f"{len(found):>4}/{len(runs)}  {where} under {planner}, seed {seed}", flush=True)
    return [found[run] for run in runs]


def _sums(planner: str, results: Sequence[Held]) -> dict[str, Any]:
    """One planner over all situations. Every situation counts the same."""
    scores = [result.score for result in results]
    hours = sum(score.seconds for score in scores) / 3600
    elastic = [contest.elasticity(result.points) for result in results]

    def mean(values: Sequence[float]) -> float:
        return round(sum(values) / max(1, len(values)), 4)

    return {
        "planner": planner,
        "situations": len(scores),
        "violation_share": mean([score.violation_share or 0.0 for score in scores]),
        "worst_violation_share": max((score.violation_share or 0.0 for score in scores), default=0.0),
        "times_optimum": mean([score.times_optimum or 0.0 for score in scores]),
        "of_peak": mean([score.slot_seconds / max(1e-9, score.peak_slot_seconds) for score in scores]),
        "rescales_per_hour": round(sum(score.rescales for score in scores) / max(1e-9, hours), 2),
        "largest_lag_seconds": max((score.max_lag_seconds for score in scores), default=0.0),
        **{key: mean([e[key] for e in elastic if key in e]) for key in (elastic[0] if elastic else {})},
    }


def summary(results: Sequence[Held], planners: Sequence[str]) -> Table:
    """Each planner over all situations, for a person."""
    columns = (
        "planner",
        "late",
        "at worst",
        "times the optimum",
        "of the peak's",
        "rescales/h",
        "largest lag",
        "under",
        "over",
    )
    drawn = Table(*columns, title="means over all situations; late: share of the time above the objective of lag")
    for column in drawn.columns[1:]:
        column.justify = "right"
    for name in planners:
        s = _sums(name, [result for result in results if result.planner == name])
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


def _each(results: Sequence[Held]) -> Table:
    drawn = Table(
        "load", "topology", "interval", "planner", "late", "times the optimum", "rescales", "largest lag", "plans"
    )
    for r in results:
        codes = ", ".join(f"{n} {code}" for code, n in list(r.codes.items())[:4])
        times, late = r.score.times_optimum or 0.0, r.score.violation_share or 0.0
        where = (r.situation.trace, r.situation.topology, f"{r.situation.interval_seconds:g} s", r.planner)
        drawn.add_row(
            *where, f"{late:.2%}", f"{times:.2f}", str(r.score.rescales), f"{r.score.max_lag_seconds:,.0f} s", codes
        )
    return drawn


def figure_panels(results: Sequence[Held]) -> list[Panel]:
    """Return the slots each planner held over the offline optimum, one panel each under the load, on one axis."""
    if not results:
        return []
    max_slots = nice_top(max(p.slots for result in results for p in result.points))
    arrivals = [(p.at_seconds, p.arrivals) for p in results[0].points]
    panels = [Panel("records/s", [Curve("arrivals", "load", arrivals)], height=100)]
    for result in results:
        score = result.score
        figures = (
            f"{result.planner}: late {score.violation_share or 0.0:.1%}, "
            f"{score.times_optimum or 0.0:.2f} times the optimum, {score.rescales} rescales"
        )
        curves = [
            Curve("offline optimum", "optimum", [(p.at_seconds, p.optimum_slots) for p in result.points], stepped=True),
            Curve("held", "held", [(p.at_seconds, p.slots) for p in result.points]),
        ]
        panels.append(Panel(figures, curves, top=max_slots, height=90))
    return panels


def _figures(result: Held) -> dict[str, Any]:
    return {
        "trace": result.situation.trace,
        "topology": result.situation.topology,
        "interval_seconds": result.situation.interval_seconds,
        "seed": result.seed,
        "planner": result.planner,
        **result.score.to_document(),
        **contest.elasticity(result.points),
        "plans": dict(result.codes),
        "outcomes": dict(result.ends),
    }


if __name__ == "__main__":
    sys.exit(main())
