"""A user of Kafka for each service: the loop turns on a broker that refuses all that the documentation does not list."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import KafkaError, Producer

from testbed.kafka import KafkaBroker
from testbed.process import free_port, stop_all
from testbed.service import RedisServer, WeirService, loop_settings, wait_all_ready
from testbed.simulated_flink import ManyJobs
from tests.unit.deploy.test_acls import NAMES, SERVICES, documented, granted
from tests.unit.knowledge.builders import plan
from tests.unit.planner.build import policy
from weir_contracts import DeadLetter, Outcome
from weir_contracts.base import VERSION
from weir_contracts.topics import DEAD_LETTERS, OUTCOMES, PLANS, POLICIES
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.messages import decode, encode

APPLICATION = "users/orders"
DATABASE = 13
PARTITIONS = 2
READY_SECONDS = 240.0
TURN_SECONDS = 120.0
USERS = [f"weir-{name}" for name in (*SERVICES, "topics")]


@pytest.fixture(scope="module")
def broker(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Its users have the rights that deploy/kafka/acls.sh grants."""
    with KafkaBroker(run_folder / "kafka-users", authorizer=True, users=USERS) as started:
        rights = granted(tmp_path_factory.mktemp("acls"))
        for user, prefixed in {(right.user, right.prefixed) for right in rights}:
            given = [(r.kind, r.name, r.operation) for r in rights if (r.user, r.prefixed) == (user, prefixed)]
            started.allow(given, prefixed=prefixed, user=user)
        yield started


def secured(broker: KafkaBroker, user: str) -> dict[str, str]:
    """Return librdkafka's settings of a user."""
    login = {"sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": broker.sasl_password}
    return {"security.protocol": "SASL_PLAINTEXT", **login}


def refused(broker: KafkaBroker) -> list[str]:
    """Return what the broker's authorizer has refused, by its log: user, operation, resource."""
    pattern = r"Principal = User:(weir-\w+) is Denied operation = (\w+) .*? on resource = (\S+)"
    return [" ".join(found) for found in re.findall(pattern, broker.process.log.read_text(errors="replace"))]


class Loop:
    """The five services, each as its own user, and the one application they care for."""

    def __init__(self, broker: KafkaBroker, redis_server: RedisServer, folder: Path) -> None:
        self.flink = ManyJobs(["orders"], 1.0)
        self.bus = KafkaBus(broker.bootstrap_servers)  # a user with all rights
        port = free_port()
        redis_url, url = f"redis://127.0.0.1:{redis_server.port}/{DATABASE}", f"http://127.0.0.1:{port}"
        self.environment = loop_settings(broker.sasl_servers, PARTITIONS, url, redis_url, folder)
        self.files = {}
        for user in USERS:
            self.files[user] = folder / f"{user}.json"
            self.files[user].write_text(json.dumps(secured(broker, user)))
        self.services = [
            WeirService(name, folder, self.of(f"weir-{name}"), port=port if name == "knowledge" else None)
            for name in SERVICES
        ]
        self.http = httpx.AsyncClient(base_url=url, timeout=10.0)

    def of(self, user: str) -> dict[str, str]:
        return {**self.environment, "WEIR_KAFKA_CREDENTIALS_FILE": str(self.files[user])}

    async def start(self) -> None:
        await self.bus.start()
        command = [sys.executable, "-m", "weir_runtime.topics"]
        made = await asyncio.to_thread(
            subprocess.run,
            command,
            env=self.of("weir-topics"),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        for service in self.services:
            service.start()
        await asyncio.to_thread(wait_all_ready, self.services, READY_SECONDS)

    async def stop(self) -> None:
        await self.http.aclose()
        await self.bus.close()
        await asyncio.to_thread(stop_all, [service.process for service in self.services])


@pytest.fixture
async def loop(broker: KafkaBroker, redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Loop]:
    made = Loop(broker, redis_server, tmp_path)
    async with made.flink.serving():
        try:
            yield made
        finally:
            await made.stop()


async def eventually(condition: Callable[[], Any], what: str) -> None:
    """Wait until the condition holds."""
    try:
        async with asyncio.timeout(TURN_SECONDS):
            while not await condition():  # noqa: ASYNC110 - no signal exists
                await asyncio.sleep(0.2)
    except TimeoutError:
        pytest.fail(what)


async def test_the_loop_turns_with_a_user_for_each_service(loop: Loop, broker: KafkaBroker) -> None:
    """From the policy to the plan and the outcome, and to the dead letters of bad records. The broker refused none of the
    services' requests."""
    await loop.start()
    job = {"flink": {"url": loop.flink.url, "job": "orders"}}
    document = policy(APPLICATION, version=None, application=job, interval="2s").to_document()
    (await loop.http.put(f"/v1/policies/{APPLICATION}", json=document)).raise_for_status()

    async def planned() -> bool:
        return (await loop.http.get(f"/v1/applications/{APPLICATION}/plan")).status_code == 200

    await eventually(planned, f"a plan; refused: {refused(broker)}")
    old = plan(1, 4, APPLICATION)  # of long ago: the executor refuses it, which is an outcome
    body, headers = encode(old, type=PLANS.type, source="test", id=old.id, time=old.created_at)
    await loop.bus.publish(PLANS.name, APPLICATION, body, headers)
    for topic in (POLICIES, OUTCOMES):
        await loop.bus.publish(topic.name, "users/bad", b"{")
    outcomes, letters = loop.bus.reader(OUTCOMES.name), loop.bus.reader(DEAD_LETTERS.name)
    answered: set[Any] = set()
    senders: set[tuple[str, str]] = set()

    async def answered_and_reported() -> bool:
        for record in await outcomes.receive(timeout_seconds=0.1):
            if record.key == APPLICATION and record.value is not None:
                answered.add(decode(record, Outcome).message.plan_id)
        for record in await letters.receive(timeout_seconds=0.1):
            letter = decode(record, DeadLetter).message
            senders.add((letter.service, letter.topic))
        readers = {POLICIES.name: {"monitor", "knowledge"}, OUTCOMES.name: {"planner", "executor", "knowledge"}}
        expected = {(service, topic) for topic, services in readers.items() for service in services}
        return old.id in answered and senders >= expected

    await eventually(answered_and_reported, f"an outcome and dead letters; refused: {refused(broker)}")
    assert refused(broker) == []


def test_each_user_writes_to_its_own_topics_alone(broker: KafkaBroker) -> None:
    """Every user tries every topic: the broker takes what the table lists. The monitor's user cannot write a plan or a policy."""
    for name in sorted(NAMES - set(_listed(broker))):
        broker.create_topic(name, 1)
    accepted = {(user, "writes", topic) for user in USERS for topic in _taken(broker, user)}
    assert accepted == {right for right in documented() if right[1] == "writes"}
    denied = refused(broker)
    for topic in ("plans", "policies"):
        assert f"weir-monitor WRITE Topic:LITERAL:weir.{topic}.{VERSION}" in denied


def _listed(broker: KafkaBroker) -> list[str]:
    return list(Producer({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=20).topics)


def _taken(broker: KafkaBroker, user: str) -> Iterator[str]:
    """Yield the topics that take a record of a user, without version."""
    reports: dict[str, KafkaError | None] = {}
    producer = Producer({"bootstrap.servers": broker.sasl_servers, **secured(broker, user)})
    for name in NAMES:
        producer.produce(name, b"{}", key=b"users/x", on_delivery=lambda e, m: reports.update({m.topic(): e}))
    assert producer.flush(60) == 0
    assert {e.code() for e in reports.values() if e is not None} <= {KafkaError.TOPIC_AUTHORIZATION_FAILED}
    return (name.removeprefix("weir.").removesuffix(f".{VERSION}") for name, error in reports.items() if error is None)
