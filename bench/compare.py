"""`make bench-compare`: two match surges of the 1998 World Cup's web site, replayed in ten minutes on the sample job;
under Weir, at a parallelism for the peak and at one for the mean, and under a reactive utilization rule.

Then again, Weir next to the planners `keda-kafka` and `flink-autoscaler`, and next to itself with longer stabilization.

Those of one round run at the same time, a job each, on the same records, so that whatever else the machine does is the
same for all. The times of the reactive rule (those of autoscaling/v2: 15 s, target 0.7, tolerance 0.1, 5 min of stabilization),
of Weir's policy (its defaults: 2 min of stabilization, 1 min of cooldown) and of both planners are shortened by the
replay's speed-up, except in `weir-30s` (30 s of stabilization) and `weir-default` (the policy's defaults as they are).
The optimum knows the load and rescales for free; for each of Weir's policies there is also the one that keeps its stabilization.
Before the ten minutes the two hours that came before them are played as a lead-in, in which every strategy settles.
Results, series and curves are in bench/results/compare.json and compare.svg.
"""

import argparse
import csv
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from bench.contest import Contest, Contestant, Sample, sample_all
from bench.results_file import RESULTS, earlier, log, write
from bench.running import with_spec
from bench.strategies import STATIC_UTILIZATION, Decide, Reactive, min_parallelism_for
from testbed.trial.options import TrialOptions, short_behavior
from testbed.trial.stack import TrialStack
from weir_replay.figure import Curve, Panel, nice_top, write_svg
from weir_replay.trace import BUNDLED
from workloads.sample_job import CONTENTION, SERVICE_MICROS, SLOWEST, SUBTASK_RATE

TRACE = BUNDLED / "worldcup98_minutes.csv"
LEAD_IN, FROM, UNTIL = "1998-06-15 11:10:00", "1998-06-15 13:10:00", "1998-06-15 21:10:00"
PEAK_RATE = 800.0
SLOWEST_MICROS = 6000.0
"""Of a record in the slowest operator: three times the usual, so that four jobs fit on a small machine."""
ROUNDS = {
    "strategies": ("weir", "static-peak", "static-mean", "reactive"),
    "planners": ("weir", "keda-kafka", "flink-autoscaler"),
    "stabilization": ("weir", "weir-30s", "weir-default"),
}
"""Five jobs at once keep two cores busy with the JVMs' compilers alone: observations were 26 s old, and every strategy was
late for nine tenths of the time, at the maximum too."""
LONGER_STABILIZATION_SECONDS = {"weir-30s": 30.0, "weir-default": 120.0}
"""Of the policies that are not shortened by the replay's speed-up."""


@dataclass(frozen=True)
class Load:
    """The excerpt that is replayed; its first `lead_in_seconds` are not measured."""

    path: Path
    speedup: float
    lead_in_seconds: float
    mean_rate: float
    """Records/s of the measured part."""


def excerpt(folder: Path, seconds: float) -> Load:
    """The recorded hours as a trace of their own, so fast that what is measured takes `seconds`."""
    with TRACE.open(newline="") as file:
        rows = [row for row in csv.reader(file) if LEAD_IN <= row[0] < UNTIL]
    path = folder / "surges.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["timestamp", "value"], *rows])
    measured = [float(value) for at, value in rows if at >= FROM]
    speedup = 60.0 * len(measured) / seconds
    peak = max(float(value) for _, value in rows)
    mean = PEAK_RATE * sum(measured) / len(measured) / peak
    return Load(path, speedup, 60.0 * (len(rows) - len(measured)) / speedup, mean)


def subtask_rate() -> float:
    """Records/s of one subtask of the slowest operator at its cost here: the measured rate at the usual cost, made
    slower."""
    return 1 / (1 / SUBTASK_RATE + (SLOWEST_MICROS - SERVICE_MICROS[SLOWEST]) / 1e6)


def static(rate: float) -> Decide:
    """Return the parallelism that a user who knows the job and its load would set for `rate`."""
    p = min_parallelism_for(
        rate, subtask_rate=subtask_rate(), contention=CONTENTION[SLOWEST], utilization=STATIC_UTILIZATION
    )
    return lambda _at, current, _shares: {**current, SLOWEST: p}


def enter(contest: Contest, strategy: str, load: Load) -> None:
    """Let a strategy take part."""
    match strategy:
        case "weir":
            contest.enter_weir()
        case "weir-30s":
            stabilization = LONGER_STABILIZATION_SECONDS[strategy]
            times = short_behavior(stabilization, 60 / load.speedup, 600 / load.speedup)
            contest.enter_policy(strategy, {"behavior": times})
        case "weir-default":
            contest.enter_policy(strategy, {"behavior": {}})
        case "keda-kafka" | "flink-autoscaler":
            contest.enter_policy(
                strategy, {"planner": {"name": strategy, "parameters": _times(strategy, load.speedup)}}
            )
        case "static-peak":
            contest.enter(strategy, static(PEAK_RATE), 5.0)
        case "static-mean":
            contest.enter(strategy, static(load.mean_rate), 5.0)
        case _:
            rule = Reactive(stabilization_seconds=300.0 / load.speedup)
            contest.enter(strategy, rule.decide, max(1.0, 15.0 / load.speedup))


def _times(planner: str, speedup: float) -> dict[str, Any]:
    """Return the planner's default times, as much shorter as the load is faster."""
    if planner == "keda-kafka":
        down = {"stabilizationWindowSeconds": max(1, round(300 / speedup))}
        return {"polling_interval": 1, "cooldown_period": round(300 / speedup), "behavior": {"scaleDown": down}}
    minutes = {"metrics_window": 15.0, "stabilization_interval": 5.0, "scale_down_interval": 60.0}
    minutes |= {"catch_up_duration": 30.0, "restart_time": 5.0, "backlog_processing_lag_threshold": 5.0}
    return {f"{name}_minutes": round(each / speedup, 4) for name, each in minutes.items()}


def stack_of(load: Load, objective_seconds: float, seconds: float, folder: Path, jobs: int) -> TrialStack:
    """The loop around the first job, and slots for all."""
    stack = TrialStack(options_of(load, objective_seconds, seconds), folder, task_managers=jobs)
    return with_spec(stack, {"behavior": behavior_of(load)})


def options_of(load: Load, objective_seconds: float, seconds: float) -> TrialOptions:
    """Return the options of a trial with the load."""
    return TrialOptions(
        duration_seconds=load.lead_in_seconds + seconds,
        trace=str(load.path),
        speedup=load.speedup,
        peak_rate=PEAK_RATE,
        objective_seconds=objective_seconds,
    )


def behavior_of(load: Load) -> dict[str, Any]:
    """Return the times of a policy's defaults, as much shorter as the load is faster."""
    return short_behavior(120 / load.speedup, 60 / load.speedup, 600 / load.speedup)


def slow_down(stack: TrialStack) -> None:
    """Let the slowest operator take three times the usual for a record."""
    slower = {"operators": {SLOWEST: {"service_time_us": SLOWEST_MICROS}}}
    httpx.put(f"{stack.load_url}/workload", json=slower, timeout=5).raise_for_status()


def contest(load: Load, strategies: Sequence[str], seconds: float, objective_seconds: float) -> dict[str, Any]:
    """Run the strategies over the excerpt; returns each one's figures and series, and what Weir decided."""
    with tempfile.TemporaryDirectory(prefix="weir-compare-") as folder:
        stack = stack_of(load, objective_seconds, seconds, Path(folder), len(strategies))
        held = Contest(stack)
        try:
            stack.start(log)
            slow_down(stack)
            for strategy in strategies:
                enter(held, strategy, load)
            log(f"all run, {stack.elapsed_seconds():.0f} s of {load.lead_in_seconds:.0f} s of lead-in are over")
            sample_all(stack, held.contestants, load.lead_in_seconds, load.lead_in_seconds + seconds)
            decisions = held.decisions()
        finally:
            held.stop()
            stack.stop()
        figures = [_figures(each, objective_seconds) for each in held.contestants]
        samples = held.contestants[0].samples
        for each in figures:
            if each["strategy"] in decisions:
                stabilization = LONGER_STABILIZATION_SECONDS.get(each["strategy"], 120.0 / load.speedup)
                each["stabilization_seconds"] = stabilization
                each["optimum_slot_seconds"] = optimum_slot_seconds(samples, stabilization)
                each["decisions"] = decisions[each["strategy"]]
        return {"strategies": figures, "optimum_slot_seconds": optimum_slot_seconds(samples)}


def _figures(contestant: Contestant, objective_seconds: float) -> dict[str, Any]:
    found = contestant.figures(objective_seconds)
    return {
        "strategy": contestant.strategy,
        "violation_share": found.violation_share,
        "slot_seconds": found.size_seconds,
        "rescales": found.changes,
        "max_probe_lag_seconds": found.max_lag_seconds,
        "samples": found.samples,
        "samples_without_lag": found.samples_without_lag,
        "series": [asdict(sample) for sample in contestant.samples[::2]],
    }


def optimum_slot_seconds(samples: Sequence[Sample], stabilization_seconds: float = 0.0) -> float:
    """Return the slot-seconds of an optimum that knows the load and rescales for free. It takes nothing back that was
    needed within the stabilization."""
    job = {"subtask_rate": subtask_rate(), "contention": CONTENTION[SLOWEST], "utilization": 1.0}
    times = [sample.t for sample in samples]
    # A generator that a busy machine held up sends what it owes at once, faster than the trace ever is.
    needed = [min_parallelism_for(min(sample.input_rate or 0.0, PEAK_RATE), **job) for sample in samples]
    held = [max(needed[bisect_left(times, at - stabilization_seconds) : n + 1]) for n, at in enumerate(times)]
    return round(sum(p * (b - a) for p, (a, b) in zip(held, pairwise(times), strict=False)), 1)


def table(results: Sequence[Mapping[str, Any]], optimum: float) -> Table:
    """The figures, for a person."""
    columns = ("strategy", "violation", "slot-seconds", "× optimum", "× stabilized", "rescales", "largest lag")
    drawn = Table(*columns)
    for result in results:
        share, max_lag = result["violation_share"], result["max_probe_lag_seconds"]
        stabilized = result.get("optimum_slot_seconds")
        drawn.add_row(
            result["strategy"],
            "-" if share is None else f"{share:.1%}",
            f"{result['slot_seconds']:,.0f}",
            f"{result['slot_seconds'] / optimum:.2f}",
            "-" if stabilized is None else f"{result['slot_seconds'] / stabilized:.2f}",
            str(result["rescales"]),
            "-" if max_lag is None else f"{max_lag:.1f} s",
        )
    return drawn


def figure_panels(results: Sequence[Mapping[str, Any]], objective_seconds: float) -> list[Panel]:
    """Return the load, and lag and slots of every strategy on common axes, which end at two objectives' lag or the
    largest."""
    samples = [sample for result in results for sample in result["series"]]
    began = samples[0]["t"]
    max_lag = max(2 * objective_seconds, *(sample["lag_seconds"] or 0.0 for sample in samples))
    max_slots = max(sample["size"] or 0 for sample in samples)

    def over_time(series: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float | None]]:
        return [(sample["t"] - began, sample[name]) for sample in series]

    panels = [Panel("records/s", [Curve("arrivals", "load", over_time(results[0]["series"], "input_rate"))])]
    for result in results:
        series, share = result["series"], result["violation_share"] or 0.0
        figures = f"{result['strategy']}: late {share:.1%} of the time, {result['slot_seconds']:,.0f} slot-seconds"
        bound = [(0.0, objective_seconds), (series[-1]["t"] - began, objective_seconds)]
        lag = [Curve("lag, s", "lag", over_time(series, "lag_seconds")), Curve("objective", "bound", bound)]
        rescales = [b["t"] - began for a, b in pairwise(series) if a["size"] != b["size"]]
        slots = Curve("slots", "held", over_time(series, "size"), stepped=True)
        panels += [
            Panel(figures, lag, top=nice_top(max_lag), height=90, marks=rescales),
            Panel("", [slots], top=nice_top(max_slots), height=80),
        ]
    return panels


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="length of the measured part (default 600)")
    parser.add_argument("--objective-seconds", type=float, default=10.0, help="lag to be held (default 10)")
    parser.add_argument("--round", choices=list(ROUNDS), help="one round, keep the other's earlier figures")
    arguments = parser.parse_args()
    figures = earlier("compare") if arguments.round else {}
    for name, strategies in ROUNDS.items():
        if arguments.round not in (None, name):
            continue
        with tempfile.TemporaryDirectory(prefix="weir-compare-") as folder:
            load = excerpt(Path(folder), arguments.seconds)
            found = contest(load, strategies, arguments.seconds, arguments.objective_seconds)
        Console(width=100).print(table(found["strategies"], found["optimum_slot_seconds"]))
        about = {**asdict(load), "path": TRACE.name, "from": FROM, "until": UNTIL, "peak_rate": PEAK_RATE}
        figures |= {"objective_seconds": arguments.objective_seconds, "load": about}
        if name == "strategies":
            panels = figure_panels(found["strategies"], arguments.objective_seconds)
            write_svg(RESULTS / "compare.svg", "Ten minutes with two match surges", panels)
            figures |= found
        else:
            for strategy in found["strategies"]:
                del strategy["series"]
            figures[name] = found
        log(f"written: {write('compare', 'make bench-compare', figures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
