"""Symptoms of groups at a real broker: what happens to their topics and offsets, and groups that cannot be read."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from testbed.kafka import SASL_USER, KafkaBroker
from testbed.streams import StreamsInstance, StreamsSettings
from tests.unit.engines.kafka.collector_suite import PARTITIONS, counted, of
from tests.unit.engines.kafka.test_collector import subject
from weir_analyzer.core import AnalyzerState, advance
from weir_contracts import Analysis, Observation, ScalingPolicy, Symptom, parse_policy
from weir_engines.kafka.brokers import KafkaBrokers
from weir_engines.kafka.collector import GroupCollector
from weir_engines.scrape import Scrape
from weir_monitor.core import Readings, observe
from weir_runtime.clock import SystemClock
from weir_runtime.policy_credentials import NO_CREDENTIALS

from .test_groups import RealRig

pytestmark = pytest.mark.usefixtures("sockets_are_collected")

SECONDS = 60.0


def policy_of(application: dict[str, Any], servers: str, **kafka: Any) -> ScalingPolicy:
    return parse_policy(
        {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"namespace": "shop", "name": "orders"},
            "spec": {
                "application": application,
                "target": {"endpoint": {"url": "http://127.0.0.1:1/scale"}},
                "signals": {"kafka": {"bootstrapServers": servers, **kafka}},
                "objective": {"maxLag": "30s"},
                "interval": "1s",
            },
        }
    )


class GroupObserver:
    """A group seen by the monitor's collector and the analyzer's core."""

    def __init__(self, collector: GroupCollector, policy: ScalingPolicy) -> None:
        self._collector, self._policy = collector, policy
        self._state: AnalyzerState | None = None
        self._previous: Observation | None = None
        self.scrape: Scrape | None = None

    async def look(self) -> Analysis:
        """Scrape once."""
        self.scrape = await self._collector.scrape()
        readings = Readings(self._policy, self.scrape, scrape_seconds=0.0, previous=self._previous)
        observation = observe(readings, SystemClock().now())
        self._previous = observation if observation.topology is not None else self._previous
        self._state, analysis = advance(self._state, observation)
        return analysis

    async def until(self, holds: Callable[[Analysis], bool], seconds: float = SECONDS) -> Analysis:
        """Return the first analysis for which this holds."""
        analysis = await self.look()
        async with asyncio.timeout(seconds):
            while not holds(analysis):
                await asyncio.sleep(0.2)
                analysis = await self.look()
        return analysis

    async def symptom(self, code: str) -> Symptom:
        """Wait for a symptom."""
        analysis = await self.until(lambda analysis: analysis.has(code))
        return next(each for each in analysis.symptoms if each.code == code)


class Watched(GroupObserver):
    """A group of consumers at the broker."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.rig = RealRig(broker, "classic")
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        application = {"consumerGroup": {"groupId": self.rig.group}}
        super().__init__(self.rig.collector, policy_of(application, broker.bootstrap_servers))


@pytest.fixture
async def group(kafka: KafkaBroker) -> AsyncIterator[Watched]:
    made = Watched(kafka)
    yield made
    await made.rig.close()


# -- topics and offsets ----------------------------------------------------------------------------------------------


async def test_a_topic_that_is_created_again_is_a_reset(group: Watched) -> None:
    """Its log ends earlier than before: what is committed is of other records, and nothing counts as processed."""
    await group.rig.join(1)
    await group.rig.append(0, 20)
    await group.rig.commit(0, 20)
    assert not (await group.look()).has("offsets-reset") and group.scrape is not None
    before = counted(group.scrape)
    topic = group.rig.topic
    await asyncio.to_thread(group.admin.delete_topics([topic], operation_timeout=20)[topic].result, 20)
    await _created(group, topic)
    await group.rig.append(0, 3)
    symptom = await group.symptom("offsets-reset")
    assert f"{topic}/0" in symptom.evidence and symptom.numbers["partitions"] == 1
    assert not group.scrape.operators or counted(group.scrape) <= before


async def _created(group: Watched, topic: str) -> None:
    """Create the topic as soon as the broker has deleted the earlier one."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic

    async with asyncio.timeout(SECONDS):
        while True:
            try:
                made = group.admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic]
                await asyncio.to_thread(made.result, 20)
                return
            except KafkaException:
                await asyncio.sleep(0.2)


async def test_offsets_that_a_tool_resets_are_named(group: Watched) -> None:
    """As `kafka-consumer-groups --reset-offsets` does with a group without members; the records wait again."""
    await group.rig.join(1)
    await group.rig.append(1, 9)
    await group.rig.commit(1, 9)
    await group.look()
    await group.rig.leave()
    await group.until(lambda analysis: analysis.status == "not_running")
    wanted = ConsumerGroupTopicPartitions(group.rig.group, [TopicPartition(group.rig.topic, 1, 2)])
    (answer,) = group.admin.alter_consumer_group_offsets([wanted]).values()
    await asyncio.to_thread(answer.result, 20)
    symptom = await group.symptom("offsets-reset")
    assert f"{group.rig.topic}/1" in symptom.evidence and group.scrape is not None
    assert (of(group.scrape, 1).committed_offset, of(group.scrape, 1).log_end_offset) == (2, 9)


async def test_records_that_expire_unread_are_counted(group: Watched) -> None:
    """Retention deletes three records after the commit; they are no lag any more."""
    await group.rig.join(1)
    await group.rig.append(2, 8)
    await group.rig.commit(2, 2)
    await group.rig.delete_before(2, 5)
    symptom = await group.symptom("records-expired")
    assert symptom.numbers == {"partitions": 1, "records": 3}
    analysis = await group.until(lambda analysis: analysis.lag_records.value is not None)
    assert analysis.lag_records.value == 3


async def test_a_compacted_topic_is_as_late_as_its_oldest_record_that_is_left(
    kafka: KafkaBroker, group: Watched
) -> None:
    """Offsets of deleted records still count as lag in records; the lag in seconds is that of a record that exists."""
    settings = {"cleanup.policy": "compact", "segment.ms": "500", "min.cleanable.dirty.ratio": "0.01"}
    await _configure(group.admin, group.rig.topic, settings)
    await group.rig.join(1)
    long_ago = int((time.time() - 3600) * 1000)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(200):
        producer.produce(group.rig.topic, b"x", key=str(number % 5).encode(), partition=0, timestamp=long_ago)
    producer.flush(20)
    await group.rig.commit(0, 0)
    assert time.time() - await _appended_at(kafka, group) > 3000

    async def again() -> None:
        """Overwrite every key; the segment before it may be compacted once another one is active."""
        for number in range(10):
            producer.produce(group.rig.topic, b"y", key=str(number % 5).encode(), partition=0)
        await asyncio.to_thread(producer.flush, 20)

    async with asyncio.timeout(SECONDS):
        while await asyncio.to_thread(_first_offset, kafka, group.rig.topic) < 200:
            await again()
            await asyncio.sleep(1.0)
    assert time.time() - await _appended_at(kafka, group) < 2 * SECONDS
    assert (await group.until(lambda a: a.lag_records.value is not None)).lag_records.value >= 205


async def _appended_at(kafka: KafkaBroker, group: Watched) -> float:
    """Return the append time of the record that waits longest in partition 0, as a monitor that starts now finds it."""
    plain = subject({"consumerGroup": {"groupId": group.rig.group}}, kafka.bootstrap_servers)
    collector = GroupCollector(plain, group.rig.brokers, SystemClock())
    async with asyncio.timeout(SECONDS):
        while (at := of(await collector.scrape(), 0).position_appended_at) is None:  # noqa: ASYNC110 - no event signals it
            await asyncio.sleep(0.2)
    return at.timestamp()


def _first_offset(kafka: KafkaBroker, topic: str) -> int:
    """Return the offset of the first record that exists in partition 0."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "look", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(10)
        return -1 if message is None or message.error() else int(message.offset() or 0)
    finally:
        consumer.close()


async def _configure(admin: AdminClient, topic: str, settings: dict[str, str]) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in settings.items()]
    (answer,) = admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)]
    ).values()
    await asyncio.to_thread(answer.result, 20)


async def test_transactions_leave_no_lag_behind(group: Watched) -> None:
    """Their markers take an offset each, which no consumer commits: nothing waits, and no partition seems to stand still."""
    await group.rig.join(2)
    for partition in range(PARTITIONS):
        await group.rig.transact(partition, 3)
        await group.rig.commit(partition, 3)
    analysis = await group.until(lambda analysis: analysis.lag_records.value == 0)
    assert analysis.lag_seconds.value == 0
    assert not {"stalled", "instance-stuck", "catching-up"} & {each.code for each in analysis.symptoms}


# -- groups that cannot be read ----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def brokers_at(servers: str, security: dict[str, str] | None = None) -> AsyncIterator[KafkaBrokers]:
    """Open the monitor's clients, and close them."""
    entry = replace(NO_CREDENTIALS, settings=security or {})
    brokers = KafkaBrokers(servers, 5.0, SystemClock(), credentials=lambda: entry)
    try:
        yield brokers
    finally:
        await brokers.close()


async def _read(servers: str, application: dict[str, Any], security: dict[str, str] | None = None) -> Scrape:
    """Scrape until the coordinator has been found."""
    async with brokers_at(servers, security) as brokers, asyncio.timeout(SECONDS):
        collector = GroupCollector(subject(application, servers, topics=["orders"]), brokers, SystemClock())
        scrape = await collector.scrape()
        while "coordinator" in scrape.message:
            await asyncio.sleep(0.2)
            scrape = await collector.scrape()
    return scrape


async def _join(servers: str, group: str, protocol_type: str) -> Callable[[], Awaitable[None]]:
    """Join a group of a type as its only member, which sends no heartbeat; returns what ends the connection."""
    from kafka.protocol.consumer import JoinGroupRequest, SyncGroupRequest

    from weir_engines.kafka.group_requests import close_admin, open_admin

    client = open_admin(servers.split(","), "other-type", 10.0, {})
    manager = client._manager

    async def join(_: Any) -> None:
        from kafka.protocol.metadata import FindCoordinatorRequest

        found = await manager.send(FindCoordinatorRequest(key=group, key_type=0, max_version=3))
        node, member = found.node_id, ""
        of = JoinGroupRequest.JoinGroupRequestProtocol
        while True:
            request = JoinGroupRequest(
                group_id=group,
                session_timeout_ms=60_000,
                rebalance_timeout_ms=60_000,
                member_id=member,
                group_instance_id=None,
                protocol_type=protocol_type,
                protocols=[of(name="default", metadata=b"")],
                max_version=5,
            )
            joined = await manager.send(request, node_id=node)
            if joined.error_code == 0:
                break
            assert joined.error_code in (15, 16, 79), joined
            member = joined.member_id
        member_of = SyncGroupRequest.SyncGroupRequestAssignment
        await manager.send(
            SyncGroupRequest(
                group_id=group,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                assignments=[member_of(member_id=joined.member_id, assignment=b"")],
                max_version=3,
            ),
            node_id=node,
        )

    await asyncio.to_thread(manager.run, join, None)

    async def close() -> None:
        await asyncio.to_thread(close_admin, client)

    return close


@pytest.mark.parametrize("application", [{"consumerGroup": {"groupId": "G"}}, {"kafkaStreams": {"applicationId": "G"}}])
async def test_a_group_of_another_type_is_named(kafka: KafkaBroker, application: dict[str, Any]) -> None:
    """Kafka Connect's workers are a group, too."""
    name = f"connect-{uuid.uuid4().hex[:8]}"
    own = {engine: dict.fromkeys(fields, name) for engine, fields in application.items()}
    await _read(kafka.bootstrap_servers, own)  # the broker makes the coordinator with the first request
    close = await _join(kafka.bootstrap_servers, name, "connect")
    try:
        scrape = await _read(kafka.bootstrap_servers, own)
    finally:
        await close()
    assert scrape.status == "not_found"
    assert scrape.message == f"{name!r} is a group of type 'connect', not of consumers"


# kafka-python leaves sockets that never connected to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_members_of_the_streams_protocol_are_unknown(run_folder: Path) -> None:
    """They commit, and no client for Python reads who they are (KIP-1071): a sentence names the protocol."""
    properties = {
        "group.coordinator.rebalance.protocols": "classic,consumer,streams",
        "unstable.api.versions.enable": "true",
        "unstable.feature.versions.enable": "true",
    }
    lines = "".join(f"{name}={value}\n" for name, value in properties.items())
    with KafkaBroker(run_folder / "kafka-streams-protocol", properties=lines) as broker:
        for topic in ("orders", "payments", "order-totals"):
            broker.create_topic(topic, 2)
        await asyncio.to_thread(_produce, broker.bootstrap_servers, 20, "orders")
        chosen = run_folder / "streams.properties"
        chosen.write_text("group.protocol=streams\n")
        settings = StreamsSettings(broker.bootstrap_servers, application_id="orders", properties=chosen)
        instance = StreamsInstance(settings, 1, run_folder)
        policy = policy_of({"kafkaStreams": {"applicationId": "orders"}}, broker.bootstrap_servers, topics=["orders"])
        async with brokers_at(broker.bootstrap_servers) as brokers:
            observer = GroupObserver(GroupCollector(policy.subject, brokers, SystemClock()), policy)
            try:
                instance.start()
                await observer.until(
                    lambda _: observer.scrape is not None and "has commits" in observer.scrape.message, 2 * SECONDS
                )
            finally:
                await asyncio.to_thread(instance.process.stop)
    assert observer.scrape is not None and observer.scrape.status == "not_found"
    assert observer.scrape.message.endswith("no members that can be read: group.protocol=streams is not supported")


def _produce(servers: str, records: int, topic: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in range(records):
        producer.produce(topic, key=str(number), value=b"{}")
    assert producer.flush(30.0) == 0


# kafka-python leaves sockets that never connected to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_state_that_warms_up_is_migrating_until_its_tasks_move(kafka: KafkaBroker, tmp_path: Path) -> None:
    """A second instance copies the state first; the tasks stay where they are until the probing rebalance, which
    Kafka Streams begins after a minute at the earliest. The time is learned."""
    name = f"warm-{uuid.uuid4().hex[:8]}"
    orders, payments, output = (f"{name}-{kind}" for kind in ("orders", "payments", "output"))
    for topic in (orders, payments, output):
        kafka.create_topic(topic, 2)
    await asyncio.to_thread(_produce, kafka.bootstrap_servers, 2_000, orders)
    chosen = tmp_path / "streams.properties"
    chosen.write_text("acceptable.recovery.lag=0\nprobing.rebalance.interval.ms=60000\n")
    settings = StreamsSettings(kafka.bootstrap_servers, name, orders, payments, output, properties=chosen)
    policy = policy_of({"kafkaStreams": {"applicationId": name}}, kafka.bootstrap_servers)
    instances = [StreamsInstance(settings, ordinal, tmp_path) for ordinal in (1, 2)]
    async with brokers_at(kafka.bootstrap_servers) as brokers:
        observer = GroupObserver(GroupCollector(policy.subject, brokers, SystemClock()), policy)
        try:
            await _expect_move(observer, instances)
        finally:
            for each in instances:
                await asyncio.to_thread(each.process.stop)


async def _expect_move(observer: GroupObserver, instances: list[StreamsInstance]) -> None:
    """Start one instance, then the other; expect a task to move to it."""
    instances[0].start()
    await observer.until(lambda _: _tasks(observer) == [2], 2 * SECONDS)
    instances[1].start()
    symptom = await observer.symptom("migrating")
    assert "1 standby task warms up until the probing rebalance" in symptom.evidence
    assert _tasks(observer) == [0, 2]
    analysis = await observer.until(lambda analysis: analysis.restart_times.warm_up_seconds is not None, 3 * SECONDS)
    assert not analysis.has("migrating")
    # A cooperative rebalance has two rounds: the first only revokes the task, and the group is stable in between.
    analysis = await observer.until(lambda _: _tasks(observer) == [1, 1])
    assert 55.0 <= (analysis.restart_times.warm_up_seconds or 0.0) <= 120.0


def _tasks(observer: GroupObserver) -> list[int | None]:
    """Return the number of active tasks of each instance of the group."""
    deployment = observer.scrape.deployment if observer.scrape is not None else None
    return sorted((each.active_tasks for each in deployment.instances), key=str) if deployment is not None else []


async def test_without_rights_the_group_is_named_as_forbidden(run_folder: Path) -> None:
    """A broker with an authorizer: the user of the credentials may describe neither the group nor its topics."""
    with KafkaBroker(run_folder / "kafka-acl", authorizer=True) as broker:
        broker.create_topic("orders", 2)
        security = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": SASL_USER,
            "sasl.password": broker.sasl_password,
        }
        scrape = await _read(broker.sasl_servers, {"consumerGroup": {"groupId": "orders"}}, security)
        assert scrape.status == "unreachable"
        assert "the group may not be read with these credentials" in scrape.message
        assert broker.sasl_password not in str(scrape)
        allowed = await _read(broker.bootstrap_servers, {"consumerGroup": {"groupId": "orders"}})
        assert allowed.status == "not_found"


# kafka-python leaves sockets that never connected to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_broker_that_comes_back_is_read_again(run_folder: Path) -> None:
    """Killed and started while it is read every 50 ms, its coordinator loading in between: each scrape has a status and a
    sentence, and none ends the process."""
    with KafkaBroker(run_folder / "kafka-back") as broker:
        rig = RealRig(broker, "classic")
        try:
            await rig.join(1)
            await rig.append(0, 5)
            await rig.commit(0, 5)
            seen: list[Scrape] = []
            restarting = asyncio.create_task(asyncio.to_thread(_restart, broker))
            async with asyncio.timeout(2 * SECONDS):
                while not (restarting.done() and seen and _commit(seen[-1]) == 5):
                    seen.append(await rig.collector.scrape())
                    await asyncio.sleep(0.05)
            await restarting
            away = [each for each in seen if each.status == "unreachable"]
            assert away and all(each.message for each in away)
            assert {each.status for each in seen} <= {"running", "not_running", "unreachable"}
        finally:
            await rig.close()


def _commit(scrape: Scrape) -> int | None:
    """Return what is committed in partition 0."""
    return next((each.committed_offset for each in scrape.partitions if each.partition == 0), None)


def _restart(broker: KafkaBroker) -> None:
    broker.kill()
    broker.restart()
