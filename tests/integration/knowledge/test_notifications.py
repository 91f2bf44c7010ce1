"""Notifications of the service as the process that it is, with a real Kafka and a real Redis, to a real HTTP receiver."""

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
import redis

from testbed.kafka import KafkaBroker
from testbed.process import wait_until
from testbed.service import RedisServer, WeirService
from tests.unit.knowledge.builders import action, document, outcome, plan
from tests.unit.knowledge.http_receiver import HttpReceiver
from weir_contracts import derive_id
from weir_contracts.topics import OUTCOMES, PLANS
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.messages import encode


class World:
    """A knowledge process whose namespace `knowledge` has a receiver."""

    def __init__(self, kafka: KafkaBroker, redis_server: RedisServer, folder: Path, receiver: HttpReceiver) -> None:
        self.kafka, self.receiver, self.folder = kafka, receiver, folder
        url = redis_server.new_database()
        self.redis = redis.Redis.from_url(url)
        self.application = f"knowledge/orders-{uuid4().hex[:8]}"
        (folder / "token").write_text("Bearer t0ken-of-the-receiver")
        entry = {"url": receiver.url, "authorization_file": str(folder / "token")}
        (folder / "receivers.json").write_text(json.dumps({"knowledge": entry}))
        self.environment = {
            "WEIR_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "WEIR_KNOWLEDGE_REDIS_URL": url,
            "WEIR_KNOWLEDGE_NOTIFICATIONS_FILE": str(folder / "receivers.json"),
        }

    def service(self, name: str) -> WeirService:
        return WeirService("knowledge", self.folder / name, self.environment)

    def send_action(self, *phases: str) -> None:
        """Publish an action of now in these phases, as the executor does."""
        scale = plan(1, 4, self.application)
        now = datetime.now(UTC)
        steps = [
            outcome(
                scale,
                phase,
                id=derive_id(scale.id, phase),
                at=now + timedelta(milliseconds=number),
                action=action(scale, phase=phase),
            )
            for number, phase in enumerate(phases)
        ]

        async def publish() -> None:
            bus = KafkaBus(self.kafka.bootstrap_servers)
            await bus.start()
            for topic, message in ((PLANS, scale), *((OUTCOMES, step) for step in steps)):
                body, headers = encode(message, type=topic.type, source="test", id=message.id, time=now)
                await bus.publish(topic.name, message.application, body, headers)
            await bus.close()

        asyncio.run(publish())

    def has(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.receiver.received) >= count


@pytest.fixture
def world(kafka: KafkaBroker, redis_server: RedisServer, tmp_path: Path) -> Iterator[World]:
    with HttpReceiver() as receiver:
        made = World(kafka, redis_server, tmp_path, receiver)
        yield made
        made.redis.flushdb()
        made.redis.close()


def test_a_killed_process_loses_no_notification(world: World) -> None:
    """It is killed while the receiver has its first request and has not answered: the next process sends that again, with the
    same id, and the other ones. No log has the token or the path of the address."""
    world.receiver.gate.clear()
    with world.service("first") as service:
        service.wait_ready()
        policy = f"{service.url}/v1/policies/{world.application}"
        assert httpx.put(policy, json=document(world.application, mode="act"), timeout=10.0).status_code == 201
        world.send_action("intended", "applying", "verifying", "rolling-back", "rolled-back")
        wait_until(world.has(1), timeout_seconds=30, what="the first notification")
        service.process.kill()
    world.receiver.gate.set()
    with world.service("second") as service:
        service.wait_ready()
        wait_until(world.has(4), timeout_seconds=30, what="all notifications")
        refused = httpx.put(f"{service.url}/v1/policies/{world.application}", json={"spec": {}}, timeout=10.0)
        assert refused.status_code == 422
        wait_until(world.has(5), timeout_seconds=10, what="the refused policy")
        metrics = httpx.get(f"{service.url}/metrics", timeout=10.0).text
    kinds = ["action-accepted", "action-accepted", "action-rolling-back", "action-rolled-back", "policy-refused"]
    assert world.receiver.kinds() == kinds
    assert world.receiver.ids()[0] == world.receiver.ids()[1] and len(set(world.receiver.ids())) == 4
    last = world.receiver.received[-1]
    assert last.headers["authorization"] == "Bearer t0ken-of-the-receiver"
    assert last.body["data"]["sentence"] == refused.json()["detail"]
    assert 'weir_knowledge_notifications_total{receiver="knowledge",result="delivered"} 4.0' in metrics
    logs = "".join(path.read_text() for path in world.folder.rglob("*.log"))
    assert "policy-written" in logs and "s3cret" not in logs and "t0ken" not in logs
