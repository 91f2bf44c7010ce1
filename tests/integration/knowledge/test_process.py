"""The service as the process that it is, with a real Kafka and a real Redis: policies go out, and everything comes
back."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import redis

from testbed.kafka import KafkaBroker
from testbed.process import wait_until
from testbed.service import RedisServer, WeirService
from tests.unit.knowledge.builders import NOON, action, document, observation, outcome, plan
from weir_contracts import Observation, Outcome, Plan
from weir_contracts.topics import OBSERVATIONS, OUTCOMES, PLANS, POLICIES, Topic
from weir_runtime.bus import Record
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.messages import encode


class World:
    """A knowledge process, the brokers, and a separate application."""

    def __init__(self, kafka: KafkaBroker, redis_server: RedisServer, folder: Path) -> None:
        self.kafka = kafka
        redis_url = redis_server.new_database()
        self.redis = redis.Redis.from_url(redis_url)
        self.application = f"knowledge/orders-{uuid4().hex[:8]}"
        self.environment = {
            "WEIR_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "WEIR_KNOWLEDGE_REDIS_URL": redis_url,
        }
        self._folder = folder
        self._starts = 0

    def service(self) -> WeirService:
        """One more start of it."""
        self._starts += 1
        return WeirService("knowledge", self._folder / str(self._starts), self.environment)

    def send(self, *messages: Observation | Plan | Outcome) -> None:
        """As the other services do."""
        topics: dict[type, Topic] = {Observation: OBSERVATIONS, Plan: PLANS, Outcome: OUTCOMES}

        async def publish() -> None:
            bus = KafkaBus(self.kafka.bootstrap_servers)
            await bus.start()
            for message in messages:
                topic = topics[type(message)]
                body, headers = encode(message, type=topic.type, source="test", id=message.id, time=NOON)
                await bus.publish(topic.name, message.application, body, headers)
            await bus.close()

        asyncio.run(publish())

    def published(self) -> list[Record]:
        """Return the records of the application in the policy topic, in order."""

        async def read() -> list[Record]:
            bus = KafkaBus(self.kafka.bootstrap_servers)
            await bus.start()
            reader = bus.reader(POLICIES.name)
            found: list[Record] = []
            async with asyncio.timeout(30):
                while not await reader.caught_up():
                    found += await reader.receive(timeout_seconds=0.2)
            await reader.close()
            await bus.close()
            return [record for record in found if record.key == self.application]

        return asyncio.run(read())


@pytest.fixture
def world(kafka: KafkaBroker, redis_server: RedisServer, tmp_path: Path) -> Iterator[World]:
    made = World(kafka, redis_server, tmp_path)
    yield made
    made.redis.flushdb()
    made.redis.close()


def answers(url: str, status: int = 200) -> Callable[[], bool]:
    return lambda: httpx.get(url, timeout=5.0).status_code == status


def test_everything_comes_back_after_redis_was_emptied(world: World) -> None:
    """A policy reaches the topic; after an emptied Redis, under the running service and across a restart, policy, plan
    and action are there again when it is ready, and the topic has heard nothing of it."""
    scale = plan(1, 4, world.application)
    flying = action(scale, version=3)
    with world.service() as service:
        service.wait_ready()
        policy_url = f"{service.url}/v1/policies/{world.application}"
        created = httpx.put(policy_url, json=document(world.application, mode="act"), timeout=5.0)
        assert created.status_code == 201, created.text
        (record,) = world.published()
        assert json.loads(record.value or b"")["metadata"] == created.json()["metadata"]
        world.send(observation(1, world.application), scale, outcome(scale, "applying", action=flying))
        of_app = f"{service.url}/v1/applications/{world.application}"
        written = httpx.put(
            f"{of_app}/action", json=flying.model_dump(mode="json"), headers={"If-Match": "0"}, timeout=5.0
        )
        assert written.status_code == 200, written.text
        wait_until(answers(f"{of_app}/outcome"), timeout_seconds=30, what="the outcome")

        world.redis.flushdb()
        wait_until(answers(f"{of_app}/plan"), timeout_seconds=30, what="the plan, read again while running")
        wait_until(answers(policy_url), timeout_seconds=30, what="the policy, read again")

    world.redis.flushdb()
    with world.service() as service:
        service.wait_ready()
        # Ready means that policies and actions are there: they are not waited for.
        again = httpx.get(f"{service.url}/v1/policies/{world.application}", timeout=5.0)
        assert again.json()["metadata"] == created.json()["metadata"]
        assert again.json()["spec"]["mode"] == "act"
        of_app = f"{service.url}/v1/applications/{world.application}"
        assert httpx.get(f"{of_app}/action", timeout=5.0).json() == flying.model_dump(mode="json")
        wait_until(answers(f"{of_app}/plan"), timeout_seconds=30, what="the plan")
        assert httpx.get(f"{of_app}/plan", timeout=5.0).json()["id"] == str(scale.id)
        assert len(world.published()) == 1

        assert httpx.delete(f"{service.url}/v1/policies/{world.application}", timeout=5.0).status_code == 204
        assert [record.value is None for record in world.published()] == [False, True]


def test_a_pause_outlives_redis(world: World) -> None:
    """Paused, and Redis emptied: the policy is paused, and resumes to act as before."""
    with world.service() as service:
        service.wait_ready()
        policy_url = f"{service.url}/v1/policies/{world.application}"
        assert httpx.put(policy_url, json=document(world.application, mode="act"), timeout=5.0).status_code == 201
        assert httpx.post(f"{policy_url}/pause", timeout=5.0).status_code == 200
        assert len(world.published()) == 2
    world.redis.flushdb()
    with world.service() as service:
        service.wait_ready()
        policy_url = f"{service.url}/v1/policies/{world.application}"
        assert httpx.get(policy_url, timeout=5.0).json()["spec"]["mode"] == "paused"
        assert httpx.post(f"{policy_url}/resume", timeout=5.0).json()["spec"]["mode"] == "act"


def test_an_outage_of_redis_is_reported_and_survived(kafka: KafkaBroker, tmp_path: Path) -> None:
    """503 and not ready while it is away, with no call that hangs; messages of that time are stored once it is back."""
    with RedisServer(tmp_path / "redis") as own:
        world = World(kafka, own, tmp_path / "knowledge")
        with world.service() as service:
            service.wait_ready()
            policy_url = f"{service.url}/v1/policies/{world.application}"
            created = httpx.put(policy_url, json=document(world.application), timeout=5.0)
            assert created.status_code == 201
            own.kill()
            wait_until(answers(policy_url, 503), timeout_seconds=10, what="503")
            assert httpx.put(policy_url, json=document(world.application), timeout=10.0).status_code == 503
            wait_until(lambda: not service.ready(), timeout_seconds=10, what="not ready")
            world.send(observation(1, world.application), plan(1, None, world.application))
            own.restart()
            wait_until(
                answers(f"{service.url}/v1/applications/{world.application}/plan"), timeout_seconds=40, what="the plan"
            )
            assert httpx.get(policy_url, timeout=5.0).json()["metadata"] == created.json()["metadata"]
            wait_until(service.ready, timeout_seconds=20, what="ready again")
        world.redis.close()


def test_a_full_redis_shows_in_readiness(kafka: KafkaBroker, tmp_path: Path) -> None:
    """With its numbers and what to do, as long as it is full; what it holds is read, and a change is refused with the
    same sentence before it is in the log."""
    with RedisServer(tmp_path / "redis") as own, redis.Redis(port=own.port) as admin:
        world = World(kafka, own, tmp_path / "knowledge")
        with world.service() as service:

            def reported() -> dict[str, Any]:
                return dict(httpx.get(f"{service.url}/health/ready", timeout=10.0).json()["dependencies"]["redis"])

            service.wait_ready()
            policy_url = f"{service.url}/v1/policies/{world.application}"
            assert httpx.put(policy_url, json=document(world.application), timeout=5.0).status_code == 201
            assert reported()["ok"]
            admin.config_set("maxmemory", 500_000)
            assert not reported()["ok"]
            assert re.match(r"redis is full: it uses \d+ MB of the \d+ MB that it may", reported()["reason"])
            refused = httpx.put(policy_url, json=document(world.application, mode="act"), timeout=5.0)
            assert refused.status_code == 503 and "redis is full" in refused.json()["detail"]
            assert httpx.get(policy_url, timeout=5.0).status_code == 200
            admin.config_set("maxmemory", 0)
            assert reported()["ok"]
            assert len(world.published()) == 1
            assert httpx.put(policy_url, json=document(world.application, mode="act"), timeout=5.0).status_code == 200
        world.redis.close()


def test_a_feed_is_resumed_after_a_restart_of_the_service(world: World) -> None:
    """A client that names its last event gets all later ones, by whichever process."""
    with world.service() as service:
        service.wait_ready()
        httpx.put(f"{service.url}/v1/policies/{world.application}", json=document(world.application), timeout=5.0)
        world.send(observation(1, world.application))
        (first,) = _feed(f"{service.url}/v1/applications/{world.application}/events", "0", 1)
        assert first["event"] == "observation"
    world.send(observation(2, world.application), plan(2, 4, world.application))
    with world.service() as service:
        service.wait_ready()
        events = _feed(f"{service.url}/v1/applications/{world.application}/events", first["id"], 2)
        # Two topics: in one batch they are in order of time, in two in order of arrival.
        assert {event["event"] for event in events} == {"observation", "plan"}
        assert all(event["id"] > first["id"] for event in events)


def _feed(url: str, after: str, count: int) -> list[dict[str, str]]:
    """The next `count` events of a stream; a feed that is quiet for half a minute is a failure."""
    comments = 0
    events: list[dict[str, str]] = []
    fields: dict[str, str] = {}
    with httpx.stream("GET", url, headers={"Last-Event-ID": after}, timeout=30.0) as stream:
        assert stream.status_code == 200
        for line in stream.iter_lines():
            if line.startswith(":"):
                comments += 1  # one at the start, then one every 10 s
                assert comments <= 4, f"{len(events)} of {count} events"
                continue
            if line:
                name, value = line.split(": ", 1)
                fields[name] = value
            elif fields:
                events.append(fields)
                fields = {}
                if len(events) == count:
                    break
    return events
