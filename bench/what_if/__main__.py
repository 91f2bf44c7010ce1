"""`make bench-what-if`: predictions of `weir what-if`, compared with the real sample job.

Weir only advises. It learns the slowest operator's capacity at two parallelisms; then every question is asked, of one state and before
the first of them is tried; then each is done on the job for as long as was asked: throughput, busy shares, and the lag, as Weir reads it
at the source and as the probe sees it at the sink. Results are in bench/results/what_if.json, the curves of the lag in what_if.svg.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
from weir_contracts import Analysis, WhatIf

from bench.compare.contest import busy_of
from bench.compare.rules import Busy
from bench.results_file import RESULTS, log, write
from cli.trial.events import Event, EventFollower
from cli.trial.options import TrialOptions
from cli.trial.stack import TrialStack
from replay.figure import Curve, Panel, Shows, write_svg
from testbed.process import NotInTime, TestbedError, free_port, wait_until
from workloads.sample_job import SLOWEST

from .figures import LAST_SHARE, Measured, Series, compared, summary


@dataclass(frozen=True)
class Setting:
    """Parallelism of the slowest operator, and records/s."""

    parallelism: int
    rate: float


LEARN = (Setting(1, 330), Setting(3, 900))
"""The job does 485 records/s with one subtask and 1,373 with three: both at two thirds of what they can do."""
HOME = LEARN[-1]
"""Where each question is asked and begun."""
FULL = (
    Setting(3, 1100),
    Setting(3, 1900),  # more than three do
    Setting(1, 700),  # more than one does, and a restart
    Setting(2, 850),
    Setting(5, 2000),
    Setting(6, 3000),  # more than six do
    Setting(8, 2400),
)
SHORT = (Setting(3, 1900), Setting(2, 850))
LOOK_SECONDS = 0.5
CALM_SECONDS = 2.5
"""A lag at the sink below which nothing waits: windows of a second, and the way through the job."""


class WhatIfBench:
    """The stack, what its feed says, and the questions."""

    def __init__(self, stack: TrialStack, horizon_seconds: float) -> None:
        self.stack = stack
        self.horizon_seconds = horizon_seconds
        self.http = httpx.Client(timeout=10.0)
        self.events = EventFollower(
            f"{stack.api_url}/v1/events",
            kinds={"analysis", "observation"},
            without={"policy", "topology", "operators", "edges", "learnt"},
        )

    def set(self, setting: Setting) -> None:
        """Load at once; parallelism as fast as the job restarts."""
        answer = self.http.put(f"{self.stack.load_url}/load", json={"rate": setting.rate})
        answer.raise_for_status()
        job = str(self.stack.job_id)
        running = self.stack.flink.parallelism(job)
        if running[SLOWEST] != setting.parallelism:
            self.stack.flink.set_parallelism(job, {**running, SLOWEST: setting.parallelism})

    def learn(self, setting: Setting) -> None:
        """Wait until the capacity of every operator is known, the slowest's at this parallelism."""
        self.set(setting)

        def known() -> bool:
            self.stack.check()
            answer = self.http.get(f"{self.stack.application_url}/analysis")
            if answer.status_code != 200:
                return False
            found = Analysis.model_validate(answer.json())
            slowest = found.operator(SLOWEST)
            here = slowest is not None and any(p.parallelism == setting.parallelism for p in slowest.capacities)
            warm = not found.has("warming-up") and not found.has("restarting")
            return here and warm and found.window.seconds >= 25 and all(o.capacities for o in found.operators)

        try:
            wait_until(known, timeout_seconds=150, what=f"learnt at {setting}", poll_seconds=1.0)
        except NotInTime as error:
            log(f"{error}; asking all the same")

    def calm(self) -> None:
        """At home, with nothing waiting for a few seconds."""
        self.set(HOME)
        since: list[float] = []

        def nothing_waits() -> bool:
            self.stack.check()
            lag = self._sink_lag()
            if lag is None or lag > CALM_SECONDS:
                since.clear()
            else:
                since.append(time.monotonic())
            return bool(since) and since[-1] - since[0] >= 3.0

        try:
            wait_until(nothing_waits, timeout_seconds=60, what="nothing waits", poll_seconds=LOOK_SECONDS)
        except NotInTime as error:
            log(f"{error}; going on")

    def ask(self, setting: Setting) -> WhatIf:
        """The question, as the command line puts it."""
        answer = self.http.get(
            f"{self.stack.application_url}/what-if",
            params={
                "parallelism": f"{SLOWEST}={setting.parallelism}",
                "load": f"{setting.rate:g}/s",
                "horizon": f"{self.horizon_seconds:g}s",
            },
        )
        if answer.status_code != 200:
            raise TestbedError(f"what if {setting}: {answer.status_code}: {answer.text}")
        return WhatIf.model_validate(answer.json())

    def do(self, setting: Setting) -> Measured:
        """The same on the job, for the horizon."""
        self.calm()
        began = time.time()
        self.set(setting)
        lags: list[tuple[float, float]] = []
        before: dict[str, Busy] = {}
        while (passed := time.time() - began) < self.horizon_seconds:
            self.stack.check()
            lag = self._sink_lag()
            if lag is not None:
                lags.append((round(passed, 2), round(lag, 2)))
            if not before and passed >= self.horizon_seconds * (1 - LAST_SHARE):
                before = self._busy()
            time.sleep(LOOK_SECONDS)
        after = self._busy()
        time.sleep(3.0)  # the last readings have to come through the feed
        positions, source_lag = readings(self.events.events(), began, self.horizon_seconds)
        shares = {name: busy.since(before[name]) if name in before else None for name, busy in after.items()}
        return Measured(source_lag=source_lag, sink_lag=lags, positions=positions, utilisation=shares)

    def _sink_lag(self) -> float | None:
        probe = self.stack.probe
        return None if probe is None else probe.lag_seconds()

    def _busy(self) -> dict[str, Busy]:
        try:
            return busy_of(self.stack.flink, str(self.stack.job_id))
        except TestbedError:
            return {}  # a job that restarts answers again soon


def readings(events: Sequence[Event], began: float, seconds: float) -> tuple[Series, Series]:
    """From the feed: records taken in by the source, cumulative, and Weir's lag at the source, by seconds since `began`."""
    positions: list[tuple[float, float]] = []
    lags: list[tuple[float, float]] = []
    for event in events:
        at = datetime.fromisoformat(event.data["observed_at"]).timestamp() - began
        if not 0 <= at <= seconds:
            continue
        if event.kind == "observation":
            offsets = [partition.get("current_offset") for partition in event.data["partitions"]]
            if offsets and None not in offsets:
                positions.append((round(at, 2), float(sum(offsets))))
        elif (lag := event.data["lag_seconds"].get("value")) is not None:
            lags.append((round(at, 2), round(lag, 2)))
    return sorted(positions), sorted(lags)


def measure(questions: Sequence[Setting], horizon_seconds: float, folder: Path) -> dict[str, Any]:
    """Learn, ask, do."""
    options = TrialOptions(mode="advise", interval_seconds=1.0, port=free_port())
    stack = TrialStack(options, folder)
    bench = WhatIfBench(stack, horizon_seconds)
    try:
        stack.start(log)
        bench.events.start()
        for setting in LEARN:
            log(f"learning at {setting}")
            bench.learn(setting)
        bench.calm()
        answers = [bench.ask(setting) for setting in questions]
        results = []
        for setting, answer in zip(questions, answers, strict=True):
            log(f"{setting}: {answer.sentence}")
            measured = bench.do(setting)
            results.append(_result(setting, answer, measured))
            log(f"{ {key: results[-1][key] for key in ('throughput', 'keeps_up', 'mean_lag_difference_seconds')} }")
    finally:
        bench.events.stop()
        stack.stop()
        bench.http.close()
    seen_at = {row.operator: row.seen_at for row in answers[0].operators}
    return {"horizon_seconds": horizon_seconds, "learnt_at": seen_at, "summary": summary(results), "questions": results}


def _result(setting: Setting, answer: WhatIf, measured: Measured) -> dict[str, Any]:
    points = answer.prediction.points if answer.prediction else []
    return {
        **asdict(setting),
        **compared(answer, measured),
        "series": {
            "predicted_lag_seconds": [[p.at_seconds, p.lag_seconds] for p in points],
            "source_lag_seconds": [list(pair) for pair in measured.source_lag],
            "sink_lag_seconds": [list(pair) for pair in measured.sink_lag],
        },
    }


SHOWN: tuple[tuple[str, str, Shows], ...] = (
    ("measured at the sink", "sink", "other"),
    ("measured at the source", "source", "lag"),
    ("predicted", "predicted", "load"),
)


def picture(figures: Mapping[str, Any]) -> list[Panel]:
    """Return the lag of each question, predicted and measured, over the same seconds."""
    panels = []
    for result in figures["questions"]:
        curves = [
            Curve(name, shows, [(at, lag) for at, lag in result["series"][f"{key}_lag_seconds"]])
            for name, key, shows in SHOWN
            if result["series"][f"{key}_lag_seconds"]
        ]
        heading = f"lag, s: {SLOWEST}={result['parallelism']} at {result['rate']:,.0f} records/s"
        panels.append(Panel(heading, curves, height=100))
    return panels


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--horizon-seconds", type=float, default=40.0, help="how long each is tried (default 40)")
    parser.add_argument("--short", action="store_true", help="two questions, to see that it works (about 4 minutes)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weir-what-if-") as folder:
        figures = measure(SHORT if arguments.short else FULL, arguments.horizon_seconds, Path(folder))
    write_svg(RESULTS / "what_if.svg", "What if: predicted and measured", picture(figures))
    log(str(figures["summary"]))
    log(f"written: {write('what_if', 'make bench-what-if', figures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
