"""Workloads whose pods are simulated, in real time: their queues follow the ready replicas, their CPU the queues."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

from bench.results_file import log
from testbed.kubernetes import NODE, KubernetesCluster
from weir_contracts.application import Workload
from weir_engines.kubernetes.api import Access, KubernetesApi
from weir_engines.kubernetes.cluster import KubernetesWorkloads, Replicas
from weir_engines.kubernetes.discovery import PODS

from .load import Sample, ServiceQueue

FIRST_REPLICAS = 2
READY_SECONDS, POD_CORES, IDLE_CORES = 10.0, 1.0, 0.02
STEP_SECONDS, CPU_SECONDS, WARM_UP_SECONDS, START_SECONDS = 1.0, 5.0, 90.0, 180.0


def deployment(
    name: str, replicas: int = FIRST_REPLICAS, ready_seconds: float = READY_SECONDS, cpu: float = IDLE_CORES
) -> dict[str, Any]:
    """Return a Deployment of simulated pods, which are ready after some seconds and use so many cores."""
    annotations = {"testbed.weir.dev/ready-after": f"{ready_seconds:g}s", "testbed.weir.dev/cpu": f"{cpu:g}"}
    resources = {"requests": {"cpu": f"{POD_CORES:g}"}, "limits": {"cpu": f"{POD_CORES:g}"}}
    container = {"name": "main", "image": "example/main:1", "resources": resources}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}, "annotations": annotations},
                "spec": {"nodeName": NODE, "containers": [container]},
            },
        },
    }


class Simulation:
    """One queue behind each workload; `rate` gives the arrivals of each in records/s at a time in seconds."""

    def __init__(
        self, cluster: KubernetesCluster, namespace: str, names: Sequence[str], rate: Callable[[float], float]
    ) -> None:
        self.samples: dict[str, list[Sample]] = {name: [] for name in names}
        self._cluster, self._namespace, self._rate = cluster, namespace, rate
        self._queues = {name: ServiceQueue() for name in names}
        self._written: dict[str, float] = {}
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let `run` return; may be called from another thread."""
        self._stopped.set()

    def values(self) -> dict[str, float]:
        """Return the signals of all workloads; called by the metric servers' threads."""
        found: dict[str, float] = {}
        for name, queue in self._queues.items():
            found |= {f"{name}_processed": queue.processed, f"{name}_waiting": queue.waiting}
        return found

    async def run(self, seconds: float, warm_up_seconds: float = WARM_UP_SECONDS) -> dict[str, list[Sample]]:
        """Advance in real time: first at the rate of time 0, then through the load; return its samples."""
        admin = self._cluster.admin
        reader = KubernetesWorkloads(KubernetesApi(Access(admin.url, admin.ca_file, admin.token_file)))
        verify = httpx.create_ssl_context(verify=str(admin.ca_file), trust_env=False)
        headers = {"Authorization": f"Bearer {admin.token}", "Content-Type": "application/merge-patch+json"}
        async with httpx.AsyncClient(base_url=admin.url, headers=headers, verify=verify, trust_env=False) as client:
            try:
                await self._started(reader)
                await self._advance(reader, client, seconds, warm_up_seconds)
                return self.samples
            finally:
                await reader.close()

    async def _advance(
        self, reader: KubernetesWorkloads, client: httpx.AsyncClient, seconds: float, warm_up_seconds: float
    ) -> None:
        began, cpu_at = time.monotonic(), 0.0
        last = now = -warm_up_seconds
        while now < seconds and not self._stopped.is_set():
            await asyncio.sleep(STEP_SECONDS)
            now = time.monotonic() - began - warm_up_seconds
            rate = self._rate(max(0.0, now))
            found = await self._read(reader)
            for name, queue in self._queues.items():
                replicas = found[name]
                queue.step(now, now - last, rate, replicas.ready)
                if now >= 0:
                    self.samples[name].append(_sample(now, rate, queue, replicas))
            last = now
            if time.monotonic() >= cpu_at:
                cpu_at = time.monotonic() + CPU_SECONDS
                await self._write_cpu(client, found)
                log("; ".join([f"{now:.0f} s, {rate:.0f}/s", *map(self._state, found.values())]))

    async def _started(self, reader: KubernetesWorkloads) -> None:
        async with asyncio.timeout(START_SECONDS):
            while any(each.ready != FIRST_REPLICAS for each in (await self._read(reader)).values()):  # noqa: ASYNC110
                await asyncio.sleep(0.5)

    async def _read(self, reader: KubernetesWorkloads) -> Mapping[str, Replicas]:
        refs = [Workload(kind="Deployment", name=name) for name in self._queues]
        reading = await reader.read(self._namespace, refs)
        if reading.failure and reading.age_seconds > CPU_SECONDS:
            raise RuntimeError(reading.failure)
        return reading.found

    async def _write_cpu(self, client: httpx.AsyncClient, found: Mapping[str, Replicas]) -> None:
        """Annotate each pod with its CPU in use, which kwok reports to metrics-server."""
        changed = {}
        for name, replicas in found.items():
            busy = round(max(IDLE_CORES, self._queues[name].busy_share * POD_CORES), 2)
            for pod in (each.pod for each in replicas.pods if each.counts):
                cores = busy if pod.ready else IDLE_CORES
                if self._written.get(pod.name) != cores:
                    changed[pod.name] = cores
        await asyncio.gather(*(_annotate(client, self._namespace, pod, cores) for pod, cores in changed.items()))
        self._written |= changed

    def _state(self, replicas: Replicas) -> str:
        status = replicas.workload.status
        waiting = self._queues[status.name].waiting
        return f"{status.name} {replicas.ready}/{status.wanted}, {waiting:.0f} wait"


async def _annotate(client: httpx.AsyncClient, namespace: str, pod: str, cores: float) -> None:
    body = {"metadata": {"annotations": {"testbed.weir.dev/cpu": f"{cores * 1000:.0f}m"}}}
    answer = await client.patch(PODS.path(namespace, pod), json=body, timeout=10.0)
    if answer.status_code != httpx.codes.NOT_FOUND:  # it was deleted meanwhile
        answer.raise_for_status()


def _sample(now: float, rate: float, queue: ServiceQueue, replicas: Replicas) -> Sample:
    status, existing = replicas.workload.status, sum(1 for each in replicas.pods if each.counts)
    return Sample(now, rate, queue.age_seconds(now), status.wanted, existing, replicas.ready)
