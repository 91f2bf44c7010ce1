"""Resources of the Flink Kubernetes Operator on an API server with its released definitions: the driver's suite, the monitor's
reader, and an executor's stories. A small reconciler stands for the operator."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest

from testbed.jars import flink_operator_definitions
from testbed.kubernetes import KubernetesCluster
from testbed.kubernetes_access import Access
from testbed.process import TestbedError
from tests.kubernetes.flink_operator import KINDS, RULES, ApiRig
from tests.kubernetes.rigs import api
from tests.kubernetes.story import APP, Story
from tests.kubernetes.workers import define
from tests.unit.engines.flink_operator.driver_suite import OperatorSuite, RestartSuite
from tests.unit.engines.flink_operator.rig import DEFAULT_SCHEDULER, STANDALONE, deployment_spec
from tests.unit.executor.builders import WANTED
from weir_contracts import Parallelism, Plan, policy_of
from weir_engines.driver import Accepted, TargetChanged
from weir_engines.flink_operator.collector import ResourceReader
from weir_engines.flink_operator.resource import FLINK_DEPLOYMENT
from weir_engines.flink_operator.spec import OVERRIDES


@pytest.fixture(scope="module")
def definitions() -> list[dict[str, Any]]:
    """The operator's, from its release."""
    try:
        return flink_operator_definitions()
    except TestbedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def shop(cluster: KubernetesCluster, definitions: list[dict[str, Any]]) -> Iterator[str]:
    """A namespace of this module, in which the operator's kinds exist."""
    define(cluster, *definitions)
    name = f"shop-{uuid4().hex[:8]}"
    cluster.create_namespace(name)
    yield name
    cluster.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="module")
def access(cluster: KubernetesCluster, shop: str) -> Access:
    """The executor's rights, and no others."""
    return cluster.identity("weir-executor", RULES, namespace=shop)


def _name() -> str:
    return f"orders-{uuid4().hex[:8]}"


class TestInPlace(OperatorSuite):
    @pytest.fixture
    async def rig(self, cluster: KubernetesCluster, shop: str, access: Access) -> AsyncIterator[ApiRig]:
        rig = ApiRig(cluster, access, shop, _name())
        yield await rig.begin()
        await rig.close()


class TestRestarted(RestartSuite):
    @pytest.fixture
    async def rig(self, cluster: KubernetesCluster, shop: str, access: Access) -> AsyncIterator[ApiRig]:
        rig = ApiRig(cluster, access, shop, _name(), spec=deployment_spec(**DEFAULT_SCHEDULER), scheduler="default")
        yield await rig.begin()
        await rig.close()


@pytest.fixture
async def rig(cluster: KubernetesCluster, shop: str, access: Access) -> AsyncIterator[ApiRig]:
    rig = ApiRig(cluster, access, shop, _name())
    yield await rig.begin()
    await rig.close()


async def test_the_write_is_named_conditional_and_no_more_than_the_parallelism(
    cluster: KubernetesCluster, shop: str, access: Access
) -> None:
    """Its manager is weir; of two writes for one version the second is refused; the rest of the spec stays as it was."""
    rig = await ApiRig(cluster, access, shop, _name(), spec=deployment_spec(**STANDALONE)).begin()
    before = await asyncio.to_thread(rig.document)
    assert isinstance(await rig.ask(rig.wanted), Accepted)
    after = await asyncio.to_thread(rig.document)
    expected = json.loads(json.dumps(before["spec"]))
    expected["flinkConfiguration"][OVERRIDES] = "v1:1,v2:4,v3:2"
    expected["taskManager"]["replicas"] = 2
    assert after["spec"] == expected
    managed = await asyncio.to_thread(
        rig.kubectl, "get", "flinkdeployment", rig.name, "--show-managed-fields", "-o", "json"
    )
    (own,) = (each for each in json.loads(managed)["metadata"]["managedFields"] if each["manager"] == "weir")
    assert own["fieldsV1"] == {
        "f:spec": {"f:flinkConfiguration": {f"f:{OVERRIDES}": {}}, "f:taskManager": {"f:replicas": {}}}
    }

    await rig.until(lambda s: s.runs(rig.wanted))
    await rig.until_lifecycle("STABLE")

    class Meanwhile:
        async def begin(self) -> None:
            await asyncio.to_thread(rig.kubectl, "annotate", "flinkdeployment", rig.name, "touched=yes")

        async def go_on(self) -> None:
            return None

    assert isinstance(await rig.ask(rig.before, Meanwhile()), TargetChanged)
    assert rig.writes()[-1] == 409
    await rig.close()


async def test_who_set_the_parallelism_is_known(rig: ApiRig) -> None:
    """By the API server's own record of the fields' managers."""
    await rig.ask(rig.wanted)
    await rig.driver.trigger_checkpoint(rig.subject, rig.job_id)
    await rig.until(lambda s: s.runs(rig.wanted))
    await rig.until_lifecycle("STABLE")
    found = await rig.driver.observe(rig.subject)
    assert found.writers == dict.fromkeys(rig.wanted, "")
    await asyncio.to_thread(lambda: rig.edit(flinkConfiguration={OVERRIDES: "v2:2"}))
    found = await rig.driver.observe(rig.subject)
    assert found.writers == dict.fromkeys(rig.wanted, "kubectl-patch in flinkConfiguration")
    await asyncio.to_thread(rig.create)  # a server-side apply of the manifest, which keeps what it does not have
    assert OVERRIDES in await asyncio.to_thread(rig.configuration)


async def test_both_sides_read_the_same(rig: ApiRig, cluster: KubernetesCluster, shop: str) -> None:
    """The monitor's watch, with the monitor's rights, and the executor's own reading."""
    access = await asyncio.to_thread(
        lambda: cluster.identity("weir-monitor", [{**KINDS, "verbs": ["list", "watch"]}], namespace=shop)
    )
    reader = ResourceReader(api(access))
    try:
        await rig.ask(rig.wanted)
        await rig.until_lifecycle("DEPLOYED")
        await rig.driver.trigger_checkpoint(rig.subject, rig.job_id)
        await rig.until_lifecycle("STABLE")
        async with asyncio.timeout(30):
            while True:
                found, stale = await reader.read(FLINK_DEPLOYMENT, shop, rig.name)
                if found is not None and found.lifecycle == "STABLE" and found.overrides:
                    break
                await asyncio.sleep(0.1)
        assert (stale, found.uid, found.changed_field) == ("", rig.job_id, "")
        assert found.overrides == {"v1": 1, "v2": 4, "v3": 2}
        assert await reader.read(FLINK_DEPLOYMENT, shop, "nobody") == (None, "")
    finally:
        await reader.close()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"job": {"state": "suspended"}}, "suspended"),
        ({"flinkVersion": "v1_17"}, "unsupported"),
        ({"flinkVersion": None}, "unsupported"),
        ({"flinkConfiguration": {"job.autoscaler.enabled": "true"}}, "contested"),
        ({"image": "example/orders:2"}, "upgrade"),
    ],
)
async def test_a_resource_that_takes_no_request(rig: ApiRig, changes: dict[str, Any], code: str) -> None:
    """A clear reason, and nothing is written."""
    await asyncio.to_thread(lambda: rig.edit(**changes))
    found = await rig.until(lambda s: s.refusal is not None)
    assert found.refusal is not None and found.refusal.code == code
    assert len(found.refusal.sentence) <= 160 and rig.writes() == []


async def test_a_failed_job(rig: ApiRig) -> None:
    """As the operator reports it."""
    rig.job.state = "FAILED"
    found = await rig.until(lambda s: s.refusal is not None)
    assert found.refusal is not None and found.refusal.code == "resource-failed"


class Shop(Story):
    """A FlinkDeployment."""

    def __init__(self, rig: ApiRig) -> None:
        self.rig = rig
        target = {"flinkDeployment": {"name": rig.name, "namespace": rig.namespace}}
        policy = policy_of(APP, version=3, objective={"maxLag": "30s"}, target=target, mode="act")
        super().__init__("flink-operator", rig.new_driver, policy, rig.namespace)

    async def begin(self) -> None:
        await self.publish_policy()
        self.start()

    async def end(self) -> None:
        await self.stop()
        await self.rig.close()

    async def wants(self, wanted: Parallelism = WANTED) -> Plan:
        """Publish a plan for the job as it is now."""
        return await self.publish_plan(self.rig.driver, wanted)


@pytest.fixture(params=["in place", "restarted"])
async def story(
    request: pytest.FixtureRequest, cluster: KubernetesCluster, shop: str, access: Access
) -> AsyncIterator[Shop]:
    options: dict[str, Any] = {}
    if request.param == "restarted":
        options = {"spec": deployment_spec(**DEFAULT_SCHEDULER), "scheduler": "default"}
    made = Shop(await ApiRig(cluster, access, shop, _name(), **options).begin())
    await made.begin()
    yield made
    await made.end()


async def test_the_executor_is_killed_between_write_and_verification(story: Shop) -> None:
    """Another one verifies what was written, and writes nothing."""
    made = await story.wants()
    await story.until_phase("verifying")
    await story.kill()
    story.start()
    ended = await story.until_ended(made)
    assert (ended.phase, ended.observed) == ("verified", WANTED), ended.sentence
    assert story.rig.writes().count(200) == 1


async def test_the_operator_upgrades_meanwhile(story: Shop) -> None:
    """The new version of the job runs with what Weir wrote."""
    made = await story.wants()
    await story.until_phase("verifying")
    await asyncio.to_thread(lambda: story.rig.edit(image="example/orders:2"))
    ended = await story.until_ended(made)
    assert (ended.phase, ended.observed) == ("verified", WANTED), ended.sentence
    await story.rig.until_lifecycle("STABLE")
    assert (await story.rig.until(lambda s: s.refusal is None)).runs(WANTED)


async def test_a_person_creates_the_resource_again(story: Shop) -> None:
    """Another deployment: the action ends, and nothing is written into it."""
    made = await story.wants()
    await story.until_phase("verifying")
    await asyncio.to_thread(story.rig.kubectl, "delete", "flinkdeployment", story.rig.name)
    await asyncio.to_thread(story.rig.create)
    ended = await story.until_ended(made)
    assert (ended.phase, ended.code) == ("failed", "job-gone"), ended.sentence
    assert OVERRIDES not in await asyncio.to_thread(story.rig.configuration)


@pytest.mark.parametrize("story", ["in place"], indirect=True)
async def test_drift_is_named_and_what_an_upgrade_drops_is_written_again(story: Shop) -> None:
    """A GitOps tool replaces the resource: alone it contests the parallelism, with a new version of the job it does not."""
    assert (await story.until_ended(await story.wants())).phase == "verified"
    await story.rig.until_lifecycle("STABLE")
    await story.executors[0][3].observe(story.policy.subject)
    await asyncio.to_thread(lambda: story.rig.replace(image="example/orders:2"))
    await story.rig.until_lifecycle("STABLE")
    ended = await story.until_ended(await story.wants())
    assert (ended.phase, story.rig.writes().count(200)) == ("verified", 2), ended.sentence
    await story.rig.until_lifecycle("STABLE")
    await story.executors[0][3].observe(story.policy.subject)
    await asyncio.to_thread(lambda: story.rig.replace(image="example/orders:2"))
    await story.rig.until_lifecycle("STABLE")
    held = await story.until_ended(await story.wants({**WANTED, "enrich": 3}))
    assert (held.phase, held.code) == ("refused", "contested") and "flinkConfiguration" in held.sentence
    assert story.rig.writes().count(200) == 2
