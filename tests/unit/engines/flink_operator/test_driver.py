"""The driver for resources of the Flink Kubernetes Operator: its suite in memory, and what other clients and the operator do."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.engines.driver_suite import OPEN, Closed
from tests.unit.engines.flink_operator.driver_suite import OperatorSuite, RestartSuite
from tests.unit.engines.flink_operator.rig import (
    DEFAULT_SCHEDULER,
    STANDALONE,
    OperatorRig,
    SessionRig,
    deployment_spec,
    operated_subject,
)
from weir_contracts import MAX_SENTENCE
from weir_engines.driver import Accepted, Refusal, Rejected, Snapshot, TargetChanged, Unanswered
from weir_engines.flink_operator.resource import FLINK_DEPLOYMENT
from weir_engines.flink_operator.spec import OVERRIDES


class TestInPlace(OperatorSuite):
    @pytest.fixture(params=[OperatorRig, SessionRig])
    async def rig(self, request: pytest.FixtureRequest) -> AsyncIterator[OperatorRig]:
        yield await request.param().begin()


class TestRestarted(RestartSuite):
    @pytest.fixture(
        params=[(deployment_spec(**DEFAULT_SCHEDULER), "default"), (deployment_spec(**STANDALONE), "adaptive")]
    )
    async def rig(self, request: pytest.FixtureRequest) -> AsyncIterator[OperatorRig]:
        spec, scheduler = request.param
        yield await OperatorRig(spec, scheduler=scheduler).begin()


@pytest.fixture
async def rig() -> OperatorRig:
    return await OperatorRig().begin()


async def _refusal(rig: OperatorRig, code: str) -> str:
    found = await rig.until(lambda s: s.refusal is not None)
    assert found.refusal is not None and found.refusal.code == code, found
    assert len(found.refusal.sentence) <= MAX_SENTENCE
    return found.refusal.sentence


class TestWrite:
    async def test_the_overrides_are_merged(self, rig: OperatorRig) -> None:
        """Entries of vertices that the job does not have stay; other options are left alone."""
        configuration = {**rig.spec["flinkConfiguration"], OVERRIDES: "gone:7,v2:1"}
        rig.edit(flinkConfiguration=configuration)
        await rig.until(lambda s: s.all_running and s.refusal is None)
        assert isinstance(await rig.ask(rig.wanted), Accepted)
        written = rig.objects.spec(FLINK_DEPLOYMENT, "orders")["flinkConfiguration"]
        assert written == {**configuration, OVERRIDES: "gone:7,v2:4,v1:1,v3:2"}
        assert rig.objects.writes[-1]["spec"] == {"flinkConfiguration": {OVERRIDES: written[OVERRIDES]}}

    async def test_nested_options_stay_nested(self, rig: OperatorRig) -> None:
        """As newer versions of the operator allow."""
        rig.operator.paused = True
        rig.edit(flinkConfiguration={"pipeline": {"jobvertex-parallelism-overrides": "v2:2"}})
        found = await rig.driver.observe(rig.subject)
        assert found.deployment is not None and found.deployment.requested == {**rig.before, "enrich": 2}
        await rig.ask(rig.wanted)
        assert rig.objects.writes[-1]["spec"] == {
            "flinkConfiguration": {"pipeline": {"jobvertex-parallelism-overrides": "v2:4,v1:1,v3:2"}}
        }

    async def test_standalone_mode_gets_its_task_managers(self) -> None:
        """As many as the largest parallelism has slots, in the same write."""
        rig = await OperatorRig(deployment_spec(**STANDALONE)).begin()
        assert isinstance(await rig.ask(rig.wanted), Accepted)
        assert rig.objects.writes[-1]["spec"]["taskManager"] == {"replicas": 2}
        found = await rig.until(lambda s: s.runs(rig.wanted))
        assert found.deployment is not None and found.deployment.free_slots is None
        assert found.deployment.rescale.max_slots is not None

    async def test_a_write_that_comes_second_is_decided_again(self, rig: OperatorRig) -> None:
        """Another client changes the resource between reading and writing: nothing of it is overwritten."""

        class Meanwhile:
            async def begin(self) -> None:
                rig.edit(image="example/orders:2")

            async def go_on(self) -> None:
                return None

        assert isinstance(await rig.ask(rig.wanted, Meanwhile()), TargetChanged)
        assert rig.objects.writes == []
        assert OVERRIDES not in rig.objects.spec(FLINK_DEPLOYMENT, "orders")["flinkConfiguration"]

    async def test_a_restart_from_the_last_state_has_a_fresh_checkpoint(self) -> None:
        """It is completed before the write, behind the fence, which is asked again after it."""
        job = {**deployment_spec()["job"], "upgradeMode": "last-state"}
        rig = await OperatorRig(deployment_spec(**DEFAULT_SCHEDULER, job=job), scheduler="default").begin()
        closed = Closed(None, changes=0)
        assert isinstance(await rig.ask(rig.wanted, closed), Unanswered)
        assert (rig.job.checkpoints_triggered, rig.objects.writes) == (1, [])
        assert isinstance(await rig.ask(rig.wanted), Accepted)
        assert rig.job.checkpoints_triggered == 2
        assert (await rig.until(lambda s: s.runs(rig.wanted))).deployment is not None

    @pytest.mark.parametrize(("status", "answer"), [("patch", Rejected), ("get", Refusal)])
    async def test_a_missing_right_is_named(self, rig: OperatorRig, status: str, answer: type[Any]) -> None:
        """Verb, resource and namespace."""
        rig.objects.denied = {f"{status} flinkdeployments"}
        found = await rig.driver.request(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN)
        assert isinstance(found, answer), found
        reason = found.reason if isinstance(found, Rejected) else found.sentence  # type: ignore[union-attr]
        assert f"may not {status} flinkdeployments of orders in namespace shop" in reason


class TestStates:
    """Each is a clear reason, and nothing is written."""

    async def test_suspended(self, rig: OperatorRig) -> None:
        rig.edit(job={"state": "suspended"})
        assert "set spec.job.state to running" in await _refusal(rig, "suspended")
        found = await rig.driver.observe(rig.subject)
        assert (found.reachable, found.deployment) == (True, None)
        rig.edit(job={"state": "running"})
        assert (await rig.until(lambda s: s.runs(rig.before) and s.refusal is None)).deployment is not None

    async def test_failed(self, rig: OperatorRig) -> None:
        rig.job.state = "FAILED"
        rig.objects.report(FLINK_DEPLOYMENT, "orders", error='{"type": "x", "message": "no checkpoint can be read"}')
        assert (await _refusal(rig, "resource-failed")).endswith("is FAILED: no checkpoint can be read")

    @pytest.mark.parametrize("version", ["v9_9", "v1_17", "v3_0", "2.1", None])
    async def test_an_unknown_version(self, rig: OperatorRig, version: str | None) -> None:
        rig.edit(flinkVersion=version)
        assert f"flinkVersion {version or 'unset'}" in await _refusal(rig, "unsupported")

    async def test_an_upgrade_is_waited_for(self, rig: OperatorRig) -> None:
        """Until the resource is stable; the field is named. What Weir set stays."""
        await rig.ask(rig.wanted)
        await rig.driver.trigger_checkpoint(rig.subject, rig.job_id)
        await rig.until(lambda s: s.runs(rig.wanted) and s.refusal is None)
        rig.edit(image="example/orders:2")
        assert "upgrades FlinkDeployment orders (spec.image changed)" in await _refusal(rig, "upgrade")
        found = await rig.until(lambda s: not s.reachable)
        assert found.refusal is not None and found.refusal.code == "upgrade"
        found = await rig.until(lambda s: s.refusal is None)
        assert found.runs(rig.wanted)
        assert found.deployment is not None and found.deployment.job_id == rig.job_id

    async def test_a_rollback_is_waited_for(self, rig: OperatorRig) -> None:
        """What the operator has rolled back runs, but a write would deploy the failed spec again."""
        rig.operator.fails = {"example/orders:2"}
        rig.edit(image="example/orders:2")
        await rig.until(lambda s: s.refusal is not None and "rolls FlinkDeployment orders back" in s.refusal.sentence)
        found = await rig.until(lambda s: s.refusal is not None and s.refusal.code == "rolled-back")
        assert found.refusal is not None and "spec.image" in found.refusal.sentence
        answer = await rig.driver.request(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN)
        assert isinstance(answer, Refusal | Unanswered) and rig.objects.writes == []

    @pytest.mark.parametrize(
        ("options", "is_contested"),
        [
            ({"job.autoscaler.enabled": "true"}, True),
            ({"job.autoscaler.enabled": "true", "job.autoscaler.scaling.enabled": "false"}, False),
            ({"job.autoscaler.enabled": "false"}, False),
        ],
    )
    async def test_the_operators_autoscaler(
        self, rig: OperatorRig, options: dict[str, str], is_contested: bool
    ) -> None:
        """Enabled it contests the parallelism, unless it only measures."""
        rig.edit(flinkConfiguration=options)
        found = await rig.driver.observe(rig.subject)
        assert (found.refusal is not None and found.refusal.code == "contested") == is_contested
        answer = await rig.ask(rig.wanted)
        assert isinstance(answer, Refusal if is_contested else Accepted), answer

    async def test_an_autoscaler_that_the_operators_settings_enable(self, rig: OperatorRig) -> None:
        """It shows by what is deployed: overrides that the spec does not have."""
        record = (await rig.objects.get(FLINK_DEPLOYMENT, "shop", "orders") or {})["status"]["reconciliationStatus"]
        deployed = record["lastReconciledSpec"].replace(
            '"flinkConfiguration": {', f'"flinkConfiguration": {{"{OVERRIDES}": "v2:3", '
        )
        rig.operator.paused = True
        rig.objects.report(FLINK_DEPLOYMENT, "orders", reconciliationStatus={**record, "lastReconciledSpec": deployed})
        assert "set job.autoscaler.enabled to false" in await _refusal(rig, "contested")

    async def test_reactive_mode_is_another_target(self, rig: OperatorRig) -> None:
        rig.edit(flinkConfiguration={"scheduler-mode": "reactive"})
        assert "target.kubernetes" in await _refusal(rig, "unsupported")

    async def test_unreadable_overrides(self, rig: OperatorRig) -> None:
        rig.operator.paused = True
        rig.edit(flinkConfiguration={OVERRIDES: "v1:many"})
        assert OVERRIDES in await _refusal(rig, "unsupported")

    async def test_a_session_cluster_has_no_job(self, rig: OperatorRig) -> None:
        rig.operator.paused = True
        rig.edit(job=None)
        assert "target.flinkSessionJob" in await _refusal(rig, "unsupported")

    async def test_a_session_job_without_its_cluster(self) -> None:
        rig = await SessionRig().begin()
        rig.objects.delete(FLINK_DEPLOYMENT, "session")
        assert "FlinkDeployment session, which does not exist" in await _refusal(rig, "unsupported")

    async def test_another_job_than_the_policys(self, rig: OperatorRig) -> None:
        """The policy would be judged by the readings of one job, and scale another."""
        rig.subject = operated_subject(application={"flink": {"url": str(rig.subject.flink.url), "job": "payments"}})
        assert "application.flink.job is payments" in await _refusal(rig, "unsupported")

    async def test_an_operator_that_is_not_installed(self, rig: OperatorRig) -> None:
        rig.objects.defined = False
        assert "install the Flink Kubernetes Operator" in await _refusal(rig, "unsupported")

    async def test_an_error_of_another_change(self, rig: OperatorRig) -> None:
        """The operator does not accept the spec, so that it would not act on Weir's either."""
        rig.operator.paused = True
        rig.edit(image="example/orders:2")
        rig.objects.report(FLINK_DEPLOYMENT, "orders", error="the image is not allowed")
        assert "the image is not allowed" in await _refusal(rig, "operator-error")


class TestWriters:
    """Who set the parallelism decides whether it is contested."""

    async def _scaled(self, rig: OperatorRig) -> None:
        await rig.ask(rig.wanted)
        await rig.driver.trigger_checkpoint(rig.subject, rig.job_id)
        await rig.until(lambda s: s.runs(rig.wanted) and s.refusal is None)

    async def test_another_value_names_manager_and_field(self, rig: OperatorRig) -> None:
        """As of a tool that applies a manifest with overrides."""
        await self._scaled(rig)
        rig.edit("argocd-controller", flinkConfiguration={OVERRIDES: "v2:2"})
        found = await rig.until(lambda s: s.deployment is not None)
        assert found.deployment is not None and found.deployment.requested != rig.wanted
        assert found.writers == dict.fromkeys(rig.wanted, "argocd-controller in flinkConfiguration")

    async def test_a_removal_alone_is_drift(self, rig: OperatorRig) -> None:
        """A tool that replaces the resource by its manifest drops the field, which no manager owns then: the field is named."""
        await self._scaled(rig)
        rig.objects.put(rig.kind, "orders", rig.spec, "flux")
        found = await rig.until(lambda s: s.deployment is not None and s.deployment.requested != rig.wanted)
        assert found.writers == dict.fromkeys(rig.wanted, "a removal from flinkConfiguration")

    async def test_what_an_upgrade_drops_is_weirs_to_write_again(self, rig: OperatorRig) -> None:
        """Once it is stable."""
        await self._scaled(rig)
        rig.objects.put(rig.kind, "orders", {**rig.spec, "image": "example/orders:2"}, "flux")
        await _refusal(rig, "upgrade")
        found = await rig.until(lambda s: s.refusal is None and s.all_running)
        assert found.runs(rig.before) and found.writers == dict.fromkeys(rig.wanted, "")
        assert isinstance(await rig.ask(rig.wanted), Accepted)

    async def test_fewer_task_managers_are_a_smaller_request(self) -> None:
        """In standalone mode another client may change their number alone."""
        rig = await OperatorRig(deployment_spec(**STANDALONE)).begin()
        await rig.ask(rig.wanted)
        await rig.until(lambda s: s.runs(rig.wanted) and s.refusal is None)
        rig.edit("keda", taskManager={"replicas": 1})
        found = await rig.until(lambda s: s.deployment is not None and s.deployment.requested != rig.wanted)
        assert found.deployment is not None and found.deployment.requested == {"orders": 1, "enrich": 2, "sink": 2}
        assert found.writers == dict.fromkeys(rig.wanted, "keda in taskManager.replicas")


async def test_an_outage_of_the_job_is_not_its_end(rig: OperatorRig) -> None:
    """Flink's REST API does not answer, while the operator changes nothing."""
    rig.jobs.away[str(rig.subject.flink.url).rstrip("/")] = "connection refused"
    found = await rig.driver.observe(rig.subject)
    assert (found.reachable, found.deployment, found.reason) == (False, None, "connection refused")


async def test_without_a_namespace_the_driver_is_off(rig: OperatorRig) -> None:
    """The setting is named."""
    rig.subject = operated_subject(namespace="other")
    found: Snapshot = await asyncio.wait_for(rig.driver.observe(rig.subject), 5)
    assert found.refusal is not None and found.refusal.code == "namespace-forbidden"
