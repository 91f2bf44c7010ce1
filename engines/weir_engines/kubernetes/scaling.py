"""Reads workloads and writes their replicas through the Kubernetes API, while an action needs them; pods come from a shared
watch.

An action must not be judged by a watch that lags behind its own write, so the workload itself is read each time.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from weir_contracts.target import WorkloadRef
from weir_engines.kubernetes.api import MERGE_PATCH, ApiFailed, Call, KubernetesApi
from weir_engines.kubernetes.cluster import Kinds, join
from weir_engines.kubernetes.discovery import PODS, Kind
from weir_engines.kubernetes.pods import PodReading, pod_of
from weir_engines.kubernetes.polled import CreateFailures
from weir_engines.kubernetes.state import EVICTION, MANAGER, Found
from weir_engines.kubernetes.values import mapping, name
from weir_engines.kubernetes.watches import Watch, pages
from weir_engines.kubernetes.workloads import WorkloadReading, has_own_replicas, workload_of

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
HPA = Kind("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", is_scalable=False)
SCALED_OBJECT = Kind("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects", is_scalable=False)
AUTOSCALERS_SECONDS, NO_KEDA_SECONDS = 10.0, 60.0
"""Time for which a list of autoscalers is used, and for which a cluster without KEDA, or without the right to see its
objects, is not asked again."""


@dataclass(frozen=True)
class _Autoscaler:
    label: str
    kind: str
    group: str
    target: str

    def scales(self, workload: WorkloadReading) -> bool:
        status = workload.status
        return (self.kind, self.group, self.target) == (status.kind, workload.kind.group, status.name)


class ApiWorkloads:
    """Workloads of one cluster."""

    def __init__(self, api: KubernetesApi, *, sync_seconds: float = 5.0) -> None:
        self._api = api
        self._kinds = Kinds(api)
        self._create_failures = CreateFailures(api)
        self._sync_seconds = sync_seconds
        self._log = structlog.get_logger("executor")
        self._pods: dict[str, Watch[PodReading]] = {}
        self._autoscalers: dict[tuple[str, Kind], tuple[float, list[_Autoscaler]]] = {}

    async def close(self) -> None:
        await asyncio.gather(*(watch.close() for watch in self._pods.values()))
        await self._api.close()

    async def read(self, namespace: str, refs: Sequence[WorkloadRef]) -> Mapping[str, Found]:
        workloads = await asyncio.gather(*(self._workload(namespace, ref) for ref in refs))
        watch = await self._watch(namespace)
        autoscalers = [*await self._list(namespace, HPA), *await self._list(namespace, SCALED_OBJECT)]
        found = {}
        for workload in workloads:
            if workload is None:
                continue
            if watch.failure is not None and (workload.status.ready is None or watch.failure.is_denied):
                raise watch.failure  # its ready replicas are counted from its pods, and a missing right is named
            if workload.status.ready is None:
                watch.check_complete()
            own = join(workload, watch.objects.values(), named=len(refs) > 1)
            scaler = next((each.label for each in autoscalers if each.scales(workload)), "")
            found[workload.status.name] = Found(own, scaler)
        return found

    async def scale(self, found: Found, replicas: int) -> None:
        kind, status = found.reading.kind, found.reading.status
        call = Call("update", f"{kind.resource}/scale", status.namespace, status.name)
        metadata = {"name": status.name, "namespace": status.namespace, "uid": status.uid}
        body = {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {**metadata, "resourceVersion": found.reading.version},
            "spec": {"replicas": replicas},
        }
        path = kind.path(status.namespace, status.name, "scale")
        await self._api.send("PUT", call, path, body, query={"fieldManager": MANAGER})

    async def lower_cost(self, found: Found, pod: str) -> None:
        namespace = found.reading.status.namespace
        await self._api.send(
            "PATCH",
            Call("patch", "pods", namespace, pod),
            PODS.path(namespace, pod),
            {"metadata": {"annotations": {DELETION_COST: "-1"}}},
            query={"fieldManager": MANAGER},
            content_type=MERGE_PATCH,
        )

    async def evict_pod(self, namespace: str, pod: str, uid: str) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        call = Call("create", EVICTION, namespace, pod)
        await self._api.send("POST", call, PODS.path(namespace, pod, "eviction"), body, query={"fieldManager": MANAGER})

    async def ended(self, namespace: str, pods: Mapping[str, str | None]) -> frozenset[str]:
        """Return the names of which no pod exists, only one that has ended for good, or one with another uid; the watch may
        lag behind."""

        async def is_ended(called: str, uid: str | None) -> bool:
            query = {"fieldSelector": f"metadata.name={called}"}
            document = await self._api.get(Call("list", "pods", namespace, called), PODS.path(namespace), query=query)
            listed = mapping(document).get("items")
            if not isinstance(listed, list):
                return False  # no list of pods, so nothing is known
            found = [pod_of(each) for each in listed]
            return all(pod is not None and (pod.is_final or (uid is not None and pod.uid != uid)) for pod in found)

        answers = await asyncio.gather(*(is_ended(called, uid) for called, uid in pods.items()))
        return frozenset(called for called, ended in zip(pods, answers, strict=True) if ended)

    async def _workload(self, namespace: str, ref: WorkloadRef) -> WorkloadReading | None:
        """Return a workload with its replicas and selector; None if it does not exist."""
        kind = await self._kinds.find(ref)
        workload = await self._get(kind, namespace, ref.name)
        if workload is None:
            return None
        if has_own_replicas(kind):
            return await self._create_failures.explained(workload)
        return await self._get(kind, namespace, ref.name, workload)

    async def _get(
        self, kind: Kind, namespace: str, called: str, scaled: WorkloadReading | None = None
    ) -> WorkloadReading | None:
        """Return a workload, or `scaled` with the replicas and the selector of its `Scale`."""
        subresource = "" if scaled is None else "scale"
        call = Call("get", "/".join(filter(None, (kind.resource, subresource))), namespace, called)
        try:
            document = await self._api.get(call, kind.path(namespace, called, subresource))
        except ApiFailed as error:
            if error.status == 404:
                self._kinds.forget()  # the definition may be deleted, or serve another version now
            if error.reason == "NotFound":
                return None
            raise  # no API server answers a workload that does not exist in another way
        found = workload_of(document, kind) if scaled is None else scaled.with_scale(document)
        if found is None:
            raise ApiFailed(call, f"cannot {call}: the response is no {kind.kind}")
        return found

    async def _watch(self, namespace: str) -> Watch[PodReading]:
        watch = self._pods.get(namespace)
        if watch is None or watch.is_over:
            watch = self._pods[namespace] = Watch(self._api, PODS, namespace, pod_of, leaves_out=True)
        await watch.synced(self._sync_seconds)
        return watch

    async def _list(self, namespace: str, kind: Kind) -> list[_Autoscaler]:
        """Return the autoscalers of one kind.

        KEDA is optional, and its objects make autoscalers of the other kind, except while they are paused or at 0
        replicas. Without the right to list them it is unknown whether one exists: a warning names the right.
        """
        now = asyncio.get_running_loop().time()
        until, found = self._autoscalers.get((namespace, kind), (now, []))
        if now < until:
            return found
        seconds = AUTOSCALERS_SECONDS
        try:
            found = []
            async for items, _version in pages(self._api, Call("list", kind.resource, namespace), kind.path(namespace)):
                found += [_autoscaler(each, kind) for each in items]
        except ApiFailed as error:
            if kind is HPA or error.status not in (403, 404):
                raise
            if error.status == 403:  # an API server refuses this before it looks whether KEDA is installed
                self._log.warning("scaledobjects-unknown", missing_right=error.where, reason=str(error))
            found, seconds = [], NO_KEDA_SECONDS
        self._autoscalers[namespace, kind] = (now + seconds, found)
        return found


def _autoscaler(document: Any, kind: Kind) -> _Autoscaler:
    document = mapping(document)
    called = name(mapping(document.get("metadata")).get("name"))
    target = mapping(mapping(document.get("spec")).get("scaleTargetRef"))
    group, _, _ = str(target.get("apiVersion") or "apps/v1").rpartition("/")
    return _Autoscaler(
        f"{kind.kind} {called}", str(target.get("kind") or "Deployment"), group, str(target.get("name") or "")
    )
