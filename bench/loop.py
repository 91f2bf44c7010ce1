"""Measures the loop around the real job: `make bench-loop`, results in bench/results/loop.json.

Twenty load steps of ×3 at a 2 s interval; for each, how long until Flink accepted a rescale, until the new parallelism
ran, and until the probe's lag was back under the objective. Then twenty jobs that were never seen before, overloaded
from their start: how long until Flink accepted the first rescale. Next to them: observation → plan published, memory and
processor time of every process at rest and under load, and the time from `make trial` to the first acted plan.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.first_overload import measure_first_overloads
from bench.follower import PlanLatencies
from bench.results_file import PROJECT, distribution, earlier, log, write
from bench.running import Running, recovery, run_folder, started, usage_over, with_spec
from testbed.process import TestbedError
from testbed.trial.options import TrialOptions, short_behavior
from testbed.trial.stack import LOOP_PARTITIONS, TrialStack
from workloads.sample_job import SLOWEST

BASE_RATE = 300.0
"""One subtask of the sample job's slowest operator does it at 60 % of its capacity, and the step needs two or three."""

STEP_FACTOR = 3.0
INTERVAL_SECONDS = 2.0
OBJECTIVE_SECONDS = 30.0
STEP_OBJECTIVE_SECONDS, STEP_SECONDS = 10.0, 25.0
"""Objective of the load steps, and the shortest time that one lasts. `rate` would ride out shorter ones and not scale."""
REST_SECONDS = 20.0


@dataclass(frozen=True)
class StepFigures:
    """One load step, in seconds. None: not within its time."""

    accepted_seconds: float | None
    running_seconds: float | None
    """From accepted to the wanted parallelism RUNNING."""
    recovered_seconds: float | None
    """From the step until the probe's lag was under the objective for good; 0 if it never left it."""
    max_probe_lag_seconds: float | None
    from_parallelism: dict[str, int]
    to_parallelism: dict[str, int]


def settle(bench: Running, timeout_seconds: float) -> None:
    """Return to the base load and wait until the job was left alone: nothing in flight, a small lag, and one subtask."""
    bench.stack.set_load(rate=BASE_RATE)
    began = len(bench.plans())

    def quiet() -> bool:
        lag, plans = bench.lag_seconds(), bench.plans()[began:][-3:]
        # Not while capacities are being learned: what is measured is the answer to a load, not to a start.
        holding = len(plans) == 3 and all(p.kind == "hold" and p.code == "objective-held" for p in plans)
        return lag is not None and lag < 3.0 and bench.idle() and holding and plans[-1].current[SLOWEST] == 1

    bench.wait(quiet, timeout_seconds, f"settled at {BASE_RATE:g} records/s", poll_seconds=1.0)


def step(bench: Running) -> StepFigures:
    """One load step and what came of it."""
    before = len(bench.actions())
    at = bench.stack.set_load(rate=BASE_RATE * STEP_FACTOR)
    lags: list[tuple[float, float | None]] = []

    def recovered() -> bool:
        lags.append((time.time() - at, bench.lag_seconds()))
        ran = any(action.running_at for action in bench.actions()[before:])
        last = lags[-1][1]
        return ran and lags[-1][0] > STEP_SECONDS and last is not None and last < 3.0

    bench.wait(recovered, 120, "the step answered", poll_seconds=0.5)
    first = next((a for a in bench.actions()[before:] if a.requested_at is not None), None)
    requested = first.requested_at if first else None
    recovered_seconds, max_lag = recovery(lags, STEP_OBJECTIVE_SECONDS)
    return StepFigures(
        accepted_seconds=round(requested.timestamp() - at, 3) if requested else None,
        running_seconds=first.restart_seconds if first else None,
        recovered_seconds=recovered_seconds,
        max_probe_lag_seconds=max_lag,
        from_parallelism=first.before if first else {},
        to_parallelism=first.wanted if first else {},
    )


def measure_steps(steps: int) -> dict[str, Any]:
    """The loop's figures on one stack."""
    peak_rate, objective_seconds = BASE_RATE * STEP_FACTOR, STEP_OBJECTIVE_SECONDS
    options = TrialOptions(interval_seconds=INTERVAL_SECONDS, peak_rate=peak_rate, objective_seconds=objective_seconds)
    # Down again soon after each step: what is measured is the way up, twenty times.
    spec = {"behavior": short_behavior(12, 5)}
    with run_folder() as folder, started(Running(with_spec(TrialStack(options, folder), spec))) as bench:
        return _measure(bench, steps)


def _measure(bench: Running, steps: int) -> dict[str, Any]:
    processes = list(bench.stack.processes())
    latencies = PlanLatencies(bench.stack.kafka.bootstrap_servers, LOOP_PARTITIONS)
    bench.stack.set_load(rate=1.0)
    rest = usage_over(processes, REST_SECONDS)
    settle(bench, 180)
    figures = []
    phases = random.Random(0)
    for i in range(steps):
        # `settle` ends right after a plan: without a wait each step would come at the same moment of the interval.
        time.sleep(phases.uniform(0.0, INTERVAL_SECONDS))
        figures.append(step(bench))
        log(f"step {i + 1} of {steps}: {asdict(figures[-1])}")
        if i == 0:
            loaded = usage_over(processes, REST_SECONDS)
        settle(bench, 150)

    def distributed(name: str) -> dict[str, Any]:
        return distribution([value for each in figures if (value := getattr(each, name)) is not None])

    return {
        "interval_seconds": INTERVAL_SECONDS,
        "base_rate": BASE_RATE,
        "step_factor": STEP_FACTOR,
        "observation_to_plan_seconds": distribution(latencies.stop()),
        "step_to_accepted_seconds": distributed("accepted_seconds"),
        "accepted_to_running_seconds": distributed("running_seconds"),
        "recovered_seconds": distributed("recovered_seconds"),
        "max_probe_lag_seconds": distributed("max_probe_lag_seconds"),
        "steps_unanswered": sum(1 for f in figures if f.accepted_seconds is None),
        "usage_at_rest": rest,
        "usage_under_load": loaded,
        "ready_seconds": {state.name: state.ready_seconds for state in bench.stack.states()},
        "steps": [asdict(f) for f in figures],
    }


def first_acted_plan(project: Path, environment: dict[str, str]) -> float:
    """Seconds from `make trial` to the engine's acceptance of the first rescale, in `project`."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        began = time.time()
        done = subprocess.run(
            ["make", "trial", f"ARGS=--duration 100 --trace step --report {report}"],
            cwd=project,
            env={**os.environ, **environment},
            stdout=sys.stderr,
            timeout=1800,
            check=False,
        )
        if not report.exists():
            raise TestbedError(f"make trial ended with {done.returncode} and no report")
        document = json.loads(report.read_text())
    accepted: list[float] = [
        action["requested_at"] for action in document["actions"] if action["requested_at"] is not None
    ]
    if not accepted:
        raise TestbedError("the trial acted on no plan")
    started = datetime.fromisoformat(document["started_at"]).timestamp()
    return round(started + min(accepted) - began, 1)


def cold() -> float:
    """Seconds from `make trial` to the first rescale, on a fresh clone with empty caches."""
    folder = Path(tempfile.mkdtemp(prefix="weir-cold-"))
    try:
        subprocess.run(["git", "clone", "-q", str(PROJECT), str(folder / "weir")], check=True, timeout=120)
        project = folder / "weir"
        return first_acted_plan(project, {"PIP_CACHE_DIR": str(folder / "pip"), "WEIR_CACHE": str(project / ".cache")})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="load steps, and first overloads (default 20)")
    parser.add_argument(
        "--only", choices=["steps", "first", "start"], help="measure one part, keep the others' earlier figures"
    )
    arguments = parser.parse_args()
    results = earlier("loop") if arguments.only else {}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "steps": lambda: measure_steps(arguments.steps),
        "first": lambda: measure_first_overloads(
            arguments.steps, rate=BASE_RATE * STEP_FACTOR, objective_seconds=OBJECTIVE_SECONDS
        ),
        "start": lambda: {
            "make_trial_to_first_acted_plan_seconds": {"warm": first_acted_plan(PROJECT, {}), "cold": cold()}
        },
    }
    for name, measure in parts.items():
        if arguments.only in (None, name):
            results |= measure()
            log(f"written: {write('loop', 'make bench-loop', results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
