"""Two teams with rights in their own namespaces alone, on a real API server. Its audit log judges what Weir did for them."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from testbed.kubernetes import KubernetesCluster
from testbed.kubernetes_access import Access
from testbed.process import TestbedError
from tests.kubernetes.rigs import api
from tests.kubernetes.workers import define
from tests.kubernetes.workloads import deployment
from tests.unit.deploy.manifests import FOLDER, named
from tests.unit.engines.kubernetes.pod_groups import PodGroup, no_pods
from tests.unit.engines.memory_jobs import MemoryDriver
from tests.unit.executor.builders import plan
from tests.unit.knowledge.memory_store import MemoryStore
from tests.unit.knowledge.resources_suite import accepted, condition
from tests.unit.knowledge.test_api import Catalogue
from weir_contracts import Outcome, parse_policy
from weir_contracts.resource import document_of
from weir_contracts.topics import OUTCOMES, PLANS, POLICIES
from weir_engines.kubernetes.driver import KubernetesDriver
from weir_engines.kubernetes.scaling import ApiWorkloads
from weir_executor.core.rules import Rules
from weir_executor.knowledge import MemoryKnowledge
from weir_executor.service import Executor
from weir_knowledge.applications_api import summary_by_name
from weir_knowledge.policy_changes import PolicyChanges
from weir_knowledge.resource_policies import KubernetesResources, ResourcePolicies
from weir_runtime.clock import SystemClock
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.messages import encode
from weir_runtime.reach import TARGETS, Reach

DEFINITION = FOLDER / "components" / "policy-resources" / "scalingpolicies.json"
DEADLINE_SECONDS = 60.0
AUTHOR = [{"apiGroups": ["weir.dev"], "resources": ["scalingpolicies"], "verbs": ["get", "create", "patch"]}]
"""All that a team may do, in its own namespace."""
RULES = Rules(settle_seconds=1.0, deadline_floor_seconds=10.0, restart_estimate_seconds=1.0, capacity_watch_seconds=0)


@pytest.fixture(scope="module")
def defined(cluster: KubernetesCluster) -> Iterator[KubernetesCluster]:
    definition = json.loads(DEFINITION.read_text())
    define(cluster, definition)
    yield cluster
    cluster.kubectl("delete", "crd", definition["metadata"]["name"])


class Tenants:
    """Namespaces of two teams, with a Deployment of two pods in the second, and one of Weir's own accounts."""

    def __init__(self, cluster: KubernetesCluster, weir: str) -> None:
        self.cluster, self.weir = cluster, weir
        self.a, self.b = (f"team-{letter}-{weir.removeprefix('test-')}" for letter in "ab")
        for namespace in (self.a, self.b):
            cluster.create_namespace(namespace)
        self.authors = {each: cluster.identity("author", AUTHOR, namespace=each) for each in (self.a, self.b)}
        cluster.apply(deployment("orders", 2), namespace=self.b)

    def account(self, service: str, folder: str) -> Access:
        """Return one of Weir's accounts, with its Role of deploy/k8s in both namespaces."""
        access = self.cluster.identity(service, [], namespace=self.weir)
        role = named(folder, "Role", f"weir-{service}")
        binding = named(folder, "RoleBinding", f"weir-{service}")
        binding["subjects"] = [{"kind": "ServiceAccount", "name": service, "namespace": self.weir}]
        for namespace in (self.a, self.b):
            self.cluster.apply(role, binding, namespace=namespace)
        return access

    def apply(self, team: str, **target: str) -> None:
        """Apply a policy in a team's namespace as that team."""
        spec = {
            "target": {"kubernetes": {"kind": "Deployment", "name": "orders", **target}},
            "objective": {"utilization": 0.7},
            "mode": "act",
        }
        document = {"apiVersion": "weir.dev/v1alpha1", "kind": "ScalingPolicy", "metadata": {"name": "orders"}}
        self.cluster.apply({**document, "spec": spec}, namespace=team, access=self.authors[team])

    def status(self, namespace: str) -> dict[str, Any]:
        text = self.cluster.kubectl("-n", namespace, "get", "scalingpolicy", "orders", "-o", "json")
        found: dict[str, Any] = json.loads(text).get("status", {})
        return found

    def replicas(self) -> int:
        return int(self.cluster.kubectl("-n", self.b, "get", "deploy/orders", "-o", "jsonpath={.spec.replicas}"))

    def end(self) -> None:
        for namespace in (self.a, self.b):
            self.cluster.request("DELETE", f"/api/v1/namespaces/{namespace}")


class Weir:
    """The parts that follow resources and scale, with the accounts of an installation; the rest is in memory."""

    def __init__(self, tenants: Tenants, pairs: str) -> None:
        clock, self.store, self.tenants = SystemClock(), MemoryStore(), tenants
        self.resources = KubernetesResources(api(tenants.account("knowledge", "target/policies")))
        namespaces, self.reach = [tenants.a, tenants.b], Reach.of(TARGETS, "*", pairs)
        changes = PolicyChanges(self.store, clock, Catalogue(), lambda: None, self.reach, namespaces)
        summary = partial(summary_by_name, self.store, clock)
        self.policies = ResourcePolicies(self.resources, changes, lambda: True, summary)
        self.executor_access = tenants.account("executor", "target")
        workloads, groups = ApiWorkloads(api(self.executor_access)), PodGroup(clock, no_pods)
        self.driver = KubernetesDriver(clock, MemoryDriver(clock), workloads, namespaces, groups=groups)
        self.clock, self.bus, self.knowledge, self.stop = clock, MemoryBus(), MemoryKnowledge(), Stop()
        executor = Executor(
            self.bus,
            {"kubernetes": self.driver},
            self.knowledge,
            clock,
            RULES,
            attempt_id=uuid4(),
            reach=self.reach,
        )
        self.task = asyncio.create_task(executor.run(self.stop))

    async def until_accepted_is(self, namespace: str, status: str) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                await self.policies.check()
                found = await asyncio.to_thread(self.tenants.status, namespace)
                if accepted(found) == status:
                    return condition(found)
                await asyncio.sleep(0.2)

    async def carry_out(self, namespace: str, replicas: int) -> Outcome:
        """Publish the policy of a team and a plan for it, whatever knowledge says; return the outcome that ends it."""
        (resource,) = await self.resources.read(namespace)
        policy = parse_policy(document_of(resource))
        policy = policy.model_copy(update={"metadata": policy.metadata.model_copy(update={"version": 3})})
        application = policy.application
        self.knowledge.policies[application] = policy
        await self._publish(POLICIES, application, policy)
        found = await self.driver.observe(policy.subject)
        assert found.deployment is not None, found.reason
        made = plan(
            {"orders": replicas},
            at=self.clock.now(),
            id=uuid4(),
            application=application,
            policy_version=3,
            deployment=found.deployment.ref(),
            current=found.deployment.observed,
        )
        await self._publish(PLANS, application, made)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                outcomes = [Outcome.model_validate_json(r.value or b"") for r in self.bus.records(OUTCOMES.name)]
                if outcomes and outcomes[-1].terminal:
                    return outcomes[-1]
                await asyncio.sleep(0.1)

    async def _publish(self, topic: Any, key: str, message: Any) -> None:
        body, headers = encode(message, type=topic.type, source="test", id=uuid4(), time=self.clock.now())
        await self.bus.publish(topic.name, key, body, headers)

    def writes(self) -> set[tuple[str, str]]:
        """Namespaces and resources that the executor has changed, by the audit log."""
        events = self.tenants.cluster.audit(self.executor_access.user)
        return {(each.namespace, each.resource) for each in events if each.verb not in ("get", "list", "watch")}

    async def end(self) -> None:
        self.stop.request("the test is over")
        await self.task
        await self.driver.close()
        await self.resources.close()


@pytest.fixture
def tenants(defined: KubernetesCluster, namespace: str) -> Iterator[Tenants]:
    made = Tenants(defined, namespace)
    yield made
    made.end()


@pytest.fixture
async def weir(tenants: Tenants, request: pytest.FixtureRequest) -> AsyncIterator[Weir]:
    made = Weir(tenants, getattr(request, "param", "").format(a=tenants.a, b=tenants.b))
    yield made
    await made.end()


async def test_a_team_cannot_scale_another_teams_workload(tenants: Tenants, weir: Weir) -> None:
    """The resource says why, the other team's policy for it is in force, and the executor writes nothing even then."""
    with pytest.raises(TestbedError, match="forbidden"):
        tenants.cluster.kubectl("-n", tenants.b, "get", "scalingpolicies", access=tenants.authors[tenants.a])
    tenants.apply(tenants.a, namespace=tenants.b)
    refused = await weir.until_accepted_is(tenants.a, "False")
    assert refused["message"].startswith("spec.target.kubernetes.namespace: ")
    assert f"WEIR_TARGET_NAMESPACES does not list {tenants.a}:{tenants.b}" in refused["message"]
    tenants.apply(tenants.b)
    await weir.until_accepted_is(tenants.b, "True")
    outcome = await weir.carry_out(tenants.a, 60)
    assert (outcome.phase, outcome.code) == ("refused", "out-of-reach")
    assert (weir.writes(), tenants.replicas()) == (set(), 2)


@pytest.mark.parametrize("weir", ["{a}:{b}"], indirect=True)
async def test_a_pair_of_namespaces_allows_it(tenants: Tenants, weir: Weir) -> None:
    """The operator names it in a setting; the other direction stays refused."""
    tenants.apply(tenants.a, namespace=tenants.b)
    await weir.until_accepted_is(tenants.a, "True")
    outcome = await weir.carry_out(tenants.a, 3)
    assert (outcome.phase, tenants.replicas()) == ("verified", 3)
    assert (tenants.b, "deployments/scale") in weir.writes()
    assert all(namespace == tenants.b for namespace, _ in weir.writes())
    tenants.apply(tenants.b, namespace=tenants.a)
    refused = await weir.until_accepted_is(tenants.b, "False")
    assert f"{tenants.b}:{tenants.a}" in refused["message"]
