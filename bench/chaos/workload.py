"""A service on Kubernetes whose pods are simulated, in real time: a queue that as many replicas empty as are ready, the
CPU that follows from it, Prometheus' answers, and its policy."""

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx

from bench.results_file import log
from testbed.kubernetes import NODE, KubernetesCluster
from weir_contracts import ScalingPolicy, policy_of
from weir_contracts.target import Workload
from weir_engines.kubernetes.api import Access, KubernetesApi
from weir_engines.kubernetes.cluster import KubernetesWorkloads, Replicas
from weir_engines.kubernetes.discovery import PODS

CAPACITY = 100.0
"""Records per second of one ready replica."""
OBJECTIVE_SECONDS, MIN_REPLICAS, MAX_REPLICAS = 30.0, 1, 12
FIRST_REPLICAS = 2
READY_SECONDS, POD_CORES, IDLE_CORES = 10.0, 1.0, 0.02
STEP_SECONDS, CPU_SECONDS, START_SECONDS = 1.0, 5.0, 180.0


@dataclass
class ServiceQueue:
    """Queue of a workload, first in, first out."""

    arrived: float = 0.0
    processed: float = 0.0
    busy_share: float = 0.0
    """Share of the ready replicas' capacity in use during the last step."""
    _arrivals: deque[tuple[float, float]] = field(default_factory=deque)
    """End of each step and the records that had arrived by then; the oldest one may be partly processed."""

    @property
    def waiting(self) -> float:
        return self.arrived - self.processed

    def step(self, now: float, seconds: float, rate: float, ready: int) -> None:
        """Advance by `seconds` to the time `now`."""
        self.arrived += rate * seconds
        self._arrivals.append((now, self.arrived))
        capacity = ready * CAPACITY * seconds
        done = min(self.waiting, capacity)
        self.processed += done
        self.busy_share = done / capacity if capacity else 0.0
        while self._arrivals and self._arrivals[0][1] <= self.processed + 1e-6:
            self._arrivals.popleft()

    def age_seconds(self, now: float) -> float:
        """Return the age of the oldest waiting record, to the length of a step."""
        return now - self._arrivals[0][0] if self._arrivals else 0.0


@dataclass(frozen=True)
class Sample:
    """State of the workload at one time."""

    age_seconds: float
    requested: int
    ready: int


def deployment(name: str) -> dict[str, Any]:
    """Return a Deployment of simulated pods, which are ready after some seconds."""
    annotations = {"testbed.weir.dev/ready-after": f"{READY_SECONDS:g}s", "testbed.weir.dev/cpu": f"{IDLE_CORES:g}"}
    resources = {"requests": {"cpu": f"{POD_CORES:g}"}, "limits": {"cpu": f"{POD_CORES:g}"}}
    container = {"name": "main", "image": "example/main:1", "resources": resources}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": FIRST_REPLICAS,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}, "annotations": annotations},
                "spec": {"nodeName": NODE, "containers": [container]},
            },
        },
    }


class Simulation:
    """The queue behind a workload; `rate` gives its arrivals in records/s."""

    def __init__(self, cluster: KubernetesCluster, namespace: str, name: str, rate: Callable[[], float]) -> None:
        self.samples: list[Sample] = []
        self._cluster, self._namespace, self._name, self._rate = cluster, namespace, name, rate
        self._queue = ServiceQueue()
        self._cores_written: dict[str, float] = {}
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let `run` return; may be called from another thread."""
        self._stopped.set()

    def values(self) -> dict[str, float]:
        """Return the workload's signals; called by the threads of `prometheus`."""
        return {f"{self._name}_processed": self._queue.processed, f"{self._name}_waiting": self._queue.waiting}

    async def run(self) -> None:
        """Advance in real time until `stop`."""
        admin = self._cluster.admin
        reader = KubernetesWorkloads(KubernetesApi(Access(admin.url, admin.ca_file, admin.token_file)))
        verify = httpx.create_ssl_context(verify=str(admin.ca_file), trust_env=False)
        headers = {"Authorization": f"Bearer {admin.token}", "Content-Type": "application/merge-patch+json"}
        async with httpx.AsyncClient(base_url=admin.url, headers=headers, verify=verify, trust_env=False) as client:
            try:
                async with asyncio.timeout(START_SECONDS):
                    while (await self._read(reader)).ready != FIRST_REPLICAS:  # noqa: ASYNC110
                        await asyncio.sleep(0.5)
                await self._advance(reader, client)
            finally:
                await reader.close()

    async def _advance(self, reader: KubernetesWorkloads, client: httpx.AsyncClient) -> None:
        began, cpu_at, last, queue = time.monotonic(), 0.0, 0.0, self._queue
        while not self._stopped.is_set():
            await asyncio.sleep(STEP_SECONDS)
            now = time.monotonic() - began
            rate, replicas = self._rate(), await self._read(reader)
            queue.step(now, now - last, rate, replicas.ready)
            status = replicas.workload.status
            self.samples.append(Sample(queue.age_seconds(now), status.wanted, replicas.ready))
            last = now
            if time.monotonic() >= cpu_at:
                cpu_at = time.monotonic() + CPU_SECONDS
                await self._write_cpu(client, replicas)
                state = f"{status.name} {replicas.ready}/{status.wanted}, {queue.waiting:.0f} wait"
                log(f"{now:.0f} s, {rate:.0f}/s; {state}")

    async def _read(self, reader: KubernetesWorkloads) -> Replicas:
        reading = await reader.read(self._namespace, [Workload(kind="Deployment", name=self._name)])
        if reading.failure and reading.age_seconds > CPU_SECONDS:
            raise RuntimeError(reading.failure)
        return reading.found[self._name]

    async def _write_cpu(self, client: httpx.AsyncClient, replicas: Replicas) -> None:
        """Annotate each pod with its CPU in use, which kwok reports to metrics-server."""
        busy = round(max(IDLE_CORES, self._queue.busy_share * POD_CORES), 2)
        cores = {each.pod.name: busy if each.pod.ready else IDLE_CORES for each in replicas.pods if each.counts}
        changed = {pod: used for pod, used in cores.items() if self._cores_written.get(pod) != used}
        await asyncio.gather(*(_annotate(client, self._namespace, pod, used) for pod, used in changed.items()))
        self._cores_written |= changed


async def _annotate(client: httpx.AsyncClient, namespace: str, pod: str, cores: float) -> None:
    body = {"metadata": {"annotations": {"testbed.weir.dev/cpu": f"{cores * 1000:.0f}m"}}}
    answer = await client.patch(PODS.path(namespace, pod), json=body, timeout=10.0)
    if answer.status_code != httpx.codes.NOT_FOUND:  # it was deleted meanwhile
        answer.raise_for_status()


@contextmanager
def prometheus(values: Callable[[], Mapping[str, float]]) -> Iterator[str]:
    """Serve each value as an instant query of its name on a local port; yields the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def do_GET(self) -> None:
            value = values().get(parse_qs(urlsplit(self.path).query).get("query", [""])[0])
            result = [] if value is None else [{"metric": {}, "value": [time.time(), f"{value:.3f}"]}]
            body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def weir_policy(namespace: str, name: str, prometheus_url: str, **spec: Any) -> ScalingPolicy:
    """Return Weir's policy; all that is not given is as by default."""
    queries = {"done": f"{name}_processed", "queued": f"{name}_waiting"}
    fields = {
        "application": {"service": {"processed": "done", "waiting": "queued"}},
        "target": {"kubernetes": {"kind": "Deployment", "name": name}},
        "signals": {"prometheus": {"url": prometheus_url, "queries": queries}},
        "objective": {"maxLag": f"{OBJECTIVE_SECONDS:g}s"},
        "bounds": {"min": MIN_REPLICAS, "max": MAX_REPLICAS},
        "mode": "act",
    }
    return policy_of(f"{namespace}/{name}", **{**fields, **spec})
