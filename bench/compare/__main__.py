"""`make bench-compare`: two match surges of the 1998 World Cup's web site, replayed in ten minutes on the sample job; once under
Weir, once each at a parallelism for the peak and for the mean, once under a reactive utilisation rule.

The whole stack runs every time, so that the machine carries the same; only under Weir its policy acts. The reactive rule and its
times are those of autoscaling/v2 (15 s, target 0.7, tolerance 0.1, 5 min of stabilisation), shortened by the replay's speed-up.
Results, series and curves are in bench/results/compare.json and compare.svg.
"""

import argparse
import csv
import itertools
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from bench.results_file import RESULTS, write
from cli.replay.chart import Curve, panel, save
from cli.trial.options import APPLICATION, TrialOptions
from cli.trial.run import Trial
from cli.trial.stack import TrialStack
from testbed.flink import FlinkApi
from testbed.process import TestbedError
from workloads.loadgen.trace import BUNDLED
from workloads.sample_job import CONTENTION, SLOWEST, SUBTASK_RATE

from .rules import Busy, Reactive, least_for

TRACE = BUNDLED / "worldcup98_minutes.csv"
FROM, UNTIL = "1998-06-15 13:30:00", "1998-06-15 21:30:00"
PEAK_RATE = 2400.0


@dataclass(frozen=True)
class Load:
    """The excerpt that is replayed."""

    path: Path
    speedup: float
    mean_rate: float


def excerpt(folder: Path, seconds: float) -> Load:
    """The recorded hours with both surges as a trace of their own, so fast that they take `seconds`."""
    with TRACE.open(newline="") as file:
        rows = [row for row in csv.reader(file) if FROM <= row[0] < UNTIL]
    path = folder / "surges.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["timestamp", "value"], *rows])
    values = [float(value) for _, value in rows]
    return Load(path, 60.0 * len(rows) / seconds, PEAK_RATE * sum(values) / len(values) / max(values))


class Controller:
    """Sets the job's parallelism every `period_seconds`, by a function of time, parallelism and utilisation."""

    def __init__(
        self,
        flink: FlinkApi,
        decide: Callable[[float, Mapping[str, int], Mapping[str, float | None]], dict[str, int]],
        period_seconds: float,
    ) -> None:
        self._flink = flink
        self._decide = decide
        self._period_seconds = period_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._job_id = ""
        self._before: dict[str, Busy] = {}

    def start(self, job_id: str) -> None:
        self._job_id = job_id
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(10)

    def _run(self) -> None:
        at = 0.0
        while not self._stopped.is_set():
            try:
                self._turn(at)
            except TestbedError as error:
                _say(f"controller: {error}")  # a job that restarts answers again soon
            self._stopped.wait(self._period_seconds)
            at += self._period_seconds

    def _turn(self, at: float) -> None:
        now = {
            name: Busy(v["accumulated-busy-time"], v["accumulated-idle-time"] + v["accumulated-backpressured-time"], p)
            for name, p, v in self._flink.vertices(self._job_id)
        }
        shares = {name: busy.since(self._before.get(name, busy)) for name, busy in now.items()}
        self._before = now
        current = {name: busy.parallelism for name, busy in now.items()}
        wanted = self._decide(at, current, shares)
        if wanted != current:
            self._flink.set_parallelism(self._job_id, wanted)


def run(name: str, load: Load, seconds: float, objective_seconds: float) -> dict[str, Any]:
    """One strategy over the whole excerpt."""
    options = TrialOptions(
        duration_seconds=seconds,
        trace=str(load.path),
        speedup=load.speedup,
        peak_rate=PEAK_RATE,
        mode="act" if name == "weir" else "advise",
        objective_seconds=objective_seconds,
    )
    with tempfile.TemporaryDirectory(prefix="weir-compare-") as folder:
        stack = TrialStack(options, Path(folder))
        controller = controller_of(name, stack.flink, load)
        trial = Trial(options, stack, Console(quiet=True))
        try:
            stack.start(_say)
            if controller is not None:
                controller.start(str(stack.job_id))
            trial.run()
            document, _ = trial.report()
        finally:
            if controller is not None:
                controller.stop()
            stack.stop()
    series = document["series"]
    known = [sample["parallelism"] for sample in series if sample["parallelism"]]
    figures = document["summary"]
    return {
        "strategy": name,
        "violation_share": figures["violation_share"],
        "slot_seconds": figures["slot_seconds"],
        "rescales": sum(1 for a, b in itertools.pairwise(known) if a != b),
        "max_probe_lag_seconds": figures["max_probe_lag_seconds"],
        "series": [
            {key: sample[key] for key in ("t", "input_rate", "probe_lag_seconds", "slots")}
            | {SLOWEST: sample["parallelism"].get(SLOWEST)}
            for sample in series
        ],
    }


def controller_of(name: str, flink: FlinkApi, load: Load) -> Controller | None:
    """None for Weir, which acts by itself."""
    if name == "weir":
        return None
    if name == "reactive":
        rule = Reactive(stabilisation_seconds=300.0 / load.speedup)
        return Controller(flink, rule.decide, max(1.0, 15.0 / load.speedup))
    rate = PEAK_RATE if name == "static-peak" else load.mean_rate
    p = least_for(rate, subtask_rate=SUBTASK_RATE, contention=CONTENTION[SLOWEST], utilisation=0.8)
    return Controller(flink, lambda _at, current, _shares: {**current, SLOWEST: p}, 5.0)


def picture(results: Sequence[Mapping[str, Any]], objective_seconds: float) -> RenderableType:
    """Load, lag and slots of every strategy over the same time. A lag above six objectives is drawn as six."""
    most = 6 * objective_seconds
    parts: list[RenderableType] = []
    for result in results:
        series = result["series"]
        lag = [min(most, sample["probe_lag_seconds"] or 0.0) for sample in series]
        share, slots = result["violation_share"], result["slot_seconds"]
        parts += [
            Text(f"\n{result['strategy']}: {share:.1%} of the time late, {slots:,.0f} slot-seconds", "bold"),
            panel("records/s", [Curve("arrivals", [s["input_rate"] or 0.0 for s in series], "cyan")], height=3),
            panel(
                "lag, s",
                [Curve("lag", lag, "yellow"), Curve("objective", [objective_seconds] * len(series), "red")],
                height=4,
            ),
            panel("slots", [Curve("held", [float(s["slots"] or 0) for s in series], "green")], height=3),
        ]
    return Group(*parts)


def _say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="length of each replay (default 600)")
    parser.add_argument("--objective-seconds", type=float, default=10.0, help="lag to be held (default 10)")
    names = ("weir", "static-peak", "static-mean", "reactive")
    parser.add_argument("--strategies", nargs="*", choices=names, default=list(names), help="which to run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weir-compare-") as folder:
        load = excerpt(Path(folder), arguments.seconds)
        results = []
        for name in arguments.strategies:
            _say(f"{APPLICATION} under {name}")
            results.append(run(name, load, arguments.seconds, arguments.objective_seconds))
            _say(str({key: value for key, value in results[-1].items() if key != "series"}))
    facts = {**asdict(load), "path": TRACE.name, "from": FROM, "until": UNTIL, "peak_rate": PEAK_RATE}
    save(RESULTS / "compare.svg", "Ten minutes with two match surges", picture(results, arguments.objective_seconds))
    figures = {"objective_seconds": arguments.objective_seconds, "load": facts, "strategies": results}
    _say(f"written: {write('compare', 'make bench-compare', figures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
