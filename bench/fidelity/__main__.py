"""`make bench-fidelity`: the real sample job and the simulator under the same load and the same rescales, curves side by side.

The real job runs in the trial's whole stack, whose policy only advises; the schedule below sets its load and parallelism. The
simulator gets the load as it was recorded at the brokers, the same requests, and what the job is started with. Measured on the
run itself, and so not compared, is one number: how long the first rescale stopped the job. Results are in
bench/results/fidelity.json, curves in fidelity.svg.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from weir_contracts import Observation

from bench.results_file import RESULTS, log, write
from cli.trial.events import EventFollower
from cli.trial.options import TrialOptions
from cli.trial.stack import TrialStack
from replay.figure import Curve, Panel, write_svg
from testbed.process import TestbedError, free_port, wait_until
from workloads.sample_job import SLOWEST

from .curves import compare
from .recording import Look, Recording, Request
from .simulated import sample_application, simulate

LOOK_SECONDS = 0.25
INTERVAL_SECONDS = 1.0


@dataclass(frozen=True)
class Step:
    """At a second of the schedule: another load, another parallelism of the slowest operator, or both."""

    at_seconds: float
    rate: float | None = None
    parallelism: int | None = None


FULL = (
    Step(0, rate=300),
    Step(35, rate=440),
    Step(60, parallelism=2),
    Step(85, rate=800),
    Step(115, parallelism=3),
    Step(140, rate=1200),
    Step(165, rate=1800),  # more than three do: 400 records/s wait more with every second
    Step(205, parallelism=6),
    Step(250, rate=600),
    Step(275, parallelism=2),
    Step(305, rate=200),
    Step(325, parallelism=1),
    Step(350),
)
"""One subtask does 485 records/s, two 942, three 1,373, six 2,530. The last step is the end."""
SHORT = (
    Step(0, rate=300),
    Step(20, parallelism=2),
    Step(35, rate=1300),
    Step(55, parallelism=4),
    Step(90),
)


def record(schedule: Sequence[Step], folder: Path) -> Recording:
    """Run the schedule on the real job."""
    options = TrialOptions(mode="advise", interval_seconds=INTERVAL_SECONDS, port=free_port())
    stack = TrialStack(options, folder)
    events = EventFollower(f"{stack.api_url}/v1/events", kinds={"observation"})
    try:
        stack.start(log)
        _set_rate(stack, schedule[0].rate or 1.0)
        events.start()
        probe = stack.probe
        wait_until(lambda: probe and probe.lag_seconds(), timeout_seconds=30, what="the job's first results")
        time.sleep(5.0)
        began = time.time()
        looks = _Looks(stack)
        requests = _follow(stack, schedule)
        looks.stop()
        time.sleep(3 * INTERVAL_SECONDS)  # the last observation has to come through the feed
    finally:
        events.stop()
        stack.stop()
    observations = [Observation.model_validate(event.data) for event in events.events()]
    return _from(began, observations, requests, looks.seen)


def _from(
    began: float,
    observations: Sequence[Observation],
    requests: Sequence[tuple[float, dict[str, int]]],
    seen: list[Look],
) -> Recording:
    kept = [o for o in observations if o.observed_at.timestamp() >= began]
    if not kept:
        raise TestbedError("no observation was made during the schedule")
    first = kept[0].observed_at.timestamp()
    return Recording(
        observations=kept,
        requests=[Request(at_seconds=at - first, parallelism=wanted) for at, wanted in requests],
        looks=[
            look.model_copy(update={"at_seconds": look.at_seconds - first}) for look in seen if look.at_seconds > first
        ],
    )


def _follow(stack: TrialStack, schedule: Sequence[Step]) -> list[tuple[float, dict[str, int]]]:
    """Do what the schedule says when it says it; returns the rescales, with the epoch seconds at which they were asked for."""
    began, requests = time.monotonic(), []
    for step in schedule:
        time.sleep(max(0.0, began + step.at_seconds - time.monotonic()))
        stack.check()
        if step.rate is not None:
            _set_rate(stack, step.rate)
        if step.parallelism is not None:
            job = str(stack.job_id)
            wanted = {**stack.flink.parallelism(job), SLOWEST: step.parallelism}
            requests.append((time.time(), wanted))
            stack.flink.set_parallelism(job, wanted)
        log(f"{step}")
    return requests


def _set_rate(stack: TrialStack, rate: float) -> None:
    httpx.put(f"{stack.load_url}/load", json={"rate": rate}, timeout=5).raise_for_status()


class _Looks:
    """Samples job and probe on a separate thread until stopped."""

    def __init__(self, stack: TrialStack) -> None:
        self.seen: list[Look] = []
        self._stack = stack
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="looks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(35)

    def _run(self) -> None:
        probe = self._stack.probe
        while not self._stopped.wait(LOOK_SECONDS):
            try:
                running = self._stack.flink.job_state(str(self._stack.job_id)) == "RUNNING"
            except TestbedError:
                continue
            lag = None if probe is None else probe.lag_seconds()
            self.seen.append(Look(at_seconds=time.time(), running=running, latency_seconds=lag))


def first_stop_seconds(recording: Recording) -> float:
    """How long the first rescale stopped the job: the one figure that the simulation takes from the run."""
    downs = recording.downs()
    if not downs:
        raise TestbedError("no rescale stopped the job, so there is nothing to compare")
    return round(downs[0][1] - downs[0][0], 2)


def picture(found: Mapping[str, Any]) -> list[Panel]:
    """Return the curves of the real job and of the simulation over one another."""
    panels = []
    for name, real in found["real"].items():
        curves = [
            Curve("real", "lag", list(zip(found["seconds"], real, strict=True))),
            Curve("simulated", "load", list(zip(found["seconds"], found["simulated"][name], strict=True))),
        ]
        panels.append(Panel(name, curves, height=90 if name.startswith(("busy", "parallelism")) else 130))
    return panels


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="two minutes with one overload, to see that it works")
    parser.add_argument(
        "--recording", type=Path, help="simulate this recorded run again; without such a file, record it"
    )
    arguments = parser.parse_args()
    path = arguments.recording
    if path is not None and path.exists():
        recording = Recording.model_validate_json(path.read_bytes())
    else:
        with tempfile.TemporaryDirectory(prefix="weir-fidelity-") as folder:
            recording = record(SHORT if arguments.short else FULL, Path(folder))
        if path is not None:
            path.write_text(recording.model_dump_json())
    stopped = first_stop_seconds(recording)
    found = compare(recording, simulate(recording, sample_application(stopped)), SLOWEST)
    for name, difference in found["differences"].items():
        log(f"{name}: {difference}")
    for rescale in found["rescales"]:
        log(f"real {rescale['real']}\n         simulated {rescale['simulated']}")
    write_svg(RESULTS / "fidelity.svg", "The real job and the simulator", picture(found))
    figures = {"measured": {"restart_seconds": stopped}, "schedule": "short" if arguments.short else "full", **found}
    log(f"written: {write('fidelity', 'make bench-fidelity', figures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
