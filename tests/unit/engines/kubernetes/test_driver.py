"""The kubernetes driver: its suites in memory."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.unit.engines.driver_suite import OPEN, DriverSuite
from tests.unit.engines.kubernetes.driver_suite import ServiceSuite
from tests.unit.engines.kubernetes.group_pods_suite import GroupPodsSuite
from tests.unit.engines.kubernetes.objects import NAMESPACE, cluster, controlled, pod, target, workload
from tests.unit.engines.kubernetes.rig import FlinkRig, GroupRig, MemoryRig
from tests.unit.engines.restart_suite import RestartSuite, letting
from tests.unit.executor.builders import NOON, TOPOLOGY
from weir_contracts import Pod, WorkloadStatus
from weir_engines.driver import Accepted, Evicted, Refusal, Rejected
from weir_engines.kubernetes.cluster import Replicas
from weir_engines.kubernetes.discovery import Kind
from weir_engines.kubernetes.driver import KubernetesDriver
from weir_engines.kubernetes.pods import PodReading
from weir_engines.kubernetes.state import Found, Restarts, progress, victims
from weir_engines.kubernetes.workloads import WorkloadReading
from weir_executor.core.in_flight import rescale_limit, successive_starts
from weir_executor.core.parameters import Rules

DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
STATUS = WorkloadStatus(kind="Deployment", name="orders", namespace="shop", uid="u", wanted=1, current=1, ready=0)


class TestServices(ServiceSuite):
    @pytest.fixture(params=["Deployment", "StatefulSet", "Worker"])
    async def rig(self, request: pytest.FixtureRequest) -> AsyncIterator[MemoryRig]:
        rig = MemoryRig(request.param)
        yield await rig.begin()
        await rig.driver.close()


class TestSeveralWorkloads(ServiceSuite):
    @pytest.fixture
    async def rig(self) -> AsyncIterator[MemoryRig]:
        rig = MemoryRig(names=("orders", "payments", "shipping"))
        yield await rig.begin()
        await rig.driver.close()


class TestFlinkJob(DriverSuite):
    @pytest.fixture(params=[1, 2])
    async def rig(self, request: pytest.FixtureRequest) -> AsyncIterator[FlinkRig]:
        rig = FlinkRig(slots=request.param)
        yield rig
        await rig.driver.close()


CASES = [
    ("StatefulSet", {}),
    ("Deployment", {}),
    ("Worker", {}),
    ("StatefulSet", {"slots": 2, "static": True}),
    ("StatefulSet", {"unnamed": True}),
]


class TestConsumerGroup(GroupPodsSuite, RestartSuite):
    @pytest.fixture(params=CASES, ids=lambda case: " ".join([case[0], *case[1]]))
    async def rig(self, request: pytest.FixtureRequest) -> AsyncIterator[GroupRig]:
        kind, group = request.param
        rig = GroupRig(kind, **group)
        await rig.until(lambda s: s.runs(rig.before))
        yield rig
        await rig.driver.close()


@pytest.mark.parametrize(
    ("denied", "budget", "reason"),
    [(set(), True, "disruption budget"), ({"create pods/eviction"}, False, "may not create pods/eviction")],
)
async def test_an_eviction_that_is_refused_is_named(denied: set[str], budget: bool, reason: str) -> None:
    """By the pod's disruption budget, and without the right; the pod stays."""
    rig = GroupRig()
    _, instance = await RestartSuite.settled(rig)
    rig.kubernetes.denied, rig.pods["orders"].budget = denied, budget
    found = await rig.driver.observe(rig.subject)
    answer = await RestartSuite.ask(rig, instance, uuid4(), found)
    assert isinstance(answer, Rejected) and reason in answer.reason
    assert not (await rig.driver.observe(rig.subject)).is_replaced(instance)
    assert rig.kubernetes.evicted == []


async def test_no_pod_is_evicted_while_its_workload_rolls_out() -> None:
    """The rollout replaces it anyway."""
    rig = GroupRig("Deployment")
    found, instance = await RestartSuite.settled(rig)
    rig.kubernetes.report("Deployment", "orders", updatedReplicas=1)
    answer = await RestartSuite.ask(rig, instance, uuid4(), found)
    assert isinstance(answer, Refusal) and answer.code == "rollout"


async def test_the_new_process_of_a_pod_that_has_its_name_again_is_never_evicted() -> None:
    """Members that joined in the last reading before, or from the new pod's address, may be its own."""
    rig = GroupRig()
    found, instance = await RestartSuite.settled(rig)
    for _ in range(2):
        await RestartSuite.ask(rig, instance, uuid4(), found)
        found = await rig.until(lambda s, old=instance: s.is_replaced(old) and len(rig.group.members) == 3)  # type: ignore[misc]
        assert {member.id for member in found.departed} == set(instance.members)
        living = {id for id, each in rig.group.members.items() if each.dies_at is None}
        assert len(living) == 2 and not living & {member.id for member in found.departed}
        assert isinstance(await rig.driver.evict(letting(rig.subject), found.departed), Evicted)
        found, instance = await RestartSuite.settled(rig)


@pytest.mark.parametrize("names", [("orders",), ("orders", "payments")])
async def test_no_default_of_flink_enters_a_deadline(names: tuple[str, ...]) -> None:
    """The limit is the floor and the start of pods, for one workload and for several."""
    rig = MemoryRig(names=names)
    found = await rig.driver.observe(rig.subject)
    assert found.deployment is not None
    rules = Rules(deadline_floor_seconds=5.0, container_start_seconds=60.0, restart_estimate_seconds=7.0)
    assert rescale_limit(found.deployment, None, rules) == timedelta(seconds=67)


@pytest.mark.parametrize(("kind", "starts"), [("StatefulSet", 3), ("Deployment", 1)])
async def test_pods_in_order_have_the_time_of_each(kind: str, starts: int) -> None:
    """Two pods become five, or one, and those of a StatefulSet do so one after another."""
    found = (await (rig := MemoryRig(kind)).driver.observe(rig.subject)).deployment
    assert found is not None
    assert successive_starts(found, {"orders": 2}, {"orders": 5}) == starts
    assert successive_starts(found, {"orders": 5}, {"orders": 2}) == starts
    assert successive_starts(found, {"orders": 2}, {"orders": 3}) == 1
    rules = Rules(deadline_floor_seconds=5.0, container_start_seconds=60.0, restart_estimate_seconds=0.0)
    assert rescale_limit(found, None, rules, starts=starts) == timedelta(seconds=5 + starts * 60)


async def test_task_managers_in_order_are_counted_by_their_slots() -> None:
    """All operators grow by 4 subtasks, which are 2 pods of 2 slots."""
    found = (await (rig := FlinkRig(slots=2)).driver.observe(rig.subject)).deployment
    assert found is not None and found.workloads[0].one_by_one
    assert successive_starts(found, TOPOLOGY.uniform(2), TOPOLOGY.uniform(6), 2) == 2


def _pod(uid: str, restarts: int | None) -> PodReading:
    return PodReading(Pod(name=uid, restarts=restarts), uid, {})


def test_restarts_of_pods_that_are_replaced_stay_counted() -> None:
    """Else a new pod would hide the restarts of the one before."""

    def counted(previous: Restarts | None, *pods: PodReading, job_id: str = "u") -> Restarts:
        workload = WorkloadReading(DEPLOYMENT, STATUS, "1", None, None, None)
        return Restarts.of([Found(Replicas(workload, pods))], job_id, previous)

    first = counted(None, _pod("a", 3), _pod("b", None))
    assert first.total == 3
    second = counted(first, _pod("b", 1), _pod("c", 0))
    assert second.total == 4
    assert counted(second, _pod("c", 2)).total == 6
    assert counted(second, _pod("d", 2), job_id="v").total == 2


async def test_a_canarys_crashes_are_no_restarts_and_its_pods_are_not_marked() -> None:
    """A canary Deployment with the same labels crashes while the stable one shrinks."""
    found = cluster(0)
    found.put(workload("orders", 3))
    for i in range(3):
        found.put(controlled(pod(f"orders-7d9f-{i}"), "ReplicaSet", "orders-7d9f", **{"pod-template-hash": "7d9f"}))
    crash = [{"restartCount": 17, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    canary = pod("orders-canary-55c8-0", ready=False, containerStatuses=crash)
    found.put(controlled(canary, "ReplicaSet", "orders-canary-55c8", **{"pod-template-hash": "55c8"}))
    own = [Found(each) for each in (await found.read(NAMESPACE, target("orders").refs)).found.values()]
    assert Restarts.of(own, "job", None).total == 0
    assert progress(own, NOON) is None
    assert victims(own[0], 2) == ["orders-7d9f-0"]


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ({"restarts": 1}, "pods-crashing"),
        ({"restarts": 1, "restarted_at": NOON - timedelta(minutes=9)}, "pods-crashing"),
        ({"restarts": 1, "restarted_at": NOON - timedelta(minutes=10)}, "pods-pending"),
        ({"restarts": 1, "reason": "ImagePullBackOff"}, "image"),
        ({"restarts": 1, "out_of_memory": True}, "out-of-memory"),
        (
            {"restarts": 1, "out_of_memory": True, "restarted_at": NOON - timedelta(minutes=10)},
            "pods-pending",
        ),
    ],
)
def test_a_restart_of_long_ago_does_not_explain_why_a_pod_is_not_ready(state: dict[str, Any], code: str) -> None:
    reading = PodReading(Pod(name="a", ready=False, **state), "a", {})
    found = progress([Found(Replicas(WorkloadReading(DEPLOYMENT, STATUS, "1", None, None, None), (reading,)))], NOON)
    assert found is not None and found.code == code


async def test_without_namespaces_the_driver_is_off() -> None:
    """Nothing is requested, and the setting is named."""
    rig = MemoryRig()
    driver = KubernetesDriver(rig.clock, rig.cluster, None, groups=rig.group)
    found = await driver.observe(rig.subject)
    assert found.refusal is not None and found.refusal.code == "namespace-forbidden" and not found.reachable
    answer = await driver.request(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN)
    assert isinstance(answer, Refusal) and "WEIR_EXECUTOR_KUBERNETES_NAMESPACES" in answer.sentence
    await driver.close()


async def test_foreign_writers_of_several_workloads_are_named() -> None:
    """Each operator has its own."""
    rig = MemoryRig(names=("orders", "payments"))
    await rig.ask(rig.wanted)
    rig.kubernetes.change("Deployment", "payments", manager="argocd", replicas=3)
    found = await rig.driver.observe(rig.subject)
    assert found.writers == {"orders": "", "payments": "argocd"}


async def test_pods_beyond_the_largest_parallelism_are_not_another_clients_write() -> None:
    """130 pods give a job of 120 key groups a parallelism of 120, as 120 pods do: the request counts from there."""
    rig = FlinkRig()
    rig.kubernetes.change("StatefulSet", "orders", replicas=130)
    rig.clock.advance(10)
    answer = await rig.ask(TOPOLOGY.uniform(100))
    assert isinstance(answer, Accepted), answer
    assert rig.kubernetes.writes == [("orders", 100)]


async def test_few_pods_are_marked_before_a_large_step() -> None:
    """Each mark is a separate request, and the write waits for all of them."""
    rig = MemoryRig()
    rig.kubernetes.change("Deployment", "orders", replicas=300)
    await rig.until(lambda found: found.all_running)
    assert isinstance(await rig.ask({"orders": 10}), Accepted)
    assert len(rig.kubernetes.costs["orders"]) == 50


async def test_states_of_services_that_are_gone_do_not_pile_up() -> None:
    """Policies come and go for years."""
    rig = MemoryRig()
    services: Any = rig.driver._instances["service"]
    services._observed = dict.fromkeys(map(str, range(10_000)))
    await rig.driver.observe(rig.subject)
    assert list(services._observed) == [rig.subject.id]
