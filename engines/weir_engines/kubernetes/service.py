"""Scrape of an application whose operators are workloads: a service, or the TaskManagers of a Flink job."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from weir_contracts import (
    Deployment,
    Edge,
    Health,
    ObservationStatus,
    Operator,
    OperatorReading,
    Pod,
    Problem,
    RescaleSettings,
    Run,
    Topology,
)
from weir_contracts.target import KubernetesTarget, Unit, Workload
from weir_engines.kubernetes.polled import Usage
from weir_engines.scrape import Scrape

from .cluster import Replicas, WorkloadsReading, pods_of

ENGINE = "service"
STALE_SECONDS = 60.0
"""Age from which workloads of an interrupted watch count as unknown."""
MAX_REPLICAS = 32_768
"""Maximum parallelism of an operator, in Flink and in the contracts."""
_NO_FLINK = RescaleSettings(cooldown_seconds=0, stabilization_seconds=0, max_trigger_delay_seconds=0)


def scrape_of(
    reading: WorkloadsReading,
    target: KubernetesTarget,
    namespace: str,
    ready_since: Mapping[str, datetime] | None = None,
) -> Scrape:
    """Return a service's workloads as one scrape, without the signals that measure it.

    `ready_since` is when a workload's set of ready pods last changed: CPU from before is no busy share of these pods.
    """
    problems = workload_problems(reading)
    if missing := missing_workloads(reading, target, namespace):
        return Scrape("not_found", missing, problems=problems)
    if is_stale(reading):
        return Scrape("unreachable", reading.failure, problems=problems)
    if excess := _excess(reading.found):
        return Scrape("not_running", excess, problems=problems)
    topology = topology_of(target.refs, reading.found)
    status, health, state, message = _status(reading.found)
    return Scrape(
        status,
        message,
        run=_run(reading.found) if status == "running" else None,
        deployment=_deployment(reading, topology, health, state),
        topology=topology,
        operators=tuple(
            _operator(name, replicas, reading.usage, (ready_since or {}).get(name))
            for name, replicas in reading.found.items()
        ),
        problems=problems,
    )


def merged(scrape: Scrape, reading: WorkloadsReading, target: KubernetesTarget, namespace: str) -> Scrape:
    """Return the scrape of a Flink job with the workload of its TaskManagers: replicas, pods and their request."""
    problems = (*scrape.problems, *workload_problems(reading))
    missing = missing_workloads(reading, target, namespace)
    if missing or is_stale(reading):
        what = Problem(where="target.kubernetes", what=missing or reading.failure)
        return replace(scrape, problems=(*scrape.problems, what))
    if scrape.deployment is None or scrape.topology is None:
        return replace(scrape, problems=problems)
    (own,) = reading.found.values()
    wanted, unit = own.workload.status.wanted, target.unit
    update = {
        **_workload_fields(reading),
        "requested": _requested(scrape.topology, unit, wanted),
        "requested_lower": None,
    }
    return replace(scrape, deployment=scrape.deployment.model_copy(update=update), problems=problems)


def topology_of(refs: Sequence[Workload], found: Mapping[str, Replicas]) -> Topology:
    """Return the graph of one operator for each workload."""
    return Topology(
        operators=[Operator(name=ref.name, id=found[ref.name].workload.status.uid) for ref in refs],
        edges=[Edge(source=name, target=ref.name, ship_strategy="REBALANCE") for ref in refs for name in ref.inputs],
    )


def missing_workloads(reading: WorkloadsReading, target: KubernetesTarget, namespace: str) -> str:
    """Return which workload of the target does not exist; empty if all do."""
    names = [f"{ref.kind} {ref.name}" for ref in target.refs if ref.name not in reading.found]
    verb = "does" if len(names) == 1 else "do"
    return f"{', '.join(names)[:300]} {verb} not exist in namespace {namespace}" if names else ""


def is_stale(reading: WorkloadsReading) -> bool:
    """Return whether the API server has been silent for so long that the workloads are unknown."""
    return bool(reading.failure) and reading.age_seconds > STALE_SECONDS


def workload_problems(reading: WorkloadsReading) -> tuple[Problem, ...]:
    """Return what could not be read, or may be out of date."""
    found = []
    if reading.failure:
        what = f"{reading.failure}; its last event is {reading.age_seconds:.0f} s old"
        found.append(Problem(where="target.kubernetes", what=what))
    for name, replicas in reading.found.items():
        status = replicas.workload.status
        where = f"{status.kind} {name}"
        if status.reason:
            found.append(Problem(where=where, what=status.reason))
        if replicas.workload.selector is None:
            found.append(
                Problem(where=where, what="it has no selector, or an empty or invalid one: its pods are unknown")
            )
        elif status.current and not replicas.pods:
            what = f"it reports {status.current} replicas, and owns no pod that its selector matches"
            found.append(Problem(where=where, what=what))
    if reading.usage.failure:
        found.append(Problem(where="metrics.k8s.io", what=reading.usage.failure))
    return tuple(found)


def job_id(found: Mapping[str, Replicas]) -> str:
    """Return the identity of the deployment: another uid of a workload is another deployment."""
    joined = "+".join(replicas.workload.status.uid for replicas in found.values())
    return joined if len(joined) <= 200 else hashlib.sha256(joined.encode()).hexdigest()


def _excess(found: Mapping[str, Replicas]) -> str:
    """Return which workload has more replicas than an operator can have; empty if none has."""
    for name, replicas in found.items():
        count = max(replicas.workload.status.wanted, replicas.ready)
        if count > MAX_REPLICAS:
            return f"{replicas.workload.status.kind} {name} has {count} replicas, more than {MAX_REPLICAS}"
    return ""


def _requested(topology: Topology, unit: Unit | None, wanted: int) -> dict[str, int] | None:
    if unit is None or wanted < 1:
        return None
    return topology.uniform(min(MAX_REPLICAS, unit.parallelism_of(topology, wanted)))


def _workload_fields(reading: WorkloadsReading) -> dict[str, object]:
    statuses = [replicas.workload.status for replicas in reading.found.values()]
    return {
        "replicas": sum(status.current if status.current is not None else status.wanted for status in statuses),
        "pods": pods_of(reading.found, reading.usage),
        "workloads": statuses,
    }


def _deployment(reading: WorkloadsReading, topology: Topology, health: Health, state: str) -> Deployment:
    wanted = {name: replicas.workload.status.wanted for name, replicas in reading.found.items()}
    created = [replicas.workload.created_at for replicas in reading.found.values()]
    return Deployment(
        engine=ENGINE,
        health=health,
        job_id=job_id(reading.found),
        job_name=", ".join(reading.found)[:300],
        graph_hash=topology.graph_hash(),
        state=state,
        started_at=min((at for at in created if at is not None), default=None),
        requested=wanted if all(count >= 1 for count in wanted.values()) else None,
        observed={name: max(1, replicas.ready) for name, replicas in reading.found.items()},
        rescale=_NO_FLINK,
        **_workload_fields(reading),
    )


def _status(found: Mapping[str, Replicas]) -> tuple[ObservationStatus, Health, str, str]:
    """Return status, health, state and message."""
    stopped = [name for name, replicas in found.items() if replicas.workload.status.wanted == 0]
    if stopped:
        message = f"{', '.join(stopped)[:300]}: spec.replicas is 0; set it to 1 or more"
        return "not_running", "ended", "ScaledToZero", message
    ready = sum(replicas.ready for replicas in found.values())
    wanted = sum(replicas.workload.status.wanted for replicas in found.values())
    without = [name for name, replicas in found.items() if replicas.ready == 0]
    if without:
        return "not_running", "restarting", "NotReady", f"{', '.join(without)[:300]}: {_why_not_ready(found, without)}"
    rolling = any(replicas.workload.status.rolling_out for replicas in found.values())
    return "running", "running", "RollingOut" if rolling else "Running", f"{ready} of {wanted} replicas are ready"


def _why_not_ready(found: Mapping[str, Replicas], names: Sequence[str]) -> str:
    for name in names:
        status, pods = found[name].workload.status, found[name].pods
        if status.ready is None:
            return "its ready replicas are unknown, since the workload has no selector of its pods"
        reasons = [status.reason, *(each.pod.reason for each in pods if not each.ends)]
        if reason := next(filter(None, reasons), ""):
            return f"no replica is ready ({reason})"
    return "no replica is ready"


def _run(found: Mapping[str, Replicas]) -> Run | None:
    """Return the run: another template is another run, another number of replicas is not.

    It began when the newest ready pod started, so that a new pod's warm-up counts; None without any pod's start.
    """
    started = [
        each.pod.started_at
        for replicas in found.values()
        for each in replicas.pods
        if each.serves and each.pod.started_at is not None
    ]
    created = [replicas.workload.created_at for replicas in found.values() if replicas.workload.created_at is not None]
    began = max(started or created, default=None)
    if began is None:
        return None
    templates = "\n".join(f"{replicas.workload.status.uid} {replicas.workload.template}" for replicas in found.values())
    return Run(key=f"service {hashlib.sha256(templates.encode()).hexdigest()[:32]}", running_since=began)


def _operator(name: str, replicas: Replicas, usage: Usage, since: datetime | None) -> OperatorReading:
    ready = [usage.of(each.pod) for each in replicas.pods if each.serves and usage.is_measured_since(each.pod, since)]
    shares = [share for share in map(busy_share, ready) if share is not None]
    return OperatorReading(
        operator=name,
        parallelism=max(1, replicas.ready),
        busy_share_mean=sum(shares) / len(shares) if shares else None,
        busy_share_max=max(shares, default=None),
    )


def busy_share(pod: Pod) -> float | None:
    """Return the CPU in use over the CPU limit, else over the request, at most 1; None if either is unknown."""
    whole = pod.cpu_limit_cores or pod.cpu_request_cores
    return None if pod.cpu_cores is None or not whole else min(1.0, pod.cpu_cores / whole)
