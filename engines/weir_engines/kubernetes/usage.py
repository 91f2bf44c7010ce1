"""CPU and memory in use by pods, from the metrics API (metrics.k8s.io), which has no watches."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from weir_contracts import Pod

from .api import ApiFailed, Call, KubernetesApi
from .values import duration, instant, mapping, name, quantity, sequence, whole

_PATH = "/apis/metrics.k8s.io/v1beta1/namespaces/{}/pods"
_FRESH_SECONDS = 15.0
"""Metrics servers take a sample every 15 s or more seldom."""
_RETRY_SECONDS = 60.0


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
            if at is None or now - at >= (_RETRY_SECONDS if usage.failure else _FRESH_SECONDS):
                usage = await self._request(namespace)
                self._cached[namespace] = (now, usage)
            return usage

    async def _request(self, namespace: str) -> Usage:
        call = Call("list", "pods.metrics.k8s.io", namespace)
        try:
            return Usage(usage_of(await self._api.get(call, _PATH.format(namespace))))
        except ApiFailed as error:
            if error.status == 404:
                return Usage(failure="the cluster has no metrics API: install metrics-server to read CPU and memory")
            return Usage(failure=str(error))
