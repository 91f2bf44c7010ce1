"""Pools of TaskManagers: a Kubernetes workload, or an HTTP endpoint. Failures are readings and answers, not exceptions."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
import structlog
from pydantic import AnyHttpUrl

from weir_contracts import Subject, TaskManagersTarget, WorkloadStatus
from weir_contracts.target import ManagersWorkload
from weir_engines.driver import Accepted, Fence, Progress, Refusal, Rejected, TargetChanged, Unanswered
from weir_engines.endpoint.rest import Endpoint, EndpointFailed
from weir_engines.kafka.members import instances_ready
from weir_engines.kubernetes import state
from weir_engines.kubernetes.api import ApiFailed
from weir_engines.kubernetes.discovery import KindUnknown
from weir_engines.kubernetes.driver import Workloads, failed_answer, namespace_refusal, short_reason
from weir_engines.kubernetes.state import Found
from weir_runtime.clock import Clock
from weir_runtime.files import CredentialsRefused

Answer = Accepted | Rejected | TargetChanged | Unanswered | Refusal


@dataclass(frozen=True)
class PoolReading:
    """TaskManagers as what runs them reports them."""

    wanted: int | None = None
    """Number requested; None: unknown, for the `reason`."""
    is_settled: bool = False
    """Whether exactly the requested number exists, and all are ready."""
    workload: WorkloadStatus | None = None
    """Workload of Kubernetes that they are replicas of; None: another kind of pool."""
    pods: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Pods of which Weir may choose those that go, with their addresses; empty: the last ones go, or the server decides."""
    unready: frozenset[str] = frozenset()
    """Those of these pods that are not ready: they go before all others."""
    refusal: Refusal | None = None
    progress: Progress | None = None
    reason: str = ""
    writer: str | None = None
    """Client that last set the number; empty: Weir; None: unknown."""
    source: Any = None
    """The pool's own reading, which a write goes by."""


class Pool(Protocol):
    """One kind of what runs TaskManagers."""

    async def read(self, subject: Subject) -> PoolReading:
        """Return the TaskManagers of a policy."""

    async def choose(self, found: PoolReading, pods: Sequence[str], fence: Fence) -> int | Unanswered:
        """Mark pods as the first to go; return how many are marked."""

    async def set(self, subject: Subject, found: PoolReading, count: int, fence: Fence) -> Answer:
        """Request a number of TaskManagers of the version that was read."""


def managers_of(subject: Subject) -> TaskManagersTarget:
    """Return the TaskManagers that a policy names."""
    if subject.target.managers is None:
        raise ValueError("target: the driver of TaskManagers was given a target without taskManagers")
    return subject.target.managers


class KubernetesPool:
    """Workloads of the listed namespaces."""

    def __init__(self, clock: Clock, workloads: Workloads | None, namespaces: Collection[str]) -> None:
        self._clock = clock
        self._workloads = workloads
        self._namespaces = namespaces
        self._log = structlog.get_logger("executor")

    async def read(self, subject: Subject) -> PoolReading:
        ref, namespace = _workload_of(subject), subject.namespace
        forbidden = namespace_refusal(namespace, () if self._workloads is None else self._namespaces)
        if forbidden is not None or self._workloads is None:
            return PoolReading(refusal=forbidden, reason="" if forbidden is None else forbidden.sentence)
        try:
            found = (await self._workloads.read(namespace, [ref])).get(ref.name)
        except KindUnknown as error:
            return PoolReading(refusal=Refusal("unsupported", str(error)), reason=str(error))
        except ApiFailed as error:
            reason = short_reason(error)
            return PoolReading(refusal=Refusal("forbidden", reason) if error.is_denied else None, reason=reason)
        if found is None:
            missing = f"namespace {namespace} has no {ref.kind} {ref.name}"
            return PoolReading(refusal=Refusal("no-managers", missing), reason=missing)
        status = found.reading.status
        return PoolReading(
            wanted=status.wanted,
            is_settled=found.is_settled,
            workload=status,
            pods=tuple((each.pod.name, each.addresses) for each in found.replicas) if _chooses(found) else (),
            unready=frozenset(each.pod.name for each in found.replicas if each.pod.ready is not True),
            refusal=state.refusal([found]),
            progress=state.progress([found], self._clock.now()),
            writer=found.writer,
            source=found,
        )

    async def choose(self, found: PoolReading, pods: Sequence[str], fence: Fence) -> int | Unanswered:
        workload: Found = found.source
        marked = 0
        if self._workloads is None:
            return marked
        for pod in pods:
            held = await fence.go_on()
            if held is not None:
                return held
            try:
                await self._workloads.lower_cost(workload, pod)
            except ApiFailed as error:
                if error.status == httpx.codes.NOT_FOUND:
                    continue
                self._log.info("deletion-cost-not-set", workload=workload.label, reason=short_reason(error))
                break
            marked += 1
        return marked

    async def set(self, subject: Subject, found: PoolReading, count: int, fence: Fence) -> Answer:
        workload: Found = found.source
        if self._workloads is None:
            return Rejected("the kubernetes driver is off")
        held = await fence.go_on()
        if held is not None:
            return held
        try:
            await self._workloads.scale(workload, count)
        except ApiFailed as error:
            return failed_answer(error)
        self._log.info("managers-scaled", workload=workload.label, before=found.wanted, managers=count)
        return Accepted(self._clock.now())


def _workload_of(subject: Subject) -> ManagersWorkload:
    found = managers_of(subject).kubernetes
    if found is None:
        raise ValueError("target: taskManagers names no workload")
    return found


def _chooses(found: Found) -> bool:
    """Return whether Weir may choose the pods that go: of a StatefulSet the last ones go."""
    kind = found.reading.kind
    return kind.group == "apps" and kind.kind in ("Deployment", "ReplicaSet")


EndpointOf = Callable[[str | None, AnyHttpUrl], Endpoint]
"""Returns the endpoint at an address with the credentials of a name. Raises `CredentialsRefused`."""


class EndpointPool:
    """Endpoints, each of which runs the TaskManagers of one policy."""

    def __init__(self, clock: Clock, endpoint: EndpointOf, *, timeout_seconds: float = 5.0) -> None:
        self._clock = clock
        self._endpoint = endpoint
        # A request leaves within 3 s, while the fence that let it through still holds.
        self._leaving = httpx.Timeout(timeout_seconds, connect=1.5, pool=1.5)
        self._log = structlog.get_logger("executor")

    async def read(self, subject: Subject) -> PoolReading:
        try:
            there = await self._of(subject).read()
        except CredentialsRefused as error:
            return PoolReading(refusal=Refusal("forbidden", str(error)), reason=str(error))
        except EndpointFailed as error:
            refusal = Refusal("forbidden", str(error)) if error.is_denied else None
            return PoolReading(refusal=refusal, reason=str(error))
        count = len(there.instances)
        is_settled = there.replicas == there.ready == count
        text = instances_ready(there.ready, there.replicas, count)
        progress = None if is_settled else Progress("instances-pending", text)
        return PoolReading(wanted=there.replicas, is_settled=is_settled, progress=progress, source=there.version)

    async def choose(self, found: PoolReading, pods: Sequence[str], fence: Fence) -> int:
        return 0  # the server decides

    async def set(self, subject: Subject, found: PoolReading, count: int, fence: Fence) -> Answer:
        held = await fence.go_on()
        if held is not None:
            return held
        try:
            await self._of(subject).scale(count, found.source, self._leaving)
        except CredentialsRefused as error:
            return Rejected(str(error))
        except EndpointFailed as error:
            if error.is_conflict:
                return TargetChanged("the endpoint's version changed since it was read")
            text = f"{count} TaskManagers: {error}"
            return Rejected(text) if error.is_final else Unanswered(text)
        self._log.info("managers-scaled", application=subject.id, before=found.wanted, managers=count)
        return Accepted(self._clock.now())

    def _of(self, subject: Subject) -> Endpoint:
        target = managers_of(subject).endpoint
        if target is None:
            raise ValueError("target: taskManagers names no endpoint")
        return self._endpoint(target.credentials, target.url)
