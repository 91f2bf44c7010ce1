"""The monitor on the bus in memory: which applications it watches, and what it never loses."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.unit.engines.memory_sources import MemoryFlink
from tests.unit.monitor.builders import policy
from weir_contracts import DeadLetter, Observation, ScalingPolicy
from weir_contracts.topics import DEAD_LETTERS, OBSERVATIONS, POLICIES
from weir_monitor.core import Readings
from weir_monitor.service import Monitor
from weir_runtime import messages
from weir_runtime.bus import BusError, partition_of
from weir_runtime.clock import SystemClock
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.messages import decode

PARTITIONS = 4
WAIT_SECONDS = 5.0


class Applications:
    """Every application has its own cluster. Those in `stuck` never answer."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.stuck: set[str] = set()

    def new(self, made_for: ScalingPolicy) -> "_One":
        self.open.append(made_for.application)
        return _One(self, made_for.application)


class _One:
    def __init__(self, all_of_them: Applications, application: str) -> None:
        self._all = all_of_them
        self._application = application
        self._flink = MemoryFlink(SystemClock())

    async def read(self, policy: ScalingPolicy) -> Readings:
        if self._application in self._all.stuck:
            await asyncio.Event().wait()
        return Readings(policy, await self._flink.scrape())

    async def close(self) -> None:
        self._all.open.remove(self._application)


class House:
    """A bus, applications, and as many replicas as wanted."""

    def __init__(self) -> None:
        self.bus = MemoryBus(PARTITIONS)
        self.applications = Applications()

    @asynccontextmanager
    async def replica(self, scrape_timeout_seconds: float = 10.0) -> AsyncIterator[Monitor]:
        stop = Stop()
        monitor = Monitor(self.bus, SystemClock(), self.applications.new, scrape_timeout_seconds=scrape_timeout_seconds)
        running = asyncio.create_task(monitor.run(stop))
        try:
            yield monitor
        finally:
            stop.request("test")
            async with asyncio.timeout(WAIT_SECONDS):
                await running

    async def apply(self, *policies: ScalingPolicy) -> None:
        for each in policies:
            await self.bus.publish(POLICIES.name, each.application, each.model_dump_json().encode())

    async def delete(self, application: str) -> None:
        await self.bus.publish(POLICIES.name, application, None)

    def observations(self, application: str | None = None) -> list[Observation]:
        records = self.bus.records(OBSERVATIONS.name)
        return [decode(r, Observation).message for r in records if application in (None, r.key)]

    def statuses(self, application: str) -> list[str]:
        return [observation.status for observation in self.observations(application)]


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; the deadline fails the test."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - no event signals it
            await asyncio.sleep(0.005)


@pytest.fixture
def house() -> House:
    return House()


def names(count: int) -> list[str]:
    return [f"shop/a{n}" for n in range(count)]


async def test_a_policy_becomes_observations(house: House) -> None:
    """With its headers: a unique id, and a trace that later messages continue."""
    await house.apply(policy())
    async with house.replica():
        await until(house.observations)
    record = house.bus.records(OBSERVATIONS.name)[0]
    observation = house.observations()[0]
    assert (observation.status, observation.application, record.key) == ("running", "shop/orders", "shop/orders")
    assert record.headers["ce_id"] == str(observation.id)
    assert record.headers["ce_type"] == OBSERVATIONS.type
    assert record.headers["traceparent"].startswith(f"00-{observation.id.hex}-")


async def test_an_observation_that_is_too_large_says_so(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be refused by every reader, and at each scrape: the application is known to be watched, and held."""
    await house.apply(policy())
    async with house.replica():
        await until(house.observations)
        small = len(house.bus.records(OBSERVATIONS.name)[0].value or b"")
        monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", small - 100)
        seen = len(house.bus.records(OBSERVATIONS.name))
        await until(lambda: len(house.bus.records(OBSERVATIONS.name)) > seen + 1)
    last = decode(house.bus.records(OBSERVATIONS.name)[-1], Observation).message
    assert (last.status, last.topology, last.policy.application) == ("unreachable", None, "shop/orders")
    assert re.fullmatch(r"not published: the message of type .* has [\d,]+ bytes, more than [\d,]+", last.message)


async def test_an_observation_above_the_brokers_own_limit_says_so(house: House) -> None:
    """An administrator's limit is lower than Weir's: the brokers refuse it for good, and take one without its graph."""
    await house.apply(policy())
    async with house.replica():
        await until(house.observations)
        small = len(house.bus.records(OBSERVATIONS.name)[0].value or b"") - 100
        house.bus.refuses = lambda record: len(record.value or b"") > small
        seen = len(house.bus.records(OBSERVATIONS.name))
        await until(lambda: len(house.bus.records(OBSERVATIONS.name)) > seen + 1)
    last = decode(house.bus.records(OBSERVATIONS.name)[-1], Observation).message
    assert (last.status, last.topology) == ("unreachable", None)
    assert last.message == "not published: message size too large"


async def test_an_end_that_the_brokers_refuse_keeps_no_policy_waiting(house: House) -> None:
    """It was repeated for ever, before the policies that came after it; knowledge ends what is silent."""
    await house.apply(policy())
    async with house.replica() as monitor:
        await until(house.observations)
        house.bus.refuses = lambda record: record.topic == OBSERVATIONS.name and b'"ended"' in (record.value or b"")
        await house.delete("shop/orders")
        await house.apply(policy("shop/next"))
        await until(lambda: monitor.applications == ["shop/next"])
        await until(lambda: house.statuses("shop/next"))
    assert "ended" not in house.statuses("shop/orders")


async def test_a_paused_application_is_still_observed(house: House) -> None:
    """Actions are paused, not observations."""
    await house.apply(policy(mode="paused"))
    async with house.replica():
        await until(lambda: house.statuses("shop/orders") == ["running"])


async def test_a_deleted_policy_ends_its_application_once(house: House) -> None:
    """And its collector is closed."""
    await house.apply(policy())
    async with house.replica() as monitor:
        await until(house.observations)
        await house.delete("shop/orders")
        await until(lambda: monitor.applications == [])
        assert house.statuses("shop/orders")[-1] == "ended"
        assert house.statuses("shop/orders").count("ended") == 1
        assert house.applications.open == []


async def test_an_application_deleted_while_no_monitor_ran_is_ended(house: House) -> None:
    """The policy and its deletion are read together."""
    await house.apply(policy())
    await house.delete("shop/orders")
    async with house.replica():
        await until(lambda: house.statuses("shop/orders") == ["ended"])
    assert house.applications.open == []


async def test_a_policy_made_again_is_not_ended_at_every_start(house: House) -> None:
    """Only the last word of the topic counts: `ended` would make all services delete what they learned."""
    await house.apply(policy(version=1))
    await house.delete("shop/orders")
    await house.apply(policy(version=3))
    async with house.replica():
        await until(house.observations)
    assert "ended" not in house.statuses("shop/orders")
    assert house.observations()[0].policy.metadata.version == 3


async def test_a_long_topic_is_read_to_its_end_first(house: House) -> None:
    """A deletion in the first thousand of records is not the last word on an application that is made again further on."""
    await house.apply(policy(version=1))
    await house.delete("shop/orders")
    neighbour = next(n for n in names(99) if partition_of(n, PARTITIONS) == partition_of("shop/orders", PARTITIONS))
    for _ in range(1000):
        await house.delete(neighbour)
    await house.apply(policy(version=3))
    async with house.replica():
        await until(house.observations)
    assert {observation.policy.metadata.version for observation in house.observations()} == {3}
    assert "ended" not in house.statuses("shop/orders")


async def test_a_deletion_of_an_unknown_policy_is_ignored(house: House) -> None:
    """The policy is compacted away, its deletion is still there."""
    await house.delete("shop/orders")
    await house.apply(policy("shop/other"))
    async with house.replica():
        await until(lambda: house.statuses("shop/other"))
    assert house.observations("shop/orders") == []


async def test_an_unreadable_policy_goes_to_the_dead_letter_topic(house: House) -> None:
    """With its reason; the others are watched, and its previous version stays in force."""
    await house.apply(policy(version=1), policy("shop/other"))
    async with house.replica() as monitor:
        await until(lambda: monitor.applications == ["shop/orders", "shop/other"])
        document = json.loads(policy().model_dump_json())
        document["spec"]["interval"] = "often"
        await house.bus.publish(POLICIES.name, "shop/orders", json.dumps(document).encode())
        await house.bus.publish(POLICIES.name, "shop/mine", policy("shop/yours").model_dump_json().encode())
        await until(lambda: len(house.bus.records(DEAD_LETTERS.name)) == 2)
        assert monitor.applications == ["shop/orders", "shop/other"]
    letters = {r.key: decode(r, DeadLetter).message for r in house.bus.records(DEAD_LETTERS.name)}
    assert letters["shop/orders"].field == "spec.interval"
    assert (letters["shop/mine"].field, letters["shop/mine"].reason) == ("metadata", "is of shop/yours")


async def test_a_takeover_repeats_no_dead_letter(house: House) -> None:
    """The new owner of a partition reads its policies from the beginning; the letter of a bad one was sent by the earlier owner."""
    await house.bus.publish(POLICIES.name, "shop/mine", b"{")
    async with house.replica():
        await until(lambda: len(house.bus.records(DEAD_LETTERS.name)) == 1)
        await until(lambda: house.bus.committed("weir-monitor", POLICIES.name) == 1)
    await house.apply(policy())
    async with house.replica():
        await until(lambda: house.statuses("shop/orders"))
        await house.bus.publish(POLICIES.name, "shop/other", b"{")
        await until(lambda: len(house.bus.records(DEAD_LETTERS.name)) == 2)
    keys = [record.key for record in house.bus.records(DEAD_LETTERS.name)]
    assert sorted(filter(None, keys)) == ["shop/mine", "shop/other"]


async def test_a_stuck_application_delays_no_other(house: House) -> None:
    """Each has its own task."""
    house.applications.stuck.add("shop/a0")
    await house.apply(*(policy(name) for name in names(8)))
    async with house.replica(scrape_timeout_seconds=0.2):
        await until(lambda: all(house.statuses(name) for name in names(8)))
        assert house.statuses("shop/a0") == ["unreachable"]
        assert all(house.statuses(name)[0] == "running" for name in names(8)[1:])


async def test_two_replicas_share_the_work(house: House) -> None:
    """Each application is watched by one of them, by its partition."""
    await house.apply(*(policy(name) for name in names(12)))
    async with house.replica() as one, house.replica() as other:
        await until(lambda: sorted(one.applications + other.applications) == sorted(names(12)))
        assert one.applications and other.applications
        shares = [{partition_of(name, PARTITIONS) for name in each.applications} for each in (one, other)]
        assert not shares[0] & shares[1]


async def test_a_replica_that_joins_gets_its_assignment(house: House) -> None:
    """The first replica releases it: no application is scraped by two."""
    await house.apply(*(policy(name) for name in names(12)))
    async with house.replica() as one:
        await until(lambda: one.applications == sorted(names(12)))
        async with house.replica() as other:
            await until(
                lambda: other.applications and sorted(one.applications + other.applications) == sorted(names(12))
            )
            assert one.applications
            await until(lambda: sorted(house.applications.open) == sorted(names(12)))


async def test_a_replica_that_leaves_is_taken_over_from(house: House) -> None:
    """Policies that were read long ago are cached by the replica that takes the partitions."""
    await house.apply(*(policy(name) for name in names(12)))
    async with house.replica() as one:
        async with house.replica() as other:
            await until(lambda: one.applications and other.applications)
            await until(lambda: sorted(one.applications + other.applications) == sorted(names(12)))
        await until(lambda: one.applications == sorted(names(12)))
        await until(lambda: sorted(house.applications.open) == sorted(names(12)))
    assert house.applications.open == []


async def test_it_is_ready_when_its_assignment_is_read(house: House) -> None:
    """Before, it is unknown what it watches."""
    await house.apply(policy())
    monitor = Monitor(house.bus, SystemClock(), house.applications.new)
    with pytest.raises(BusError, match="policies"):
        await monitor.ping()
    async with house.replica() as running:
        await until(lambda: running.applications)
        await running.ping()


@pytest.mark.thorough
async def test_an_outage_of_the_brokers_loses_no_change_of_a_policy(house: House) -> None:
    """A deletion is read, `ended` cannot be published: it is published when they are back. Observations of the outage
    are lost, which readiness reports."""
    await house.apply(policy())
    async with house.replica() as monitor:
        await until(house.observations)
        refused = 0

        async def publish(*_: object, **__: object) -> None:
            nonlocal refused
            refused += 1
            raise BusError("the brokers are away")

        await house.delete("shop/orders")
        house.bus.publish = publish  # type: ignore[method-assign, assignment]
        await until(lambda: refused >= 2)
        assert monitor.applications == ["shop/orders"]
        with pytest.raises(BusError, match="refused the last"):
            await monitor.ping()
        del house.bus.publish  # type: ignore[method-assign]
        await until(lambda: monitor.applications == [])
        assert house.statuses("shop/orders")[-1] == "ended"
        await monitor.ping()


async def test_a_stop_ends_everything_at_once(house: House) -> None:
    """No task and no collector is left, even of a stuck application."""
    house.applications.stuck.add("shop/a0")
    await house.apply(*(policy(name) for name in names(5)))
    async with house.replica() as monitor:
        await until(lambda: len(monitor.applications) == 5)
    assert monitor.applications == []
    assert house.applications.open == []
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("watch-")] == []
