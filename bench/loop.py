"""Measures the loop around the real job: `make bench-loop`, results in bench/results/loop.json.

Twenty load steps of ×3 at a 2 s interval; for each, how long until Flink accepted a rescale, until the new parallelism
ran, and until the probe's lag was back under the objective. Then twenty jobs that were never seen before, overloaded
from their start: how long until Flink accepted the first rescale. Next to them: observation → plan published, memory and
processor time of every process at rest and under load, and the time from `make trial` to the first acted plan.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
from weir_contracts import ActionState, Outcome, Plan, parse_policy

from bench.first_overload import measure_first_overloads
from bench.follower import PlanLatencies
from bench.results_file import PROJECT, distribution, log, write
from runtime.event_feed import EventFollower
from testbed.process import ManagedProcess, NotInTime, TestbedError, wait_until
from testbed.trial.options import TrialOptions, short_behavior
from testbed.trial.stack import LOOP_PARTITIONS, TrialStack
from workloads.sample_job import SLOWEST

BASE_RATE = 300.0
"""One subtask of the sample job's slowest operator does it at 60 % of its capacity, and the step needs two or three."""

STEP_FACTOR = 3.0
OBJECTIVE_SECONDS = 30.0
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


class LoopBench:
    """The stack under measurement, with what its feed has said so far."""

    def __init__(self, stack: TrialStack) -> None:
        self.stack = stack
        self.events = EventFollower(f"{stack.api_url}/v1/events")

    def set_rate(self, rate: float) -> float:
        """Change the load; returns when, in seconds since the epoch."""
        httpx.put(f"{self.stack.load_url}/load", json={"rate": rate}, timeout=5).raise_for_status()
        return time.time()

    def actions(self) -> list[ActionState]:
        """The last state of each action, oldest first."""
        found: dict[str, ActionState] = {}
        for event in self.events.events():
            if event.kind == "outcome" and (action := Outcome.model_validate(event.data).action):
                found[str(action.id)] = action
        return list(found.values())

    def plans(self) -> list[Plan]:
        """All plans so far, oldest first."""
        return [Plan.model_validate(event.data) for event in self.events.events() if event.kind == "plan"]

    def probe_lag_seconds(self) -> float | None:
        probe = self.stack.probe
        return None if probe is None else probe.lag_seconds()

    def settled(self, rate: float, timeout_seconds: float) -> None:
        """Wait until the job has been left alone at `rate`: nothing in flight, a small lag, and one subtask."""
        began = len(self.plans())

        def quiet() -> bool:
            self.stack.check()
            lag = self.probe_lag_seconds()
            actions, plans = self.actions(), self.plans()[began:][-3:]
            idle = not actions or actions[-1].terminal
            # Not while capacities are being learned: what is measured is the answer to a load, not to a start.
            holding = len(plans) == 3 and all(p.kind == "hold" and p.code == "objective-held" for p in plans)
            return lag is not None and lag < 3.0 and idle and holding and plans[-1].current[SLOWEST] == 1

        try:
            wait_until(quiet, timeout_seconds=timeout_seconds, what=f"settled at {rate:g} records/s", poll_seconds=1.0)
        except NotInTime:
            log(f"not settled at {rate:g} records/s within {timeout_seconds:g} s; going on")

    def step(self) -> StepFigures:
        """One load step and what came of it."""
        before = len(self.actions())
        at = self.set_rate(BASE_RATE * STEP_FACTOR)
        lags: list[tuple[float, float | None]] = []

        def recovered() -> bool:
            self.stack.check()
            lags.append((time.time() - at, self.probe_lag_seconds()))
            ran = any(action.running_at for action in self.actions()[before:])
            last = lags[-1][1]
            return ran and lags[-1][0] > 15.0 and last is not None and last < 3.0

        try:
            wait_until(recovered, timeout_seconds=120, what="the step answered", poll_seconds=0.5)
        except NotInTime:
            log("not recovered within 120 s")
        answered = [a for a in self.actions()[before:] if a.requested_at is not None]
        return _figures(at, lags, answered)


def _figures(at: float, lags: list[tuple[float, float | None]], answered: list[ActionState]) -> StepFigures:
    late = [t for t, lag in lags if lag is None or lag > OBJECTIVE_SECONDS]
    after = [t for t, _ in lags if not late or t > max(late)]
    measured = [lag for _, lag in lags if lag is not None]
    first = answered[0] if answered else None
    requested = first.requested_at if first else None
    return StepFigures(
        accepted_seconds=round(requested.timestamp() - at, 3) if requested else None,
        running_seconds=first.restart_seconds if first else None,
        recovered_seconds=None if not after else 0.0 if not late else round(after[0], 1),
        max_probe_lag_seconds=round(max(measured), 1) if measured else None,
        from_parallelism=first.before if first else {},
        to_parallelism=first.wanted if first else {},
    )


def usage_over(processes: list[ManagedProcess], seconds: float) -> dict[str, dict[str, float]]:
    """Mean processor share (of one core) and resident memory of each process over a while."""
    first = {p.name: p.usage() for p in processes}
    began = time.monotonic()
    threading.Event().wait(seconds)
    took = time.monotonic() - began
    figures = {}
    for process in processes:
        before, after = first[process.name], process.usage()
        if before and after:
            figures[process.name] = {
                "rss_megabytes": round(after.rss_bytes / 1e6, 1),
                "cpu_cores": round((after.cpu_seconds - before.cpu_seconds) / took, 3),
            }
    return figures


def measure_steps(steps: int) -> dict[str, Any]:
    """The loop's figures on one stack."""
    options = TrialOptions(interval_seconds=2.0, peak_rate=BASE_RATE * STEP_FACTOR, objective_seconds=OBJECTIVE_SECONDS)
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        stack = TrialStack(options, Path(folder))
        document = stack.policy.to_document()
        # Down again soon after each step: what is measured is the way up, twenty times.
        document["spec"]["behavior"] = short_behavior(12, 5)
        stack.policy = parse_policy(document)
        bench = LoopBench(stack)
        try:
            stack.start(log)
            bench.events.start()
            return _measure(bench, steps)
        finally:
            bench.events.stop()
            stack.stop()


def _measure(bench: LoopBench, steps: int) -> dict[str, Any]:
    processes = list(bench.stack.processes())
    latencies = PlanLatencies(bench.stack.kafka.bootstrap_servers, LOOP_PARTITIONS)
    bench.set_rate(1.0)
    rest = usage_over(processes, REST_SECONDS)
    bench.set_rate(BASE_RATE)
    bench.settled(BASE_RATE, 180)
    figures = []
    for i in range(steps):
        measured = bench.step()
        log(f"step {i + 1} of {steps}: {asdict(measured)}")
        figures.append(measured)
        if i == 0:
            loaded = usage_over(processes, REST_SECONDS)
        bench.set_rate(BASE_RATE)
        bench.settled(BASE_RATE, 150)
    return {
        "interval_seconds": 2.0,
        "base_rate": BASE_RATE,
        "step_factor": STEP_FACTOR,
        "observation_to_plan_seconds": distribution(latencies.stop()),
        "step_to_accepted_seconds": distribution(
            [f.accepted_seconds for f in figures if f.accepted_seconds is not None]
        ),
        "accepted_to_running_seconds": distribution(
            [f.running_seconds for f in figures if f.running_seconds is not None]
        ),
        "recovered_seconds": distribution([f.recovered_seconds for f in figures if f.recovered_seconds is not None]),
        "max_probe_lag_seconds": distribution(
            [f.max_probe_lag_seconds for f in figures if f.max_probe_lag_seconds is not None]
        ),
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
    path = PROJECT / "bench" / "results" / "loop.json"
    results: dict[str, Any] = json.loads(path.read_text())["results"] if arguments.only and path.exists() else {}
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
