"""The brokers' adapter keeps on a real Kafka what it promises."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka import KafkaProducer

from testbed.kafka import KafkaBroker
from testbed.process import free_port
from tests.integration.monitor.conftest import Log
from tests.unit.engines.kafka.brokers_suite import BrokersSuite
from weir_engines.kafka.assignment import Place
from weir_engines.kafka.brokers import KafkaBrokers
from weir_engines.kafka.partitions import Brokers, BrokersAway, Offsets
from weir_runtime.clock import FakeClock, SystemClock
from weir_runtime.reach import Allowed

pytestmark = pytest.mark.usefixtures("sockets_are_collected")


class RealRig:
    """The shared broker, and the test's own topics and group."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._servers = broker.bootstrap_servers
        name = f"brokers-{uuid.uuid4().hex[:8]}"
        self.topic, self.dotted, self.group = name, f"{name}.dotted", name
        broker.create_topic(self.topic, 2)
        broker.create_topic(self.dotted, 1)
        self._log = Log(broker)
        self._transaction: Producer | None = None
        clock = SystemClock()
        self._opened = KafkaBrokers(self._servers, 5.0, clock), KafkaBrokers(f"127.0.0.1:{free_port()}", 1.0, clock)
        self.brokers: Brokers
        self.away: Brokers
        self.brokers, self.away = self._opened

    async def append(self, place: Place, records: int, stamped_ms: int | None = None) -> datetime:
        now = int(time.time() * 1000)  # what a producer writes, it writes in milliseconds
        if stamped_ms is None:
            await asyncio.to_thread(self._log.append, *place, *[now] * records)
        else:
            await asyncio.to_thread(self._append_stamped, place, records, stamped_ms)
        return datetime.fromtimestamp(now / 1000, UTC)

    def _append_stamped(self, place: Place, records: int, stamped_ms: int) -> None:
        """Write with another client: for librdkafka 0 is the present, and it refuses a negative timestamp."""
        # brokers refuse times more than an hour ahead since Kafka 4.0
        _configure(self._servers, self.topic, "message.timestamp.after.max.ms", str(2**63 - 1))
        producer = KafkaProducer(bootstrap_servers=self._servers)
        for _ in range(records):
            producer.send(place[0], b"x", partition=place[1], timestamp_ms=stamped_ms).get(20)
        producer.close()

    async def transact(self, place: Place, records: int, *, aborts: bool = False) -> None:
        def write() -> None:
            producer = Producer({"bootstrap.servers": self._servers, "transactional.id": f"{self.group}-done"})
            producer.init_transactions(20)
            producer.begin_transaction()
            for _ in range(records):
                producer.produce(place[0], b"x", partition=place[1])
            assert producer.flush(10) == 0
            (producer.abort_transaction if aborts else producer.commit_transaction)(20)

        await asyncio.to_thread(write)

    async def stamp_by_broker(self) -> None:
        await asyncio.to_thread(_configure, self._servers, self.topic, "message.timestamp.type", "LogAppendTime")

    async def open_transaction(self, place: Place, records: int) -> None:
        self._transaction = producer = Producer({"bootstrap.servers": self._servers, "transactional.id": self.group})

        def write() -> None:
            producer.init_transactions(20)
            producer.begin_transaction()
            for _ in range(records):
                producer.produce(place[0], b"not yet", partition=place[1])
            assert producer.flush(10) == 0

        await asyncio.to_thread(write)

    async def delete_before(self, place: Place, offset: int) -> None:
        wanted = TopicPartition(*place, offset)
        admin = AdminClient({"bootstrap.servers": self._servers})  # has to outlive the request
        (answer,) = admin.delete_records([wanted]).values()
        assert (await asyncio.to_thread(answer.result, 20)).low_watermark == offset

    async def commit(self, place: Place, offset: int) -> None:
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": self.group, "enable.auto.commit": False})
        offsets = [TopicPartition(*place, offset)]
        await asyncio.to_thread(consumer.commit, offsets=offsets, asynchronous=False)
        await asyncio.to_thread(consumer.close)

    async def close(self) -> None:
        if self._transaction is not None:
            await asyncio.to_thread(self._transaction.abort_transaction, 20)
        await asyncio.gather(*(each.close() for each in self._opened))


def _configure(servers: str, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    admin = AdminClient({"bootstrap.servers": servers})
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    (answer,) = admin.incremental_alter_configs([wanted]).values()
    answer.result(20)


class TestRealKafka(BrokersSuite):
    @pytest.fixture
    async def rig(self, kafka: KafkaBroker) -> AsyncIterator[RealRig]:
        rig = RealRig(kafka)
        yield rig
        await rig.close()


async def test_what_the_brokers_advertise_is_checked_before_it_is_used(kafka: KafkaBroker) -> None:
    """A name that resolves elsewhere than the one in the policy; others may be asking while all clients are let go of."""
    stands_for = ["127.0.0.1"]

    async def resolve(_host: str, _port: int) -> list[str]:
        return list(stands_for)

    kafka.create_topic(name := f"brokers-{uuid.uuid4().hex[:8]}", 2)
    clock = FakeClock()
    port = kafka.bootstrap_servers.rpartition(":")[2]
    brokers = KafkaBrokers(f"localhost:{port}", 5.0, clock, resolve=resolve)
    places: list[Place] = [(name, 0), (name, 1)]
    try:
        for _ in range(20):
            stands_for[:] = ["127.0.0.1"]
            clock.advance(60)
            assert name in await brokers.topics()
            requests = [asyncio.ensure_future(brokers.ends(places, "last", "read_committed")) for _ in range(10)]
            requests += [asyncio.ensure_future(brokers.commits(places, f"{name}-{i}")) for i in range(3)]
            stands_for[:] = ["169.254.169.254"]
            clock.advance(60)
            with pytest.raises(BrokersAway, match="link-local"):
                await brokers.topics()
            for each in await asyncio.gather(*requests, return_exceptions=True):
                assert isinstance(each, Offsets | BrokersAway), each
    finally:
        await brokers.close()
    only_names = Allowed.of("http,https", "localhost", "loopback", prefix="WEIR_TARGET")
    brokers = KafkaBrokers(f"localhost:{port}", 5.0, clock, only_names)
    try:
        with pytest.raises(BrokersAway, match=r"127\.0\.0\.1 is not among the hosts that WEIR_TARGET_HOSTS allows"):
            await brokers.topics()
    finally:
        await brokers.close()
