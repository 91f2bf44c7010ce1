"""Memory of monitor and executor when they read the largest objects of a real API server that their limits permit, and
larger ones. A user with the right to create objects in a namespace chooses their contents."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from testbed.kafka import KafkaBroker
from testbed.kubernetes import KubernetesCluster
from testbed.process import free_port
from testbed.service import RedisServer, WeirService, loop_settings, wait_all_ready
from tests.kubernetes.rigs import api
from tests.kubernetes.workers import PLURAL, define, definition
from tests.memory import largest_bytes, limit_bytes
from tests.unit.executor.builders import plan
from weir_contracts import Observation, Outcome, ScalingPolicy, policy_of
from weir_contracts.topics import OBSERVATIONS, OUTCOMES, PLANS
from weir_engines.kubernetes.api import LARGE_ELEMENTS
from weir_engines.kubernetes.discovery import PODS
from weir_engines.kubernetes.pods import pod_of
from weir_engines.kubernetes.watches import Watch
from weir_runtime.http_client import MAX_ELEMENTS
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.messages import encode
from weir_runtime.service import topic_specs

GROUP, PARTITIONS = "large.example", 2
LARGE, TOO_LARGE = MAX_ELEMENTS - 2_000, LARGE_ELEMENTS + 50_000
"""Elements of an object that an executor reads, and of one that is refused even when it is read alone. Its JSON has 1 MB;
the API server stores up to 1.5 MB."""
OBJECTS, NAMESPACES = 6, 3
READY_SECONDS, READ_SECONDS = 300.0, 120.0


@pytest.fixture(scope="module")
def large_kind(cluster: KubernetesCluster) -> Iterator[None]:
    """A kind with a scale subresource whose objects may have any field."""
    made = definition(GROUP)
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    made["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": free}
    define(cluster, made)
    yield
    cluster.kubectl("delete", "crd", made["metadata"]["name"])


@pytest.fixture
def namespaces(cluster: KubernetesCluster, large_kind: None) -> Iterator[list[str]]:
    """Namespaces that each have large Workers, one that is too large, and one that is small."""
    names = [f"large-{uuid4().hex[:8]}" for _ in range(NAMESPACES)]
    for namespace in names:
        cluster.create_namespace(namespace)
        for number in range(OBJECTS):
            _create(cluster, namespace, f"large-{number}", LARGE)
        _create(cluster, namespace, "too-large", TOO_LARGE)
        _create(cluster, namespace, "small", 2)
    yield names
    for namespace in names:
        cluster.request("DELETE", f"/api/v1/namespaces/{namespace}")


def _create(cluster: KubernetesCluster, namespace: str, name: str, elements: int) -> None:
    worker: dict[str, Any] = {"apiVersion": f"{GROUP}/v1", "kind": "Worker", "metadata": {"name": name}}
    worker |= {"spec": {"replicas": 1}, "filling": [[]] * (elements // 2)}
    path = f"/apis/{GROUP}/v1/namespaces/{namespace}/{PLURAL}"
    cluster.request("POST", path, worker)
    status = {"status": {"replicas": 1, "readyReplicas": 1, "selector": f"app={name}"}}
    with cluster.admin.client() as client:
        headers = {"Content-Type": "application/merge-patch+json"}
        client.patch(f"{path}/{name}/status", json=status, headers=headers).raise_for_status()


def _policies(namespaces: list[str]) -> list[ScalingPolicy]:
    names = [*(f"large-{number}" for number in range(OBJECTS)), "too-large", "small"]
    return [
        policy_of(
            f"{namespace}/{name}",
            target={"kubernetes": {"apiVersion": f"{GROUP}/v1", "kind": "Worker", "name": name}},
            objective={"utilization": 0.7},
            interval="1s",
            mode="act",
        )
        for namespace in namespaces
        for name in names
    ]


@pytest.fixture
async def loop(
    cluster: KubernetesCluster, namespaces: list[str], tmp_path: Path
) -> AsyncIterator[tuple[KafkaBus, dict[str, WeirService]]]:
    """Start knowledge, monitor and executor with all rights at the API server; yield the bus and the services."""
    port = free_port()
    with KafkaBroker(tmp_path / "kafka") as kafka, RedisServer(tmp_path / "redis") as redis:
        settings = loop_settings(kafka.bootstrap_servers, PARTITIONS, f"http://127.0.0.1:{port}", redis.url, tmp_path)
        settings |= {
            "WEIR_KUBERNETES_URL": cluster.admin.url,
            "WEIR_KUBERNETES_CA_FILE": str(cluster.admin.ca_file),
            "WEIR_KUBERNETES_TOKEN_FILE": str(cluster.admin.token_file),
            "WEIR_MONITOR_KUBERNETES_NAMESPACES": ",".join(namespaces),
            "WEIR_EXECUTOR_KUBERNETES_NAMESPACES": ",".join(namespaces),
        }
        bus = KafkaBus(kafka.bootstrap_servers)
        await bus.start()
        await bus.ensure_topics(topic_specs(PARTITIONS))
        services = {
            name: WeirService(name, tmp_path, settings, port=port if name == "knowledge" else None)
            for name in ("knowledge", "monitor", "executor")
        }
        try:
            for each in services.values():
                each.start()
            await asyncio.to_thread(wait_all_ready, list(services.values()), READY_SECONDS)
            yield bus, services
        finally:
            for each in services.values():
                each.stop()
            await bus.close()


async def test_an_object_that_is_too_large_stops_no_others(cluster: KubernetesCluster, namespace: str) -> None:
    """Pods with many empty arguments, of which the API server stores 700,000: the watch reports them as left out and has
    the others. The same holds for a pod that is created later."""
    path = f"/api/v1/namespaces/{namespace}/pods"

    def create(name: str, arguments: int) -> None:
        container = {"name": "main", "image": "example/main:1", "args": [""] * arguments}
        with cluster.admin.client(timeout_seconds=READ_SECONDS) as client:
            pod = {"metadata": {"name": name}, "spec": {"containers": [container]}}
            client.post(path, json=pod).raise_for_status()

    create("a", 1)
    create("b", TOO_LARGE)
    create("c", 1)
    reader = api(cluster.admin, timeout_seconds=30.0)
    watch = Watch(reader, PODS, namespace, pod_of, leaves_out=True)

    async def until(objects: set[str], left_out: set[str]) -> None:
        async with asyncio.timeout(READ_SECONDS):
            while (set(watch.objects), set(watch.left_out)) != (objects, left_out):  # noqa: ASYNC110 - of the watch's task
                await asyncio.sleep(0.1)

    try:
        await watch.synced(READ_SECONDS)
        await until({"a", "c"}, {"b"})
        assert f"b has more than {LARGE_ELEMENTS} elements" in str(watch.left_out["b"])
        await asyncio.to_thread(create, "d", TOO_LARGE)
        await until({"a", "c"}, {"b", "d"})
        await asyncio.to_thread(cluster.request, "DELETE", f"{path}/b?gracePeriodSeconds=0")
        await asyncio.to_thread(create, "e", 1)
        await until({"a", "c", "e"}, {"d"})
    finally:
        await watch.close()
        await reader.close()


async def test_objects_do_not_fill_the_memory_of_monitor_and_executor(
    loop: tuple[KafkaBus, dict[str, WeirService]], namespaces: list[str]
) -> None:
    """Each application is observed, and its plan is answered. The object that is too large is named and affects no other."""
    bus, services = loop
    versions: dict[str, int] = {}
    async with httpx.AsyncClient(base_url=services["knowledge"].url, timeout=20.0, trust_env=False) as http:
        for each in _policies(namespaces):
            answer = await http.put(f"/v1/policies/{each.application}", json=each.to_document())
            assert answer.status_code == 201, answer.text
            versions[each.application] = answer.json()["metadata"]["version"]
    plans = dict.fromkeys(versions, 0)

    async def publish_plan(name: str) -> None:
        plans[name] += 1
        at = datetime.now(UTC)
        made = plan(application=name, number=plans[name], at=at, policy_version=versions[name])
        body, headers = encode(made, type=PLANS.type, source="test", id=made.id, time=at)
        await bus.publish(PLANS.name, name, body, headers)

    for name in versions:
        await publish_plan(name)
    observations, outcomes = bus.reader(OBSERVATIONS.name), bus.reader(OUTCOMES.name)
    observed: dict[str, Observation] = {}
    answered: dict[str, Outcome] = {}

    def is_read() -> bool:
        named = [name for name in versions if not name.endswith("/too-large")]
        return versions.keys() == answered.keys() == observed.keys() and all(
            observed[name].status == "running" for name in named
        )

    try:
        async with asyncio.timeout(READ_SECONDS):
            while not is_read():
                for record in await observations.receive(timeout_seconds=0.2):
                    found = Observation.model_validate_json(record.value or b"")
                    observed[found.application] = found
                for record in await outcomes.receive(timeout_seconds=0.2):
                    outcome = Outcome.model_validate_json(record.value or b"")
                    if "cannot be read from knowledge" in outcome.sentence:  # the machine is busy: publish another plan
                        await publish_plan(outcome.application)
                    else:
                        answered[outcome.application] = outcome
                for service in services.values():
                    service.process.check()
    except TimeoutError:
        states = {name: (each.status, each.message) for name, each in observed.items() if each.status != "running"}
        pytest.fail(f"not answered: {versions.keys() - answered.keys()}; not running: {states}")
    for namespace in namespaces:
        assert f"too-large has more than {LARGE_ELEMENTS} elements" in observed[f"{namespace}/too-large"].message
        assert "elements" in answered[f"{namespace}/too-large"].sentence
    assert largest_bytes(services["monitor"]) < limit_bytes("monitor")
    assert largest_bytes(services["executor"]) < limit_bytes("executor")
