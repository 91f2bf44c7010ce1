"""State of Kubernetes workloads as an action sees it: ready or not and why, who scales them, which pods go first, what they run. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from weir_contracts import KubernetesTarget, Parallelism, Subject, bounded, short_name
from weir_engines.driver import (
    NO_CHECKPOINTS,
    NO_GROUP,
    PROGRESS_CODES,
    DepartedMember,
    Evicted,
    Progress,
    Refusal,
    Rejected,
    Snapshot,
    Unanswered,
)
from weir_engines.kubernetes.cluster import Replicas, WorkloadsReading
from weir_engines.kubernetes.pods import PodReading
from weir_engines.kubernetes.service import MAX_REPLICAS
from weir_engines.kubernetes.workloads import WorkloadReading

MANAGER = "weir"
"""Field manager of the executor's writes."""
EVICTION = "pods/eviction"
MAX_REASON_LENGTH = 50
MAX_VICTIMS = 50
"""Pods that are marked one after another before a write; of the others, as without marks, the youngest go first."""
_NEVER, _FAR = datetime(1970, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)
_IMAGE = ("ErrImage", "ImagePull", "InvalidImage", "ErrImageNeverPull", "RegistryUnavailable")
_CRASHED = ("CrashLoopBackOff", "Error", "StartError", "ContainerCannotRun")


@dataclass(frozen=True)
class Found:
    """One workload and its pods."""

    own: Replicas
    autoscaler: str = ""
    """Other autoscaler with the same target, such as `HorizontalPodAutoscaler orders`; empty: none."""

    @property
    def reading(self) -> WorkloadReading:
        return self.own.workload

    @property
    def pods(self) -> tuple[PodReading, ...]:
        return self.own.pods

    @property
    def name(self) -> str:
        return self.reading.status.name

    @property
    def label(self) -> str:
        """Kind and name for sentences."""
        return f"{self.reading.status.kind} {self.name}"

    @property
    def replicas(self) -> list[PodReading]:
        """Pods that are not being deleted."""
        return [pod for pod in self.pods if pod.counts]

    @property
    def is_settled(self) -> bool:
        """Whether the controller has acted on the newest generation and exactly the requested replicas exist and are
        ready."""
        status = self.reading.status
        exactly = self.own.ready == status.wanted and status.current in (None, status.wanted)
        return self.reading.is_observed and exactly and not status.rolling_out

    @property
    def writer(self) -> str | None:
        """Client that last set the replicas, empty for Weir; None if none is recorded."""
        writers = self.reading.writers
        if any(each.manager == MANAGER for each in writers):
            return ""
        return max(writers, key=lambda each: each.at or _NEVER).manager if writers else None


@dataclass(frozen=True)
class Restarts:
    """Restarts of a deployment's containers. They never fall: those of a pod that is replaced stay counted."""

    job_id: str
    by_pod: Mapping[str, int]
    """Restarts of the pods that are there, by uid."""
    of_deleted: int = 0
    """Restarts of pods that were deleted."""

    @property
    def total(self) -> int:
        return self.of_deleted + sum(self.by_pod.values())

    @classmethod
    def of(cls, found: Iterable[Found], job_id: str, previous: "Restarts | None") -> "Restarts":
        """Return the restarts now. Without those of before, or of another deployment, the pods that are there count."""
        there = {each.uid: each.pod.restarts or 0 for one in found for each in one.replicas}
        if previous is None or previous.job_id != job_id:
            return cls(job_id, there)
        deleted = sum(count for uid, count in previous.by_pod.items() if uid not in there)
        return cls(job_id, there, previous.of_deleted + deleted)


def version(found: Iterable[Found]) -> str:
    """Return the version of all workloads, which changes with each change of one of them."""
    return ",".join(each.reading.version for each in found)


def writers(found: Iterable[Found]) -> dict[str, str]:
    """Return the client that last set the replicas of each workload for which one is recorded."""
    return {each.name: each.writer for each in found if each.writer is not None}


def wanted(found: Iterable[Found]) -> Parallelism:
    """Return the requested replicas by workload."""
    return {each.name: each.reading.status.wanted for each in found}


def refusal(found: Iterable[Found]) -> Refusal | None:
    """Return why no request may be sent to the workloads, or None."""
    return next((refused for each in found if (refused := _refusal(each)) is not None), None)


def _refusal(found: Found) -> Refusal | None:
    status = found.reading.status
    if found.autoscaler:
        return Refusal("other-autoscaler", f"{found.autoscaler} scales {found.label}, too: delete it, or the policy")
    if status.paused:
        return Refusal("paused-workload", f"the rollout of {found.label} is paused: resume it")
    if status.rolling_out:
        return Refusal("rollout", f"{found.label} is rolling out: {status.updated} of {status.wanted} pods are updated")
    if not found.reading.selector:
        return Refusal("selector", f"the scale subresource of {found.label} has no selector, so its pods are unknown")
    if status.current and not found.pods and found.reading.is_observed:
        return Refusal(
            "selector",
            f"{found.label} owns none of the pods that its selector matches, yet reports {status.current} replicas",
        )
    return None


def progress(found: Iterable[Found], now: datetime) -> Progress | None:
    """Return the most severe reason for which requested pods do not run at `now`, or None."""
    reasons = [reason for each in found if not each.is_settled for reason in _reasons(each, now)]
    return max(reasons, key=lambda reason: PROGRESS_CODES.index(reason.code), default=None)


def _reasons(found: Found, now: datetime) -> Iterable[Progress]:
    status = found.reading.status
    total = f"of {status.wanted} pods of {short_name(found.name)}"
    missing = status.wanted - len(found.replicas)
    if missing > 0:
        is_quota = "quota" in status.reason
        detail = (
            f": {bounded(_after(status.reason, 'quota: ' if is_quota else ''), MAX_REASON_LENGTH)}"
            if status.reason
            else ""
        )
        denied = "are denied by a quota" if is_quota else "are not created"
        yield Progress("quota" if is_quota else "pods-pending", f"{missing} {total} {denied}{detail}")
    by_code: dict[str, list[str]] = {}
    for each in found.replicas:
        if each.pod.ready is not True:
            by_code.setdefault(_code(each, now), []).append(each.pod.reason)
    for code, reasons in by_code.items():
        detail = f": {bounded(reasons[0], MAX_REASON_LENGTH)}" if reasons[0] and code != "out-of-memory" else ""
        yield Progress(code, f"{len(reasons)} {total} {_PHRASES[code]}{detail}")


_PHRASES = {
    "pods-pending": "are not ready",
    "unschedulable": "cannot be scheduled",
    "image": "have no image",
    "pods-crashing": "crash",
    "out-of-memory": "exceeded their memory limit",
}


def _code(reading: PodReading, now: datetime) -> str:
    """Return why a pod is not ready. A container that has run for long since its restart is no reason."""
    pod = reading.pod
    restarts = pod.restarts_persist(now)
    if pod.out_of_memory and restarts:
        return "out-of-memory"
    if pod.reason.startswith(_CRASHED) or (restarts and not pod.reason):
        return "pods-crashing"
    if pod.reason.startswith(_IMAGE):
        return "image"
    return "unschedulable" if pod.reason.startswith("Unschedulable") else "pods-pending"


def _after(text: str, mark: str) -> str:
    """Return the part behind `mark`, the complete text without it."""
    return text.partition(mark)[2] or text if mark else text


def victims(found: Found, replicas: int) -> Sequence[str]:
    """Return the pods of a Deployment that are to go first: not ready or the youngest, which have little state.

    Of a StatefulSet the last ones go, whatever their cost; of another kind its controller decides.
    """
    if found.reading.kind.group != "apps" or found.reading.kind.kind not in ("Deployment", "ReplicaSet"):
        return ()
    youngest = sorted(found.replicas, key=lambda each: each.pod.started_at or _FAR, reverse=True)
    first = sorted(youngest, key=lambda each: each.pod.ready is True)
    return [each.pod.name for each in first[: min(MAX_VICTIMS, max(0, len(first) - replicas))]]


def as_reading(found: Iterable[Found]) -> WorkloadsReading:
    """Return the workloads in the form of the monitor's readings, so that both describe a deployment in the same way."""
    return WorkloadsReading({each.name: each.own for each in found})


def target_of(subject: Subject) -> KubernetesTarget:
    """Return the workloads that a policy names."""
    if subject.target.kubernetes is None:
        raise ValueError("target: the kubernetes driver was given a target without kubernetes")
    return subject.target.kubernetes


def unanswerable(job_id: str, observed: Snapshot) -> Rejected | Unanswered | None:
    """Return why an observed target cannot take a request for this job, or None."""
    if not observed.reachable:
        return Unanswered(observed.reason)
    if observed.deployment is None or observed.topology is None or observed.deployment.job_id != job_id:
        return Rejected(f"job {job_id} is missing: {observed.reason or 'another job has its name'}")
    if observed.deployment.is_final:
        return Rejected(f"the job is {observed.deployment.state}")
    return None


class Pods(Protocol):
    """Pods as they are at the time of the call. It raises `ApiFailed`."""

    async def ended(self, namespace: str, pods: Mapping[str, str | None]) -> frozenset[str]:
        """Return the names of which no pod exists, only one that has ended for good, or one with another uid than this one."""


class Instances:
    """Application that the pods of a policy run. A subclass for each kind says how it is observed, and what it can do besides
    being scaled."""

    async def observe(self, subject: Subject, found: Sequence[Found]) -> Snapshot:
        """Return the application's snapshot, in which the replicas of its workloads are the request."""
        raise NotImplementedError

    async def requested(self, subject: Subject, found: Sequence[Found]) -> Snapshot:
        """Return the state that a request is checked against."""
        raise NotImplementedError

    def unfit(self, subject: Subject, parallelism: Parallelism, observed: Snapshot) -> str:
        """Return why no number of replicas gives this parallelism; empty if one does."""
        raise NotImplementedError

    def replicas(self, subject: Subject, parallelism: Parallelism, observed: Snapshot) -> dict[str, int]:
        """Return the replicas by workload that give a parallelism."""
        target, topology = target_of(subject), observed.topology
        if topology is None or target.unit is None:
            return dict(parallelism)
        return {target.refs[0].name: target.unit.instances_for(topology, max(parallelism.values()))}

    def parallelism(self, subject: Subject, replicas: Mapping[str, int], observed: Snapshot) -> Parallelism:
        """Return the parallelism that the replicas request: several numbers of pods may give a Flink job the same one."""
        target, topology = target_of(subject), observed.topology
        if topology is None or target.unit is None:
            return dict(replicas)
        level = target.unit.parallelism_of(topology, replicas[target.refs[0].name])
        return topology.uniform(min(MAX_REPLICAS, level))

    async def trigger_checkpoint(self, subject: Subject, job_id: str) -> str | None:
        """Trigger a checkpoint; return None, or the reason of a failure."""
        return NO_CHECKPOINTS

    async def complete_checkpoint(self, subject: Subject, job_id: str, observed: Snapshot) -> None:
        """Complete a checkpoint before pods are removed, if `observed` says that one can be triggered."""

    async def evict(
        self, subject: Subject, found: Found, members: Sequence[DepartedMember], pods: Pods
    ) -> Evicted | Unanswered:
        """Remove those of the group's members whose pod is still missing."""
        return Unanswered(NO_GROUP)
