"""Checks before a trial starts; each problem is one line with the remedy."""

from pathlib import Path

import httpx

from testbed import bootstrap
from testbed.process import port_is_free
from weir_contracts import ScalingPolicy
from weir_replay.trace import InvalidTrace, named
from weir_runtime.http_client import client
from weir_sdk import InvalidParameters
from weir_sdk.installed import UnknownPlanner, parse_parameters

from .options import TrialError, TrialOptions, streams_policy, trial_policy

MIN_DISK_MEGABYTES = 500
"""Disk space of a run folder; jars and environment exist already."""

CLUSTER_TIMEOUT_SECONDS = 3.0


def preflight(options: TrialOptions) -> None:
    """Check options, machine and external cluster; raises `TrialError`."""
    options.check()
    if options.report is not None:
        check_writable(options.report)
    # Read before anything starts; its addresses are put in again once they are known.
    place = trial_policy if options.workload == "flink" else streams_policy
    policy = place(options, "http://127.0.0.1:1", "127.0.0.1:1")
    try:
        named(options.trace)
    except InvalidTrace as error:
        raise TrialError(f"--trace: {error}") from None
    check_planners(policy)
    try:
        min_memory_megabytes = bootstrap.min_memory_megabytes()
        problem = bootstrap.missing(
            bootstrap.inspect_machine(),
            min_memory_megabytes=min_memory_megabytes,
            min_disk_megabytes=MIN_DISK_MEGABYTES,
        )
    except bootstrap.SetupError as error:
        raise TrialError(str(error)) from None
    if problem:
        raise TrialError(problem)
    if not port_is_free(options.port):
        raise TrialError(f"port {options.port} is in use: choose another for the API with --port")
    if options.external_flink is not None:
        check_cluster(options.external_flink)


def check_planners(policy: ScalingPolicy) -> None:
    """Require that planners of the policy are built in, as the trial's planner service starts without registrations."""
    spec = policy.spec
    for choice in (spec.planner, spec.planner.fallback, *spec.candidates, *spec.shadows):
        if choice is None:
            continue
        try:
            parse_parameters(choice.name, choice.parameters)
        except UnknownPlanner as error:
            raise TrialError(
                f"{error}; your own planner is registered once the trial runs: docs/tutorials/own-planner.md"
            ) from None
        except InvalidParameters as error:
            raise TrialError(str(error)) from None


def check_writable(path: Path) -> None:
    """Require that the report can be written at the end. An existing file stays as it is."""
    if path.is_dir():
        raise TrialError(f"--report: {path} is a folder: name a file")
    if not path.parent.is_dir():
        raise TrialError(f"--report: the folder {path.parent} does not exist: create it, or name another")
    existed = path.exists()
    try:
        # Permissions do not suffice: a file system may be read-only, and root may do anything.
        path.open("ab").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise TrialError(f"--report: {path} cannot be written: {error.strerror}") from None


def check_cluster(url: str) -> None:
    """Require that the external cluster answers and can rescale a running job."""
    try:
        with client(timeout=CLUSTER_TIMEOUT_SECONDS) as http:
            answer = http.get(f"{url.rstrip('/')}/jobmanager/config")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise TrialError(f"--external-flink: {url} does not answer ({reason}): is the cluster running?") from None
    try:
        config = {str(entry["key"]): str(entry["value"]).lower() for entry in answer.raise_for_status().json()}
    except (httpx.HTTPStatusError, ValueError, TypeError, KeyError):
        raise TrialError(
            f"--external-flink: {url} is not the REST address of a Flink cluster: /jobmanager/config answers "
            f"{answer.status_code} and no configuration"
        ) from None
    if config.get("scheduler-mode") == "reactive":
        raise TrialError(
            f"--external-flink: {url} is in reactive mode and takes all slots by itself: unset scheduler-mode"
        )
    scheduler = config.get("jobmanager.scheduler", "default")
    if scheduler != "adaptive":
        raise TrialError(
            f"--external-flink: {url} has the {scheduler} scheduler, which cannot rescale a running job: set "
            "jobmanager.scheduler: adaptive"
        )
