"""Rights to write on a real broker: a user for each service, and signatures of the records that decide."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from confluent_kafka import KafkaError, Producer

from testbed.kafka import KafkaBroker
from testbed.process import free_port, stop_all
from testbed.service import RedisServer, WeirService, loop_settings, wait_all_ready
from testbed.simulated_flink import ManyJobs
from tests.unit.deploy.test_acls import NAMES, SERVICES, documented, granted
from tests.unit.executor.builders import action as action_of
from tests.unit.executor.builders import plan as plan_of
from tests.unit.knowledge.builders import outcome as outcome_of
from tests.unit.knowledge.builders import plan
from tests.unit.planner.build import policy
from weir_contracts import DeadLetter, DeploymentRef, Outcome, Plan, ScalingPolicy, parse_policy
from weir_contracts.base import VERSION
from weir_contracts.topics import DEAD_LETTERS, OUTCOMES, PLANS, POLICIES, Topic
from weir_runtime.bus import VERSION_HEADER, Bus, Denied, SignedBus
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.messages import decode, encode

APPLICATION, SIGNED_APPLICATION = "users/orders", "users/payments"
KEY = "key-of-the-five-services-in-this-test"
MAX_SUBTASKS, FORGED_SUBTASKS = 4, 120
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
    """The five services, each as its own user, and the one application they care for. With a `key` they sign."""

    def __init__(self, broker: KafkaBroker, redis_server: RedisServer, folder: Path, key: str = "") -> None:
        self.flink = ManyJobs(["orders"], 1.0)
        self.bus = KafkaBus(broker.bootstrap_servers)  # a user with all rights
        port = free_port()
        redis_url, url = redis_server.new_database(), f"http://127.0.0.1:{port}"
        self.environment = loop_settings(broker.sasl_servers, PARTITIONS, url, redis_url, folder)
        if key:
            (folder / "keys").write_text(key)
            self.environment["WEIR_SIGNING_KEYS_FILE"] = str(folder / "keys")
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


@asynccontextmanager
async def serving(made: Loop) -> AsyncIterator[Loop]:
    async with made.flink.serving():
        try:
            yield made
        finally:
            await made.stop()


@pytest.fixture
async def loop(broker: KafkaBroker, redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Loop]:
    async with serving(Loop(broker, redis_server, tmp_path)) as made:
        yield made


@pytest.fixture
async def signed_loop(broker: KafkaBroker, redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Loop]:
    async with serving(Loop(broker, redis_server, tmp_path, KEY)) as made:
        yield made


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


class Forger:
    """A program that may write to every topic, without a key: records that any service would take for its own."""

    def __init__(self, loop: Loop, in_force: ScalingPolicy) -> None:
        self.bus, self.in_force = loop.bus, in_force
        job = loop.flink.jobs["orders"]
        one = dict.fromkeys(job.requested, 1)
        self.there = DeploymentRef(job_id=job.id, graph_hash=loop.flink.graph_hash, requested=one, observed=one)

    def plan(self, subtasks: int) -> Plan:
        now = datetime.now(UTC)
        return plan_of(
            {**self.there.requested, "work": subtasks},
            id=uuid4(),
            application=SIGNED_APPLICATION,
            at=now,
            expires_at=now + timedelta(minutes=5),
            policy_version=self.in_force.metadata.version,
            deployment=self.there,
            current=self.there.observed,
        )

    async def send(self, bus: Bus, topic: Topic, message: Any, **headers: str) -> None:
        body, given = encode(message, type=topic.type, source="forger", id=uuid4(), time=datetime.now(UTC))
        await bus.publish(topic.name, SIGNED_APPLICATION, body, {**given, **headers})

    async def policy(self) -> None:
        """One of a version to come that allows 200 subtasks, and a deletion behind it."""
        version = 10 * (self.in_force.metadata.version or 0)
        metadata = self.in_force.metadata.model_copy(update={"version": version})
        wide = policy(SIGNED_APPLICATION, version=version, bounds={"min": FORGED_SUBTASKS, "max": 200}).spec
        spec = self.in_force.spec.model_copy(update={"bounds": wide.bounds})
        forged = self.in_force.model_copy(update={"metadata": metadata, "spec": spec})
        await self.send(self.bus, POLICIES, forged, **{VERSION_HEADER: str(version)})
        await self.bus.publish(POLICIES.name, SIGNED_APPLICATION, None, {VERSION_HEADER: str(version + 1)})

    async def outcome(self) -> None:
        """A rollback to 120 subtasks that is to be requested, in an epoch that no executor reaches."""
        now, before = datetime.now(UTC), {**self.there.requested, "work": FORGED_SUBTASKS}
        rolling = action_of(
            "rolling-back",
            id=uuid4(),
            application=SIGNED_APPLICATION,
            deployment=self.there,
            before=before,
            wanted=self.there.requested,
            started_at=now,
            deadline_at=now + timedelta(minutes=5),
        )
        found = outcome_of(self.plan(1), "rolling-back", id=uuid4(), at=now, before=before, action=rolling)
        await self.send(self.bus, OUTCOMES, found.model_copy(update={"epoch": 2**63 - 1}))


async def test_what_a_program_without_the_key_writes_is_never_followed(signed_loop: Loop) -> None:
    """It may write to every topic: a policy and its deletion of versions to come, plans within and beyond the bounds, and a
    rollback to 120 subtasks. The executor is killed and starts on all that. From outside: Flink gets no request, the API
    shows the policy as it was, and each record is a dead letter that names the setting. A plan that is signed is followed."""
    loop = signed_loop
    await loop.start()
    job = loop.flink.jobs["orders"]
    document = policy(
        SIGNED_APPLICATION,
        version=None,
        application={"flink": {"url": loop.flink.url, "job": "orders"}},
        bounds={"min": 1, "max": MAX_SUBTASKS},
        interval="2s",
    ).to_document()
    address = f"/v1/policies/{SIGNED_APPLICATION}"
    stored = (await loop.http.put(address, json=document)).raise_for_status().json()

    async def planned() -> bool:
        return (await loop.http.get(f"/v1/applications/{SIGNED_APPLICATION}/plan")).status_code == 200

    await eventually(planned, "a plan")
    forger = Forger(loop, parse_policy(stored))
    await forger.policy()
    for subtasks in (2, MAX_SUBTASKS, FORGED_SUBTASKS):
        await forger.send(loop.bus, PLANS, forger.plan(subtasks))
    await forger.outcome()
    executor = next(service for service in loop.services if service.name == "executor")
    executor.kill()
    await forger.send(loop.bus, PLANS, forger.plan(3))
    executor.start()
    await asyncio.to_thread(executor.wait_ready, READY_SECONDS)
    letters = loop.bus.reader(DEAD_LETTERS.name)
    senders: set[tuple[str, str]] = set()

    async def reported() -> bool:
        for record in await letters.receive(timeout_seconds=0.1):
            letter = decode(record, DeadLetter).message
            if letter.key == SIGNED_APPLICATION:
                assert (letter.code, "WEIR_SIGNING_KEYS_FILE" in letter.reason) == ("unsigned", True), letter.reason
                senders.add((letter.service, letter.topic))
        readers = {
            POLICIES.name: {"monitor"},
            PLANS.name: {"executor", "knowledge"},
            OUTCOMES.name: {"planner", "executor", "knowledge"},
        }
        return senders >= {(service, topic) for topic, services in readers.items() for service in services}

    await eventually(reported, f"dead letters; sent: {sorted(senders)}")
    assert (await loop.http.get(address)).json() == stored
    assert job.requests == []

    async def requested() -> bool:
        # Again each time: one that arrives together with a newer plan of the planner is superseded by it.
        await forger.send(SignedBus(loop.bus, [KEY.encode()]), PLANS, forger.plan(2))
        return bool(job.requests)

    await eventually(requested, "a request of a signed plan")
    assert job.requests[0] == {**forger.there.requested, "work": 2}
    assert all(subtasks <= MAX_SUBTASKS for vector in job.requests for subtasks in vector.values())
    assert (await loop.http.get(address)).json() == stored


def test_each_user_writes_to_its_own_topics_alone(broker: KafkaBroker) -> None:
    """Every user tries every topic: the broker takes what the table lists. The monitor's user cannot write a plan or a policy."""
    for name in sorted(NAMES - set(_listed(broker))):
        broker.create_topic(name, 1)
    accepted = {(user, "writes", topic) for user in USERS for topic in _taken(broker, user)}
    assert accepted == {right for right in documented() if right[1] == "writes"}
    denied = refused(broker)
    for topic in ("plans", "policies"):
        assert f"weir-monitor WRITE Topic:LITERAL:weir.{topic}.{VERSION}" in denied


async def test_a_missing_right_is_not_reported_as_an_outage(broker: KafkaBroker) -> None:
    """The brokers deny the write at once, with their own error: the caller does not wait for their return."""
    bus = KafkaBus(broker.sasl_servers, secured(broker, "weir-monitor"))
    await bus.start()
    async with asyncio.timeout(20):
        with pytest.raises(Denied, match="authorization failed"):
            await bus.publish(PLANS.name, APPLICATION, b"{}")
    await bus.close()


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
