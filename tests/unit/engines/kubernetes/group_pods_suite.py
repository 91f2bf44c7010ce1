"""Suite of the kubernetes driver for consumer groups, in memory and against an API server."""

from datetime import timedelta
from typing import Any, Protocol

from tests.unit.engines.driver_suite import OPEN, SKEW, DriverSuite, Rig
from tests.unit.engines.kubernetes.pod_groups import GROUP, PodGroup
from weir_contracts import Parallelism
from weir_engines.driver import Accepted, Evicted, TargetChanged, Unanswered
from weir_engines.kubernetes.driver import Answer
from weir_executor.core.in_flight import rescale_limit
from weir_executor.core.parameters import Rules


class GroupPodsRig(Rig, Protocol):
    """Two pods of one workload, whose threads are a group."""

    group: PodGroup
    kind: str

    def written(self) -> int:
        """Number of accepted writes to the scale subresource."""

    async def ask(self, wanted: Parallelism) -> Answer:
        """Observe and send a request for that version, again while controllers change the object."""

    async def restart(self, name: str) -> None:
        """Delete a pod, whose controller makes another one."""

    def new_driver(self) -> Any:
        """A driver of another process, which has seen nothing."""


class GroupPodsSuite(DriverSuite):
    """The suite of all drivers, for pods without checkpoints and without a scheduler."""

    async def test_a_running_job_is_observed(self, rig: Rig) -> None:
        """Requested threads, members of the group, the workload and its pods, and the limit of a rescale."""
        found = await rig.until(lambda s: s.runs(rig.before))
        assert found.reachable and found.deployment is not None and found.topology is not None
        there = found.deployment
        assert (there.engine, there.health, there.state) == ("kafka-streams", "running", "Stable")
        assert there.job_id == rig.job_id == GROUP and found.topology.names == [GROUP]
        assert there.requested == there.observed == rig.before
        assert there.replicas == 2 == len(there.pods) and len(there.workloads) == 1
        assert found.steady_since is not None and found.steady_since <= found.at + SKEW
        assert (found.refusal, found.progress, found.departed) == (None, None, ())
        assert found.can_trigger_checkpoint is False and found.version
        rules = Rules(deadline_floor_seconds=5.0, container_start_seconds=60.0, restart_estimate_seconds=7.0)
        assert rescale_limit(there, None, rules) == timedelta(seconds=67)

    async def test_an_outage_is_not_an_absent_job(self, rig: Rig) -> None:
        """The state of the workload is unknown, and no call raises."""
        found = await rig.driver.observe(rig.away)
        assert (found.reachable, found.deployment) == (False, None)
        assert found.reason
        assert isinstance(await rig.driver.request(rig.away, rig.job_id, rig.wanted, rig.before, OPEN), Unanswered)
        assert await rig.driver.trigger_checkpoint(rig.away, rig.job_id)

    async def test_brokers_that_are_away_are_an_outage(self, rig: GroupPodsRig) -> None:
        """Whether every task is somewhere is unknown then; nothing is evicted."""
        rig.group.brokers_away = "the brokers did not answer within 5 s"
        found = await rig.driver.observe(rig.subject)
        assert not found.reachable and found.reason == rig.group.brokers_away

    async def test_a_request_is_accepted(self, rig: GroupPodsRig) -> None:
        """The replicas are written at once, by Weir, and run once all pods are ready and the group is stable."""
        await rig.until(lambda s: s.runs(rig.before))
        sent = await rig.ask(rig.wanted)
        assert isinstance(sent, Accepted)
        found = await rig.driver.observe(rig.subject)
        assert found.deployment is not None and found.deployment.requested == rig.wanted
        assert found.writers == {GROUP: ""} and not found.all_running and found.progress is not None
        found = await rig.until(lambda s: s.runs(rig.wanted))
        assert found.steady_since is not None and sent.at - SKEW <= found.steady_since <= found.at + SKEW
        assert len(rig.group.members) == 4 * rig.group.threads

    async def test_members_of_stopped_pods_are_evicted(self, rig: GroupPodsRig) -> None:
        """The brokers would wait 45 s for them; the pods that run keep their members."""
        await rig.until(lambda s: s.runs(rig.before))
        one = {GROUP: rig.group.threads}
        assert isinstance(await rig.ask(one), Accepted)
        found = await rig.until(lambda s: bool(s.departed))
        assert not found.all_running and found.progress is not None
        assert len({member.instance for member in found.departed}) == 1
        assert len(found.departed) == rig.group.threads
        evicted = await rig.driver.evict(rig.subject, found.departed)
        assert evicted == Evicted(found.departed)
        assert rig.group.evicted == [member.id for member in found.departed]
        assert (await rig.until(lambda s: s.runs(one))).departed == ()
        assert isinstance(await rig.driver.evict(rig.subject, found.departed), Unanswered)

    async def test_an_executor_that_starts_meanwhile_evicts_them_of_a_stateful_set(self, rig: GroupPodsRig) -> None:
        """It never saw the pods: ordinals identify them; of another kind the brokers' session timeout ends the wait."""
        if rig.kind != "StatefulSet" or rig.group.unnamed:
            return
        await rig.until(lambda s: s.runs(rig.before))
        one = {GROUP: rig.group.threads}
        assert isinstance(await rig.ask(one), Accepted)
        await rig.until(lambda s: bool(s.departed))
        other = rig.new_driver()
        found = await other.observe(rig.subject)
        assert len(found.departed) == rig.group.threads
        assert await other.evict(rig.subject, found.departed) == Evicted(found.departed)
        await other.close()

    async def test_a_pod_that_is_replaced_keeps_the_member_of_the_new_one(self, rig: GroupPodsRig) -> None:
        """Only a member whose pod does not exist is ever named."""
        await rig.until(lambda s: s.runs(rig.before))
        first = sorted(pod.name for pod in (await rig.driver.observe(rig.subject)).deployment.pods)  # type: ignore[union-attr]
        before = set(rig.group.members)
        await rig.restart(first[1])
        found = await rig.until(lambda s: bool(set(rig.group.members) - before))
        for _ in range(3):
            if found.departed:
                await rig.driver.evict(rig.subject, found.departed)
            found = await rig.driver.observe(rig.subject)
        assert set(rig.group.evicted) <= before
        living = {member.process.uid for member in rig.group.members.values() if member.dies_at is None}
        assert len(living) == 2

    async def test_a_request_for_an_earlier_version_sends_nothing(self, rig: GroupPodsRig) -> None:
        """The workload changed after it was observed."""
        await rig.until(lambda s: s.runs(rig.before))
        assert isinstance(
            await rig.driver.request(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN, version="1"), TargetChanged
        )
        assert rig.written() == 0
        assert isinstance(await rig.ask(rig.wanted), Accepted) and rig.written() == 1

    async def test_asking_again_changes_nothing(self, rig: GroupPodsRig) -> None:
        """Nothing is written for replicas that are there."""
        for _ in range(3):
            assert isinstance(await rig.driver.request(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN), Accepted)
        assert rig.written() == 1
