"""An executor whose application is a resource of the Flink Kubernetes Operator: actions from plan to end, in memory."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.engines.flink_operator.rig import DEFAULT_SCHEDULER, STANDALONE, OperatorRig, deployment_spec
from tests.unit.executor.builders import WANTED, plan
from tests.unit.executor.house import APP, House
from weir_contracts import Outcome, Parallelism, policy_of
from weir_contracts.topics import PLANS, POLICIES
from weir_engines.flink_operator.resource import FLINK_DEPLOYMENT
from weir_engines.flink_operator.spec import OVERRIDES

pytestmark = pytest.mark.virtual_time


class OperatedHouse(House):
    """A FlinkDeployment, and the executor that scales it."""

    def __init__(self, spec: dict[str, Any] | None = None, *, scheduler: str = "adaptive") -> None:
        super().__init__(unobserved_limit_seconds=120.0, container_start_seconds=5.0)
        self.rig = OperatorRig(spec, scheduler=scheduler, clock=self.clock)
        self.drivers["flink-operator"] = self.rig.new_driver()

    async def begin(self) -> None:
        await self.start()
        await self.rig.begin()
        self.knowledge.policies[APP] = self.policy = policy_of(
            APP, version=3, objective={"maxLag": "30s"}, target={"flinkDeployment": {"name": "orders"}}, mode="act"
        )
        await self.publish(POLICIES, APP, self.policy)

    async def wants(self, wanted: Parallelism = WANTED, then: Callable[[], None] = lambda: None) -> None:
        """Publish a plan for the job as it is now; `then` happens before the executor reads it."""
        found = await self.rig.driver.observe(self.rig.subject)
        assert found.deployment is not None, found.reason
        self._plans += 1
        made = plan(
            wanted,
            number=self._plans,
            at=self.clock.now(),
            deployment=found.deployment.ref(),
            current=found.deployment.observed,
            expires_at=self.clock.now() + timedelta(seconds=30),
        )
        then()
        await self.publish(PLANS, APP, made, id=made.id)

    def last(self) -> Outcome:
        return self.published()[-1]

    def overrides(self) -> str:
        return str(self.rig.objects.spec(FLINK_DEPLOYMENT, "orders")["flinkConfiguration"].get(OVERRIDES, ""))

    def is_over(self) -> bool:
        return self.published()[-1:] != [] and self.last().phase in ("verified", "rolled-back", "failed", "refused")


IN_PLACE: tuple[dict[str, Any] | None, str] = (None, "adaptive")
RESTARTED = (deployment_spec(**DEFAULT_SCHEDULER), "default")
BOTH = pytest.mark.parametrize("how", [IN_PLACE, RESTARTED, (deployment_spec(**STANDALONE), "adaptive")])


@pytest.fixture
async def house(how: tuple[dict[str, Any] | None, str]) -> AsyncIterator[OperatedHouse]:
    made = OperatedHouse(how[0], scheduler=how[1])
    await made.begin()
    yield made
    await made.end()


@BOTH
async def test_out_and_in(house: OperatedHouse) -> None:
    """Written once each way and verified, whether the operator rescales the job or starts it again."""
    await house.wants()
    await house.until(house.ended("verified"))
    assert (house.overrides(), len(house.rig.objects.writes)) == ("v1:1,v2:4,v3:2", 1)
    seconds = house.last().restart_seconds
    assert seconds is not None and seconds >= 2.5
    await house.wants(dict.fromkeys(WANTED, 1))
    await house.until(lambda: house.phases().count("verified") == 2)
    assert (house.overrides(), len(house.rig.objects.writes)) == ("v1:1,v2:1,v3:1", 2)


@BOTH
async def test_killed_between_write_and_verification(house: OperatedHouse) -> None:
    """The next executor goes on with the same action, and writes nothing again."""
    await house.wants()
    await house.until(lambda: len(house.rig.objects.writes) == 1)
    await house.replicas[0].kill()
    house.drivers["flink-operator"] = house.rig.new_driver()
    house.replica()
    await house.until(house.ended("verified"))
    assert len(house.rig.objects.writes) == 1
    assert {outcome.plan_id for outcome in house.published()} == {house.last().plan_id}


@BOTH
async def test_the_operator_upgrades_meanwhile(house: OperatedHouse) -> None:
    """What Weir wrote is part of the spec: the new version of the job runs with it, and the next plan waits for its end."""
    await house.wants()
    await house.until(lambda: len(house.rig.objects.writes) == 1)
    house.rig.edit(image="example/orders:2")
    await house.until(house.ended("verified"))
    assert house.rig.job.observed == WANTED
    await house.wants(dict.fromkeys(WANTED, 1), lambda: house.rig.edit(image="example/orders:3"))
    await house.until(lambda: house.last().code == "upgrade")
    assert (house.last().phase, len(house.rig.objects.writes)) == ("refused", 1)
    await house.rig.until(lambda s: s.refusal is None and s.runs(WANTED))
    await house.wants(dict.fromkeys(WANTED, 1))
    await house.until(lambda: house.phases().count("verified") == 2)


@BOTH
async def test_a_person_creates_the_resource_again_meanwhile(house: OperatedHouse) -> None:
    """It is another deployment: the action ends, and writes nothing into the new one."""
    await house.wants()
    await house.until(lambda: len(house.rig.objects.writes) == 1)
    house.rig.objects.delete(FLINK_DEPLOYMENT, "orders")
    house.rig.job.state = "CANCELED"
    house.rig.objects.put(FLINK_DEPLOYMENT, "orders", house.rig.spec)
    await house.until(house.is_over)
    assert (house.last().phase, house.last().code) == ("failed", "job-gone")
    assert house.overrides() == "" and len(house.rig.objects.writes) == 1


@pytest.mark.parametrize("how", [IN_PLACE])
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda rig: rig.edit(job={"state": "suspended"}), "suspended"),
        (lambda rig: setattr(rig.job, "state", "FAILED"), "resource-failed"),
        (lambda rig: rig.edit(flinkVersion="v9_9"), "unsupported"),
        (lambda rig: rig.edit(flinkConfiguration={"job.autoscaler.enabled": "true"}), "contested"),
    ],
)
async def test_a_plan_for_a_resource_that_takes_no_request(
    house: OperatedHouse, change: Callable[[OperatorRig], None], code: str
) -> None:
    """Is refused with the reason, and nothing is written."""
    await house.wants(then=lambda: change(house.rig))
    await house.until(house.is_over)
    assert (house.last().phase, house.last().code) == ("refused", code)
    assert house.rig.objects.writes == []


@pytest.mark.parametrize("how", [IN_PLACE])
async def test_suspended_meanwhile(house: OperatedHouse) -> None:
    """The action ends, since its job has; it says so."""
    await house.wants()
    await house.until(lambda: len(house.rig.objects.writes) == 1)
    house.rig.edit(job={"state": "suspended"})
    await house.until(house.is_over)
    assert (house.last().phase, house.last().code) == ("failed", "job-gone")
    assert "suspended" in house.last().sentence


@pytest.mark.parametrize("how", [IN_PLACE])
async def test_drift_is_contested_and_names_the_field(house: OperatedHouse) -> None:
    """A tool that replaces the resource by its manifest, without an upgrade."""
    await house.wants()
    await house.until(house.ended("verified"))
    await house.rig.until(lambda s: s.refusal is None)
    house.rig.objects.put(FLINK_DEPLOYMENT, "orders", house.rig.spec, "argocd-controller")
    await house.drivers["flink-operator"].observe(house.policy.subject)
    await house.rig.until(lambda s: s.refusal is None and s.all_running)
    await house.wants({**WANTED, "enrich": 3})
    await house.until(lambda: house.last().phase == "refused")
    assert house.last().code == "contested" and "flinkConfiguration" in house.last().sentence
    assert len(house.rig.objects.writes) == 1


@pytest.mark.parametrize("how", [IN_PLACE])
async def test_what_an_upgrade_resets_is_written_again(house: OperatedHouse) -> None:
    """Once the resource is stable: the manifest of the new version does not have what Weir wrote."""
    await house.wants()
    await house.until(house.ended("verified"))
    await house.rig.until(lambda s: s.refusal is None)
    house.rig.objects.put(
        FLINK_DEPLOYMENT, "orders", {**house.rig.spec, "image": "example/orders:2"}, "argocd-controller"
    )
    await house.rig.until(lambda s: s.refusal is None and s.all_running)
    await house.wants()
    await house.until(lambda: house.phases().count("verified") == 2)
    assert (house.overrides(), len(house.rig.objects.writes)) == ("v1:1,v2:4,v3:2", 2)


@pytest.mark.parametrize("how", [RESTARTED])
async def test_a_parallelism_with_which_the_job_does_not_run_is_taken_back(house: OperatedHouse) -> None:
    """Weir's own change under way is no upgrade that it would wait for."""
    house.rig.operator.slots = 3
    await house.wants()
    await house.until(house.ended("rolled-back"))
    assert house.overrides() == "v1:1,v2:1,v3:1"
