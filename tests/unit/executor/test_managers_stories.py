"""Actions of a Flink job whose TaskManagers are pods or an endpoint's instances: the driver that is deployed, in memory."""

from datetime import timedelta
from typing import Any

import pytest

from tests.unit.engines.kubernetes.memory_kubernetes import NAMESPACE
from tests.unit.engines.task_managers.rig import BEFORE, WANTED, WORKLOAD, ManagedRig
from tests.unit.executor.builders import TOPOLOGY, plan
from tests.unit.executor.house import APP, House
from weir_contracts import Parallelism, policy_of
from weir_contracts.topics import PLANS, POLICIES

pytestmark = pytest.mark.virtual_time


class ManagedHouse(House):
    """A job on one TaskManager of two slots."""

    def __init__(self, kind: str, managers: int = 1, **mode: Any) -> None:
        super().__init__(container_start_seconds=20.0)
        self.rig = ManagedRig(kind, managers, **mode)
        self.rig.clock = self.rig.kubernetes._clock = self.rig.supervisor.clock = self.rig.cluster._clock = self.clock
        self.scaler = self.rig.driver = self.rig.new_driver()
        self.drivers["task-managers"] = self.scaler

    async def begin(self) -> None:
        await self.start()
        self.clock.advance(120)
        document = self.rig.subject.target.model_dump(mode="json", by_alias=True, exclude_unset=True)
        application = {"flink": {"url": "http://127.0.0.1:8081", "job": "orders"}}
        spec = {"application": application, "target": document, "objective": {"maxLag": "30s"}, "mode": "act"}
        self.knowledge.policies[APP] = policy_of(APP, 3, **spec)
        await self.publish(POLICIES, APP, self.knowledge.policies[APP])

    async def wants(self, wanted: Parallelism) -> None:
        """Publish a plan for the job as it is."""
        found = await self.scaler.observe(self.rig.subject)
        assert found.deployment is not None
        self._plans += 1
        made = plan(
            wanted,
            number=self._plans,
            at=self.clock.now(),
            deployment=found.deployment.ref(),
            current=found.deployment.observed,
            expires_at=self.clock.now() + timedelta(seconds=30),
        )
        await self.publish(PLANS, APP, made, id=made.id)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "endpoint"])
async def test_out_and_in(kind: str) -> None:
    """From one to four TaskManagers and back: each number is written once, and the requirements in between."""
    house = ManagedHouse(kind)
    await house.begin()
    await house.wants(WANTED)
    await house.until(house.ended("verified"))
    assert (house.rig.writes(), house.rig.job.observed) == ([4], WANTED)
    await house.wants(BEFORE)
    await house.until(lambda: house.phases().count("verified") == 2)
    assert (house.rig.writes(), house.rig.job.observed) == ([4, 1], BEFORE)
    assert house.phases().count("preparing") == 2 and house.phases().count("releasing") == 1
    assert [vector for _, vector in house.rig.cluster.requests] == [WANTED, BEFORE]
    assert house.published()[-1].sentence.endswith("1 TaskManager now")
    assert house.rig.job.restarts == 2, "no restart beyond the two rescales"
    await house.end()


async def test_pods_that_do_not_come_are_named_and_given_back() -> None:
    """Two of three are denied by a quota: the reason is in the outcome, and all that was brought goes."""
    house = ManagedHouse("Deployment")
    house.rig.pods.quota = 2
    await house.begin()
    await house.wants(WANTED)
    await house.until(house.ended("failed"))
    codes = [outcome.code for outcome in house.published()]
    assert "quota" in codes and codes[-1] == "managers-late"
    assert (house.rig.writes(), house.rig.cluster.requests) == ([4, 1], [])
    assert [kept.parallelism for kept in house.published()[-1].quarantine] == [WANTED]
    await house.end()


async def test_managers_that_start_one_after_another_have_time_for_each() -> None:
    """A StatefulSet that keeps the order needs 3 × 15 s, more than one start may take."""
    house = ManagedHouse("StatefulSet")
    house.rig.pods.ready_seconds = 45.0
    await house.begin()
    await house.wants(WANTED)
    await house.until(house.ended("verified"))
    assert house.rig.writes() == [4]
    await house.end()


async def test_a_pod_with_slots_in_use_is_kept() -> None:
    """Of a Deployment only those go whose slots are free; the others are reported once the time is over."""
    house = ManagedHouse("Deployment", managers=4)
    await house.begin()
    house.rig.job.observed = house.rig.job.requested = dict(WANTED)
    await house.wants(BEFORE)
    await house.until(house.ended("releasing"))
    busy = house.rig.kubernetes.names(WORKLOAD)[1:3]
    house.rig.cluster.idle = frozenset(set(house.rig.kubernetes.names(WORKLOAD)) - set(busy))
    house.rig.kubernetes.writes.clear()
    await house.until(house.ended("verified"))
    last = house.published()[-1]
    assert last.code in ("managers-kept", "verified")
    assert set(busy) <= set(house.rig.kubernetes.names(WORKLOAD)) or last.code == "verified"
    await house.end()


async def test_a_rollout_while_managers_are_brought_gives_up() -> None:
    """Its pods are replaced by another client: nothing is requested, and what was brought stays, with the reason."""
    house = ManagedHouse("Deployment")
    house.rig.pods.ready_seconds = 15.0
    await house.begin()
    await house.wants(WANTED)
    await house.until(lambda: house.rig.writes() == [4])
    house.rig.kubernetes.report("Deployment", WORKLOAD, updatedReplicas=0)
    await house.until(house.ended("failed"))
    last = house.published()[-1]
    assert last.code == "rollout" and "kept" in last.sentence
    assert house.rig.cluster.requests == []
    assert house.rig.kubernetes.objects.document("Deployment", NAMESPACE, WORKLOAD)["spec"]["replicas"] == 4
    await house.end()


REACTIVE = {"reactive": True, "scheduler": "reactive"}


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "endpoint"])
async def test_a_job_in_reactive_mode(kind: str) -> None:
    """Only the number of TaskManagers is set, and the job takes all slots; a checkpoint is completed before they go."""
    house = ManagedHouse(kind, **REACTIVE)
    await house.begin()
    await house.wants(TOPOLOGY.uniform(8))
    await house.until(house.ended("verified"))
    assert (house.rig.writes(), house.rig.job.observed) == ([4], TOPOLOGY.uniform(8))
    taken = house.rig.job.checkpoints_triggered
    await house.wants(TOPOLOGY.uniform(2))
    await house.until(lambda: house.phases().count("verified") == 2)
    assert (house.rig.writes(), house.rig.job.observed) == ([4, 1], TOPOLOGY.uniform(2))
    assert house.rig.job.checkpoints_triggered > taken
    assert "preparing" not in house.phases() and house.rig.cluster.requests == []
    await house.end()


@pytest.mark.parametrize("kind", ["StatefulSet", "endpoint"])
async def test_a_lost_manager_of_a_job_in_reactive_mode_is_no_other_client(kind: str) -> None:
    """Its parallelism falls with the slots and comes back with the next TaskManager; a plan for another size goes on from
    there."""
    house = ManagedHouse(kind, managers=3, **REACTIVE)
    house.rig.job.waits_for_checkpoint = False  # a job whose slots went restarts at once
    await house.begin()
    await house.wants(TOPOLOGY.uniform(8))
    await house.until(house.ended("verified"))
    house.rig.lose_one(start_seconds=15.0)
    found = await house.rig.until(lambda s: s.deployment is not None and s.deployment.observed == TOPOLOGY.uniform(6))
    assert found.deployment is not None and found.deployment.requested == TOPOLOGY.uniform(8)
    await house.wants(TOPOLOGY.uniform(8))
    await house.until(house.ended("refused"))
    assert house.published()[-1].code == "nothing-to-do", "as many are requested already"
    await house.wants(TOPOLOGY.uniform(10))
    await house.until(lambda: house.phases().count("verified") == 2)
    assert (house.rig.writes(), house.rig.job.observed) == ([4, 5], TOPOLOGY.uniform(10))
    assert not {"contested", "other-deployment"} & {outcome.code for outcome in house.published()}
    await house.end()


@pytest.mark.parametrize(
    ("mode", "word"),
    [
        ({"reactive": True, "scheduler": "adaptive"}, "remove target.flink.taskManagers.reactive"),
        ({"reactive": False, "scheduler": "reactive"}, "set target.flink.taskManagers with reactive: true"),
    ],
)
async def test_the_mode_of_policy_and_cluster_must_agree(mode: dict[str, Any], word: str) -> None:
    """Otherwise nothing is changed, and the plan is refused with what to change."""
    house = ManagedHouse("Deployment", **mode)
    await house.begin()
    await house.wants(TOPOLOGY.uniform(8))
    await house.until(lambda: house.published() and house.published()[-1].code == "unsupported")
    assert word in house.published()[-1].sentence
    assert (house.rig.writes(), house.rig.cluster.requests) == ([], [])
    await house.end()
