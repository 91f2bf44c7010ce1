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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Consumer, TopicPartition

from bench.results_file import PROJECT, distribution, earlier, log, write
from bench.running import PlanLatencies, Running, recovery, run_folder, started, usage_over, with_spec
from testbed.process import TestbedError
from testbed.trial.options import INPUT_TOPIC, OUTPUT_TOPIC, PARTITIONS, TrialOptions, short_behavior
from testbed.trial.stack import LOOP_PARTITIONS, TrialStack
from weir_contracts import ScalingPolicy, parse_policy
from weir_runtime.http_client import client
from workloads.sample_job import SLOWEST

BASE_RATE = 300.0
"""One subtask of the sample job's slowest operator does it at 60 % of its capacity, and the step needs two or three."""

STEP_FACTOR = 3.0
INTERVAL_SECONDS = 2.0
OBJECTIVE_SECONDS = 30.0
STEP_OBJECTIVE_SECONDS, STEP_SECONDS = 10.0, 25.0
"""Objective of the load steps, and the shortest time that one lasts. `rate` would ride out shorter ones and not scale."""
REST_SECONDS = 20.0
FIRST_RESCALE_SECONDS, QUIET_RATE = 90.0, 1.0
"""Time for the first rescale of an unknown job, and the load in records/s before and after it."""

Stack = TypeVar("Stack", bound=TrialStack)


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
    with run_folder() as folder, started(Running(for_steps(TrialStack, folder))) as bench:
        return _measure(bench, steps)


def for_steps(stack: type[Stack], folder: Path) -> Stack:
    """Return the stack for load steps."""
    peak_rate, objective_seconds = BASE_RATE * STEP_FACTOR, STEP_OBJECTIVE_SECONDS
    options = TrialOptions(interval_seconds=INTERVAL_SECONDS, peak_rate=peak_rate, objective_seconds=objective_seconds)
    # Down again soon after each step: what is measured is the way up, twenty times.
    return with_spec(stack(options, folder), {"behavior": short_behavior(12, 5)})


def _measure(bench: Running, steps: int) -> dict[str, Any]:
    processes = list(bench.stack.processes())
    latencies = PlanLatencies(bench.stack.kafka.bootstrap_servers, LOOP_PARTITIONS)
    bench.stack.set_load(rate=1.0)
    rest = usage_over(processes, REST_SECONDS)
    settle(bench, 180)
    figures = []
    for figure in load_steps(bench, steps):
        figures.append(figure)
        if len(figures) == 1:
            loaded = usage_over(processes, REST_SECONDS)
    return {
        **step_results(figures),
        "observation_to_plan_seconds": distribution(latencies.stop()),
        "usage_at_rest": rest,
        "usage_under_load": loaded,
        "ready_seconds": {state.name: state.ready_seconds for state in bench.stack.states()},
    }


def load_steps(bench: Running, steps: int) -> Iterator[StepFigures]:
    """Yield the figures of each step, after which the job settles."""
    phases = random.Random(0)
    for i in range(steps):
        # `settle` ends right after a plan: without a wait each step would come at the same moment of the interval.
        time.sleep(phases.uniform(0.0, INTERVAL_SECONDS))
        figure = step(bench)
        log(f"step {i + 1} of {steps}: {asdict(figure)}")
        yield figure
        settle(bench, 150)


def step_results(figures: Sequence[StepFigures]) -> dict[str, Any]:
    """Return the distributions over all steps, and each step."""

    def distributed(name: str) -> dict[str, Any]:
        return distribution([value for each in figures if (value := getattr(each, name)) is not None])

    return {
        "interval_seconds": INTERVAL_SECONDS,
        "base_rate": BASE_RATE,
        "step_factor": STEP_FACTOR,
        "step_to_accepted_seconds": distributed("accepted_seconds"),
        "accepted_to_running_seconds": distributed("running_seconds"),
        "recovered_seconds": distributed("recovered_seconds"),
        "max_probe_lag_seconds": distributed("max_probe_lag_seconds"),
        "steps_unanswered": sum(1 for f in figures if f.accepted_seconds is None),
        "steps": [asdict(f) for f in figures],
    }


def measure_first_overloads(count: int) -> dict[str, Any]:
    """Return the seconds from each job's first overload until Flink accepted its first rescale.

    Each start is a job with a new name, consumer group and policy. Its load is three times what one subtask of the slowest
    operator is at 60 % with, from the moment it runs.
    """
    rate = BASE_RATE * STEP_FACTOR
    options = TrialOptions(interval_seconds=INTERVAL_SECONDS, peak_rate=rate, objective_seconds=OBJECTIVE_SECONDS)
    found: list[float | None] = []
    with run_folder() as folder, started(Running(stack := TrialStack(options, folder))) as bench:
        stack.set_load(rate=QUIET_RATE)
        _remove(stack, stack.policy, stack.job_id)
        for i in range(count):
            found.append(_first_rescale(stack, bench, f"first-{i}", rate))
            log(f"start {i + 1} of {count}: {found[-1]}")
    seconds = [each for each in found if each is not None]
    return {
        "first_overload_to_accepted_seconds": distribution(seconds),
        "first_overloads_unanswered": len(found) - len(seconds),
    }


def _first_rescale(stack: TrialStack, bench: Running, name: str, rate: float) -> float | None:
    """Return the seconds from the load on a new job until its first rescale was accepted; None: not in time."""
    _commit_end(stack, name)
    job = stack.start_job(name, name, OUTPUT_TOPIC)
    policy = _policy(stack, name)

    def accepted() -> list[float]:
        actions = [action for action in bench.actions() if action.application == policy.application]
        return [action.requested_at.timestamp() for action in actions if action.requested_at is not None]

    try:
        stack.flink.wait_running(job)
        stack.put_policy(policy)
        began = stack.set_load(rate=rate)
        if not bench.wait(lambda: bool(accepted()), FIRST_RESCALE_SECONDS, f"{name} grows", poll_seconds=0.5):
            return None
        return round(min(accepted()) - began, 3)
    finally:
        stack.set_load(rate=QUIET_RATE)
        _remove(stack, policy, job)


def _commit_end(stack: TrialStack, group_id: str) -> None:
    """Let a new group begin at the end of the topic: what other jobs processed is no backlog of this one."""
    settings = {"bootstrap.servers": stack.kafka.bootstrap_servers, "group.id": group_id, "enable.auto.commit": False}
    consumer = Consumer(settings)
    try:
        partitions = [TopicPartition(INPUT_TOPIC, i) for i in range(PARTITIONS)]
        ends = [consumer.get_watermark_offsets(each, timeout=10)[1] for each in partitions]
        offsets = [TopicPartition(INPUT_TOPIC, i, end) for i, end in enumerate(ends)]
        consumer.commit(offsets=offsets, asynchronous=False)
    finally:
        consumer.close()


def _policy(stack: TrialStack, name: str) -> ScalingPolicy:
    document = stack.policy.to_document()
    document["metadata"] = {"namespace": document["metadata"]["namespace"], "name": name}
    document["spec"]["application"]["flink"]["job"] = name
    document["spec"]["signals"]["kafka"]["groupId"] = name
    return parse_policy(document)


def _remove(stack: TrialStack, policy: ScalingPolicy, job_id: str | None) -> None:
    with client() as http:
        http.delete(f"{stack.api_url}/v1/policies/{policy.application}").raise_for_status()
    if job_id is not None:
        stack.flink.cancel(job_id)
        stack.flink.wait_ended(job_id)


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
        return first_acted_plan(project, {"UV_CACHE_DIR": str(folder / "uv"), "WEIR_CACHE": str(project / ".cache")})
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
        "first": lambda: measure_first_overloads(arguments.steps),
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
