"""Weir as one process: `make bench-single`, results in bench/results/single.json; `--part NAME` measures one part and keeps
the others' earlier figures.

Each part runs the program as a user starts it, with the settings' defaults. Memory is that of the process and of those that
it started, pages that they share counted once (Pss); processor time is that of the same processes.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from bench.loop import BASE_RATE, for_steps, load_steps, settle, step_results
from bench.results_file import distribution, earlier, log, write
from bench.running import Running, run_folder, started
from bench.simulated_monitor import Application, headers_of
from bench.single_fleet import FOUND, MEASURED_SECONDS, WARM_UP_SECONDS, TimedBus, cpu_seconds, megabytes, opened
from testbed.process import ManagedProcess, wait_until
from testbed.service import WeirService
from testbed.simulated_flink import ManyJobs
from testbed.trial.loop_stack import Report
from testbed.trial.stack import TrialStack
from weir_contracts import ScalingPolicy
from weir_contracts.topics import OBSERVATIONS, PLANS
from weir_runtime.bus import Outgoing
from weir_runtime.service import topic_specs
from weir_runtime.sqlite_bus import SqliteBus

APPENDS = 2000
APPENDS_PER_SECOND = 60.0
"""Observations of 600 applications at 10 s."""
RATE = 3 * BASE_RATE
"""Of the load on the real job, in records/s: more than one subtask of its slowest operator processes."""


def weir(name: str, folder: Path, *arguments: str) -> ManagedProcess:
    """Return `weir` with these arguments, on a free port of this machine."""
    command = [str(Path(sys.executable).parent / "weir"), *arguments, "--listen", "127.0.0.1:0"]
    return ManagedProcess(name, command, folder, environment={"PYTHONUNBUFFERED": "1"})


def first_output(rounds: int) -> dict[str, Any]:
    """`weir demo`, from its start to the first line about the application."""
    seconds = []
    for i in range(rounds):
        with run_folder() as folder:
            process, began = weir("demo", folder, "demo"), time.monotonic()
            with process:
                wait_until(
                    lambda: process.log.stat().st_size > 0,  # noqa: B023 - called in this round
                    timeout_seconds=120.0,
                    what="output of weir demo",
                    poll_seconds=0.02,
                )
                seconds.append(time.monotonic() - began)
            log(f"demo {i + 1} of {rounds}: {seconds[-1]:.1f} s: {process.log.read_text().splitlines()[0]}")
    return {"how": first_output.__doc__, "start_to_first_output_seconds": distribution(seconds)}


class Cluster(TrialStack):
    """The trial's Flink, its job, load and probe, without Weir."""

    def _start_services(self, report: Report) -> None:
        return None

    def put_policy(self, policy: ScalingPolicy) -> None:
        return None


class SingleStack(TrialStack):
    """The trial with `weir run --data` instead of the five services. Its Kafka has only the job's topics, and its Redis no
    user."""

    settings: Mapping[str, str] = {}

    def _start_services(self, report: Report) -> None:
        service = WeirService("cli", self.folder, dict(self.settings), port=self.options.port)
        address = f"127.0.0.1:{self.options.port}"
        service.process.arguments += ["run", "--data", str(self.folder / "data"), "--listen", address]
        self.services["cli"] = service.start()


def first_decision(rounds: int) -> dict[str, Any]:
    """`weir run --flink URL --once -o json` on a real Flink cluster with a job under load, from its start to its end: when
    the decision is a change, or a hold that no longer waits for readings."""
    seconds, decisions = [], []
    with run_folder() as folder:
        stack = for_steps(Cluster, folder)
        try:
            stack.start(log)
            stack.set_load(rate=RATE)
            for i in range(rounds):
                process = weir(f"weir-{i}", folder, "run", "--flink", stack.flink.rest_url, "--once", "-o", "json")
                began = time.monotonic()
                with process:
                    wait_until(lambda: not process.running, timeout_seconds=180.0, what="advice", poll_seconds=0.02)  # noqa: B023
                    seconds.append(time.monotonic() - began)
                text = process.log.read_text()
                (advice,) = json.loads(text[text.index("[") :])
                decisions.append(advice["decision"])
                log(f"advice {i + 1} of {rounds}: {seconds[-1]:.1f} s: {advice['decision']['sentence']}")
        finally:
            stack.stop()
    return {
        "how": first_decision.__doc__,
        "start_to_explained_decision_seconds": distribution(seconds),
        "decisions": decisions,
    }


def watched_jobs(numbers: Sequence[int]) -> dict[str, Any]:
    """`weir run --flink URL --data` on a simulated JobManager with so many jobs of two operators, read every 5 s: after 75 s
    memory and processor time in 50 s, and from each observation to its plan in the log. The slopes are by least squares."""
    results = [asyncio.run(_watched(number)) for number in numbers]
    return {"how": watched_jobs.__doc__, "jobs": results, "each_job": _slopes(results, "jobs")}


async def _watched(number: int) -> dict[str, Any]:
    jobs = ManyJobs([f"orders-{n}" for n in range(number)], 0.5)
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
        folder = Path(name)
        async with jobs.serving():
            process = weir("weir", folder, "run", "--flink", jobs.url, "--data", str(folder)).start()
            try:
                await asyncio.sleep(75.0)
                since, spent = time.time(), cpu_seconds(process.pid)
                await asyncio.sleep(MEASURED_SECONDS)
                until = time.time()
                result = {
                    "jobs": number,
                    "interval_seconds": 5.0,
                    "cpu_cores": round((cpu_seconds(process.pid) - spent) / (until - since), 3),
                    "megabytes": megabytes(process.pid),
                }
            finally:
                await asyncio.to_thread(process.stop)
        result |= _plans(folder, since, until - 5.0)
    log(json.dumps(result))
    return result


def carried_applications(numbers: Sequence[int], interval_seconds: float) -> dict[str, Any]:
    """One process with all services but the monitor, which is simulated in it: it publishes observations of so many
    applications of ten operators, with 500 past cycles each. From each observation to its plan in the log, in 50 s. Sizes that were
    measured before stay."""
    before = earlier("single").get("applications", {}).get("applications", [])
    by_size = {each["applications"]: each for each in before if each["interval_seconds"] == interval_seconds}
    by_size |= {number: _carried(number, interval_seconds) for number in numbers}
    results = [by_size[size] for size in sorted(by_size)]
    return {
        "how": carried_applications.__doc__,
        "applications": results,
        "each_application": _slopes(results, "applications"),
    }


def _carried(number: int, interval_seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "bench.single_fleet", name, str(number), f"{interval_seconds:g}"]
        with ManagedProcess("weir", command, folder, environment={"WEIR_LOG_LEVEL": "ERROR"}) as process:
            limit_seconds = 120.0 + 2 * (WARM_UP_SECONDS + MEASURED_SECONDS)
            process.wait_ready((folder / FOUND).exists, timeout_seconds=limit_seconds)
        found = json.loads((folder / FOUND).read_text())
        result = {"applications": number, "operators_each": 10, "interval_seconds": interval_seconds, **found}
        result |= _plans(folder, result.pop("since"), result.pop("until"))
        result["plans_per_observation"] = round(result["plans"] / found["observations"], 3)
    log(json.dumps(result))
    return result


def _plans(folder: Path, since: float, until: float) -> dict[str, Any]:
    """Return how many plans the log has for observations of a time, and the seconds from each observation to its plan."""
    seconds: list[float] = []
    with closing(opened(folder)) as file:
        bus, place, offset = SqliteBus(file), (PLANS.name, 0), 0
        while offset < bus.end(place):
            records, offset = bus.read(place, offset, 500)
            for record in records:
                observed = datetime.fromisoformat(json.loads(record.value or b"{}")["observed_at"]).timestamp()
                if since <= observed <= until and record.timestamp is not None:
                    seconds.append(record.timestamp.timestamp() - observed)
    return {"plans": len(seconds), "observation_to_plan_seconds": distribution(seconds)}


def _slopes(results: Sequence[dict[str, Any]], size: str) -> dict[str, float | None]:
    """Return what each further one costs."""
    if len(results) < 2:
        return {"megabytes": None, "cpu_cores": None}
    sizes = [each[size] for each in results]
    return {
        name: round(float(np.polyfit(sizes, [each[name] for each in results], 1)[0]), 4)
        for name in ("megabytes", "cpu_cores")
    }


def steps_accepted(steps: int) -> dict[str, Any]:
    """Load steps of ×3 on the real job, as `bench-loop` has them, with `weir run --data` instead of the five services: until
    Flink accepted the rescale."""
    with run_folder() as folder, started(Running(for_steps(SingleStack, folder))) as bench:
        bench.stack.set_load(rate=1.0)
        settle(bench, 180)
        return {"how": steps_accepted.__doc__, **step_results(list(load_steps(bench, steps)))}


def appends(count: int) -> dict[str, Any]:
    """Observations of ten operators, appended to the log one by one, 60 a second, each in its own transaction."""
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        found = asyncio.run(_appended(Path(folder), count))
    return {"how": appends.__doc__, "milliseconds": distribution(found)}


async def _appended(folder: Path, count: int) -> list[float]:
    with closing(opened(folder)) as file:
        bus, now = TimedBus(file), datetime.now(UTC)
        await bus.ensure_topics(topic_specs(1))
        application = Application.make(0, 10.0, 0.0, now)
        for _ in range(count):
            at = datetime.now(UTC)
            id, body = application.next(at)
            bus.write([Outgoing(OBSERVATIONS.name, application.name, body, headers_of(id, at))])
            await asyncio.sleep(1 / APPENDS_PER_SECOND)
        return bus.milliseconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["start", "flink", "jobs", "applications", "step", "append"])
    parser.add_argument("--rounds", type=int, default=5, help="starts of `weir demo` and `weir run --flink`")
    parser.add_argument("--jobs", type=int, nargs="*", default=[1, 10, 30], help="numbers of watched jobs")
    parser.add_argument("--applications", type=int, nargs="*", default=[100, 300, 600], help="sizes of the fleet")
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between observations of the fleet")
    parser.add_argument("--steps", type=int, default=20, help="load steps")
    options = parser.parse_args()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "start": lambda: first_output(options.rounds),
        "append": lambda: appends(APPENDS),
        "jobs": lambda: watched_jobs(options.jobs),
        "applications": lambda: carried_applications(options.applications, options.interval),
        "flink": lambda: first_decision(options.rounds),
        "step": lambda: steps_accepted(options.steps),
    }
    for name, measure in parts.items():
        if options.part in (None, name):
            at, load = datetime.now(UTC).isoformat(timespec="seconds"), round(os.getloadavg()[0], 2)
            found = measure()
            how = " ".join(str(found.pop("how")).split())
            part = {"how": how, "measured_at": at, "load_average_before": load, **found}
            log(f"written: {write('single', 'make bench-single', earlier('single') | {name: part})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
