"""Two teams with rights in their own namespaces alone, on a real API server. Its audit log, and a server in place of the
second team's Flink, judge what Weir did for them; and what a team sees of a target that Weir cannot scale."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
from tests.unit.executor.builders import plan
from tests.unit.knowledge.direct_log import changes_of, show_messages
from tests.unit.knowledge.memory_store import MemoryStore
from tests.unit.knowledge.resources_suite import accepted, condition
from tests.unit.knowledge.test_api import Catalogue
from weir_contracts import Outcome, ScalingPolicy, parse_policy
from weir_contracts.resource import document_of
from weir_contracts.topics import OUTCOMES, PLANS, POLICIES
from weir_engines.registry import Engines, Resources
from weir_executor.core.parameters import Rules
from weir_executor.knowledge import MemoryKnowledge
from weir_executor.service import Executor
from weir_knowledge.resource_policies import KubernetesResources, ResourcePolicies
from weir_monitor.applications import Collectors
from weir_monitor.core import Readings, observe
from weir_runtime.clock import SystemClock
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.messages import encode
from weir_runtime.policy_credentials import read_credentials
from weir_runtime.reach import USUAL_TARGETS, Allowed, Reach

DEFINITION = FOLDER / "components" / "policy-resources" / "scalingpolicies.json"
DEADLINE_SECONDS = 60.0
AUTHOR = [{"apiGroups": ["weir.dev"], "resources": ["scalingpolicies"], "verbs": ["get", "create", "patch"]}]
"""All that a team may do, in its own namespace."""
OWN_HOSTS, OWN_GROUPS = "*.{namespace}.svc", "{namespace}-*"
TOKEN = "token-of-the-second-team"  # noqa: S105 - of a test
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
        """Apply a policy for a workload in a team's namespace as that team."""
        kubernetes = {"kind": "Deployment", "name": "orders", **target}
        self.apply_spec(team, {"target": {"kubernetes": kubernetes}, "objective": {"utilization": 0.7}})

    def apply_spec(self, team: str, written: dict[str, Any]) -> None:
        spec = {"objective": {"maxLag": "30s"}, "mode": "act", **written}
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


class ListeningFlink:
    """A server at the address of the second team's Flink. It notes path and credentials of each request."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                outer.requests.append((self.path, self.headers.get("Authorization")))
                self.send_error(404)

            do_GET = do_PUT = do_POST = do_PATCH = _answer  # noqa: N815 - the handler's own names

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]

    def url(self, namespace: str) -> str:
        return f"http://jobmanager.{namespace}.svc:{self.port}"


@pytest.fixture
def flink(monkeypatch: pytest.MonkeyPatch) -> Iterator[ListeningFlink]:
    """Names of services lead to it, so that a request that is made arrives."""
    made, resolve = ListeningFlink(), socket.getaddrinfo

    def resolved(host: Any, *given: Any, **named: Any) -> Any:
        return resolve("127.0.0.1" if str(host).endswith(".svc") else host, *given, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join(5)


class Weir:
    """The parts that follow resources, read targets and scale, with the accounts of an installation; the rest is in memory.

    Hosts and groups are limited to those of a policy's own namespace, and the second team has credentials of its Flink.
    """

    def __init__(self, tenants: Tenants, pairs: str, flink: ListeningFlink) -> None:
        clock, self.store, self.tenants = SystemClock(), MemoryStore(), tenants
        entry = {"namespaces": tenants.b, "origin": flink.url(tenants.b), "token": TOKEN}
        credentials = read_credentials(json.dumps({"team-b": entry}))
        allowed = Allowed.of("http,https", OWN_HOSTS, USUAL_TARGETS, prefix="WEIR_TARGET")
        self.resources = KubernetesResources(api(tenants.account("knowledge", "target/policies")))
        namespaces = [tenants.a, tenants.b]
        self.reach = Reach.of(allowed, OWN_GROUPS, pairs).with_credentials("application.flink", credentials)
        changes = changes_of(self.store, clock, Catalogue(), reach=self.reach, resource_namespaces=namespaces)
        self.policies = ResourcePolicies(self.resources, changes, lambda: True)
        self.executor_access = tenants.account("executor", "target")
        self.clock, self.bus, self.knowledge, self.stop = clock, MemoryBus(), MemoryKnowledge(), Stop()
        shared: dict[str, Any] = {"namespaces": frozenset(namespaces), "flink_credentials": credentials}
        self.monitors, self.executors = (
            Engines(Resources(clock, reach=self.reach, kubernetes=api(access), **shared))
            for access in (tenants.account("monitor", "target"), self.executor_access)
        )
        self.driver = self.executors.drivers["kubernetes"]
        executor = Executor(
            self.bus,
            self.executors.drivers,
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

    async def policy_of(self, namespace: str) -> ScalingPolicy:
        """Return the policy of a team as its resource says it, whatever knowledge decided."""
        (resource,) = await self.resources.read(namespace)
        policy = parse_policy(document_of(resource))
        return policy.model_copy(update={"metadata": policy.metadata.model_copy(update={"version": 3})})

    async def reading(self, namespace: str) -> Readings:
        """Return what the monitor reads for the policy of a team, whatever knowledge decided."""
        policy = await self.policy_of(namespace)
        collector = Collectors(self.monitors).new(policy)
        try:
            return await collector.read(policy)
        finally:
            await collector.close()

    async def carry_out(self, namespace: str, replicas: int) -> Outcome:
        """Publish the policy of a team and a plan for it, whatever knowledge decided; return the outcome that ends it."""
        policy = await self.policy_of(namespace)
        application = policy.application
        self.knowledge.policies[application] = policy
        await self._publish(POLICIES, application, policy)
        changes: dict[str, Any] = {}
        if policy.subject.target.kubernetes is not None:
            found = await self.driver.observe(policy.subject)
            if found.deployment is not None:
                changes = {"deployment": found.deployment.ref(), "current": found.deployment.observed}
        made = plan(
            {"orders": replicas},
            at=self.clock.now(),
            id=uuid4(),
            application=application,
            policy_version=3,
            **changes,
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

    async def until_acting_is(self, namespace: str, status: str, outcome: Outcome) -> dict[str, Any]:
        """Let knowledge remember what the monitor reads and what the executor answered; return the condition."""
        readings, now = await self.reading(namespace), self.clock.now()
        observation, application = observe(readings, now), readings.policy.application
        made = plan({"orders": 3}, at=now, id=outcome.plan_id, application=application)
        await show_messages(self.store, observation, made, outcome)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                await self.policies.check()
                found = condition(await asyncio.to_thread(self.tenants.status, namespace), "Acting")
                if found.get("status") == status:
                    return found
                await asyncio.sleep(0.2)

    def writes(self) -> set[tuple[str, str]]:
        """Namespaces and resources that the executor has changed, by the audit log."""
        events = self.tenants.cluster.audit(self.executor_access.user)
        return {(each.namespace, each.resource) for each in events if each.verb not in ("get", "list", "watch")}

    async def end(self) -> None:
        self.stop.request("the test is over")
        await self.task
        await self.executors.close()
        await self.monitors.close()
        await self.resources.close()


@pytest.fixture
def tenants(defined: KubernetesCluster, namespace: str) -> Iterator[Tenants]:
    made = Tenants(defined, namespace)
    yield made
    made.end()


@pytest.fixture
async def weir(tenants: Tenants, flink: ListeningFlink, request: pytest.FixtureRequest) -> AsyncIterator[Weir]:
    made = Weir(tenants, getattr(request, "param", "").format(a=tenants.a, b=tenants.b), flink)
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


OWN, OTHER = "{a}", "{b}"
REACHES = {
    "credentials": (
        OWN,
        "team-b",
        "spec.application.flink.credentials: ",
        "the entry 'team-b' is not for policies of namespace",
    ),
    "url": (OTHER, None, "spec.application.flink.url: ", "WEIR_TARGET_HOSTS"),
    "url and credentials": (OTHER, "team-b", "spec.application.flink.url: ", "WEIR_TARGET_HOSTS"),
}


@pytest.mark.parametrize("reach", list(REACHES))
async def test_a_team_reaches_nothing_of_another_teams_flink(
    tenants: Tenants, weir: Weir, flink: ListeningFlink, reach: str
) -> None:
    """Its resource says which field and why; monitor and executor request nothing for it, though the policy is written past
    knowledge, and no credentials leave. The other team's own policy does reach it, with them."""
    host, credentials, field, reason = REACHES[reach]
    url = flink.url(host.format(a=tenants.a, b=tenants.b))
    tenants.apply_spec(tenants.a, {"application": {"flink": _flink(url, credentials)}})
    refused = await weir.until_accepted_is(tenants.a, "False")
    assert refused["message"].startswith(field) and reason in refused["message"], refused["message"]
    readings = await weir.reading(tenants.a)
    outcome = await weir.carry_out(tenants.a, 60)
    assert (readings.scrape.status, outcome.phase, outcome.code) == ("unreachable", "refused", "out-of-reach")
    assert flink.requests == []
    tenants.apply_spec(tenants.b, {"application": {"flink": _flink(flink.url(tenants.b), "team-b")}})
    await weir.until_accepted_is(tenants.b, "True")
    await weir.reading(tenants.b)
    assert {sent for _, sent in flink.requests} == {f"Bearer {TOKEN}"}


def _flink(url: str, credentials: str | None) -> dict[str, str]:
    return {"url": url, "job": "orders", **({} if credentials is None else {"credentials": credentials})}


async def test_a_team_reads_no_group_of_another_team(tenants: Tenants, weir: Weir, flink: ListeningFlink) -> None:
    """Neither its offsets are read, at brokers that would be asked, nor its members removed."""
    brokers = f"kafka.{tenants.a}.svc:{flink.port}"
    tenants.apply_spec(
        tenants.a,
        {
            "application": {"consumerGroup": {"groupId": f"{tenants.b}-orders"}},
            "target": {"kubernetes": {"kind": "Deployment", "name": "orders"}},
            "signals": {"kafka": {"bootstrapServers": brokers}},
        },
    )
    refused = await weir.until_accepted_is(tenants.a, "False")
    assert f"the group {tenants.b}-orders is not among those of namespace {tenants.a}" in refused["message"]
    assert "WEIR_TARGET_GROUPS" in refused["message"]
    readings = await weir.reading(tenants.a)
    outcome = await weir.carry_out(tenants.a, 60)
    assert (readings.scrape.status, outcome.phase, outcome.code) == ("unreachable", "refused", "out-of-reach")
    assert (flink.requests, weir.writes()) == ([], set())


# -- targets that cannot be scaled ------------------------------------------------------------------------------------

JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "orders"},
    "spec": {
        "template": {
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example/main:1"}]},
        }
    },
}
UNSCALABLE: dict[str, tuple[dict[str, Any] | None, dict[str, str], str, str, str]] = {
    "not found": (None, {}, "NotFound", "Deployment orders does not exist in namespace", "other-deployment"),
    "a job": (JOB, {"kind": "Job", "apiVersion": "batch/v1"}, "NotFound", "scale", "unsupported"),
    "0 replicas": (deployment("orders", 0), {}, "Ended", "spec.replicas is 0", "other-deployment"),
}


async def _shown(tenants: Tenants, code: str) -> str:
    """Return the event of a refused plan, as `kubectl describe` shows it."""
    describe = ("-n", tenants.a, "describe", "scalingpolicy", "orders")
    shown = await asyncio.to_thread(tenants.cluster.kubectl, *describe)
    lines = [line for line in shown.partition("Events:")[2].splitlines() if "Refused" in line]
    return next((line for line in lines if f"{code}: " in line), shown)


@pytest.mark.parametrize("case", list(UNSCALABLE))
async def test_a_target_that_cannot_be_scaled_is_shown(tenants: Tenants, weir: Weir, case: str) -> None:
    """By the condition `Acting` with its reason, and the refusal of the plan as a warning: a policy that is accepted and
    observed is not a policy that scales."""
    manifest, target, reason, words, code = UNSCALABLE[case]
    if manifest is not None:
        tenants.cluster.apply(manifest, namespace=tenants.a)
    tenants.apply(tenants.a, **target)
    await weir.until_accepted_is(tenants.a, "True")
    outcome = await weir.carry_out(tenants.a, 3)
    assert (outcome.phase, outcome.code) == ("refused", code)
    found = await weir.until_acting_is(tenants.a, "False", outcome)
    assert found["reason"] == reason and words in found["message"], found
    event = await _shown(tenants, code)
    assert event.split()[0] == "Warning" and f"{code}: {outcome.sentence}"[:60] in event
    status = await asyncio.to_thread(tenants.status, tenants.a)
    assert status.get("parallelism", {}).get("running", 0) == 0
    assert condition(status, "Ready")["status"] == "False"
    assert weir.writes() == set()


async def test_a_right_that_is_missing_is_shown(tenants: Tenants, weir: Weir) -> None:
    """The executor may read the workload and not scale it (403): the condition and the event name verb and resource."""
    tenants.cluster.apply(deployment("orders", 2), namespace=tenants.a)
    role = named("target", "Role", "weir-executor")
    role["rules"] = [rule for rule in role["rules"] if "deployments/scale" not in rule["resources"]]
    tenants.cluster.apply(role, namespace=tenants.a)
    tenants.apply(tenants.a)
    await weir.until_accepted_is(tenants.a, "True")
    outcome = await weir.carry_out(tenants.a, 3)
    assert (outcome.phase, outcome.code) == ("failed", "rejected")
    found = await weir.until_acting_is(tenants.a, "False", outcome)
    assert "deployments/scale" in found["message"] and "403" in found["message"], found
    replicas = ("-n", tenants.a, "get", "deploy/orders", "-o", "jsonpath={.spec.replicas}")
    assert await asyncio.to_thread(tenants.cluster.kubectl, *replicas) == "2"
    denied = [each for each in tenants.cluster.audit(weir.executor_access.user) if each.code == 403]
    assert {each.resource for each in denied} == {"deployments/scale"}
