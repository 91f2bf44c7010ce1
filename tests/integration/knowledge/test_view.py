"""Replicas that apply the log of a real Kafka to a real Redis: they share the partitions, take them over from one another,
and read an emptied Redis again."""

import time
from collections import Counter
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import redis
from pydantic import SecretStr

from testbed.kafka import KafkaBroker
from testbed.service import RedisServer
from tests.unit.knowledge.builders import action, observation, plan, policy
from tests.unit.knowledge.log_world import LogWorld
from weir_contracts.topics import OBSERVATIONS
from weir_knowledge.adapters.redis import RedisStore
from weir_knowledge.view import View
from weir_runtime.clock import SystemClock
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.service import topic_specs

"""Of these tests alone: an emptied one is theirs to empty."""
PARTITIONS = 4
TIMEOUT_SECONDS = 40.0


class RealWorld(LogWorld):
    """The same on real parts, with applications of its own: the topics have those of other tests as well."""

    poll_seconds = 0.05

    def __init__(self, bus: KafkaBus, store: RedisStore) -> None:
        self.clock, self.partitions, self.bus, self.store = SystemClock(), PARTITIONS, bus, store  # type: ignore[assignment]
        self.view, self.requested = View(store, PARTITIONS), []
        self.names = [f"view/{uuid4().hex[:8]}" for _ in range(8)]
        self.version = int(time.time() * 1000)
        self.in_force: dict[str, int] = {}
        self.cycle = 0

    async def change(self, *names: str) -> None:
        """Put policies in force."""
        for name in names:
            self.version += 1
            self.in_force[name] = self.version
            await self.decide(policy(name, version=self.version))

    async def remove(self, name: str) -> None:
        self.version += 1
        del self.in_force[name]
        await self.delete(self.version, name)

    async def observe(self) -> None:
        """Another observation and a plan of each application."""
        self.cycle += 1
        for name, version in self.in_force.items():
            message = observation(self.cycle, name, policy=policy(name, version=version))
            await self.send(message, plan(self.cycle, self.cycle, name, policy_version=version))

    async def is_applied(self) -> bool:
        """Whether the store shows the policies in force and the newest messages."""
        if None in (await self.store.applied(range(PARTITIONS))).values():
            return False
        shown = {each.application: each.metadata.version for each in await self.view.policies()}
        if {name: shown[name] for name in self.names if name in shown} != self.in_force:
            return False
        for name in self.in_force:
            newest = await self.view.newest(name)
            if self.cycle and (newest is None or newest.plan is None or newest.observation is None):
                return False
            if (
                newest is not None
                and newest.plan is not None
                and newest.plan.id != plan(self.cycle, application=name).id
            ):
                return False
        return True

    async def published_ends(self) -> list[str]:
        """Return the applications among ours whose end was published."""
        reader, found = self.bus.reader(OBSERVATIONS.name), list[str]()
        while not await reader.caught_up():
            for record in await reader.receive(timeout_seconds=0.2):
                if record.key in self.names and b'"status":"ended"' in (record.value or b""):
                    found.append(str(record.key))
        await reader.close()
        return found

    async def repeated(self) -> list[str]:
        """Return the events of ours that the feed has more than once."""
        events = await self.store.events("0", count=10_000)
        counts = Counter((each.kind, each.data) for each in events if each.application in self.names)
        return [data for (_, data), count in counts.items() if count > 1]


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    return redis_server.new_database()


@pytest.fixture
async def world(kafka: KafkaBroker, redis_url: str) -> AsyncIterator[RealWorld]:
    bus = KafkaBus(kafka.bootstrap_servers)
    await bus.start()
    await bus.ensure_topics(topic_specs(PARTITIONS))
    store = RedisStore(SecretStr(redis_url))
    yield RealWorld(bus, store)
    await bus.close()
    await store.close()


async def test_replicas_keep_one_view_of_the_log(world: RealWorld, redis_url: str) -> None:
    """One begins, another one joins, Redis is emptied under both, and the first leaves: at each point the view becomes what
    was decided and sent, each event is in the feed once, and each deletion has published its end."""
    first, second = world.replica(), world.replica()
    async with world.running(second):
        async with world.running(first):
            await world.change(*world.names[:6])
            await world.act(action(plan(1, application=world.names[0])), world.version + 1)
            await world.until(world.is_applied, TIMEOUT_SECONDS)
            await world.observe()
            await world.change(*world.names[4:])
            await world.observe()
            await world.remove(world.names[1])
            await world.until(world.is_applied, TIMEOUT_SECONDS)
            assert await world.repeated() == []
            with redis.Redis.from_url(redis_url) as client:
                client.flushdb()
            await world.until(world.is_applied, TIMEOUT_SECONDS)
            assert len(await world.store.history(world.names[0])) == 2
        await world.change(world.names[2])
        await world.observe()
        await world.remove(world.names[3])
        await world.until(world.is_applied, TIMEOUT_SECONDS)
    assert await world.repeated() == []
    found = await world.view.action(world.names[0])
    assert found is not None and found.id == action(plan(1, application=world.names[0])).id
    assert {*await world.published_ends()} == {world.names[1], world.names[3]}
    assert {name for name in await world.view.applications() if name in world.names} == world.in_force.keys()
