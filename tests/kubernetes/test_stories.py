"""An executor whose application is a Deployment of a real API server: outages, other writers, quotas and kills."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from testbed.kubernetes import KubernetesCluster
from testbed.kubernetes_access import Access
from tests.kubernetes.rigs import RULES as RIGHTS
from tests.kubernetes.rigs import ApiRig, Elsewhere
from tests.kubernetes.story import RULES, Story
from tests.kubernetes.workloads import deployment, limit_pods
from tests.unit.engines.kubernetes.rig import kubernetes_policy
from weir_contracts import Plan
from weir_executor.core.parameters import Rules


class Shop(Story):
    """A Deployment of two pods."""

    def __init__(
        self,
        cluster: KubernetesCluster,
        access: Access,
        namespace: str,
        rules: Rules = RULES,
        *,
        kind: str = "Deployment",
    ) -> None:
        self.rig = ApiRig(cluster, access, namespace, kind)
        self.name = self.rig.names[0]
        self.cluster, self.access = cluster, access
        policy = kubernetes_policy({"kind": kind, "name": self.name, "namespace": namespace})
        super().__init__("kubernetes", self._driver, policy, namespace, rules)

    def _driver(self) -> Elsewhere:
        return Elsewhere(self.access, self.namespace, timeout_seconds=2.0)

    async def begin(self, **behaviour: str) -> None:
        await self.rig.begin(**behaviour)
        await self.publish_policy()
        self.start()

    async def end(self) -> None:
        await self.stop()
        await self.rig.driver.close()

    async def wants(self, replicas: int) -> Plan:
        """Publish a plan for the workload as it is now."""
        return await self.publish_plan(self.rig.driver, {self.name: replicas})

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments)

    def replicas(self) -> int:
        return int(self.kubectl("get", self.rig.kind, self.name, "-o", "jsonpath={.spec.replicas}"))

    def writes(self) -> int:
        """Return the number of accepted writes by Weir."""
        return self.rig.written()

    def changes(self) -> int:
        """Return how often the specification of the workload has changed, by its generation."""
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{self.name}"
        return int(self.cluster.request("GET", path)["metadata"]["generation"]) - 1


@pytest.fixture
async def shop(cluster: KubernetesCluster, namespace: str) -> AsyncIterator[Shop]:
    access = await asyncio.to_thread(lambda: cluster.identity("weir-executor", RIGHTS, namespace=namespace))
    made = Shop(cluster, access, namespace)
    await made.begin()
    yield made
    await made.end()


async def test_out_and_in(shop: Shop) -> None:
    """Both verified, each written once."""
    out = await shop.until_ended(await shop.wants(5))
    assert (out.phase, out.observed) == ("verified", {shop.name: 5})
    into = await shop.until_ended(await shop.wants(1))
    assert (into.phase, into.observed, shop.replicas()) == ("verified", {shop.name: 1}, 1)
    assert shop.writes() == 2


async def test_pods_that_start_one_after_another_have_the_time_of_each(
    cluster: KubernetesCluster, namespace: str
) -> None:
    """Four pods of a StatefulSet, 6 s each: longer than the time of one start, 18 s, and verified."""
    access = await asyncio.to_thread(lambda: cluster.identity("weir-executor", RIGHTS, namespace=namespace))
    rules = RULES.model_copy(update={"container_start_seconds": 8.0})
    shop = Shop(cluster, access, namespace, rules, kind="StatefulSet")
    await shop.begin(ready_after="6s")
    ended = await shop.until_ended(await shop.wants(6), seconds=150.0)
    assert (ended.phase, ended.observed) == ("verified", {shop.name: 6}), ended.sentence
    assert ended.action is not None and (ended.action.restart_seconds or 0.0) > 18.0
    await shop.end()


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
async def test_a_quota_denies_two_of_five_pods(cluster: KubernetesCluster, namespace: str, kind: str) -> None:
    """Reported with its reason once, and rolled back after the deadline."""
    access = await asyncio.to_thread(lambda: cluster.identity("weir-executor", RIGHTS, namespace=namespace))
    shop = Shop(cluster, access, namespace, kind=kind)
    await shop.begin()
    await asyncio.to_thread(limit_pods, cluster, namespace, 3)
    ended = await shop.until_ended(await shop.wants(5))
    assert (ended.phase, shop.replicas()) == ("rolled-back", 2)
    reported = [outcome for outcome in shop.published() if outcome.code == "quota"]
    assert len(reported) == 1 and "2 of 5 pods" in reported[0].sentence and "few" in reported[0].sentence
    assert any(o.phase == "rolling-back" and "denied by a quota" in o.sentence for o in shop.published())
    await shop.end()


@pytest.mark.parametrize(
    ("behaviour", "code", "text"),
    [
        ("crash-loop", "pods-crashing", "crash"),
        ("out-of-memory", "out-of-memory", "exceeded their memory limit"),
        ("image-missing", "image", "have no image"),
    ],
)
async def test_pods_that_do_not_run(
    cluster: KubernetesCluster, namespace: str, behaviour: str, code: str, text: str
) -> None:
    """The reason is reported, and named again by the rollback."""
    access = await asyncio.to_thread(lambda: cluster.identity("weir-executor", RIGHTS, namespace=namespace))
    shop = Shop(cluster, access, namespace, kind="StatefulSet")
    await shop.begin()
    template = {"metadata": {"annotations": {"testbed.weir.dev/behaviour": behaviour}}}
    # Existing pods stay as they are, new ones are of this version.
    spec = {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}, "template": template}
    await asyncio.to_thread(
        shop.kubectl, "patch", "statefulset", shop.name, "--type=merge", "-p", json.dumps({"spec": spec})
    )
    await shop.rig.until(lambda s: s.runs(shop.rig.before) and s.refusal is None)
    ended = await shop.until_ended(await shop.wants(3))
    assert (ended.phase, shop.replicas()) == ("rolled-back", 2)
    assert code in [outcome.code for outcome in shop.published() if outcome.phase == "verifying"]
    assert any(
        o.phase == "rolling-back" and f"1 of 3 pods of {shop.name} {text}" in o.sentence for o in shop.published()
    )
    await shop.end()


async def test_a_person_scales_meanwhile(shop: Shop) -> None:
    """`kubectl scale` between request and verification: the action ends, and the next plan is held."""
    made = await shop.wants(4)
    await shop.until_phase("verifying")
    await asyncio.to_thread(shop.kubectl, "scale", "deployment", shop.name, "--replicas=3")
    ended = await shop.until_ended(made)
    assert (ended.phase, ended.code) == ("failed", "contested")
    assert ended.sentence.startswith("kubectl set the requirements")
    await shop.rig.until(lambda s: s.runs({shop.name: 3}))
    held = await shop.until_ended(await shop.wants(5))
    assert (held.phase, held.code, shop.replicas(), shop.writes()) == ("refused", "contested", 3, 1)
    assert "kubectl" in held.sentence


async def test_a_gitops_tool_writes_back(shop: Shop) -> None:
    """Every second, by server-side apply: Weir writes once, reports it once, and holds."""
    ended = asyncio.Event()

    async def tool() -> None:
        text = json.dumps(deployment(shop.name, 2))
        apply = ("apply", "--server-side", "--force-conflicts", "--field-manager=argocd", "-f", "-")
        while not ended.is_set():
            await asyncio.to_thread(lambda: shop.cluster.kubectl("-n", shop.namespace, *apply, stdin=text))
            await asyncio.sleep(1.0)

    made = await shop.wants(4)
    await shop.until_phase("verifying")
    writer = asyncio.create_task(tool())
    try:
        first = await shop.until_ended(made)
        assert (first.phase, first.code) == ("failed", "contested") and first.sentence.startswith("argocd")
        for _ in range(3):
            await shop.rig.until(lambda s: s.runs(shop.rig.before))
            held = await shop.until_ended(await shop.wants(4))
            assert (held.phase, held.code) == ("refused", "contested") and "argocd" in held.sentence
    finally:
        ended.set()
        await writer
    assert (shop.replicas(), shop.writes()) == (2, 1)
    assert [o.phase for o in shop.published() if o.code == "contested"] == ["failed", "refused", "refused", "refused"]


async def test_a_workload_that_is_created_again(shop: Shop) -> None:
    """Another uid is another deployment: the action ends, and the next plan is welcome."""
    made = await shop.wants(4)
    await shop.until_phase("verifying")
    await asyncio.to_thread(shop.kubectl, "delete", "deployment", shop.name, "--cascade=foreground")
    await asyncio.to_thread(shop.rig.create)
    ended = await shop.until_ended(made)
    assert (ended.phase, ended.code) == ("failed", "job-gone"), ended.sentence
    await shop.rig.until(lambda s: s.runs(shop.rig.before) and s.refusal is None)
    assert (await shop.until_ended(await shop.wants(3))).phase == "verified"


async def test_a_token_that_expires_in_mid_action(cluster: KubernetesCluster, namespace: str, tmp_path: Path) -> None:
    """The action waits until the file holds a valid one, and goes on."""
    issued = await asyncio.to_thread(lambda: cluster.identity("weir-executor", RIGHTS, namespace=namespace))
    token = tmp_path / "token"
    token.write_text(issued.token)
    shop = Shop(cluster, replace(issued, token_file=token), namespace)
    await shop.begin(ready_after="6s")
    made = await shop.wants(4)
    await shop.until_phase("verifying")
    token.write_text("expired")
    found = await shop.rig.driver.observe(shop.policy.subject)
    assert not found.reachable and "(401): the API server does not accept the token" in found.reason
    await asyncio.sleep(8.0)  # longer than the pods need
    assert shop.phases()[-1] == "verifying"
    token.write_text(issued.token)
    assert (await shop.until_ended(made)).phase == "verified"
    await shop.end()


@pytest.mark.parametrize("phase", ["intended", "applying", "verifying", "rolling-back"])
async def test_an_executor_is_killed(cluster: KubernetesCluster, namespace: str, phase: str) -> None:
    """Another one ends the action: nothing is written twice."""
    access = await asyncio.to_thread(lambda: cluster.identity("weir-executor", RIGHTS, namespace=namespace))
    shop = Shop(cluster, access, namespace)
    await shop.begin()
    wanted = 4
    if phase == "rolling-back":
        wanted = 5
        await asyncio.to_thread(limit_pods, cluster, namespace, 3)
    made = await shop.wants(wanted)
    await shop.until_phase(phase)
    await shop.kill()
    shop.start()
    ended = await shop.until_ended(made, seconds=90.0)
    rolled_back = phase == "rolling-back"
    # An intent that was taken over may have expired meanwhile.
    assert ended.phase == ("rolled-back" if rolled_back else "verified"), ended.sentence
    assert (shop.replicas(), shop.changes()) == ((2, 2) if rolled_back else (4, 1))
    # A write whose client is killed may take effect and be logged as cancelled (504).
    assert shop.writes() <= shop.changes()
    await shop.end()


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A cluster whose API server the tests stop."""
    with KubernetesCluster(tmp_path_factory.mktemp("kubernetes-own") / "cluster") as running:
        yield running


class TestAlone:
    """Beside other tests an API server may take longer to start than the story allows: tests/conftest.py runs it after them."""

    @pytest.mark.parametrize(("seconds", "phase"), [(8.0, "verified"), (None, "failed")])
    async def test_the_api_server_is_away(
        self, own_cluster: KubernetesCluster, seconds: float | None, phase: str
    ) -> None:
        """Killed in mid-action and started again: the action goes on; away for longer than it waits: it ends, with the
        reason."""
        namespace = f"shop-{uuid4().hex[:8]}"
        await asyncio.to_thread(own_cluster.create_namespace, namespace)
        access = await asyncio.to_thread(lambda: own_cluster.identity("weir-executor", RIGHTS, namespace=namespace))
        # Controllers and simulated nodes need a while to find the API server again.
        rules = RULES.model_copy(
            update={"deadline_floor_seconds": 120.0, **({} if seconds else {"unobserved_limit_seconds": 5.0})}
        )
        shop = Shop(own_cluster, access, namespace, rules)
        await shop.begin(ready_after="4s")
        made = await shop.wants(4)
        await shop.until_phase("verifying")
        await asyncio.to_thread(own_cluster.api_server.kill)
        if seconds is not None:
            await asyncio.sleep(seconds)
            assert shop.phases()[-1] == "verifying"
            await asyncio.to_thread(own_cluster.start_api_server)
        ended = await shop.until_ended(made, seconds=150.0)
        assert ended.phase == phase, ended.sentence
        if seconds is None:
            assert ended.code == "unreachable" and "cannot be reached" in ended.sentence
            await asyncio.to_thread(own_cluster.start_api_server)
        await shop.rig.until(lambda s: s.runs({shop.name: 4}) and s.refusal is None, seconds=150.0)
        assert (await shop.until_ended(await shop.wants(3), seconds=150.0)).phase == "verified"
        await shop.end()
