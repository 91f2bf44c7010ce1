"""Driver for Kubernetes workloads, scaled through their scale subresource.

The pods run the TaskManagers of a Flink job in reactive mode, the instances of a consumer group, or a service, each of
whose workloads is an operator.
Each write is conditional on the version of the workload that was read just before, so a write that comes second is
refused.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol
from uuid import UUID

import structlog

from weir_contracts import InstanceRef, Parallelism, Subject, bounded, changes
from weir_contracts.target import WorkloadRef
from weir_engines.driver import (
    MAX_OBSERVED,
    Accepted,
    DepartedMember,
    Evicted,
    Fence,
    Refusal,
    Rejected,
    Snapshot,
    TargetChanged,
    Unanswered,
    WithoutManagers,
    contested,
)
from weir_engines.flink.engine import FlinkEngine
from weir_engines.kafka.engine import KafkaEngine
from weir_engines.kafka.members import Groups
from weir_engines.kubernetes import state
from weir_engines.kubernetes.api import ApiFailed
from weir_engines.kubernetes.discovery import KindUnknown
from weir_engines.kubernetes.group_pods import GroupPods
from weir_engines.kubernetes.reactive import Cluster, ReactiveJob
from weir_engines.kubernetes.service import MAX_REPLICAS, scrape_of
from weir_engines.kubernetes.state import EVICTION, Found
from weir_runtime.clock import Clock

NAMESPACES = "WEIR_EXECUTOR_KUBERNETES_NAMESPACES"
MAX_REASON_LENGTH = 130
"""Characters of the API server's reason in a sentence."""
_CONFLICT, _NOT_FOUND, _TOO_MANY = 409, 404, 429
_DISRUPTION_BUDGET = "the disruption budget of its pod allows no eviction now"
_REFUSED = frozenset({400, 403, 404, 405, 415, 422})
"""Statuses that a repeated request would get again."""

Answer = Accepted | Rejected | TargetChanged | Unanswered | Refusal


class Workloads(Protocol):
    """Workloads of a cluster. Calls raise `ApiFailed` and `KindUnknown`."""

    async def read(self, namespace: str, refs: Sequence[WorkloadRef]) -> Mapping[str, Found]:
        """Return the workloads by name as they are now; one that does not exist is missing."""

    async def scale(self, found: Found, replicas: int) -> None:
        """Set the replicas of the version that was read; `ApiFailed` with status 409 if it changed since."""

    async def lower_cost(self, found: Found, pod: str) -> None:
        """Mark a pod as the first to be deleted."""

    async def evict_pod(self, namespace: str, pod: str, uid: str) -> None:
        """Evict a pod, which its disruption budget may refuse with status 429; 409 if it has another uid."""

    async def ended(self, namespace: str, pods: Mapping[str, str | None]) -> frozenset[str]:
        """Return the names of which no pod exists now, only one that has ended for good, or one with another uid."""

    async def close(self) -> None: ...


@dataclass(frozen=True)
class _Observed:
    """State of a service that was observed since `since`."""

    values: tuple[object, ...]
    since: datetime
    restarts: state.Restarts


class Services(state.Instances):
    """Services, whose workloads are their operators."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._observed: dict[str, _Observed] = {}

    async def observe(self, subject: Subject, found: Sequence[Found]) -> Snapshot:
        now = self._clock.now()
        scrape = scrape_of(state.as_reading(found), state.target_of(subject), subject.namespace)
        if scrape.deployment is None:
            return Snapshot(now, reachable=True, reason=scrape.message)
        running = all(each.is_settled for each in found)
        previous = self._observed.get(subject.id)
        job_id = scrape.deployment.job_id
        restarts = state.Restarts.of(found, job_id, None if previous is None else previous.restarts)
        deployment = scrape.deployment.model_copy(update={"restarts": restarts.total})
        present = (job_id, running, restarts.total, *deployment.observed.values())
        since = now if previous is None or previous.values != present else previous.since
        if previous is None and len(self._observed) >= MAX_OBSERVED:
            self._observed.clear()
        self._observed[subject.id] = _Observed(present, since, restarts)
        return Snapshot(
            at=now,
            reachable=True,
            deployment=deployment,
            all_running=running,
            steady_since=since,
            topology=scrape.topology,
            writers=state.writers(found),
        )

    async def requested(self, subject: Subject, found: Sequence[Found]) -> Snapshot:
        return await self.observe(subject, found)

    def unfit(self, subject: Subject, parallelism: Parallelism, observed: Snapshot) -> str:
        names = [] if observed.topology is None else observed.topology.names
        odd = sorted(set(parallelism) ^ set(names))
        if odd:
            return f"workloads and request differ in: {', '.join(odd[:5])}"
        max_parallelism = max(parallelism.values())
        return f"{max_parallelism} replicas are more than {MAX_REPLICAS}" if max_parallelism > MAX_REPLICAS else ""

    def replicas(self, subject: Subject, parallelism: Parallelism, observed: Snapshot) -> dict[str, int]:
        return dict(parallelism)

    def parallelism(self, subject: Subject, replicas: Mapping[str, int], observed: Snapshot) -> Parallelism:
        return dict(replicas)


class KubernetesDriver(WithoutManagers):
    """Driver for workloads of the listed namespaces. Without any every call reports the setting."""

    def __init__(
        self,
        clock: Clock,
        cluster: Cluster,
        workloads: Workloads | None,
        namespaces: Collection[str] = (),
        *,
        groups: Groups,
        checkpoint_seconds: float = 5.0,
    ) -> None:
        self._clock = clock
        jobs = ReactiveJob(cluster, clock, checkpoint_seconds=checkpoint_seconds)
        self._instances: dict[str, state.Instances] = {
            "service": Services(clock),
            **dict.fromkeys(FlinkEngine.reads, jobs),
            **dict.fromkeys(KafkaEngine.reads, GroupPods(groups, clock)),
        }
        """What the pods run, by the application's engine."""
        self._workloads = workloads
        self._namespaces = namespaces
        self._log = structlog.get_logger("executor")

    async def close(self) -> None:
        if self._workloads is not None:
            await self._workloads.close()

    # -- observe --------------------------------------------------------------------------------------------------

    async def observe(self, subject: Subject) -> Snapshot:
        forbidden = self._forbidden(subject)
        if forbidden is not None:
            return Snapshot(self._clock.now(), reachable=False, reason=forbidden.sentence, refusal=forbidden)
        try:
            found = await self._read(subject)
        except KindUnknown as error:
            refusal = Refusal("unsupported", str(error))
            return Snapshot(self._clock.now(), reachable=False, reason=str(error), refusal=refusal)
        except ApiFailed as error:
            reason = short_reason(error)
            refused = Refusal("forbidden", reason) if error.is_denied else None
            return Snapshot(self._clock.now(), reachable=False, reason=reason, refusal=refused)
        if isinstance(found, str):
            return Snapshot(self._clock.now(), reachable=True, reason=found)
        snapshot = await self._of(subject).observe(subject, found)
        return replace(
            snapshot,
            version=state.version(found),
            refusal=state.refusal(found) or snapshot.refusal,
            progress=state.progress(found, self._clock.now()) or snapshot.progress,
        )

    # -- request --------------------------------------------------------------------------------------------------

    async def request(
        self,
        subject: Subject,
        job_id: str,
        parallelism: Parallelism,
        expected: Parallelism,
        fence: Fence,
        *,
        version: str | None = None,
    ) -> Answer:
        forbidden = self._forbidden(subject)
        if forbidden is not None:
            return forbidden
        try:
            found = await self._read(subject)
        except KindUnknown as error:
            return Rejected(str(error))
        except ApiFailed as error:
            return failed_answer(error)
        if isinstance(found, str):
            return Rejected(found)
        instances = self._of(subject)
        observed = await instances.requested(subject, found)
        missing = state.unanswerable(job_id, observed)
        if missing is not None:
            return missing
        problem = instances.unfit(subject, parallelism, observed)
        if problem:
            return Rejected(problem)
        before, replicas = (instances.replicas(subject, vector, observed) for vector in (expected, parallelism))
        there = state.wanted(found)
        if there == replicas:
            return Accepted(self._clock.now())
        foreign = {name: p for name, p in there.items() if p not in (before[name], replicas[name])}
        if foreign and instances.parallelism(subject, there, observed) not in (expected, parallelism):
            by = next(each.writer for each in found if each.name in foreign)
            return contested(changes(before, there), by or "")
        if version is not None and version != state.version(found):
            return TargetChanged(f"{found[0].label} changed since it was observed")
        held = await fence.begin()
        if held is not None:
            return held
        if observed.can_trigger_checkpoint and sum(replicas.values()) < sum(there.values()):
            await instances.complete_checkpoint(subject, job_id, observed)
        return await self._write(found, replicas, fence)

    async def _write(self, found: Sequence[Found], replicas: Mapping[str, int], fence: Fence) -> Answer:
        """Scale the workloads in topological order. A failure names the workload, and what was written before it."""
        before = state.wanted(found)
        written: dict[str, int] = {}
        for each in found:
            wanted = replicas[each.name]
            if each.reading.status.wanted == wanted:
                continue
            held = await self._prefer(each, wanted, fence) or await fence.go_on()
            if held is not None:
                return held
            try:
                await self._workloads_api.scale(each, wanted)
            except ApiFailed as error:
                done = f"; {changes(before, {**before, **written})} was written before" if written else ""
                return failed_answer(error, done)
            written[each.name] = wanted
        self._log.info("workloads-scaled", before=before, replicas=dict(replicas))
        return Accepted(self._clock.now())

    async def _prefer(self, found: Found, replicas: int, fence: Fence) -> Unanswered | None:
        """Mark the youngest pods, which have little state, as the first to go, where the role allows it."""
        for pod in state.victims(found, replicas):
            held = await fence.go_on()
            if held is not None:
                return held
            try:
                await self._workloads_api.lower_cost(found, pod)
            except ApiFailed as error:
                if error.status == _NOT_FOUND:
                    continue
                self._log.info("deletion-cost-not-set", workload=found.label, reason=short_reason(error))
                return None
        return None

    async def restart(
        self,
        subject: Subject,
        job_id: str,
        instance: InstanceRef,
        action_id: UUID,
        fence: Fence,
        *,
        version: str | None = None,
    ) -> Answer:
        """Evict the pod of an instance, on the condition of its uid; its workload makes another one."""
        forbidden = self._forbidden(subject)
        if forbidden is not None:
            return forbidden
        try:
            found = await self._read(subject)
            if isinstance(found, str):
                return Rejected(found)
            pods = [each for each in found[0].pods if (each.pod.name, each.uid) == (instance.id, instance.uid)]
            if not pods or not pods[0].counts:
                return Accepted(self._clock.now())
            held = state.refusal(found) or await fence.begin()
            if held is not None:
                return held
            await self._workloads_api.evict_pod(subject.namespace, instance.id, pods[0].uid)
        except KindUnknown as error:
            return Rejected(str(error))
        except ApiFailed as error:
            if error.call.resource == EVICTION and error.status in (_CONFLICT, _NOT_FOUND):
                return Accepted(self._clock.now())  # it has ended by itself
            return Rejected(_DISRUPTION_BUDGET) if _is_budget(error) else failed_answer(error)
        self._log.info("pod-evicted", application=subject.id, pod=instance.id, uid=instance.uid)
        return Accepted(self._clock.now())

    async def trigger_checkpoint(self, subject: Subject, job_id: str) -> str | None:
        return await self._of(subject).trigger_checkpoint(subject, job_id)

    async def evict(self, subject: Subject, members: Sequence[DepartedMember]) -> Evicted | Unanswered:
        forbidden = self._forbidden(subject)
        if forbidden is not None:
            return Unanswered(forbidden.sentence)
        try:
            found = await self._read(subject)
            if isinstance(found, str):
                return Unanswered(found)
            return await self._of(subject).evict(subject, found[0], members, self._workloads_api)
        except KindUnknown as error:
            return Unanswered(str(error))
        except ApiFailed as error:
            return Unanswered(short_reason(error))

    # -- the workloads ---------------------------------------------------------------------------------------------

    def _of(self, subject: Subject) -> state.Instances:
        return self._instances[subject.application.engine]

    @property
    def _workloads_api(self) -> Workloads:
        if self._workloads is None:
            raise ValueError("the kubernetes driver is off")
        return self._workloads

    async def _read(self, subject: Subject) -> list[Found] | str:
        """Return all workloads in topological order, or which one is missing."""
        refs, namespace = state.target_of(subject).refs, subject.namespace
        read = await self._workloads_api.read(namespace, refs)
        for ref in refs:
            if ref.name not in read:
                return f"namespace {namespace} has no {ref.kind} {ref.name}"
            if read[ref.name].reading.status.wanted == 0:
                return f"{ref.kind} {ref.name} has 0 replicas: scale it to 1 by hand"
        return [read[ref.name] for ref in refs]

    def _forbidden(self, subject: Subject) -> Refusal | None:
        return namespace_refusal(subject.namespace, () if self._workloads is None else self._namespaces)


def namespace_refusal(namespace: str, namespaces: Collection[str]) -> Refusal | None:
    """Return why the settings do not let the executor write in a namespace, or None."""
    if not namespaces:
        return Refusal("namespace-forbidden", f"the kubernetes driver is off: {NAMESPACES} names no namespace")
    if namespace not in namespaces:
        return Refusal("namespace-forbidden", f"namespace {namespace!r} is not among those of {NAMESPACES}")
    return None


def _is_budget(error: ApiFailed) -> bool:
    """Return whether a pod's disruption budget refuses its eviction; a busy API server has the same status."""
    return error.status == _TOO_MANY and "disruption budget" in error.what


def short_reason(error: ApiFailed) -> str:
    """Return a short reason: a denial's names verb, resource and namespace, an outage's the address."""
    text = str(error)
    if error.is_denied:
        text = text.partition(": ")[0]
    elif error.status is None:
        text = text.partition(": ")[2] or text
    return bounded(text, MAX_REASON_LENGTH)


def failed_answer(error: ApiFailed, done: str = "") -> Rejected | TargetChanged | Unanswered:
    """Return the answer for a failed call to an object; `done` says what was written before."""
    if error.status == _CONFLICT:
        return TargetChanged(f"{error.call.resource} {error.call.name} changed since it was read{done}")
    reason = short_reason(error) + done
    return Rejected(reason) if error.status in _REFUSED else Unanswered(reason)
