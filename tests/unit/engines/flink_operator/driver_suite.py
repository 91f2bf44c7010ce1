"""Suite of the driver for the operator's resources, in memory and against an API server."""

from typing import Protocol

from tests.unit.engines.driver_suite import OPEN, DriverSuite, Rig
from weir_contracts import Parallelism
from weir_engines.driver import Accepted, TargetChanged
from weir_engines.flink_operator.driver import Answer


class OperatedRig(Rig, Protocol):
    """A job that the operator runs."""

    async def ask(self, wanted: Parallelism) -> Answer:
        """Observe and send a request for that version."""


class OperatorSuite(DriverSuite):
    """The suite of all drivers, for a job that the operator rescales in place."""

    async def test_the_deployment_is_the_resources(self, rig: OperatedRig) -> None:
        """Its id is the resource's, who set its parallelism is known, and it is rescaled in place."""
        assert isinstance(await rig.ask(rig.wanted), Accepted)
        found = await rig.driver.observe(rig.subject)
        assert found.deployment is not None
        assert found.deployment.job_id == rig.job_id
        assert not found.deployment.rescale.by_restart
        assert found.writers == dict.fromkeys(rig.wanted, "")
        assert found.version

    async def test_a_request_for_another_version_sends_nothing(self, rig: OperatedRig) -> None:
        """The resource changed after it was observed."""
        await rig.until(lambda s: s.runs(rig.before))
        seen = await rig.driver.observe(rig.subject)
        answer = await rig.driver.request(
            rig.subject, rig.job_id, rig.wanted, rig.before, OPEN, version=f"{seen.version}0"
        )
        assert isinstance(answer, TargetChanged)
        found = await rig.driver.observe(rig.subject)
        assert found.deployment is not None and found.deployment.requested == rig.before


class RestartSuite(OperatorSuite):
    """The same, where the operator ends the job and starts it again."""

    async def test_a_running_job_is_observed(self, rig: Rig) -> None:
        """Its rescale is by a restart."""
        found = await rig.until(lambda s: s.runs(rig.before))
        assert found.reachable and found.deployment is not None
        assert found.deployment.requested == found.deployment.observed == rig.before
        assert found.deployment.rescale.by_restart and not found.can_trigger_checkpoint

    async def test_the_deployment_is_the_resources(self, rig: OperatedRig) -> None:
        """Its id outlives the job's."""
        assert isinstance(await rig.ask(rig.wanted), Accepted)
        found = await rig.until(lambda s: s.runs(rig.wanted))
        assert found.deployment is not None and found.deployment.job_id == rig.job_id

    async def test_a_request_is_accepted(self, rig: Rig) -> None:
        """While the job is away the target is out of sight, and the job is not lost."""
        request_sent = await rig.driver.request(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN)
        assert isinstance(request_sent, Accepted)
        away = await rig.until(lambda s: not s.reachable)
        assert "restarts the job" in away.reason and away.refusal is None
        found = await rig.until(lambda s: s.runs(rig.wanted))
        assert found.steady_since is not None and found.steady_since >= request_sent.at
