"""Workloads, pods and their usage from a real API server: watches that last, rights that lack, and few requests."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from testbed import kubernetes_access
from testbed.kubernetes import KubernetesCluster
from testbed.process import free_port
from tests.kubernetes.workers import define
from tests.kubernetes.workloads import deployment, limit_pods
from tests.unit.engines.kubernetes.workloads_suite import WorkloadsSuite, World, until
from weir_contracts import ScalingPolicy, parse_policy
from weir_contracts.target import WorkloadRef
from weir_engines.kubernetes.api import Access, ApiFailed, KubernetesApi
from weir_engines.kubernetes.cluster import KubernetesWorkloads, WorkloadReader, WorkloadsReading
from weir_engines.kubernetes.watches import Pauses
from weir_engines.registry import Engines, Resources
from weir_monitor.applications import Collectors
from weir_monitor.core import observe
from weir_runtime.clock import SystemClock

READS = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": ["apps"], "resources": ["deployments", "statefulsets"], "verbs": ["list", "watch"]},
    {"apiGroups": ["example.org"], "resources": ["crews"], "verbs": ["list", "watch"]},
    {"apiGroups": ["example.org"], "resources": ["crews/scale"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
    {"apiGroups": ["metrics.k8s.io"], "resources": ["pods"], "verbs": ["list"]},
]
"""Everything that the monitor needs."""
QUICK = Pauses(first_seconds=0.1, max_seconds=1.0, denied_seconds=1.0)
SETTLE_SECONDS, REST_SECONDS, MAX_CALLS_PER_MINUTE = 5.0, 30.0, 20.0

_FREE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
CREWS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "crews.example.org"},
    "spec": {
        "group": "example.org",
        "scope": "Namespaced",
        "names": {"kind": "Crew", "plural": "crews", "singular": "crew"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _FREE, "status": _FREE}}},
                "subresources": {
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.crews",
                        "statusReplicasPath": ".status.count",
                        "labelSelectorPath": ".status.chosen",
                    },
                },
            }
        ],
    },
}
"""A kind whose replicas only its scale subresource can find."""


def _reader(access: kubernetes_access.Access) -> KubernetesWorkloads:
    api = KubernetesApi(Access.of(access.url, access.ca_file, access.token_file))
    return KubernetesWorkloads(api, pauses=QUICK)


class _Real:
    """Workloads of a namespace of the shared cluster. This test is the controller of the custom resource."""

    def __init__(self, cluster: KubernetesCluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.reader: WorkloadReader = _reader(cluster.identity("monitor", READS, namespace=namespace))
        self.readers = [self.reader]

    async def create(self, kind: str, name: str, replicas: int) -> None:
        if kind == "Crew":
            crew = {"apiVersion": "example.org/v1", "kind": kind, "metadata": {"name": name}, "spec": {"crews": 0}}
            self.cluster.apply(crew, namespace=self.namespace)
            await self.scale(kind, name, replicas)
            return
        self.cluster.apply(deployment(name, replicas, kind=kind), namespace=self.namespace)

    async def scale(self, kind: str, name: str, replicas: int) -> None:
        self.cluster.kubectl("scale", f"{kind.lower()}/{name}", f"--replicas={replicas}", "-n", self.namespace)
        if kind == "Crew":
            self._run_pods(name, replicas)
            status = {"status": {"count": replicas, "chosen": f"app={name}"}}
            path = f"/apis/example.org/v1/namespaces/{self.namespace}/crews/{name}"
            crew = self.cluster.request("GET", path)
            self.cluster.request("PUT", f"{path}/status", {**crew, **status})

    def _run_pods(self, name: str, replicas: int) -> None:
        self.cluster.kubectl("delete", "pods", "-l", f"app={name}", "-n", self.namespace, "--now")
        spec = {"nodeName": "kwok-node", "containers": [{"name": "main", "image": "example/main:1"}]}
        pods = [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"{name}-{i}", "labels": {"app": name}},
                "spec": spec,
            }
            for i in range(replicas)
        ]
        if pods:
            self.cluster.apply(*pods, namespace=self.namespace)

    async def delete(self, kind: str, name: str) -> None:
        self.cluster.kubectl("delete", kind.lower(), name, "-n", self.namespace)

    async def deny_pods(self) -> WorkloadReader:
        rules = [rule for rule in READS if rule["resources"] != ["pods"]]
        self.readers.append(_reader(self.cluster.identity("denied", rules, namespace=self.namespace)))
        return self.readers[-1]

    async def absent(self) -> WorkloadReader:
        access = self.cluster.admin
        api = KubernetesApi(Access(f"https://127.0.0.1:{free_port()}", access.ca_file, access.token_file))
        self.readers.append(KubernetesWorkloads(api, pauses=QUICK))
        return self.readers[-1]


@pytest.fixture(scope="module")
def crews(cluster: KubernetesCluster) -> None:
    """The custom resource's definition."""
    define(cluster, CREWS)


@pytest.fixture
async def world(cluster: KubernetesCluster, namespace: str, crews: None) -> AsyncIterator[World]:
    """A namespace with an identity that has the monitor's rights."""
    real = _Real(cluster, namespace)
    yield real
    await asyncio.gather(*(reader.close() for reader in real.readers))


class TestApiServer(WorkloadsSuite):
    """A real API server, with least-privilege identities."""


async def _read_orders(reader: WorkloadReader, namespace: str) -> WorkloadsReading:
    return await reader.read(namespace, [WorkloadRef(kind="Deployment", name="orders")])


def _ready(reading: WorkloadsReading) -> int:
    return sum(own.ready for own in reading.found.values())


@pytest.mark.parametrize(
    ("behaviour", "reason", "killed"),
    [("crash-loop", "CrashLoopBackOff", False), ("out-of-memory", "CrashLoopBackOff", True), ("image-missing", "ImagePull", False)],
)  # fmt: skip
async def test_pods_that_do_not_run_say_why(world: Any, behaviour: str, reason: str, killed: bool) -> None:
    """From the statuses of real pods."""
    world.cluster.apply(deployment("orders", 1, behaviour=behaviour), namespace=world.namespace)

    def says_why(reading: WorkloadsReading) -> bool:
        pods = [each.pod for own in reading.found.values() for each in own.pods]
        return any(reason in pod.reason and pod.out_of_memory is killed for pod in pods)

    found = await until(lambda: _read_orders(world.reader, world.namespace), says_why)
    assert found.found["orders"].ready == 0


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
async def test_pods_of_a_canary_with_the_same_labels_are_not_the_workloads_own(world: Any, kind: str) -> None:
    """Real controllers keep the two apart by the owners of their pods, before and after a rollout."""
    canary = deployment("orders-canary", 1, behaviour="crash-loop")
    canary["spec"]["selector"]["matchLabels"] = canary["spec"]["template"]["metadata"]["labels"] = {"app": "orders"}
    world.cluster.apply(deployment("orders", 2, kind=kind), canary, namespace=world.namespace)

    async def read() -> WorkloadsReading:
        return await world.reader.read(world.namespace, [WorkloadRef(kind=kind, name="orders")])

    def runs_alone(reading: WorkloadsReading) -> bool:
        return any(
            own.ready == len(own.pods) == 2 and not own.workload.status.rolling_out for own in reading.found.values()
        )

    def crashes() -> bool:
        pods = world.cluster.request("GET", f"/api/v1/namespaces/{world.namespace}/pods?labelSelector=app%3Dorders")
        return any("CrashLoopBackOff" in str(each["status"]) for each in pods["items"])

    await until(read, lambda reading: runs_alone(reading) and crashes())
    world.cluster.kubectl("set", "env", f"{kind.lower()}/orders", "VERSION=2", "-n", world.namespace)
    world.cluster.kubectl("rollout", "status", f"{kind.lower()}/orders", "-n", world.namespace, "--timeout=30s")
    await until(read, runs_alone)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
async def test_replicas_that_a_quota_denies_are_named(world: Any, kind: str) -> None:
    """A Deployment's condition has the quota's own words, an event those of a StatefulSet; both end with the quota."""
    await asyncio.to_thread(limit_pods, world.cluster, world.namespace, 1)
    world.cluster.apply(deployment("orders", 3, kind=kind), namespace=world.namespace)

    async def read() -> WorkloadsReading:
        return await world.reader.read(world.namespace, [WorkloadRef(kind=kind, name="orders")])

    found = await until(
        read, lambda reading: any("exceeded quota" in own.workload.status.reason for own in reading.found.values())
    )
    status = found.found["orders"].workload.status
    assert (status.wanted, status.reason.partition(":")[0]) == (3, "FailedCreate")
    world.cluster.kubectl("delete", "resourcequota", "few", "-n", world.namespace)
    world.cluster.kubectl("scale", f"{kind.lower()}/orders", "--replicas=2", "-n", world.namespace)
    await until(read, lambda reading: _ready(reading) == 2 and not reading.found["orders"].workload.status.reason)


@pytest.mark.parametrize(
    ("kind", "verb", "resource"),
    [
        ("StatefulSet", "list", "pods"),
        ("StatefulSet", "watch", "pods"),
        ("StatefulSet", "list", "statefulsets"),
        ("StatefulSet", "watch", "statefulsets"),
        ("StatefulSet", "list", "events"),
        ("StatefulSet", "list", "pods.metrics.k8s.io"),
        ("Deployment", "list", "deployments"),
        ("Deployment", "watch", "deployments"),
        ("Crew", "list", "crews"),
        ("Crew", "watch", "crews"),
        ("Crew", "get", "crews/scale"),
    ],
)
async def test_each_right_that_lacks_is_named(world: Any, kind: str, verb: str, resource: str) -> None:
    """With verb, resource and namespace. The StatefulSet lacks a pod, so that its events matter."""
    name, _, group = resource.partition(".")

    def without(rule: dict[str, Any]) -> list[str]:
        is_meant = name in rule["resources"] and bool(group) == (rule["apiGroups"] == ["metrics.k8s.io"])
        return [each for each in rule["verbs"] if not (is_meant and each == verb)]

    rules = [{**rule, "verbs": verbs} for rule in READS if (verbs := without(rule))]
    if kind == "StatefulSet":
        world.cluster.apply(deployment("orders", 2, kind=kind, behaviour="never-ready"), namespace=world.namespace)
    else:
        await world.create(kind, "orders", 1)
    reader = _reader(world.cluster.identity("less", rules, namespace=world.namespace))
    world.readers.append(reader)

    async def published() -> str:
        try:
            reading = await reader.read(world.namespace, [WorkloadRef(kind=kind, name="orders")], usage=True)
        except ApiFailed as error:
            return str(error)
        reasons = [own.workload.status.reason for own in reading.found.values()]
        return " ".join([reading.failure, reading.usage.failure, *reasons])

    target = f" of orders in namespace {world.namespace}" if "/" in resource else f" in namespace {world.namespace}"
    found = ""
    try:
        async with asyncio.timeout(30):
            while f"may not {verb} {resource}{target}" not in (found := await published()):  # noqa: ASYNC110 - no event signals it
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"not named: {found}")


async def test_a_rollout_is_seen(world: Any) -> None:
    """While pods of the earlier version are replaced, and not before or after."""
    world.cluster.apply(deployment("orders", 2), namespace=world.namespace)

    async def read() -> WorkloadsReading:
        return await _read_orders(world.reader, world.namespace)

    before = await until(read, lambda reading: _ready(reading) == 2)
    assert not before.found["orders"].workload.status.rolling_out
    changed = deployment("orders", 2, ready_after="2s")
    world.cluster.apply(changed, namespace=world.namespace)
    during = await until(read, lambda reading: reading.found["orders"].workload.status.rolling_out)
    assert during.found["orders"].workload.template != before.found["orders"].workload.template
    await until(read, lambda reading: not reading.found["orders"].workload.status.rolling_out and _ready(reading) == 2)


async def test_the_manager_of_replicas_is_named(world: Any) -> None:
    """From managedFields: applied at first, then through the scale subresource."""
    await world.create("Deployment", "orders", 1)
    await world.scale("Deployment", "orders", 2)
    found = await until(
        lambda: _read_orders(world.reader, world.namespace),
        lambda reading: any(own.workload.status.wanted == 2 for own in reading.found.values()),
    )
    writers = found.found["orders"].workload.writers
    assert any(writer.subresource == "scale" for writer in writers)
    assert {writer.manager for writer in writers} == {"kubectl"}


async def test_cpu_and_memory_of_pods_are_read(world: Any) -> None:
    """From metrics-server, with the simulated usage of the pods."""
    measured = deployment("orders", 1, cpu="250m", memory="64Mi")
    world.cluster.apply(measured, namespace=world.namespace)

    async def read() -> WorkloadsReading:
        ref = WorkloadRef(kind="Deployment", name="orders")
        return await world.reader.read(world.namespace, [ref], usage=True)

    await until(read, lambda reading: _ready(reading) == 1)

    def measures(reading: WorkloadsReading) -> bool:
        world.reader._usage._cached.clear()  # else it is requested every 15 s only
        return bool(reading.usage.by_pod)

    found = await until(read, measures)
    (usage,) = found.usage.by_pod.values()
    assert usage.cpu_cores == pytest.approx(0.25, rel=0.3)
    assert usage.memory_bytes == 64 * 2**20


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    """A cluster whose API server a test may stop."""
    with KubernetesCluster(tmp_path_factory.mktemp("own") / "cluster") as running:
        yield running


def _compact(cluster: KubernetesCluster) -> None:
    """Let etcd forget all earlier versions, as it does by itself every few minutes."""
    url = f"http://127.0.0.1:{cluster._layout.etcd_port}/v3/kv"
    with httpx.Client(trust_env=False) as client:
        for _ in range(50):  # changes between the last version that the watches have seen and now
            client.post(f"{url}/put", json={"key": "d2Vpcg==", "value": "d2Vpcg=="}).raise_for_status()
        revision = client.post(f"{url}/range", json={"key": "d2Vpcg=="}).json()["header"]["revision"]
        client.post(f"{url}/compaction", json={"revision": revision, "physical": True}).raise_for_status()


class TestAlone:
    """Beside other tests an API server may take longer to start than the story allows: tests/conftest.py runs it after them."""

    async def test_watches_survive_a_restart_of_the_api_server_and_expired_versions(
        self, own_cluster: KubernetesCluster
    ) -> None:
        """Readings say meanwhile that they may be out of date; afterwards they follow changes, after one list each."""
        cluster, namespace = own_cluster, "default"
        access = cluster.identity("monitor", READS)
        reader = _reader(access)
        try:
            cluster.apply(deployment("orders", 1))

            async def read() -> WorkloadsReading:
                return await _read_orders(reader, namespace)

            await until(read, lambda reading: _ready(reading) == 1)
            cluster.api_server.kill()
            away = await until(read, lambda reading: "cannot be reached" in reading.failure)
            assert _ready(away) == 1
            await asyncio.to_thread(_compact, cluster)
            await asyncio.to_thread(cluster.start_api_server)
            await until(read, lambda reading: not reading.failure)
            cluster.kubectl("scale", "deployment/orders", "--replicas=2")
            await until(read, lambda reading: _ready(reading) == 2)
            lists = [event.resource for event in cluster.audit(access.user) if event.verb == "list"]
            assert 2 <= lists.count("pods") <= 4
            assert 2 <= lists.count("deployments") <= 4
        finally:
            await reader.close()


def _policy(namespace: str, name: str) -> ScalingPolicy:
    return parse_policy(
        {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {
                "target": {"kubernetes": {"kind": "Deployment", "name": name}},
                "objective": {"utilization": 0.7},
                "mode": "advise",
            },
        }
    )


async def test_200_workloads_at_rest_cost_few_requests(cluster: KubernetesCluster, namespace: str) -> None:
    """At most 20 a minute in all, counted from the API server's audit log; each is observed every second."""
    names = [f"orders-{i:03}" for i in range(200)]
    cluster.apply(*(deployment(name, 1 if i < 20 else 0) for i, name in enumerate(names)), namespace=namespace)
    access = cluster.identity("monitor", READS, namespace=namespace)
    api = KubernetesApi(Access.of(access.url, access.ca_file, access.token_file))
    clock = SystemClock()
    engines = Engines(Resources(clock, 2.0, namespaces=frozenset({namespace}), kubernetes=api))
    collectors = Collectors(engines)
    policies = [_policy(namespace, name) for name in names]
    own = [collectors.new(policy) for policy in policies]
    try:

        async def observe_all() -> int:
            readings = await asyncio.gather(*(each.read(p) for each, p in zip(own, policies, strict=True)))
            observations = [observe(each, clock.now()) for each in readings]
            assert {each.deployment is not None for each in observations} == {True}
            return sum(1 for each in observations if each.status == "running")

        async with asyncio.timeout(120):
            while await observe_all() < 20:  # noqa: ASYNC110 - a condition of the cluster
                await asyncio.sleep(0.2)
        await asyncio.sleep(SETTLE_SECONDS)
        before = len(cluster.audit(access.user))
        with suppress(TimeoutError):
            async with asyncio.timeout(REST_SECONDS):
                while True:
                    assert await observe_all() == 20
                    await asyncio.sleep(1.0)
        calls = cluster.audit(access.user)[before:]
        assert len(calls) * 60 / REST_SECONDS <= MAX_CALLS_PER_MINUTE, calls
        assert sorted({(call.verb, call.resource) for call in cluster.audit(access.user) if call.verb == "watch"}) == [
            ("watch", "deployments"),
            ("watch", "pods"),
        ]
    finally:
        await asyncio.gather(*(each.close() for each in own))
        await engines.close()
