"""A Flink job whose TaskManagers are a Deployment of a real API server: brought, released, and after a kill in each phase.

The pods are simulated, and so is the JobManager, over HTTP: a TaskManager registers once its pod is ready.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from testbed.kubernetes import KubernetesCluster
from testbed.kubernetes_access import Access
from testbed.simulated_flink import SOURCE, WORK, ManyJobs
from tests.kubernetes.rigs import RULES as RIGHTS
from tests.kubernetes.rigs import api, until_observed
from tests.kubernetes.story import APP, RULES, Story
from tests.kubernetes.workloads import deployment, limit_pods
from weir_contracts import Outcome, Parallelism, Plan, policy_of
from weir_engines.registry import Engines, Resources
from weir_engines.task_managers.driver import TaskManagersDriver
from weir_engines.task_managers.engine import TaskManagersEngine
from weir_runtime.clock import SystemClock
from weir_runtime.reach import TARGETS, Reach

NAME = "taskmanager"
LITTLE: Parallelism = {SOURCE: 1, WORK: 2}
MUCH: Parallelism = {SOURCE: 1, WORK: 7}
"""One and four TaskManagers of two slots."""
SECONDS = 240.0
"""Limit of one action on a busy machine."""


class ServiceDriver(TaskManagersDriver):
    """The driver as a service has it; its end is that of the service's engines."""

    def __init__(self, engines: Engines) -> None:
        vars(self).update(vars(engines.of(TaskManagersEngine).driver))
        self._engines = engines

    async def close(self) -> None:
        await self._engines.close()
        await asyncio.sleep(0.1)  # TLS connections end in later cycles of the event loop


class ManagedShop(Story):
    """A job on one TaskManager of two slots."""

    def __init__(self, cluster: KubernetesCluster, access: Access, namespace: str, kind: str, **managers: Any) -> None:
        self.cluster, self.access, self.kind, self._more = cluster, access, kind, managers
        self.flink = ManyJobs(["orders"], 0.5, self._registered, 2, reactive=bool(managers.get("reactive")))
        self.job = self.flink.jobs["orders"]
        rules = RULES.model_copy(update={"container_start_seconds": 20.0})
        policy = self._policy("http://127.0.0.1:9", namespace)  # its address is known once it is served
        super().__init__("task-managers", self._driver, policy, namespace, rules)

    def _policy(self, url: str, namespace: str) -> Any:
        workload = {"kind": self.kind, "name": NAME, "namespace": namespace}
        return policy_of(
            APP,
            3,
            application={"flink": {"url": url, "job": "orders"}},
            target={"flink": {"taskManagers": {"kubernetes": workload, "slots": 2, "max": 8, **self._more}}},
            objective={"maxLag": "30s"},
            mode="act",
        )

    def _driver(self) -> ServiceDriver:
        reach = Reach.of(TARGETS, "*", f"shop:{self.namespace}")
        own = frozenset({self.namespace})
        return ServiceDriver(
            Engines(Resources(SystemClock(), reach=reach, namespaces=own, kubernetes=api(self.access)))
        )

    async def _registered(self) -> list[tuple[str, str]]:
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        found = []
        for pod in (await asyncio.to_thread(self.cluster.request, "GET", path))["items"]:
            conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
            if conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]:
                address = pod["status"]["podIP"]
                found.append((pod["metadata"]["creationTimestamp"], f"{address}:6122-a1b2c3", address))
        return [(id, address) for _, id, address in sorted(found)]

    async def begin(self, running: Parallelism, **behaviour: str) -> None:
        """Start a TaskManager, and the executor once its slots are in use."""
        self.job.observed = dict(running)
        if "reactive" not in self._more:
            self.job.requested = dict(running)
        self.knowledge.policies[APP] = self.policy = self._policy(self.flink.url, self.namespace)
        made = deployment(NAME, 1, kind=self.kind, **behaviour)
        await asyncio.to_thread(self.cluster.apply, made, namespace=self.namespace)
        await self.publish_policy()
        self.start()
        await until_observed(self.driver, self.policy.subject, lambda s: s.runs(running), SECONDS)
        await self.until(lambda: self.replicas("status.readyReplicas") == 1, SECONDS)
        self.job.restarts = 0  # it ran with less before its TaskManager came

    @property
    def driver(self) -> ServiceDriver:
        driver = self.executors[-1][3]
        assert isinstance(driver, ServiceDriver)
        return driver

    async def gets(self, wanted: Parallelism) -> Outcome:
        """Return the outcome of a plan for the job as it is now."""
        return await self.until_ended(await self.wants(wanted), SECONDS)

    async def wants(self, wanted: Parallelism) -> Plan:
        return await self.publish_plan(self.driver, wanted)

    def replicas(self, field: str = "spec.replicas") -> int:
        return int(self._field(field) or 0)

    def generation(self) -> int:
        return int(self._field("metadata.generation"))

    def _field(self, path: str) -> str:
        return self.cluster.kubectl("-n", self.namespace, "get", self.kind, NAME, "-o", f"jsonpath={{.{path}}}")


KINDS = pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])


@pytest.fixture
async def shop(kind: str, cluster: KubernetesCluster, namespace: str) -> AsyncIterator[ManagedShop]:
    async with _opened(kind, cluster, namespace) as made:
        await made.begin(LITTLE, ready_after="1s")
        yield made
        await made.stop()


@pytest.fixture
async def reactive(kind: str, cluster: KubernetesCluster, namespace: str) -> AsyncIterator[ManagedShop]:
    """A job in reactive mode."""
    async with _opened(kind, cluster, namespace, reactive=True) as made:
        await made.begin(_all(2), ready_after="5s")
        yield made
        await made.stop()


@asynccontextmanager
async def _opened(kind: str, cluster: KubernetesCluster, namespace: str, **managers: Any) -> AsyncIterator[ManagedShop]:
    access = await asyncio.to_thread(lambda: cluster.identity("weir-executor", RIGHTS, namespace=namespace))
    made = ManagedShop(cluster, access, namespace, kind, **managers)
    async with made.flink.serving():
        yield made


def _all(parallelism: int) -> Parallelism:
    return {SOURCE: parallelism, WORK: parallelism}


@KINDS
async def test_task_managers_come_and_go(shop: ManagedShop) -> None:
    """Four pods register before the requirements are sent; three go after the job runs with less, without a restart."""
    job = shop.job
    out = await shop.gets(MUCH)
    assert (out.phase, job.observed, job.restarts) == ("verified", MUCH, 1), out.sentence
    assert await asyncio.to_thread(shop.replicas) == 4
    assert out.action is not None and out.action.managers is not None
    assert (out.action.managers.start_seconds or 0.0) >= 1.0
    into = await shop.gets(LITTLE)
    assert (into.phase, into.code, job.observed, job.restarts) == ("verified", "verified", LITTLE, 2), into.sentence
    assert await asyncio.to_thread(shop.replicas) == 1
    assert job.requests == [MUCH, LITTLE]
    assert [phase for phase in shop.phases() if phase in ("preparing", "releasing")] == [
        "preparing",
        "preparing",
        "releasing",
    ]


@KINDS
@pytest.mark.parametrize("phase", ["preparing", "releasing"])
async def test_an_executor_is_killed(shop: ManagedShop, phase: str) -> None:
    """Another one ends the action, and writes no number twice."""
    if phase == "releasing":
        await shop.gets(MUCH)
    before = await asyncio.to_thread(shop.generation)
    made = await shop.wants(LITTLE if phase == "releasing" else MUCH)
    await shop.until_phase(phase)
    await shop.kill()
    shop.start()
    ended = await shop.until_ended(made, SECONDS)
    assert ended.phase == "verified", ended.sentence
    assert await asyncio.to_thread(shop.replicas) == (1 if phase == "releasing" else 4)
    assert await asyncio.to_thread(shop.generation) == before + 1


@pytest.mark.parametrize("kind", ["Deployment"])
async def test_task_managers_that_do_not_come_are_given_back(shop: ManagedShop) -> None:
    """A quota denies two of three: the job keeps its parallelism, and the reason is in the outcome."""
    await asyncio.to_thread(limit_pods, shop.cluster, shop.namespace, 2)
    ended = await shop.gets(MUCH)
    assert (ended.phase, ended.code) == ("failed", "managers-late"), ended.sentence
    assert any(each.code == "quota" for each in shop.published())
    assert await asyncio.to_thread(shop.replicas) == 1
    assert (shop.job.observed, shop.job.requests, shop.job.restarts) == (LITTLE, [], 0)


@pytest.mark.parametrize("kind", ["StatefulSet"])
async def test_a_manager_of_a_job_in_reactive_mode_is_lost(reactive: ManagedShop) -> None:
    """Only the number of pods is written. The parallelism falls with the pod, and a plan meanwhile goes on from there: what fell
    is not taken for another client's request."""
    shop = reactive
    out = await shop.gets(_all(4))
    assert (out.phase, shop.job.observed) == ("verified", _all(4)), out.sentence
    assert await asyncio.to_thread(shop.replicas) == 2
    path = f"/api/v1/namespaces/{shop.namespace}/pods"
    pod = (await asyncio.to_thread(shop.cluster.request, "GET", path))["items"][-1]["metadata"]["name"]
    await asyncio.to_thread(shop.cluster.kubectl, "-n", shop.namespace, "delete", "pod", pod, "--wait=false")
    fallen = await until_observed(
        shop.driver,
        shop.policy.subject,
        lambda s: s.deployment is not None and s.deployment.observed == _all(2),
        SECONDS,
    )
    assert fallen.deployment is not None and fallen.deployment.requested == _all(4)
    back = await shop.gets(_all(6))
    assert (back.phase, shop.job.observed) == ("verified", _all(6)), back.sentence
    into = await shop.gets(_all(2))
    assert (into.phase, shop.job.observed) == ("verified", _all(2)), into.sentence
    assert await asyncio.to_thread(shop.replicas) == 1
    assert shop.job.requests == [] and not {"preparing", "releasing"} & set(shop.phases())
