"""The kubernetes driver against an API server: its suite, refusals, and who may do what."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest

from testbed.kubernetes import KubernetesCluster
from testbed.kubernetes_access import Access
from tests.kubernetes.rigs import DEADLINE_SECONDS, RULES, ApiRig, Elsewhere, GroupApiRig
from tests.kubernetes.workers import WorkerController, define, definition
from tests.kubernetes.workloads import deployment
from tests.unit.engines.driver_suite import OPEN
from tests.unit.engines.kubernetes.driver_suite import ServiceSuite
from tests.unit.engines.kubernetes.group_pods_suite import GroupPodsSuite
from tests.unit.engines.kubernetes.rig import service_subject
from tests.unit.engines.restart_suite import RestartSuite, letting
from weir_engines.driver import Accepted, Refusal, Rejected, Snapshot, TargetChanged


@pytest.fixture(scope="module")
def shop(cluster: KubernetesCluster) -> Iterator[str]:
    """A namespace of this module, in which the kind Worker exists."""
    define(cluster, definition())
    name = f"shop-{uuid4().hex[:8]}"
    cluster.create_namespace(name)
    yield name
    cluster.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="module")
def access(cluster: KubernetesCluster, shop: str) -> Access:
    """The executor's rights, and no others."""
    return cluster.identity("weir-executor", RULES, namespace=shop)


class TestServices(ServiceSuite):
    @pytest.fixture(params=["Deployment", "StatefulSet", "Worker"])
    async def rig(
        self, request: pytest.FixtureRequest, cluster: KubernetesCluster, shop: str, access: Access
    ) -> AsyncIterator[ApiRig]:
        rig = ApiRig(cluster, access, shop, request.param)
        controller = WorkerController(cluster, shop) if request.param == "Worker" else None
        yield await rig.begin()
        await rig.driver.close()
        if controller is not None:
            await controller.close()


class TestConsumerGroup(GroupPodsSuite, RestartSuite):
    @pytest.fixture(params=["Deployment", "StatefulSet"])
    async def rig(
        self, request: pytest.FixtureRequest, cluster: KubernetesCluster, shop: str, access: Access
    ) -> AsyncIterator[GroupApiRig]:
        rig = GroupApiRig(cluster, access, shop, request.param)
        await rig.begin()
        yield rig
        await rig.driver.close()


class TestSeveralWorkloads(ServiceSuite):
    @pytest.fixture
    async def rig(self, cluster: KubernetesCluster, shop: str, access: Access) -> AsyncIterator[ApiRig]:
        rig = ApiRig(cluster, access, shop, "Deployment", workloads=3)
        yield await rig.begin()
        await rig.driver.close()


@pytest.fixture
async def rig(cluster: KubernetesCluster, shop: str, access: Access) -> AsyncIterator[ApiRig]:
    rig = ApiRig(cluster, access, shop, "Deployment")
    yield await rig.begin()
    await rig.driver.close()


async def test_the_write_is_named_and_conditional(rig: ApiRig) -> None:
    """Its manager is weir; the second of two writes for one version is refused by the API server."""
    read = await rig.driver._workloads_api.read(rig.namespace, rig.subject.target.kubernetes.refs)  # type: ignore[union-attr]
    assert isinstance(await rig.ask(rig.wanted), Accepted)
    managed = rig.kubectl("get", "deployment", rig.names[0], "--show-managed-fields", "-o", "json")
    assert '"manager": "weir"' in managed and '"subresource": "scale"' in managed
    with pytest.raises(Exception, match="409"):
        await rig.driver._workloads_api.scale(read[rig.names[0]], 9)
    assert [code for _, code in rig.writes()][-2:] == [200, 409]


async def test_a_write_that_comes_second_is_decided_again(rig: ApiRig) -> None:
    """A person changes the object between reading and writing: nothing of it is overwritten."""

    class Meanwhile:
        async def begin(self) -> None:
            await asyncio.to_thread(rig.kubectl, "annotate", "deployment", rig.names[0], "touched=yes")

        async def go_on(self) -> None:
            return None

    answer = await rig.ask(rig.wanted, Meanwhile())
    assert isinstance(answer, TargetChanged) and rig.names[0] in answer.reason, answer
    assert isinstance(await rig.ask(rig.wanted), Accepted)
    *refused, accepted = [code for _, code in rig.writes()]
    assert accepted == 200 and set(refused) == {409}


async def test_the_youngest_pods_go_first(rig: ApiRig) -> None:
    """The first two stay."""
    await rig.until(lambda s: s.runs(rig.before))
    first = {pod.name for pod in (await rig.driver.observe(rig.subject)).deployment.pods}  # type: ignore[union-attr]
    await asyncio.sleep(1.1)  # start times are in seconds
    assert isinstance(await rig.ask(rig.wanted), Accepted)
    found = await rig.until(lambda s: s.runs(rig.wanted) and s.deployment is not None and s.deployment.replicas == 4)
    assert isinstance(await rig.ask(rig.before), Accepted)
    found = await rig.until(lambda s: s.runs(rig.before) and s.deployment is not None and s.deployment.replicas == 2)
    assert found.deployment is not None and {pod.name for pod in found.deployment.pods} == first


async def _refusal(rig: ApiRig, code: str) -> str:
    found = await rig.until(lambda s: s.refusal is not None and s.refusal.code == code)
    assert found.refusal is not None and len(found.refusal.sentence) <= 160
    return found.refusal.sentence


async def test_a_rollout_is_waited_for(rig: ApiRig) -> None:
    """Another image, whose pods never become ready."""
    behaviour = {"testbed.weir.dev/behaviour": "never-ready"}
    patch = {"spec": {"template": {"metadata": {"annotations": behaviour}}}}
    rig.kubectl("patch", "deployment", rig.names[0], "--type=merge", "-p", json.dumps(patch))
    assert "rolling out" in await _refusal(rig, "rollout")


async def test_a_paused_workload_is_refused(rig: ApiRig) -> None:
    """`kubectl rollout pause`."""
    rig.kubectl("rollout", "pause", f"deployment/{rig.names[0]}")
    assert "paused" in await _refusal(rig, "paused-workload")


async def test_another_autoscaler_is_refused(rig: ApiRig) -> None:
    """An HPA with the same target, and one with another."""
    another = deployment("another", 1)
    await asyncio.to_thread(lambda: rig.cluster.apply(another, namespace=rig.namespace))
    rig.kubectl("autoscale", "deployment", "another", "--min=1", "--max=9")
    assert (await rig.driver.observe(rig.subject)).refusal is None
    rig.kubectl("autoscale", "deployment", rig.names[0], "--min=2", "--max=9")
    rig.driver._workloads._autoscalers.clear()  # type: ignore[union-attr]
    sentence = await _refusal(rig, "other-autoscaler")
    assert f"HorizontalPodAutoscaler {rig.names[0]}" in sentence


async def test_keda_is_another_autoscaler(rig: ApiRig) -> None:
    """A ScaledObject, before KEDA has made its HPA."""
    made: dict[str, Any] = definition("keda.sh")
    made["metadata"]["name"] = "scaledobjects.keda.sh"
    made["spec"]["names"] = {"plural": "scaledobjects", "singular": "scaledobject", "kind": "ScaledObject"}
    version = made["spec"]["versions"][0]
    version["name"], version["subresources"] = "v1alpha1", {}
    version["schema"]["openAPIV3Schema"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    await asyncio.to_thread(define, rig.cluster, made)
    target = {"scaleTargetRef": {"name": rig.names[0]}}
    scaled = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "lag"}, "spec": target}
    await asyncio.to_thread(lambda: rig.cluster.apply(scaled, namespace=rig.namespace))
    try:
        rig.driver._workloads._autoscalers.clear()  # type: ignore[union-attr]
        assert "ScaledObject lag" in await _refusal(rig, "other-autoscaler")
    finally:
        rig.kubectl("delete", "scaledobject", "lag")
        rig.kubectl("delete", "crd", "scaledobjects.keda.sh")


async def test_a_selector_that_matches_nothing(cluster: KubernetesCluster, shop: str, access: Access) -> None:
    """A custom resource whose status names foreign pods, or none."""
    rig = ApiRig(cluster, access, shop, "Worker")
    await asyncio.to_thread(rig.create)
    name = rig.names[0]
    assert "has no selector" in await _refusal(rig, "selector")
    status = '{"status": {"replicas": 2, "selector": "app=other"}}'
    rig.kubectl("patch", "workers.shop.example", name, "--subresource=status", "--type=merge", "-p", status)
    found = await rig.until(lambda s: s.refusal is not None and "owns none" in s.refusal.sentence)
    assert found.refusal is not None and found.refusal.code == "selector"
    await rig.driver.close()


async def test_kinds_that_cannot_be_scaled(cluster: KubernetesCluster, shop: str, access: Access) -> None:
    """No such kind, a kind without scale, and two kinds of one name: each is named."""
    driver = Elsewhere(access, shop)
    try:
        for kind, text in (("Nothing", "no kind Nothing"), ("ConfigMap", "no scale subresource")):
            subject = service_subject(kind, "orders", namespace=shop)
            found = await driver.observe(subject)
            assert found.refusal is not None and text in found.refusal.sentence and not found.reachable
            assert found.refusal.code == "unsupported"
            answer = await driver.request(subject, "x", {"orders": 3}, {"orders": 2}, OPEN)
            assert isinstance(answer, Rejected) and text in answer.reason
    finally:
        await driver.close()
    await asyncio.to_thread(define, cluster, definition("other.example"))
    driver = Elsewhere(access, shop)
    try:
        found = await driver.observe(service_subject("Worker", "orders", namespace=shop))
        assert found.refusal is not None and "ambiguous" in found.refusal.sentence
        named = await driver.observe(service_subject("Worker", "orders", namespace=shop, apiVersion="shop.example/v1"))
        assert named.refusal is None and named.reachable
    finally:
        await driver.close()
        await asyncio.to_thread(cluster.kubectl, "delete", "crd", "workers.other.example")


async def test_a_definition_older_than_the_policy(cluster: KubernetesCluster, shop: str) -> None:
    """It has no scale subresource yet, nor the version that the policy names: each is named, until it is updated."""
    old, new = definition("old.example", scalable=False), definition("old.example")
    new["spec"]["versions"].append({**new["spec"]["versions"][0], "name": "v2", "storage": False})
    subjects = {
        version: service_subject("Worker", "orders", namespace=shop, apiVersion=f"old.example/{version}")
        for version in ("v1", "v2")
    }

    rights = [*RULES, {"apiGroups": ["old.example"], "resources": ["workers"], "verbs": ["get"]}]
    access = await asyncio.to_thread(lambda: cluster.identity("old-executor", rights, namespace=shop))

    async def found(version: str) -> Snapshot:
        driver = Elsewhere(access, shop)  # the kinds that another one has found are used for a minute
        try:
            return await driver.observe(subjects[version])
        finally:
            await driver.close()

    await asyncio.to_thread(define, cluster, old)
    try:
        for version, text in (("v1", "no scale subresource"), ("v2", "no kind Worker of old.example/v2")):
            before = await found(version)
            assert before.refusal is not None and before.refusal.code == "unsupported"
            assert text in before.refusal.sentence and not before.reachable
        await asyncio.to_thread(define, cluster, new)
        async with asyncio.timeout(DEADLINE_SECONDS):
            # The API server serves a version some moments after it has accepted it.
            while any([(await found(version)).refusal for version in subjects]):  # noqa: ASYNC110 - no event signals it
                await asyncio.sleep(0.2)
    finally:
        await asyncio.to_thread(cluster.kubectl, "delete", "crd", old["metadata"]["name"])


@pytest.mark.parametrize(
    ("taken", "resource", "text"),
    [
        ("get", "deployments", "may not get deployments"),
        ("list", "pods", "may not list pods in namespace"),
        ("watch", "pods", "may not watch pods in namespace"),
        ("list", "horizontalpodautoscalers", "may not list horizontalpodautoscalers in namespace"),
    ],
)
async def test_a_missing_right_is_named(
    cluster: KubernetesCluster, rig: ApiRig, taken: str, resource: str, text: str
) -> None:
    """With verb, resource and namespace."""
    rules = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if resource not in rule["resources"] or verb != taken]}
        for rule in RULES
    ]
    name = f"less-{uuid4().hex[:6]}"
    less = await asyncio.to_thread(
        lambda: cluster.identity(name, [rule for rule in rules if rule["verbs"]], namespace=rig.namespace)
    )
    rig.driver, complete = Elsewhere(less, rig.namespace), rig.driver
    try:
        sentence = await _refusal(rig, "forbidden")
        assert text in sentence and rig.namespace in sentence
    finally:
        await rig.driver.close()
        rig.driver = complete


async def test_without_the_right_to_scale_nothing_changes(cluster: KubernetesCluster, rig: ApiRig) -> None:
    """A final refusal that names the right; the annotation is optional."""
    readers = [{**rule, "verbs": [v for v in rule["verbs"] if v in ("get", "list", "watch")]} for rule in RULES]
    name = f"reader-{uuid4().hex[:6]}"
    reader = await asyncio.to_thread(
        lambda: cluster.identity(name, [r for r in readers if r["verbs"]], namespace=rig.namespace)
    )
    driver = Elsewhere(reader, rig.namespace)
    try:
        answer = await driver.request(rig.subject, rig.job_id, dict.fromkeys(rig.names, 1), rig.before, OPEN)
        assert isinstance(answer, Rejected)
        assert f"may not update deployments/scale of {rig.names[0]} in namespace {rig.namespace}" in answer.reason
    finally:
        await driver.close()
    assert (await rig.until(lambda s: s.runs(rig.before))).reachable


@pytest.fixture
async def instances(cluster: KubernetesCluster, shop: str, access: Access) -> AsyncIterator[GroupApiRig]:
    rig = GroupApiRig(cluster, access, shop, "StatefulSet")
    await rig.begin()
    yield rig
    await rig.driver.close()


async def test_a_disruption_budget_keeps_the_pod(instances: GroupApiRig) -> None:
    """The eviction is refused with the reason, and carried out once the budget is deleted."""
    (name,) = instances.names
    found, instance = await RestartSuite.settled(instances)
    arguments = "create", "poddisruptionbudget", name, f"--selector=app={name}", "--min-available=2"
    await asyncio.to_thread(instances.kubectl, *arguments)
    answer = await RestartSuite.ask(instances, instance, uuid4(), found)
    assert isinstance(answer, Rejected) and "disruption budget" in answer.reason
    assert not (await instances.driver.observe(instances.subject)).is_replaced(instance)
    await asyncio.to_thread(instances.kubectl, "delete", "poddisruptionbudget", name)
    assert isinstance(await RestartSuite.ask(instances, instance, uuid4(), found), Accepted)


async def test_without_the_component_no_pod_is_evicted(cluster: KubernetesCluster, instances: GroupApiRig) -> None:
    """The right is opt-in: the refusal names it."""
    found, instance = await RestartSuite.settled(instances)
    without = [rule for rule in RULES if rule["resources"] != ["pods/eviction"]]
    user = f"without-{uuid4().hex[:6]}"
    less = await asyncio.to_thread(lambda: cluster.identity(user, without, namespace=instances.namespace))
    driver = Elsewhere(less, instances.namespace, groups=instances.group)
    try:
        answer = await driver.restart(letting(instances.subject), instances.job_id, instance, uuid4(), OPEN)
    finally:
        await driver.close()
    assert isinstance(answer, Rejected)
    assert f"may not create pods/eviction of {instance.id} in namespace {instances.namespace}" in answer.reason
    assert found.instance_of(instance.members) is not None


async def test_a_namespace_must_be_listed(rig: ApiRig) -> None:
    """No request is sent for another one."""
    subject = service_subject("Deployment", rig.names[0], namespace="payroll")
    answer = await rig.driver.request(subject, rig.job_id, rig.wanted, rig.before, OPEN)
    assert isinstance(answer, Refusal) and answer.code == "namespace-forbidden"
