"""`python -m workloads.submit --flink http://HOST:8081 --jar JOB.jar -- ARGUMENTS`: submits the sample job and waits until it runs.

Idempotent: a running job of the same name is left alone. With `--stay` it keeps checking, and submits the job again when
the cluster has lost it, as a session cluster does with its JobManager.
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
from typing import Any

import httpx

from .sample_job import arguments as sample_costs

ENDED = ("FAILED", "CANCELED", "FINISHED")
CALL_SECONDS = 30.0
POLL_SECONDS = 0.5
LOOK_SECONDS = 5.0
URL_VARIABLE = "WEIR_FLINK_URL"
NAME_OPTION = "--job-name"
DEFAULT_NAME = "orders"
"""Default name of the sample job."""


class SubmitError(Exception):
    """The job does not run; the sentence has the reason."""


class Cluster:
    """REST calls for submitting."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def slots(self) -> int | None:
        """Return the number of registered slots; None while the cluster cannot be reached."""
        try:
            answer = self._client.get("/overview")
        except httpx.TransportError:
            return None
        return int(answer.json()["slots-total"]) if answer.status_code == 200 else None

    def state(self, job_id: str) -> tuple[str, int]:
        """Return Flink's state of the job, and the number of tasks that do not run yet."""
        job = self._call("GET", f"/jobs/{job_id}")
        counts: dict[str, int] = job["status-counts"]
        return str(job["state"]), sum(n for name, n in counts.items() if name not in ("RUNNING", "FINISHED"))

    def living(self, name: str) -> str | None:
        """Return the id of the job of this name that has not ended."""
        jobs = self._call("GET", "/jobs/overview")["jobs"]
        return next((str(j["jid"]) for j in jobs if j["name"] == name and j["state"] not in ENDED), None)

    def submit(self, jar: Path, arguments: Sequence[str], parallelism: int | None) -> str:
        """Upload and run the jar; returns the job's id."""
        with jar.open("rb") as content:
            files = {"jarfile": (jar.name, content, "application/x-java-archive")}
            uploaded = self._call("POST", "/jars/upload", files=files)
        body: dict[str, Any] = {"programArgsList": list(arguments)}
        if parallelism is not None:
            body["parallelism"] = parallelism
        jar_id = str(uploaded["filename"]).rsplit("/", 1)[-1]
        return str(self._call("POST", f"/jars/{jar_id}/run", json=body)["jobid"])

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        try:
            answer = self._client.request(method, path, **arguments)
        except httpx.HTTPError as error:
            raise SubmitError(f"flink: {method} {path}: {error or type(error).__name__}") from None
        if answer.status_code >= 400:
            raise SubmitError(f"flink: {method} {path}: {answer.status_code} {answer.text[:500]}")
        return answer.json()


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


def submit(cluster: Cluster, options: argparse.Namespace, stop: threading.Event) -> str:
    """Submit the job unless it runs; returns a sentence with the result."""
    deadline = time.monotonic() + options.timeout
    slots = f"{options.slots} slots of {options.flink}"
    until(lambda: (cluster.slots() or 0) >= options.slots, deadline, stop, slots)
    name = name_of(options.arguments)
    found = cluster.living(name)
    job_id = found or cluster.submit(options.jar, options.arguments, options.parallelism)

    def running() -> bool:
        state, waiting = cluster.state(job_id)
        if state in ENDED:
            raise SubmitError(f"job {job_id} is {state}")
        return state == "RUNNING" and waiting == 0

    until(running, deadline, stop, f"job {job_id} running")
    return f"{name} ran already as job {found}" if found else f"{name} runs as job {job_id}"


def stay(cluster: Cluster, options: argparse.Namespace, stop: threading.Event) -> None:
    """Keep the job submitted until `stop` is set; an unavailable cluster is retried."""
    name, reported = name_of(options.arguments), ""
    while not stop.wait(LOOK_SECONDS):
        try:
            if cluster.living(name) is None:
                _print(submit(cluster, options, stop))
            reported = ""
        except SubmitError as error:
            if str(error) != reported and not stop.is_set():
                reported = str(error)
                sys.stderr.write(f"submit: {reported}\n")


def check(cluster: Cluster, name: str) -> str:
    """Return the reason why the job does not run; empty if it does."""
    job_id = cluster.living(name)
    if job_id is None:
        return f"no job {name}"
    state, _ = cluster.state(job_id)
    return "" if state == "RUNNING" else f"job {name} is {state}"


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
            cluster = Cluster(client)
            if options.check:
                problem = check(cluster, name_of(options.arguments))
                _print(problem or "running")
                return 1 if problem else 0
            _print(submit(cluster, options, stop))
            if options.stay:
                stay(cluster, options, stop)
    except SubmitError as error:
        sys.stderr.write(f"submit: {error}\n")
        return 0 if stop.is_set() else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
