"""An executor whose application is a consumer group behind an endpoint: actions from plan to end, in memory."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.engines.endpoint.memory_endpoint import GROUP, MemoryGroups, Supervisor, endpoint_policy
from tests.unit.executor.builders import plan
from tests.unit.executor.house import APP, House
from weir_contracts.topics import PLANS, POLICIES
from weir_engines.endpoint.driver import EndpointDriver

pytestmark = pytest.mark.virtual_time

OUT = ["after record", "before request", "after request", "after publish"]
IN = [*OUT, "before evict", "after evict"]


class EndpointHouse(House):
    """Two instances behind an endpoint."""

    def __init__(self, **supervisor: Any) -> None:
        super().__init__(unobserved_limit_seconds=60.0, container_start_seconds=0.0)
        self.supervisor = Supervisor(self.clock, **supervisor)
        self.scaler = self.new_driver()
        self.drivers["endpoint"] = self.scaler
        self.policy = endpoint_policy()

    def new_driver(self) -> EndpointDriver:
        """A driver that has seen nothing."""
        transport = self.supervisor.transport
        return EndpointDriver(self.clock, MemoryGroups(self.supervisor), transport=transport)

    async def begin(self, replicas: int = 1) -> None:
        await self.start(replicas)
        self.knowledge.policies[APP] = self.policy
        await self.publish(POLICIES, APP, self.policy)
        self.clock.advance(60)

    async def wants(self, threads: int) -> None:
        """Publish a plan for the group as a monitor sees it."""
        found = await self.new_driver().observe(self.policy.subject)
        assert found.deployment is not None, found
        self._plans += 1
        made = plan(
            {GROUP: threads},
            number=self._plans,
            at=self.clock.now(),
            deployment=found.deployment.ref(),
            current=found.deployment.observed,
            expires_at=self.clock.now() + timedelta(seconds=30),
        )
        await self.publish(PLANS, APP, made, id=made.id)

    def codes(self) -> list[str]:
        return [outcome.code for outcome in self.published()]

    def last(self) -> tuple[str, str, str]:
        """Phase, code and sentence of the newest outcome."""
        newest = self.published()[-1]
        return newest.phase, newest.code, newest.sentence

    def sentence(self, code: str) -> str:
        return next(outcome.sentence for outcome in self.published() if outcome.code == code)


@pytest.fixture
async def house() -> AsyncIterator[EndpointHouse]:
    made = EndpointHouse()
    await made.begin()
    yield made
    await made.end()
    await made.scaler.close()


async def test_out_and_in(house: EndpointHouse) -> None:
    """Two to four and to one: each written once; the members of stopped instances are evicted, and reported."""
    await house.wants(4)
    await house.until(house.ended("verified"))
    assert house.codes() == ["admitted", "recorded", "accepted", "running", "verified"]
    stays = next(id for id, each in house.supervisor.members.items() if each.instance == f"{GROUP}-1")
    await house.wants(1)
    await house.until(lambda: house.phases().count("verified") == 2)
    assert [replicas for replicas, _ in house.supervisor.puts] == [4, 1]
    assert len(house.supervisor.evicted) == 3 and list(house.supervisor.members) == [stays]
    assert house.sentence("evicted") == "evicted 3 members of orders-2, orders-3, orders-4, which have ended"
    requested, running = (
        next(o.at for o in reversed(house.published()) if o.code == c) for c in ("accepted", "running")
    )
    assert running - requested < timedelta(seconds=10), "without an eviction the brokers wait for 45 s"


async def test_threads_are_counted_and_static_members_evicted_by_their_id() -> None:
    """Two threads an instance: eight threads are four instances."""
    house = EndpointHouse(threads=2, static=True)
    house.policy = endpoint_policy(slots=2)
    await house.begin()
    await house.wants(8)
    await house.until(house.ended("verified"))
    await house.wants(6)
    await house.until(lambda: house.phases().count("verified") == 2)
    assert [replicas for replicas, _ in house.supervisor.puts] == [4, 3] and len(house.supervisor.evicted) == 2
    await house.end()


async def test_a_process_that_goes_on_is_evicted_at_most_once() -> None:
    """The endpoint lies: the process joins again, so it is alive, and the action does not succeed."""
    house = EndpointHouse(zombies=True)
    await house.begin()
    await house.wants(1)
    await house.until(house.ended("failed"))
    assert "the group has 2 members instead of 1" in house.sentence("not-running")
    assert len(house.supervisor.evicted) == 1 and house.codes().count("evicted") == 1
    assert house.supervisor.replicas == 2
    await house.end()


async def test_an_instance_that_is_killed_meanwhile_is_replaced() -> None:
    """The supervisor starts another one; the dead one's member is evicted, and the action is verified."""
    house = EndpointHouse()
    await house.begin()
    await house.wants(4)
    await house.until(lambda: house.codes()[-1:] == ["running"])
    house.supervisor.kill(f"{GROUP}-2")
    await house.until(house.ended("verified"))
    assert house.sentence("evicted") == "evicted 1 member of orders-2, which has ended"
    assert sorted({each.instance for each in house.supervisor.members.values()}) == [
        f"{GROUP}-{number}" for number in (1, 3, 4, 5)
    ]
    await house.end()


async def test_what_never_gets_ready_is_rolled_back() -> None:
    """The sentence says how many are ready; in the rollback, too, members of ended instances are evicted."""
    house = EndpointHouse(crash_above=3)
    await house.begin()
    await house.wants(4)
    await house.until(house.ended("rolled-back"))
    assert "0 of 4 instances are ready" in house.sentence("not-running")
    assert [replicas for replicas, _ in house.supervisor.puts] == [4, 2]
    await house.wants(4)
    await house.until(house.ended("refused"))
    assert house.last()[1] == "quarantined"
    await house.end()


async def test_a_conflict_is_decided_again(house: EndpointHouse) -> None:
    """Another client wrote in between, the same replicas: read again, written once."""
    house.supervisor.overwrites = 2
    await house.wants(3)
    await house.until(house.ended("verified"))
    assert house.supervisor.puts == [(3, "v3")]


async def test_foreign_replicas_are_left_alone(house: EndpointHouse) -> None:
    """After verification another client sets five: Weir holds."""
    await house.wants(3)
    await house.until(house.ended("verified"))
    house.supervisor.replicas, house.supervisor.version = 5, 9
    await house.quiet(10)
    await house.wants(2)
    await house.until(house.ended("refused"))
    assert house.last()[1] == "contested"
    assert len(house.supervisor.puts) == 1


async def test_a_lost_answer_is_found_requested(house: EndpointHouse) -> None:
    """The request is not sent again."""
    house.supervisor.lost_answers = 1
    await house.wants(3)
    await house.until(house.ended("verified"))
    assert len(house.supervisor.puts) == 1 and "found-requested" in house.codes()


@pytest.mark.parametrize(
    ("broken", "location", "reason"),
    [(500, "", "500 Internal Server Error"), (302, "http://127.0.0.1:1/", "redirects GET (302)"), (403, "", "403")],
)
async def test_an_endpoint_that_does_not_serve_is_a_refusal(
    house: EndpointHouse, broken: int, location: str, reason: str
) -> None:
    """The plan is refused with the status, and the endpoint's text is in no outcome."""
    await house.wants(3)
    house.supervisor.broken, house.supervisor.location = broken, location
    await house.until(house.ended("refused"))
    assert reason in house.last()[2] and house.last()[1] == ("forbidden" if broken == 403 else "unreachable")
    assert all("secret" not in record.value.decode() for record in house.records() if record.value)
    assert house.supervisor.puts == []


@pytest.mark.parametrize("lie", [{"ready": 9}, {"replicas": None}, {"instances": "none"}])
async def test_lies_in_the_middle_of_an_action_are_waited_for(house: EndpointHouse, lie: dict[str, Any]) -> None:
    """They are an outage, which does not count against the deadline."""
    await house.wants(4)
    await house.until(lambda: "accepted" in house.codes())
    house.supervisor.lie = lie
    await house.quiet(40)
    assert house.last()[0] == "verifying"
    house.supervisor.lie = {}
    await house.until(house.ended("verified"))


async def test_brokers_that_go_away_delay_the_verification(house: EndpointHouse) -> None:
    """Whether all tasks are somewhere is unknown then."""
    await house.wants(4)
    await house.until(lambda: "accepted" in house.codes())
    house.supervisor.brokers_away = "the brokers did not answer within 5 s"
    await house.quiet(40)
    assert house.last()[0] == "verifying"
    house.supervisor.brokers_away = ""
    await house.until(house.ended("verified"))


async def test_an_endpoint_that_stays_away_ends_the_action(house: EndpointHouse) -> None:
    """After the limit, without a rollback that could not be sent."""
    await house.wants(4)
    await house.until(lambda: "accepted" in house.codes())
    house.supervisor.broken = 503
    await house.until(house.ended("failed"))
    assert house.last()[1] == "unreachable" and "503" in house.last()[2]


async def test_an_application_that_the_endpoint_forgot_ends_the_action(house: EndpointHouse) -> None:
    """404 is an answer: the application does not exist."""
    await house.wants(4)
    await house.until(lambda: "accepted" in house.codes())
    house.supervisor.broken = 404
    await house.until(house.ended("failed"))
    assert house.last()[1] == "job-gone"


@pytest.mark.parametrize(("wanted", "kill_at"), [*((4, effect) for effect in OUT), *((1, effect) for effect in IN)])
async def test_killed_in_each_phase(kill_at: str, wanted: int) -> None:
    """Another replica continues: one write, and the same end; the first one changes nothing when it wakes up."""
    house = EndpointHouse()
    await house.begin(2)
    await house.until(lambda: all(replica.executor._consumer is not None for replica in house.replicas))
    owner = house.owner()
    assert owner is not None
    other = next(replica for replica in house.replicas if replica is not owner)

    def watch(effect: str) -> None:
        if effect == kill_at and owner.ports.stop_at is None:
            owner.ports.stop_at = len(owner.ports.effects)

    owner.ports.on_effect = watch
    # the other process has its own driver, which saw no earlier instance
    other.executor._runner._targets._drivers = {"endpoint": house.new_driver()}
    await house.wants(wanted)
    await house.until(lambda: owner.ports.stopped)
    await house.quiet(9)
    house.bus.expire(owner.member)
    await house.until(house.ended("verified"))
    owner.ports.wake()
    await house.quiet(6)
    assert [replicas for replicas, _ in house.supervisor.puts] == [wanted]
    assert house.supervisor.replicas == wanted == len(house.supervisor.members)
    assert len(house.supervisor.evicted) == max(0, 2 - wanted)
    await house.end()
