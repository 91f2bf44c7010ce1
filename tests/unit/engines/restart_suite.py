"""Suite of the drivers that can restart one instance of a consumer group."""

from dataclasses import replace
from typing import Protocol
from uuid import UUID, uuid4

import pytest

from tests.unit.engines.driver_suite import OPEN, Closed, Rig
from weir_contracts import InstanceRef, Subject
from weir_engines.driver import Accepted, Refusal, RunningInstance, Snapshot, Unanswered


class RestartRig(Rig, Protocol):
    """Two instances whose threads are a group."""

    def restarts(self) -> int:
        """Number of instances that were restarted."""

    def present(self) -> set[str]:
        """Ids of the group's members."""

    def lose_an_answer(self) -> None:
        """Lose the answer to the next accepted change."""


def letting(subject: Subject) -> Subject:
    """Return the subject with a policy that lets instances be restarted."""
    target = subject.target
    name, own = ("endpoint", target.endpoint) if target.endpoint is not None else ("kubernetes", target.kubernetes)
    assert own is not None
    allowed = own.model_copy(update={"restart_instances": True})
    return replace(subject, target=target.model_copy(update={name: allowed}))


def ref(instance: RunningInstance) -> InstanceRef:
    return InstanceRef(id=instance.id, members=list(instance.members), uid=instance.uid)


class RestartSuite:
    """Subclass it with a fixture `rig`."""

    @staticmethod
    async def settled(rig: Rig) -> tuple[Snapshot, InstanceRef]:
        """The application as it runs, and its second instance."""
        await rig.until(lambda s: s.runs(rig.before))
        found = await rig.driver.observe(letting(rig.subject))
        return found, ref(max(found.instances, key=lambda each: each.id))

    @staticmethod
    async def ask(rig: Rig, instance: InstanceRef, action: UUID, found: Snapshot) -> object:
        subject = letting(rig.subject)
        return await rig.driver.restart(subject, rig.job_id, instance, action, OPEN, version=found.version)

    async def test_a_snapshot_lists_the_instances(self, rig: RestartRig) -> None:
        """Each with its members; whether one may be restarted is the policy's word, too."""
        found, instance = await self.settled(rig)
        assert found.can_restart_instances
        assert not (await rig.driver.observe(rig.subject)).can_restart_instances
        members = [member for each in found.instances for member in each.members]
        assert len(found.instances) == 2 and sorted(members) == sorted(rig.present())
        again = found.instance_of(instance.members)
        assert again is not None and again.id == instance.id
        assert found.instance_of([*instance.members, "another"]) is None and found.instance_of([]) is None
        assert not found.is_replaced(instance)

    async def test_an_instance_is_restarted_and_the_others_stay(self, rig: RestartRig) -> None:
        """Another process takes its place under the same number of replicas; the members of the ended one are evicted."""
        found, instance = await self.settled(rig)
        stays = rig.present() - set(instance.members)
        assert isinstance(await self.ask(rig, instance, uuid4(), found), Accepted)
        found = await rig.until(lambda s: s.is_replaced(instance) and bool(s.departed))
        assert {member.id for member in found.departed} == set(instance.members)
        answer = await rig.driver.evict(rig.subject, found.departed)
        # A new pod may have the address of the ended one, whose member could then be its own: the session's end is awaited.
        assert isinstance(answer, Unanswered) or {member.id for member in answer.members} == set(instance.members)
        found = await rig.until(lambda s: s.runs(rig.before))
        assert found.is_replaced(instance) and found.departed == ()
        assert stays < rig.present() and not set(instance.members) & rig.present()
        assert found.deployment is not None and found.deployment.requested == rig.before
        assert rig.restarts() == 1

    async def test_asking_again_restarts_nothing_again(self, rig: RestartRig) -> None:
        """With the same action, while the process ends and after it has ended; and if the answer is lost."""
        found, instance = await self.settled(rig)
        action = uuid4()
        rig.lose_an_answer()
        assert isinstance(await self.ask(rig, instance, action, found), Unanswered)
        for _ in range(2):
            assert isinstance(await self.ask(rig, instance, action, found), Accepted)
        await rig.until(lambda s: s.is_replaced(instance))
        assert isinstance(await self.ask(rig, instance, action, found), Accepted)
        assert rig.restarts() == 1

    @pytest.mark.parametrize("held", [Refusal("expired", "too late"), Unanswered("not confirmed")])
    async def test_a_closed_fence_restarts_nothing(self, rig: RestartRig, held: Refusal | Unanswered) -> None:
        """Its response is the driver's."""
        found, instance = await self.settled(rig)
        fence, subject = Closed(held), letting(rig.subject)
        answer = await rig.driver.restart(subject, rig.job_id, instance, uuid4(), fence, version=found.version)
        assert answer == held and fence.request_sent == 1
        assert rig.restarts() == 0 and not (await rig.driver.observe(subject)).is_replaced(instance)

    async def test_an_outage_restarts_nothing(self, rig: RestartRig) -> None:
        """The request is repeated until the action's deadline."""
        found, instance = await self.settled(rig)
        answer = await rig.driver.restart(letting(rig.away), rig.job_id, instance, uuid4(), OPEN, version=found.version)
        assert isinstance(answer, Unanswered) and rig.restarts() == 0
