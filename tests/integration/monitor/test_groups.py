"""Collector of groups against a real broker: consumers of both protocols, and what Kafka Streams commits."""

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from testbed.kafka import SASL_USER, KafkaBroker
from testbed.process import free_port
from tests.unit.engines.kafka.collector_suite import PARTITIONS, GroupSuite
from tests.unit.engines.kafka.test_collector import subject
from weir_contracts import parse_policy
from weir_engines.kafka.brokers import KafkaBrokers
from weir_engines.kafka.collector import GroupCollector
from weir_engines.registry import Engines, Resources
from weir_monitor.applications import Collectors
from weir_runtime.clock import SystemClock
from weir_runtime.policy_credentials import BrokerCredentials

pytestmark = pytest.mark.usefixtures("sockets_are_collected")


class Members:
    """Consumers of one group, polled by one thread until they end."""

    def __init__(self, servers: str, group: str, topic: str, protocol: str) -> None:
        self._settings = {
            "bootstrap.servers": servers,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        self._topic = topic
        self.consumers: list[Consumer] = []
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._poll, name=group, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._ended.is_set():
            with self._lock:
                for consumer in self.consumers:
                    consumer.poll(0.02)
            self._ended.wait(0.01)

    def add(self, count: int) -> None:
        """Add members that read the topic."""
        with self._lock:
            for _ in range(count):
                consumer = Consumer(self._settings)
                consumer.subscribe([self._topic])
                self.consumers.append(consumer)

    def are_balanced(self) -> bool:
        """Return whether every partition has one member, and no member more than one partition more than another."""
        with self._lock:
            counts = [len(consumer.assignment()) for consumer in self.consumers]
        return sum(counts) == PARTITIONS and max(counts) - min(counts) <= 1

    def commit(self, offset: TopicPartition) -> None:
        """Commit as the member that has the partition, or as a consumer that never joins while there is none."""
        with self._lock:
            if not self.consumers:
                alone = Consumer(self._settings)
                alone.commit(offsets=[offset], asynchronous=False)
                alone.close()
                return
            owner = next(c for c in self.consumers if offset.partition in [p.partition for p in c.assignment()])
            owner.commit(offsets=[offset], asynchronous=False)

    def remove(self) -> None:
        """Let all members leave the group."""
        with self._lock:
            for consumer in self.consumers:
                consumer.close()
            self.consumers.clear()

    def end(self) -> None:
        """End the thread after the members left."""
        self.remove()
        self._ended.set()
        self._thread.join(20)


class RealRig:
    def __init__(self, broker: KafkaBroker, protocol: str) -> None:
        self.servers = servers = broker.bootstrap_servers
        self.topic = self.group = f"groups-{uuid.uuid4().hex[:8]}"
        broker.create_topic(self.topic, PARTITIONS)
        self._members = Members(servers, self.group, self.topic, protocol)
        self._producer = Producer({"bootstrap.servers": servers})
        self._transactional: Producer | None = None
        self._admin = AdminClient({"bootstrap.servers": servers})
        clock = SystemClock()
        self.brokers = KafkaBrokers(servers, 5.0, clock)
        self._opened = self.brokers, KafkaBrokers(f"127.0.0.1:{free_port()}", 1.0, clock)
        plain = subject({"consumerGroup": {"groupId": self.group}}, servers)
        self.collector, self.away = (GroupCollector(plain, brokers, clock) for brokers in self._opened)

    async def join(self, members: int) -> None:
        self._members.add(members)
        async with asyncio.timeout(30):
            for _ in range(600):
                if self._members.are_balanced() and (await self.collector.scrape()).message.startswith(
                    "the group is Stable"
                ):
                    return
                await asyncio.sleep(0.05)
        raise AssertionError(f"{self.group} is not balanced")

    async def leave(self) -> None:
        await asyncio.to_thread(self._members.remove)

    async def append(self, partition: int, records: int) -> None:
        for _ in range(records):
            self._producer.produce(self.topic, b"x", partition=partition)
        assert await asyncio.to_thread(self._producer.flush, 10) == 0

    async def transact(self, partition: int, records: int) -> None:
        await asyncio.to_thread(self._transact, partition, records)

    def _transact(self, partition: int, records: int) -> None:
        if self._transactional is None:
            settings = {"bootstrap.servers": self.servers, "transactional.id": self.group}
            self._transactional = Producer(settings)
            self._transactional.init_transactions(30)
        self._transactional.begin_transaction()
        for _ in range(records):
            self._transactional.produce(self.topic, b"x", partition=partition)
        self._transactional.commit_transaction(30)

    async def commit(self, partition: int, offset: int, metadata: str = "") -> None:
        wanted = TopicPartition(self.topic, partition, offset, metadata=metadata)
        await asyncio.to_thread(self._members.commit, wanted)

    async def delete_before(self, partition: int, offset: int) -> None:
        (answer,) = self._admin.delete_records([TopicPartition(self.topic, partition, offset)]).values()
        await asyncio.to_thread(answer.result, 20)

    async def close(self) -> None:
        await asyncio.to_thread(self._members.end)
        await asyncio.gather(*(each.close() for each in self._opened))


class TestClassicProtocol(GroupSuite):
    @pytest.fixture
    async def rig(self, kafka: KafkaBroker) -> AsyncIterator[RealRig]:
        rig = RealRig(kafka, "classic")
        yield rig
        await rig.close()


class TestConsumerProtocol(GroupSuite):
    """The protocol of KIP-848, whose assignments brokers decode."""

    @pytest.fixture
    async def rig(self, kafka: KafkaBroker) -> AsyncIterator[RealRig]:
        rig = RealRig(kafka, "consumer")
        yield rig
        await rig.close()


async def test_plain_consumers_are_no_kafka_streams_application(kafka: KafkaBroker) -> None:
    """A policy with the wrong engine says so, and nothing is scaled."""
    rig = RealRig(kafka, "classic")
    try:
        await rig.join(1)
        brokers = KafkaBrokers(kafka.bootstrap_servers, 5.0, SystemClock())
        streams = subject({"kafkaStreams": {"applicationId": rig.group}}, kafka.bootstrap_servers)
        scrape = await GroupCollector(streams, brokers, SystemClock()).scrape()
        await brokers.close()
        assert scrape.status == "not_found"
        assert "is not a Kafka Streams application: its assignor is 'range'" in scrape.message
    finally:
        await rig.close()


@pytest.mark.parametrize(("password", "status"), [("", "not_found"), ("hunter2", "unreachable")])
async def test_brokers_that_demand_a_password(kafka: KafkaBroker, password: str, status: str) -> None:
    """The credentials of the policy's entry are used; a wrong password is a clear status that does not show it."""
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": SASL_USER,
        "sasl.password": password or kafka.sasl_password,
    }
    entry = BrokerCredentials(frozenset({kafka.sasl_servers}), settings, frozenset("*"))
    group = f"groups-{uuid.uuid4().hex[:8]}"
    named = parse_policy(
        {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"namespace": "shop", "name": "orders"},
            "spec": {
                "application": {"consumerGroup": {"groupId": group}},
                "target": {"endpoint": {"url": "http://127.0.0.1:1/scale"}},
                "signals": {"kafka": {"bootstrapServers": kafka.sasl_servers, "credentials": "shop"}},
                "objective": {"maxLag": "30s"},
            },
        }
    )
    collector = Collectors(Engines(Resources(SystemClock(), broker_credentials={"shop": entry}))).new(named)
    scrape = (await collector.read(named)).scrape
    async with asyncio.timeout(60):
        while scrape.status != status:  # a new cluster makes its coordinator with the first request
            await asyncio.sleep(0.2)
            scrape = (await collector.read(named)).scrape
    await collector.close()
    assert scrape.status == status, scrape.message
    assert settings["sasl.password"] not in str(scrape)
    refused = Collectors(Engines(Resources(SystemClock()))).new(named)
    unknown = (await refused.read(named)).scrape
    await refused.close()
    assert (unknown.status, "has no entry 'shop'" in unknown.message) == ("unreachable", True)
