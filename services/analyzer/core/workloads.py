"""Symptoms of a deployment's Kubernetes workloads and their pods."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from weir_contracts import MAX_SENTENCE, Deployment, Pod, Symptom, SymptomCode, WorkloadStatus, after_colon, bounded

_CRASHES = ("CrashLoopBackOff", "Error", "OOMKilled", "ContainerCannotRun", "StartError", "RunContainerError")
_REASON_LENGTH = 90
"""Characters of Kubernetes' own reason in a sentence."""


def symptom(code: SymptomCode, evidence: str, operator: str | None = None, **numbers: float | None) -> Symptom:
    """Return a symptom with its numbers rounded."""
    rounded = {name: None if number is None else round(number, 3) for name, number in numbers.items()}
    return Symptom(code=code, operator=operator, evidence=bounded(evidence, MAX_SENTENCE), numbers=rounded)


def workload_symptoms(deployment: Deployment | None, now: datetime) -> Iterator[Symptom]:
    """Yield the symptoms of each workload at `now`; none for a deployment without Kubernetes workloads."""
    if deployment is None:
        return
    several = len(deployment.workloads) > 1
    for workload in deployment.workloads:
        pods = [pod for pod in deployment.pods if not several or pod.workload == workload.name]
        operator = workload.name if workload.name in deployment.observed else None
        yield from _of_workload(workload, pods, operator, now)


def _of_workload(
    workload: WorkloadStatus, pods: Sequence[Pod], operator: str | None, now: datetime
) -> Iterator[Symptom]:
    name = f"{workload.kind} {workload.name}"
    live = [pod for pod in pods if pod.phase not in ("Succeeded", "Failed")]
    crashing = [pod for pod in live if _is_crashing(pod)]
    yield from _pending(workload, live, name, operator)
    if crashing:
        restarts = [pod.restarts for pod in crashing if pod.restarts is not None]
        total = sum(restarts) if restarts else None
        subject = "1 pod crashes" if len(crashing) == 1 else f"{len(crashing)} pods crash"
        times = "" if total is None else f", {total} restarts so far"
        reason = bounded(next(filter(None, (pod.reason for pod in crashing)), ""), _REASON_LENGTH)
        sentence = f"{name}: {subject} again and again{times}{after_colon(reason)}."
        yield symptom("pods-crashing", sentence, operator, pods=len(crashing), restarts=total)
    killed = [pod for pod in live if pod.out_of_memory and pod.restarts_persist(now)]
    if killed:
        limit = next((pod.memory_limit_bytes for pod in killed if pod.memory_limit_bytes is not None), None)
        subject = "1 pod was" if len(killed) == 1 else f"{len(killed)} pods were"
        exceeded = "its memory limit" if limit is None else f"the memory limit of {limit / 2**20:,.0f} MiB"
        sentence = f"{name}: {subject} ended and restarted for exceeding {exceeded}."
        yield symptom("out-of-memory", sentence, operator, pods=len(killed), memory_limit_bytes=limit)
    if workload.rolling_out:
        updated = "an unknown number" if workload.updated is None else str(workload.updated)
        sentence = f"{name}: a rollout runs; {updated} of {workload.wanted} replicas have the new version."
        yield symptom("rollout", sentence, operator, updated=workload.updated, wanted=workload.wanted)
    elif workload.paused:
        sentence = f"{name}: its rollout is paused (spec.paused): new replicas may run the earlier version."
        yield symptom("rollout", sentence, operator, updated=workload.updated, wanted=workload.wanted)


def _pending(workload: WorkloadStatus, live: Sequence[Pod], name: str, operator: str | None) -> Iterator[Symptom]:
    """Yield the symptom of replicas that are not created or not running; a crashing pod has its own."""
    waiting = [pod for pod in live if pod.phase == "Pending" and not _is_crashing(pod)]
    absent = 0 if workload.current is None else max(0, workload.wanted - workload.current)
    missing = len(waiting) + absent
    if not missing:
        return
    verb = "is" if missing == 1 else "are"
    reason = bounded(next(filter(None, (workload.reason, *(pod.reason for pod in waiting))), ""), _REASON_LENGTH)
    sentence = f"{name}: {missing} of {workload.wanted} replicas {verb} not running{after_colon(reason)}."
    numbers = {"pending": len(waiting), "not_created": absent, "wanted": workload.wanted}
    yield symptom("pods-pending", sentence, operator, **numbers)


def _is_crashing(pod: Pod) -> bool:
    return pod.reason.partition(":")[0] in _CRASHES
