"""Suite of the kubernetes driver for services, in memory and against an API server."""

from typing import Protocol

from tests.unit.engines.driver_suite import OPEN, SKEW, DriverSuite, Rig
from weir_contracts import Parallelism
from weir_engines.driver import Accepted, TargetChanged, Unanswered
from weir_engines.kubernetes.driver import Answer


class ServiceRig(Rig, Protocol):
    """Workloads without an engine."""

    def written(self) -> int:
        """Number of accepted writes to the scale subresources."""

    async def ask(self, wanted: Parallelism) -> Answer:
        """Observe and send a request for that version, again while controllers change the object."""


class ServiceSuite(DriverSuite):
    """The suite of all drivers, for workloads without an engine: they have no checkpoints and no scheduler."""

    async def test_a_running_job_is_observed(self, rig: Rig) -> None:
        """Requested and ready replicas, the workloads and their pods, and settings that add nothing to a deadline."""
        found = await rig.until(lambda s: s.runs(rig.before))
        assert found.reachable and found.deployment is not None and found.topology is not None
        there = found.deployment
        assert there.engine == "service" and there.health == "running"
        assert there.job_id == rig.job_id
        assert there.requested == there.observed == rig.before
        assert found.topology.names == list(rig.before)
        assert [each.name for each in there.workloads] == list(rig.before)
        assert len(there.pods) == there.replicas == sum(rig.before.values())
        assert there.rescale.scheduler is None and there.rescale.stabilization_seconds == 0
        assert found.steady_since is not None and found.steady_since <= found.at + SKEW
        assert (found.refusal, found.progress, found.can_trigger_checkpoint) == (None, None, False)

    async def test_an_outage_is_not_an_absent_job(self, rig: Rig) -> None:
        """The state of the workload is unknown, and no call raises."""
        found = await rig.driver.observe(rig.away)
        assert (found.reachable, found.deployment) == (False, None)
        assert found.reason
        assert isinstance(await rig.driver.request(rig.away, rig.job_id, rig.wanted, rig.before, OPEN), Unanswered)

    async def test_a_request_is_accepted(self, rig: Rig) -> None:
        """The replicas are written at once, by Weir, and run once they are ready."""
        request_sent = await rig.driver.request(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN)
        assert isinstance(request_sent, Accepted)
        found = await rig.driver.observe(rig.subject)
        assert found.deployment is not None and found.deployment.requested == rig.wanted
        assert found.writers == dict.fromkeys(rig.wanted, "")
        found = await rig.until(lambda s: s.runs(rig.wanted))
        assert found.steady_since is not None
        assert request_sent.at - SKEW <= found.steady_since <= found.at + SKEW

    async def test_fewer_replicas_run(self, rig: Rig) -> None:
        """Down to one of each workload."""
        await rig.until(lambda s: s.runs(rig.before))
        one = dict.fromkeys(rig.before, 1)
        assert isinstance(await rig.driver.request(rig.subject, rig.job_id, one, rig.before, OPEN), Accepted)
        found = await rig.until(lambda s: s.runs(one))
        assert found.deployment is not None and found.deployment.replicas == len(one)

    async def test_asking_again_changes_nothing(self, rig: ServiceRig) -> None:
        """Nothing is written for replicas that are there."""
        await rig.driver.request(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN)
        await rig.until(lambda s: s.runs(rig.wanted))
        written = rig.written()
        for _ in range(2):
            assert isinstance(await rig.driver.request(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN), Accepted)
        assert rig.written() == written == len(rig.wanted)

    async def test_a_request_for_an_earlier_version_sends_nothing(self, rig: ServiceRig) -> None:
        """The target changed after it was observed."""
        await rig.until(lambda s: s.runs(rig.before))
        assert isinstance(
            await rig.driver.request(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN, version="1"), TargetChanged
        )
        assert rig.written() == 0
        assert isinstance(await rig.ask(rig.wanted), Accepted)
        assert rig.written() == len(rig.wanted)
