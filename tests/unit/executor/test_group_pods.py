"""Consumer groups on pods: actions from plan to end in memory, and which members belong to which pods."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from tests.unit.engines.driver_suite import OPEN
from tests.unit.engines.kubernetes.pod_groups import GROUP, PodProcess
from tests.unit.engines.kubernetes.rig import GroupRig
from tests.unit.executor.test_kubernetes_stories import KubernetesHouse
from weir_engines.driver import Rejected, Snapshot, Unanswered
from weir_engines.kafka.members import GroupMember, GroupReading
from weir_engines.kubernetes.group_pods import ordinals

pytestmark = pytest.mark.virtual_time

OUT = ["after record", "before request", "after request", "after publish"]
STREAMS = {
    "application": {"kafkaStreams": {"applicationId": GROUP}},
    "signals": {"kafka": {"bootstrapServers": "127.0.0.1:9092"}},
}


@pytest.fixture
async def house() -> AsyncIterator[KubernetesHouse]:
    made = KubernetesHouse("StatefulSet")
    await made.begin(**STREAMS)
    yield made
    await made.end()
    await made.scaler.close()


async def test_out_and_in(house: KubernetesHouse) -> None:
    """Two to four and to one: each written once; the members of stopped pods are evicted, and reported."""
    await house.wants(4)
    await house.until(house.ended("verified"))
    assert house.codes() == ["admitted", "recorded", "accepted", "running", "verified"]
    stays = next(id for id, each in house.group.members.items() if each.process.pod == "orders-0")
    await house.wants(1)
    await house.until(lambda: house.phases().count("verified") == 2)
    assert [replicas for _, replicas in house.kubernetes.writes] == [4, 1]
    assert len(house.group.evicted) == 3 and list(house.group.members) == [stays]
    assert house.said("evicted 3 members of orders-1, orders-2, orders-3, which have ended")()
    requested, running = (
        next(o.at for o in reversed(house.published()) if o.code == code) for code in ("accepted", "running")
    )
    assert running - requested < timedelta(seconds=10), "without an eviction the brokers wait for 45 s"


async def test_a_process_that_outlives_its_pod_is_evicted_at_most_once(house: KubernetesHouse) -> None:
    """A pod that is deleted by force may go on on a lost node: its process joins again, and the action does not
    succeed."""
    await house.wants(1)
    zombie = next(each for each in house.kubernetes.processes() if each.pod == "orders-1")

    async def processes() -> list[PodProcess]:
        return [*{each.uid: each for each in (*house.kubernetes.processes(), zombie)}.values()]

    house.group.pods = processes
    await house.until(house.ended("failed"))
    assert house.said("the group has 2 members instead of 1")()
    assert len(house.group.evicted) == 1 and house.codes().count("evicted") == 1


async def test_brokers_that_go_away_delay_the_verification(house: KubernetesHouse) -> None:
    """Whether all tasks are somewhere is unknown then."""
    await house.wants(4)
    await house.until(lambda: "accepted" in house.codes())
    house.group.brokers_away = "the brokers did not answer within 5 s"
    await house.quiet(40)
    assert house.last()[0] == "verifying"
    house.group.brokers_away = ""
    await house.until(house.ended("verified"))


async def test_pods_that_are_not_created_are_rolled_back(house: KubernetesHouse) -> None:
    """A quota allows three of four; in the rollback, too, the third pod's member is evicted."""
    house.pods["orders"].quota = 3
    await house.wants(4)
    await house.until(house.ended("rolled-back"))
    assert house.said("1 of 4 pods of orders are denied by a quota")()
    assert [replicas for _, replicas in house.kubernetes.writes] == [4, 2]
    assert len(house.group.evicted) == 1 and len(house.group.members) == 2


@pytest.mark.parametrize("wanted", [4, 1])
async def test_another_process_continues(house: KubernetesHouse, wanted: int) -> None:
    """Its driver saw no earlier pod: the ordinals of the StatefulSet name the members to evict."""
    await house.wants(wanted)
    await house.until(lambda: "accepted" in house.codes())
    for replica in house.replicas:
        replica.executor._runner._targets._drivers = {
            **replica.executor._runner._targets._drivers,
            "kubernetes": house.new_driver(),
        }
    await house.until(house.ended("verified"))
    assert len(house.group.evicted) == max(0, 2 - wanted) and len(house.group.members) == wanted


async def _departed(rig: GroupRig) -> Snapshot:
    await rig.until(lambda s: s.runs(rig.before))
    await rig.ask({GROUP: rig.group.threads})
    return await rig.until(lambda s: bool(s.departed))


async def test_a_pod_that_the_api_server_still_has_is_not_evicted_from() -> None:
    """The watch may lag, or a pod of the same name may have begun meanwhile: the server is asked for each pod."""
    rig = GroupRig()
    found = await _departed(rig)

    async def none_has_ended(namespace: str, names: object) -> frozenset[str]:
        return frozenset()

    rig.kubernetes.ended = none_has_ended  # type: ignore[method-assign]
    assert isinstance(await rig.driver.evict(rig.subject, found.departed), Unanswered)
    assert rig.group.evicted == []


async def test_an_eviction_needs_the_api_server_and_the_brokers() -> None:
    """Without one of them nothing is removed, and the reason is named."""
    rig = GroupRig()
    found = await _departed(rig)
    rig.group.brokers_away = "the brokers are away"
    assert await rig.driver.evict(rig.subject, found.departed) == Unanswered("the brokers are away")
    rig.group.brokers_away, rig.kubernetes.away = "", "no answer within 5 s"
    answer = await rig.driver.evict(rig.subject, found.departed)
    assert isinstance(answer, Unanswered) and "no answer" in answer.reason
    assert rig.group.evicted == []


async def test_more_threads_than_the_policy_says_are_refused() -> None:
    """Each pod has two members of the group, and the target counts one."""
    rig = GroupRig(threads=2)
    found = await rig.until(lambda s: s.refusal is not None)
    assert found.refusal is not None and found.refusal.code == "unsupported" and "slots say 1" in found.refusal.sentence


async def test_threads_that_no_number_of_pods_gives_are_rejected() -> None:
    """The next possible number is named."""
    rig = GroupRig(slots=2)
    answer = await rig.driver.request(rig.subject, GROUP, {GROUP: 3}, rig.before, OPEN)
    assert answer == Rejected("no number of pods of 2 threads gives 3: the next is 4")


def test_only_ordinals_are_pods_of_a_stateful_set() -> None:
    """Kafka Streams' default client id has a random UUID, which may begin with digits."""
    names = [
        "orders-0-StreamThread-1-consumer",
        "orders-12",
        "orders-12345678-52b6-4c08",
        "orders-01",
        "orders-x",
        "o-1",
    ]
    group = GroupReading("Stable", tuple(GroupMember(f"{name}#1", name) for name in names))
    assert ordinals("orders", group) == {"orders-0", "orders-12"}
