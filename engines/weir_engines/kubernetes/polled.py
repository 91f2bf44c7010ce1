"""Readings without a watch: CPU and memory in use by pods, from the metrics API (metrics.k8s.io), and events of workloads.

An event says why a StatefulSet's controller cannot create pods, which the StatefulSet's status does not say.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from weir_contracts import Pod
from weir_engines.kubernetes.api import ApiFailed, Call, KubernetesApi
from weir_engines.kubernetes.discovery import Kind
from weir_engines.kubernetes.values import duration, instant, mapping, name, quantity, sequence, text, whole
from weir_engines.kubernetes.workloads import WorkloadReading

_PATH = "/apis/metrics.k8s.io/v1beta1/namespaces/{}/pods"
_FRESH_SECONDS = 15.0
"""Metrics servers take a sample every 15 s or more seldom."""
_FAILED_SECONDS = 60.0
"""Time for which a failure is used: without a metrics server every request fails."""


class PodUsage(NamedTuple):
    """Resources in use by one pod."""

    cpu_cores: float | None
    memory_bytes: int | None
    measured_from: datetime | None = None
    """Start of the interval that the CPU is the mean of; it may have ended a minute ago. None: unknown."""


@dataclass(frozen=True)
class Usage:
    """CPU and memory in use by the pods of a namespace."""

    by_pod: Mapping[str, PodUsage] = field(default_factory=dict)
    failure: str = ""
    """Why they are unknown; empty if they are known, or were not requested."""

    def of(self, pod: Pod) -> Pod:
        """Return the pod with its CPU and memory in use."""
        found = self.by_pod.get(pod.name)
        if found is None:
            return pod
        return pod.model_copy(update={"cpu_cores": found.cpu_cores, "memory_bytes": found.memory_bytes})

    def is_measured_since(self, pod: Pod, since: datetime | None) -> bool:
        """Return whether the measurement of the pod's CPU began at `since` or later; True if either time is unknown."""
        began = None if pod.name not in self.by_pod else self.by_pod[pod.name].measured_from
        return began is None or since is None or began >= since


def usage_of(document: Any) -> dict[str, PodUsage]:
    """Parse a `PodMetricsList`. A pod with a container of unknown usage has an unknown usage."""
    found = {}
    for each in map(mapping, sequence(mapping(document).get("items"))):
        called = name(mapping(each.get("metadata")).get("name"))
        used = [mapping(mapping(c).get("usage")) for c in sequence(each.get("containers"))]
        if called and used:
            ended, window = instant(mapping(each).get("timestamp")), duration(mapping(each).get("window"))
            began = None if ended is None or window is None else ended - window
            found[called] = PodUsage(_sum(used, "cpu"), whole(_sum(used, "memory")), began)
    return found


def _sum(used: list[Mapping[str, Any]], resource: str) -> float | None:
    values = [quantity(each.get(resource)) for each in used]
    present = [value for value in values if value is not None]
    return sum(present) if len(present) == len(values) else None


class UsageCache:
    """Usage by namespace, requested at most every 15 s however many applications read it."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._cached: dict[str, tuple[float, Usage]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def read(self, namespace: str) -> Usage:
        """Return the usage of a namespace's pods. A failure is in the result, not raised."""
        async with self._locks.setdefault(namespace, asyncio.Lock()):
            now = asyncio.get_running_loop().time()
            at, usage = self._cached.get(namespace, (None, Usage()))
            if at is None or now - at >= (_FAILED_SECONDS if usage.failure else _FRESH_SECONDS):
                usage = await self._request(namespace)
                self._cached[namespace] = (now, usage)
            return usage

    async def _request(self, namespace: str) -> Usage:
        call = Call("list", "pods.metrics.k8s.io", namespace)
        try:
            # The metrics API has no pages.
            return Usage(usage_of(await self._api.get(call, _PATH.format(namespace), is_large=True)))
        except ApiFailed as error:
            if error.status == 404:
                return Usage(failure="the cluster has no metrics API: install metrics-server to read CPU and memory")
            return Usage(failure=str(error))


EVENTS = Kind("", "v1", "Event", "events", is_scalable=False)
_CREATED, _FAILED = "SuccessfulCreate", "FailedCreate"
_PAGE = 500
_NO_REASON_SECONDS, _REASON_SECONDS = 10.0, 60.0
"""Time for which no reason is used, and a reason: the controller tries again after up to 16 min."""
_MAX_CACHED = 1000
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


def create_failure(document: Any) -> str:
    """Return why the newest attempt to create a pod failed, from an `EventList` of one object; empty if it did not."""
    newest = max(_attempts(document), key=lambda each: (_at(each), each.get("reason") == _FAILED), default=None)
    if newest is None or newest.get("reason") != _FAILED:
        return ""
    message = text(newest.get("message"), 390)
    return f"{_FAILED}: {message}" if message else _FAILED


def _attempts(document: Any) -> Iterable[Mapping[str, Any]]:
    events = map(mapping, sequence(mapping(document).get("items"))[:_PAGE])
    return (each for each in events if each.get("reason") in (_CREATED, _FAILED))


def _at(event: Mapping[str, Any]) -> datetime:
    """Return when an event happened last. Clients of both events APIs write it in another field."""
    series = mapping(event.get("series"))
    created = mapping(event.get("metadata")).get("creationTimestamp")
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"), created)
    return next((at for at in map(instant, times) if at is not None), _NEVER)


class CreateFailures:
    """Reasons of StatefulSets that lack pods, by uid. A complete StatefulSet costs no request."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._cached: dict[str, tuple[float, str]] = {}

    async def explained(self, workload: WorkloadReading) -> WorkloadReading:
        """Return the workload with the reason for which pods cannot be created, or for which that is unknown."""
        status = workload.status
        is_short = status.current is not None and status.current < status.wanted and workload.is_observed
        if status.kind != "StatefulSet" or workload.kind.group != "apps" or status.reason or not is_short:
            return workload
        now = asyncio.get_running_loop().time()
        until, reason = self._cached.get(status.uid, (now, ""))
        if now >= until:
            reason = await self._request(workload)
            if len(self._cached) >= _MAX_CACHED:
                self._cached.clear()
            self._cached[status.uid] = (now + (_REASON_SECONDS if reason else _NO_REASON_SECONDS), reason)
        return replace(workload, status=status.model_copy(update={"reason": reason})) if reason else workload

    async def _request(self, workload: WorkloadReading) -> str:
        namespace = workload.status.namespace
        query: dict[str, str | int] = {
            "fieldSelector": f"involvedObject.uid={workload.status.uid}",
            "limit": _PAGE,
        }
        try:
            return create_failure(
                await self._api.get(Call("list", EVENTS.resource, namespace), EVENTS.path(namespace), query)
            )
        except ApiFailed as error:
            return text(f"why pods are missing is unknown: {error}", 490)
