"""An executor whose application runs on Kubernetes workloads: actions from plan to end, in memory."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from tests.unit.engines.kubernetes.memory_kubernetes import NAMESPACE, MemoryKubernetes, TaskManagers
from tests.unit.engines.kubernetes.pod_groups import PodGroup, PodProcess
from tests.unit.engines.kubernetes.rig import kubernetes_policy
from tests.unit.executor.builders import JOB, TOPOLOGY, plan
from tests.unit.executor.house import APP, House
from weir_contracts import Parallelism
from weir_contracts.topics import PLANS, POLICIES
from weir_engines.kubernetes.driver import KubernetesDriver

pytestmark = pytest.mark.virtual_time

FLINK = {"application": {"flink": {"url": "http://127.0.0.1:8081", "job": "orders"}}}


class KubernetesHouse(House):
    """Workloads of two pods each, and what runs on them."""

    def __init__(self, kind: str = "Deployment", names: tuple[str, ...] = ("orders",)) -> None:
        super().__init__(unobserved_limit_seconds=60.0, container_start_seconds=0.0)
        self.kind, self.names = kind, names
        self.kubernetes = MemoryKubernetes(self.clock)
        self.pods = {name: self.kubernetes.add(kind, name, 2) for name in names}
        self.cluster = TaskManagers(self.clock)
        self.cluster.kubernetes = self.kubernetes
        self.group = PodGroup(self.clock, self._processes)
        self.scaler = self.new_driver()
        self.drivers["kubernetes"] = self.scaler

    async def _processes(self) -> list[PodProcess]:
        return self.kubernetes.processes()

    def new_driver(self) -> KubernetesDriver:
        """Return a driver that has seen nothing."""
        return KubernetesDriver(
            self.clock, self.cluster, self.kubernetes, [NAMESPACE], groups=self.group, checkpoint_seconds=0.05
        )

    async def begin(self, **spec: Any) -> None:
        await self.start()
        chain = [{"kind": self.kind, "name": name} for name in self.names]
        for before, after in pairwise(chain):
            after["inputs"] = [before["name"]]  # type: ignore[assignment]
        target: dict[str, Any] = {"workloads": chain} if len(chain) > 1 else chain[0]
        self.knowledge.policies[APP] = self.policy = kubernetes_policy(target, **spec)
        await self.publish(POLICIES, APP, self.policy)
        if "flink" in spec.get("application", {}):
            self.cluster.add(self.policy.subject, TOPOLOGY, TOPOLOGY.uniform(2), JOB)
        self.clock.advance(60)

    async def wants(self, wanted: int | Parallelism) -> None:
        """Publish a plan for the target as a monitor sees it."""
        found = await self.scaler.observe(self.policy.subject)
        assert found.deployment is not None
        vector = dict.fromkeys(found.deployment.observed, wanted) if isinstance(wanted, int) else wanted
        self._plans += 1
        made = plan(
            vector,
            number=self._plans,
            at=self.clock.now(),
            deployment=found.deployment.ref(),
            current=found.deployment.observed,
            expires_at=self.clock.now() + timedelta(seconds=30),
        )
        await self.publish(PLANS, APP, made, id=made.id)

    def size(self, name: str = "orders") -> int:
        return int(self.kubernetes.objects.document(self.kind, NAMESPACE, name)["spec"]["replicas"])

    def codes(self) -> list[str]:
        return [outcome.code for outcome in self.published()]

    def last(self) -> tuple[str, str, str]:
        """Phase, code and sentence of the newest outcome."""
        newest = self.published()[-1]
        return newest.phase, newest.code, newest.sentence

    def said(self, text: str) -> Callable[[], bool]:
        return lambda: any(text in outcome.sentence for outcome in self.published())


@pytest.fixture
async def house() -> AsyncIterator[KubernetesHouse]:
    made = KubernetesHouse()
    await made.begin()
    yield made
    await made.end()
    await made.scaler.close()


@pytest.fixture
async def chain() -> AsyncIterator[KubernetesHouse]:
    made = KubernetesHouse(names=("orders", "payments", "shipping"))
    await made.begin()
    yield made
    await made.end()


async def test_out_and_in(house: KubernetesHouse) -> None:
    """Two to five and to one: each written once, verified, the youngest pods removed first."""
    await house.wants(5)
    await house.until(house.ended("verified"))
    assert house.phases() == ["intended", "applying", "verifying", "verifying", "verified"]
    await house.wants(1)
    await house.until(lambda: house.phases().count("verified") == 2)
    assert house.kubernetes.writes == [("orders", 5), ("orders", 1)]
    assert house.kubernetes.costs["orders"][:3] == ["orders-2", "orders-3", "orders-4"]
    assert house.kubernetes.names("orders") in (["orders-0"], ["orders-1"])


async def test_a_flink_job_in_reactive_mode() -> None:
    """The pods are its TaskManagers; a checkpoint is taken before they go."""
    house = KubernetesHouse("StatefulSet")
    await house.begin(**FLINK)
    await house.wants(4)
    await house.until(house.ended("verified"))
    taken = next(iter(house.cluster.jobs.values()))
    before = taken.checkpoints_triggered
    await house.wants(1)
    await house.until(lambda: house.phases().count("verified") == 2)
    assert taken.checkpoints_triggered > before
    assert taken.observed == TOPOLOGY.uniform(1)
    assert (house.kubernetes.names("orders"), house.kubernetes.costs) == (["orders-0"], {})
    await house.end()


async def test_no_right_to_patch_pods_is_no_error(house: KubernetesHouse) -> None:
    """The annotation is a preference."""
    house.kubernetes.denied = {"patch pods"}
    await house.wants(1)
    await house.until(house.ended("verified"))
    assert house.kubernetes.writes == [("orders", 1)]


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [
        ({"pods": {"quota": 3}}, "quota", "quota"),
        ({"pods": {"unschedulable": "0/3 nodes are available"}}, "unschedulable", "0/3 nodes"),
        ({"pods": {"waiting": {"*": "ImagePullBackOff"}}}, "image", "ImagePullBackOff"),
        ({"pods": {"waiting": {"*": "CrashLoopBackOff"}, "restarts": 1}}, "pods-crashing", "CrashLoopBackOff"),
        ({"pods": {"waiting": {"*": "CrashLoopBackOff"}, "killed": True}}, "out-of-memory", "memory limit"),
    ],
)
async def test_pods_that_do_not_become_ready(
    house: KubernetesHouse, change: dict[str, Any], code: str, word: str
) -> None:
    """The reason is reported once, and again by the rollback after the deadline."""
    for name, value in {"ready_seconds": 1e6, **change["pods"]}.items():
        setattr(house.pods["orders"], name, value)
    house.pods["orders"].born = dict.fromkeys(house.pods["orders"].names, -1e9)
    await house.wants(5)
    await house.until(house.ended("rolled-back"))
    reported = [outcome for outcome in house.published() if outcome.code == code]
    assert [outcome.phase for outcome in reported] == ["verifying"], house.codes()
    assert word in reported[0].sentence
    late = next(outcome for outcome in house.published() if outcome.code == "not-running")
    assert word in late.sentence and late.phase == "rolling-back"
    assert house.kubernetes.writes == [("orders", 5), ("orders", 2)]


async def test_a_worse_reason_is_reported_too(house: KubernetesHouse) -> None:
    """The image arrives, and the program crashes; back to a less severe reason is no news."""
    pods = house.pods["orders"]
    pods.ready_seconds, pods.waiting = 1e6, {"*": "ImagePullBackOff"}
    pods.born = dict.fromkeys(pods.names, -1e9)
    await house.wants(3)
    await house.until(house.said("ImagePullBackOff"))
    pods.waiting, pods.restarts = {"*": "CrashLoopBackOff"}, 1
    await house.until(house.said("CrashLoopBackOff"))
    pods.waiting = {"*": "ErrImagePull"}
    pods.restarts = 0
    await house.quiet(5)
    pods.waiting, pods.ready_seconds = {}, 0.0
    await house.until(house.ended("verified"))
    assert [code for code in house.codes() if code in ("image", "pods-crashing")] == ["image", "pods-crashing"]


@pytest.mark.parametrize(
    ("spoil", "code", "word"),
    [
        (lambda h: h.kubernetes.autoscalers.update(orders="ScaledObject orders"), "other-autoscaler", "ScaledObject"),
        (lambda h: h.kubernetes.change("Deployment", "orders", paused=True), "paused-workload", "paused"),
        (lambda h: h.kubernetes.report("Deployment", "orders", updatedReplicas=1), "rollout", "1 of 4"),
        (
            lambda h: h.kubernetes.report("Deployment", "orders", replicas=3, updatedReplicas=3),
            "selector",
            "owns none of the pods",
        ),
        (lambda h: h.kubernetes.denied.add("get workloads"), "forbidden", "may not get workloads in namespace shop"),
        (lambda h: setattr(h.kubernetes, "away", "connection refused"), "unreachable", "connection refused"),
    ],
)
async def test_refused_with_a_code(
    house: KubernetesHouse, spoil: Callable[[KubernetesHouse], None], code: str, word: str
) -> None:
    """Nothing is written."""
    await house.wants(4)
    await house.until(house.ended("verified"))
    await house.wants(2)
    house.kubernetes.writes.clear()
    spoil(house)
    if code == "selector":
        house.kubernetes.pods["orders"].names, house.kubernetes.pods["orders"].quota = [], 0
        for key in [key for key in house.kubernetes.objects._objects if key[0] == "Pod"]:
            del house.kubernetes.objects._objects[key]
    await house.until(house.ended("refused"))
    _, published, sentence = house.last()
    assert (published, word in sentence) == (code, True), sentence
    assert house.kubernetes.writes == []


async def test_a_namespace_must_be_listed(house: KubernetesHouse) -> None:
    """The setting is named; once the list has the namespace, the same driver observes its workloads."""
    namespaces = {"payroll"}
    driver = KubernetesDriver(house.clock, house.cluster, house.kubernetes, namespaces, groups=house.group)
    found = await driver.observe(house.policy.subject)
    assert found.refusal is not None and found.refusal.code == "namespace-forbidden"
    assert "WEIR_EXECUTOR_KUBERNETES_NAMESPACES" in found.refusal.sentence
    namespaces.add(NAMESPACE)
    found = await driver.observe(house.policy.subject)
    assert found.refusal is None and found.deployment is not None


async def test_a_policy_that_names_another_namespaces_workload_scales_nothing(house: KubernetesHouse) -> None:
    """Even if it is in the topic, of an earlier time or forged: the executor's own settings decide."""
    target = {"kind": "Deployment", "name": "orders", "namespace": NAMESPACE}
    foreign = kubernetes_policy(target)
    foreign = foreign.model_copy(update={"metadata": foreign.metadata.model_copy(update={"namespace": "team-a"})})
    application = foreign.application
    house.knowledge.policies[application] = foreign
    await house.publish(POLICIES, application, foreign)
    found = await house.scaler.observe(foreign.subject)
    assert found.deployment is not None
    made = plan(
        {"orders": 60},
        at=house.clock.now(),
        application=application,
        policy_version=3,
        deployment=found.deployment.ref(),
        current=found.deployment.observed,
    )
    await house.publish(PLANS, application, made)
    await house.until(house.ended("refused", application))
    (refused,) = house.published(application)
    assert (refused.phase, refused.code) == ("refused", "out-of-reach")
    assert "WEIR_TARGET_NAMESPACES does not list team-a:shop" in refused.sentence
    assert house.kubernetes.writes == []


async def test_a_person_scales_meanwhile(house: KubernetesHouse) -> None:
    """The action ends, the manager is named, and later plans are held until the policy is written."""
    await house.wants(4)
    await house.until(lambda: house.phases()[-1:] == ["verifying"])
    house.kubernetes.change("Deployment", "orders", replicas=3)
    await house.until(house.ended("failed"))
    assert house.last()[1] == "contested" and "kubectl set the requirements" in house.last()[2]
    await house.quiet(10)
    await house.wants(5)
    await house.until(house.ended("refused"))
    assert house.last()[1] == "contested" and "kubectl" in house.last()[2]
    assert (house.size(), house.kubernetes.writes) == (3, [("orders", 4)])
    house.clock.advance(1)
    policy = house.knowledge.set_mode(APP, "act", house.clock.now())
    await house.publish(POLICIES, APP, policy)
    found = await house.scaler.observe(house.policy.subject)
    assert found.deployment is not None
    await house.publish(
        PLANS,
        APP,
        made := plan(
            {"orders": 5},
            number=9,
            at=house.clock.now(),
            deployment=found.deployment.ref(),
            current=found.deployment.observed,
            policy_version=policy.metadata.version,
        ),
        id=made.id,
    )
    await house.until(house.ended("verified"))
    assert house.size() == 5


async def test_a_writer_that_is_not_recorded_is_not_weir(house: KubernetesHouse) -> None:
    """Without managed fields the replicas themselves decide: they are not those that Weir wrote."""
    await house.wants(4)
    await house.until(lambda: house.phases()[-1:] == ["verifying"])
    house.kubernetes.change("Deployment", "orders", manager="", replicas=3)
    await house.until(house.ended("failed"))
    assert house.last()[1] == "contested" and "another client set the requirements" in house.last()[2]
    await house.quiet(10)
    await house.wants(5)
    await house.until(house.ended("refused"))
    assert house.last()[1] == "contested"
    assert (house.size(), house.kubernetes.writes) == (3, [("orders", 4)])


async def test_a_tool_that_writes_the_former_value_back(house: KubernetesHouse) -> None:
    """A GitOps tool restores its replicas: Weir writes once and then holds, although it is the value of before."""
    await house.wants(4)
    await house.until(lambda: house.phases()[-1:] == ["verifying"])
    for number in range(3):
        house.kubernetes.change("Deployment", "orders", manager="argocd", replicas=2)
        await house.until(house.ended("failed" if number == 0 else "refused"))
        await house.quiet(5)
        await house.wants(4)
        await house.until(lambda number=number: house.phases().count("refused") == number + 1)  # type: ignore[misc]
    assert set(house.codes()[-3:]) == {"contested"} and "argocd" in house.last()[2]
    assert house.kubernetes.writes == [("orders", 4)]


async def test_weir_takes_up_again_once_nobody_has_written_for_a_while(house: KubernetesHouse) -> None:
    """A manifest with `replicas` is applied once more during an action; no user has to pause and resume."""
    await house.wants(4)
    await house.until(lambda: house.phases()[-1:] == ["verifying"])
    house.kubernetes.change("Deployment", "orders", manager="kubectl-client-side-apply", replicas=1)
    await house.until(house.ended("failed"))
    began = house.clock.now()
    while house.last()[1] == "contested":
        assert house.size() == 1
        house.clock.advance(60)
        known = len(house.published())
        await house.wants(4)
        await house.until(lambda known=known: len(house.published()) > known)  # type: ignore[misc]
    assert 600 <= (house.clock.now() - began).total_seconds() < 720
    await house.until(house.ended("verified"))
    assert house.size() == 4


async def test_a_workload_that_is_created_again(house: KubernetesHouse) -> None:
    """It has another uid, so the action ends, and its plan is for another deployment."""
    await house.wants(4)
    await house.until(lambda: house.phases()[-1:] == ["verifying"])
    house.kubernetes.delete("Deployment", "orders")
    house.kubernetes.add("Deployment", "orders", 2)
    await house.until(house.ended("failed"))
    assert house.last()[1] == "job-gone"
    await house.quiet(5)
    await house.wants(3)
    await house.until(house.ended("verified"))


async def test_a_write_that_comes_second_is_decided_again(house: KubernetesHouse) -> None:
    """The object changes between reading and writing: nothing is lost, and nothing is overwritten blindly."""
    scale = house.kubernetes.scale

    async def meanwhile(found: Any, replicas: int) -> None:
        house.kubernetes.scale = scale  # type: ignore[method-assign]
        house.kubernetes.change("Deployment", "orders", minReadySeconds=1)
        await scale(found, replicas)

    house.kubernetes.scale = meanwhile  # type: ignore[method-assign]
    await house.wants(4)
    await house.until(house.ended("verified"))
    assert house.kubernetes.writes == [("orders", 4)]


async def test_a_lost_answer(house: KubernetesHouse) -> None:
    """The write arrived, its response did not: found as requested, and not written again."""
    house.kubernetes.lost_answers = 1
    await house.wants(4)
    await house.until(house.ended("verified"))
    assert house.kubernetes.writes == [("orders", 4)] and "found-requested" in house.codes()


async def test_an_outage_in_mid_action(house: KubernetesHouse) -> None:
    """It is waited out, and the deadline is extended by it."""
    house.pods["orders"].ready_seconds = 15.0
    house.pods["orders"].born = dict.fromkeys(house.pods["orders"].names, -1e9)
    await house.wants(4)
    await house.until(lambda: house.phases()[-1:] == ["verifying"])
    house.kubernetes.away = "cannot get deployments (401): the API server does not accept the token"
    await house.quiet(40)
    house.kubernetes.away = ""
    await house.until(house.ended("verified"))


async def test_the_api_server_is_away_for_five_minutes(house: KubernetesHouse) -> None:
    """The action ends with the reason, nothing is written meanwhile, and afterwards the next plan is verified."""
    await house.wants(4)
    await house.until(lambda: house.phases()[-1:] == ["verifying"])
    house.kubernetes.away = "connection refused"
    await house.quiet(300)
    assert house.last()[:2] == ("failed", "unreachable") and "connection refused" in house.last()[2]
    house.kubernetes.away = ""
    await house.quiet(5)
    assert house.kubernetes.writes == [("orders", 4)]
    await house.wants(3)
    await house.until(house.ended("verified"))
    assert house.kubernetes.writes == [("orders", 4), ("orders", 3)]


async def test_workloads_are_written_in_order(chain: KubernetesHouse) -> None:
    """Each on its own, and only those that change."""
    await chain.wants({"orders": 3, "payments": 2, "shipping": 4})
    await chain.until(chain.ended("verified"))
    assert chain.kubernetes.writes == [("orders", 3), ("shipping", 4)]


async def test_a_failure_at_one_workload_names_it(chain: KubernetesHouse) -> None:
    """And what was written before it; the next plan goes on from there."""
    scale = chain.kubernetes.scale

    async def refuse(found: Any, replicas: int) -> None:
        if found.name == "payments":
            chain.kubernetes.denied = {"update deployments/scale"}
        await scale(found, replicas)

    chain.kubernetes.scale = refuse  # type: ignore[method-assign]
    await chain.wants(3)
    await chain.until(chain.ended("failed"))
    sentence = chain.last()[2]
    assert "may not update deployments/scale of payments in namespace shop" in sentence, sentence
    assert "orders 2 → 3 was written" in sentence, sentence
    chain.kubernetes.denied.clear()
    chain.kubernetes.scale = scale  # type: ignore[method-assign]
    await chain.quiet(5)
    await chain.wants(3)
    await chain.until(chain.ended("verified"))
    assert chain.kubernetes.writes == [("orders", 3), ("payments", 3), ("shipping", 3)]


async def test_an_interrupted_request_goes_on(chain: KubernetesHouse) -> None:
    """One of three workloads is written when the response of the second is lost: the rest follows, without a rollback."""
    scale = chain.kubernetes.scale

    async def lose(found: Any, replicas: int) -> None:
        chain.kubernetes.lost_answers = int(found.name == "payments" and chain.kubernetes.scale is not scale)
        await scale(found, replicas)

    chain.kubernetes.scale = lose  # type: ignore[method-assign]
    await chain.wants(3)
    await chain.until(chain.ended("verified"))
    assert chain.kubernetes.writes == [("orders", 3), ("payments", 3), ("shipping", 3)]


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda h: h.kubernetes.report("Deployment", "orders", updatedReplicas=1), "rollout"),
        (lambda h: h.kubernetes.autoscalers.update(orders="ScaledObject orders"), "other-autoscaler"),
    ],
)
async def test_what_others_began_meanwhile_is_not_rolled_back(
    house: KubernetesHouse, spoil: Callable[[KubernetesHouse], None], code: str
) -> None:
    """A user's new version does not become ready: its pods are not Weir's to take away, nor is its size to blame."""
    pods = house.pods["orders"]
    pods.ready_seconds, pods.born = 1e6, dict.fromkeys(pods.names, -1e9)
    await house.wants(4)
    await house.until(lambda: house.phases()[-1:] == ["verifying"])
    spoil(house)
    await house.until(house.ended("failed"))
    assert house.last()[1] == code and "not rolled back to orders 2" in house.last()[2]
    assert house.kubernetes.writes == [("orders", 4)]
    assert not house.published()[-1].quarantine


async def test_all_workloads_are_rolled_back(chain: KubernetesHouse) -> None:
    """One does not become ready."""
    pods = chain.pods["shipping"]
    pods.quota = 2
    await chain.wants(4)
    await chain.until(chain.ended("rolled-back"))
    assert [chain.size(name) for name in chain.names] == [2, 2, 2]
    assert chain.said("of 4 pods of shipping are denied by a quota")()
