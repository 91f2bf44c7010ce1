"""Workloads of one cluster with their pods, from shared watches: one of pods and one of each kind in a namespace."""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from weir_contracts import Pod
from weir_contracts.target import WorkloadRef
from weir_engines.kubernetes.polled import CreateFailures, Usage, UsageCache

from .api import ApiFailed, Call, KubernetesApi
from .discovery import (
    AGGREGATED,
    PODS,
    Kind,
    chosen,
    group_versions,
    is_aggregated,
    kinds_of_groups,
    kinds_of_version,
    root_of,
)
from .pods import Controller, PodReading, pod_of
from .values import selects
from .watches import Pauses, Watch
from .workloads import WorkloadReading, has_own_replicas, workload_of

_DISCOVERY_SECONDS = 60.0
"""Minimum time between two requests for the kinds of the cluster."""
_DISCOVERY_RETRY_SECONDS = 5.0
"""Minimum time after one that failed, so that many policies do not wait for a silent API server one after another."""
_MAX_API_VERSIONS = 1000
"""Versions that policies may name before the cache begins again."""

_TEMPLATE_HASHES = ("pod-template-hash", "rollouts-pod-template-hash")
"""Labels that the controllers of Deployments and of Argo Rollouts give to their pods."""
_HASH = re.compile(r"[bcdfghjklmnpqrstvwxz2456789]+")
"""Hash of a pod template, in the alphabet of the Kubernetes API's safe strings."""


@dataclass(frozen=True)
class Replicas:
    """One workload with its pods."""

    workload: WorkloadReading
    pods: tuple[PodReading, ...]
    """Pods that its selector selects and that it owns, those that end included, by name."""

    @property
    def ready(self) -> int:
        """Number of ready replicas: as the workload reports them, else its ready pods."""
        reported = self.workload.status.ready
        return sum(1 for each in self.pods if each.serves) if reported is None else reported


@dataclass(frozen=True)
class WorkloadsReading:
    found: Mapping[str, Replicas]
    """Workloads by name, in the order of the request; one that does not exist is missing."""
    failure: str = ""
    """Why the reading may be out of date: a watch that is interrupted. Empty: it is current."""
    age_seconds: float = 0.0
    """Time since the API server last sent anything on the quietest of the watches."""
    usage: Usage = field(default_factory=Usage)
    """CPU and memory in use by pod."""


class WorkloadReader(Protocol):
    """Source of workloads: a cluster, or one in memory."""

    async def read(self, namespace: str, refs: Sequence[WorkloadRef], *, usage: bool = False) -> WorkloadsReading:
        """Return the workloads; `ApiFailed` and `KindUnknown` if they cannot be read at all."""

    async def close(self) -> None: ...


def join(workload: WorkloadReading, pods: Iterable[PodReading], *, named: bool) -> Replicas:
    """Return a workload with its pods; with `named` each pod carries the workload's name."""
    selected = [each for each in pods if selects(workload.selector, each.labels)]
    own = sorted(_owned(workload, selected), key=lambda each: each.pod.name)
    if named:
        update = {"workload": workload.status.name}
        own = [replace(each, pod=each.pod.model_copy(update=update)) for each in own]
    found = Replicas(workload, tuple(own))
    if workload.status.ready is not None or workload.selector is None:
        return found
    status = workload.status.model_copy(update={"ready": found.ready})
    return Replicas(replace(workload, status=status), tuple(own))


def _owned(workload: WorkloadReading, selected: Sequence[PodReading]) -> list[PodReading]:
    """Return the selected pods without those of other owners: a canary's, a CronJob's.

    A pod without a controller counts. A custom kind may control its pods through an object of any name: if none of them
    is named after it, all count except those of Jobs.
    """
    own = [each for each in selected if each.controller is not None and _controls(workload, each, each.controller)]
    if own or has_own_replicas(workload.kind):
        return [*own, *(each for each in selected if each.controller is None)]
    return [each for each in selected if each.controller is None or each.controller.kind != "Job"]


def _controls(workload: WorkloadReading, pod: PodReading, controller: Controller) -> bool:
    """Return whether a pod's controller is the workload, or a ReplicaSet of it, whose name ends in the template's hash."""
    status, is_built_in = workload.status, has_own_replicas(workload.kind)
    if controller.uid == status.uid or (controller.name == status.name and not is_built_in):
        return True
    if is_built_in and status.kind != "Deployment":
        return (controller.kind, controller.name) == (status.kind, status.name)
    of, _, template_hash = controller.name.rpartition("-")
    labelled = next((pod.labels[key] for key in _TEMPLATE_HASHES if key in pod.labels), None)
    is_hash = _HASH.fullmatch(template_hash) if labelled is None else labelled == template_hash
    return controller.kind == "ReplicaSet" and of == status.name and bool(is_hash)


class KubernetesWorkloads:
    """Workloads of one cluster. All readers share its watches, which end after a while without a reader."""

    def __init__(self, api: KubernetesApi, *, sync_seconds: float = 5.0, pauses: Pauses | None = None) -> None:
        self._api = api
        self._sync_seconds = sync_seconds
        self._pauses = pauses
        self._kinds = Kinds(api)
        self._watches: dict[tuple[str, Kind], Watch[Any]] = {}
        self._scales: dict[tuple[str, Kind, str], tuple[str, WorkloadReading]] = {}
        self._usage = UsageCache(api)
        self._create_failures = CreateFailures(api)

    async def close(self) -> None:
        """End all watches and close the client."""
        await asyncio.gather(*(watch.close() for watch in self._watches.values()))
        self._watches.clear()
        await self._api.close()

    async def read(self, namespace: str, refs: Sequence[WorkloadRef], *, usage: bool = False) -> WorkloadsReading:
        """Return the workloads `refs` of a namespace with their pods, and with `usage` the CPU and memory in use."""
        kinds = [await self._kinds.find(ref) for ref in refs]
        pods: Watch[PodReading] = self._watch(namespace, PODS, pod_of)
        watches: dict[Kind, Watch[WorkloadReading]] = {
            kind: self._watch(namespace, kind, partial(workload_of, kind=kind)) for kind in kinds
        }
        every: list[Watch[Any]] = [pods, *watches.values()]
        if any(watch.failure is not None and watch.failure.status == 404 for watch in every):
            self._kinds.forget()  # a definition was removed, or serves another version now
        for watch in every:
            await watch.synced(self._sync_seconds)
        found = {}
        for ref, kind in zip(refs, kinds, strict=True):
            workload = watches[kind].get(ref.name)
            if workload is not None:
                scaled = await self._with_scale(namespace, workload)
                if scaled.status.ready is None:
                    pods.check_complete()  # its ready replicas are counted from its pods
                scaled = await self._create_failures.explained(scaled)
                found[ref.name] = join(scaled, pods.objects.values(), named=len(refs) > 1)
        return WorkloadsReading(
            found,
            failure=next((str(watch.failure) for watch in every if watch.failure is not None), ""),
            age_seconds=max(watch.age_seconds for watch in every),
            usage=await self._usage.read(namespace) if usage else Usage(),
        )

    def _watch(self, namespace: str, kind: Kind, parse: Callable[[Any], Any]) -> Watch[Any]:
        key = (namespace, kind)
        found = self._watches.get(key)
        if found is None or found.is_over:
            for each in [each for each, watch in self._watches.items() if watch.is_over]:
                del self._watches[each]
            found = Watch(self._api, kind, namespace, parse, leaves_out=True, pauses=self._pauses)
            self._watches[key] = found
        return found

    async def _with_scale(self, namespace: str, workload: WorkloadReading) -> WorkloadReading:
        """Return a workload with the replicas of its scale subresource, requested once for each of its versions."""
        kind, called = workload.kind, workload.status.name
        if has_own_replicas(kind):
            return workload
        key, version = (namespace, kind, called), workload.version
        cached = self._scales.get(key)
        if cached is None or cached[0] != version:
            call = Call("get", f"{kind.resource}/scale", namespace, called)
            scaled = workload.with_scale(await self._api.get(call, kind.path(namespace, called, "scale")))
            if scaled is None:
                raise ApiFailed(call, f"cannot {call}: the response is no Scale")
            if len(self._scales) > 1000:
                self._scales.clear()
            cached = self._scales[key] = (version, scaled)
        return cached[1]


class Kinds:
    """Kinds of the cluster, requested when a policy names one that is not cached."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._found: dict[tuple[str | None, str], Kind] = {}
        self._listed: dict[str | None, tuple[float, list[Kind]]] = {}
        self._failed: dict[str | None, tuple[float, ApiFailed]] = {}
        self._lock = asyncio.Lock()

    def forget(self) -> None:
        """Look the kinds up again when they are needed; the cluster is asked at most once a minute."""
        self._found.clear()

    async def find(self, ref: WorkloadRef) -> Kind:
        """Return the kind of a workload; `KindUnknown` unless there is exactly one that can be scaled."""
        key = (ref.api_version, ref.kind)
        if key not in self._found:
            async with self._lock:
                self._found[key] = chosen(await self._list(ref.api_version), ref.kind, ref.api_version)
        return self._found[key]

    async def _list(self, api_version: str | None) -> list[Kind]:
        """Return the kinds, requested at most once a minute. A failure is raised to all who ask within some seconds."""
        loop = asyncio.get_running_loop()
        at, kinds = self._listed.get(api_version, (None, []))
        if at is not None and loop.time() - at <= _DISCOVERY_SECONDS:
            return kinds
        failed = self._failed.get(api_version)
        if failed is not None and loop.time() - failed[0] <= _DISCOVERY_RETRY_SECONDS:
            raise failed[1].again()
        for cached in (self._listed, self._failed):
            if len(cached) > _MAX_API_VERSIONS:
                cached.clear()
        try:
            kinds = await (self._of_all() if api_version is None else self._of_version(api_version))
        except ApiFailed as error:
            self._failed[api_version] = (loop.time(), error)
            raise
        self._listed[api_version] = (loop.time(), kinds)
        return kinds

    async def _of_version(self, api_version: str) -> list[Kind]:
        call = Call("discover", f"the kinds of {api_version}")
        try:
            return kinds_of_version(await self._api.get(call, root_of(api_version)), api_version)
        except ApiFailed as error:
            if error.status == 404:
                return []
            raise

    async def _of_all(self) -> list[Kind]:
        call = Call("discover", "the kinds of the cluster")
        groups = await self._api.get(call, "/apis", accept=AGGREGATED)
        core = await self._api.get(call, "/api", accept=AGGREGATED)
        if is_aggregated(groups) and is_aggregated(core):
            return [*kinds_of_groups(core), *kinds_of_groups(groups)]
        found = await self._of_version("v1")
        for api_version in group_versions(groups):
            found += await self._of_version(api_version)
        return found


def pods_of(found: Mapping[str, Replicas], usage: Usage, limit: int = 1000) -> list[Pod]:
    """Return the pods of all workloads with CPU and memory in use. Of more than `limit` the ready ones are left out
    first."""
    pods = [usage.of(each.pod) for replicas in found.values() for each in replicas.pods if not each.ends]
    return pods if len(pods) <= limit else sorted(pods, key=lambda pod: pod.ready is True)[:limit]
