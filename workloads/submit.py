"""`python -m workloads.submit --flink http://HOST:8081 --jar JOB.jar -- ARGUMENTS`: submits the sample job and waits
until it runs.

Idempotent: a running job of the same name is left alone. With `--stay` it keeps checking, and submits the job again
when the cluster has lost it, as a session cluster does with its JobManager.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import httpx

from weir_contracts import counted
from weir_engines.flink.jobs import Jobs
from weir_engines.flink.rest import CallFailed, Unreadable
from weir_engines.flink.topology import TERMINAL, JobEntry

from .sample_job import arguments as sample_costs

CALL_SECONDS = 30.0
POLL_SECONDS = 0.5
LOOK_SECONDS = 5.0
URL_VARIABLE = "WEIR_FLINK_URL"
NAME_OPTION = "--job-name"
DEFAULT_NAME = "orders"
"""Default name of the sample job."""


class SubmitError(Exception):
    """The job does not run; the sentence has the reason."""


FAILURES = (SubmitError, CallFailed, Unreadable)
"""Why a job is not submitted or not found to run."""


def name_of(arguments: Sequence[str]) -> str:
    """Return the name that the arguments give the job."""
    given = [value for option, value in pairwise(arguments) if option == NAME_OPTION]
    return given[-1] if given else DEFAULT_NAME


def until(condition: Callable[[], bool], deadline: float, stop: threading.Event, what: str) -> None:
    """Wait for the condition; raises `SubmitError` that names it after the deadline or when `stop` is set."""
    while not condition():
        if time.monotonic() >= deadline:
            raise SubmitError(f"{what}: not reached in time")
        if stop.wait(POLL_SECONDS):
            raise SubmitError(f"{what}: stopped")


def submit(cluster: Jobs, options: argparse.Namespace, stop: threading.Event) -> str:
    """Submit the job unless it runs; returns a sentence with the result."""
    deadline = time.monotonic() + options.timeout
    slots = f"{counted(options.slots, 'slot')} of {options.flink}"
    until(lambda: (cluster.slots_total() or 0) >= options.slots, deadline, stop, slots)
    name = name_of(options.arguments)
    found = living(cluster, name)
    job_id = found.id if found else cluster.submit(options.jar, options.arguments, parallelism=options.parallelism)

    def running() -> bool:
        entry = cluster.find(job_id)
        if entry is not None and entry.state in TERMINAL:
            raise SubmitError(f"job {job_id} is {entry.state}")
        return entry is not None and entry.all_running

    until(running, deadline, stop, f"job {job_id} running")
    return f"{name} {'ran already' if found else 'runs'} as job {job_id}"


def living(cluster: Jobs, name: str) -> JobEntry | None:
    """Return the newest job of this name that has not ended."""
    entry = cluster.find(name)
    return None if entry is None or entry.state in TERMINAL else entry


def stay(cluster: Jobs, options: argparse.Namespace, stop: threading.Event) -> None:
    """Keep the job submitted until `stop` is set; an unavailable cluster is retried."""
    name, reported = name_of(options.arguments), ""
    while not stop.wait(LOOK_SECONDS):
        try:
            if living(cluster, name) is None:
                _print(submit(cluster, options, stop))
            reported = ""
        except FAILURES as error:
            if str(error) != reported and not stop.is_set():
                reported = str(error)
                _report(error)


def check(cluster: Jobs, name: str) -> str:
    """Return the reason why the job does not run; empty if it does."""
    entry = living(cluster, name)
    if entry is None:
        return f"no job {name}"
    return "" if entry.state == "RUNNING" else f"job {name} is {entry.state}"


def _report(error: Exception) -> None:
    sys.stderr.write(f"submit: {'' if isinstance(error, SubmitError) else 'flink: '}{error}\n")


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options; a wrong one exits with code 2."""
    parser = argparse.ArgumentParser(prog="python -m workloads.submit", description=__doc__)
    address = os.environ.get(URL_VARIABLE) or None
    parser.add_argument(
        "--flink", default=address, required=address is None, help=f"the cluster's REST address ({URL_VARIABLE})"
    )
    parser.add_argument("--jar", type=Path, help="the job")
    parser.add_argument("--parallelism", type=int, default=1, help="of all operators to begin with (default: 1)")
    parser.add_argument("--slots", type=int, default=1, help="wait for so many before (default: 1)")
    parser.add_argument("--timeout", type=float, default=180.0, help="until it runs, in s (default: 180)")
    parser.add_argument("--sample-costs", action="store_true", help="records take what they take in the trial")
    parser.add_argument(
        "--stay", action="store_true", help="keep checking, and submit the job again when it is missing"
    )
    parser.add_argument("--check", action="store_true", help="only report by the exit code whether it runs")
    parser.add_argument("arguments", nargs="*", help="the job's own, after --")
    options = parser.parse_args(arguments)
    if not options.check and (options.jar is None or not options.jar.is_file()):
        parser.error(f"argument --jar: {options.jar or 'missing'} is no file")
    if options.sample_costs:
        options.arguments = [*options.arguments, *sample_costs()]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Submit the job; returns 0 once it runs (`--stay`: when stopped), 1 if it does not run, 2 for wrong arguments."""
    options = parse(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        with httpx.Client(base_url=options.flink, timeout=CALL_SECONDS, trust_env=False) as client:
            cluster = Jobs(client)
            if options.check:
                problem = check(cluster, name_of(options.arguments))
                _print(problem or "running")
                return 1 if problem else 0
            _print(submit(cluster, options, stop))
            if options.stay:
                stay(cluster, options, stop)
    except FAILURES as error:
        _report(error)
        return 0 if stop.is_set() else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
