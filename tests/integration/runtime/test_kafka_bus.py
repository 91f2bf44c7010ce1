"""The bus on a real Kafka keeps what every bus promises."""

import asyncio
import os
import struct
import threading
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from testbed.kafka import KafkaBroker
from tests.unit.runtime.bus_suite import PARTITIONS, BusSuite, read_to_end, until
from weir_runtime.bus import Bus, BusError, Committed, Consumer, Outgoing, Refused, TopicSpec
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.kafka_consumer import KafkaConsumer


@pytest.fixture
async def bus(kafka: KafkaBroker) -> AsyncIterator[KafkaBus]:
    bus = KafkaBus(kafka.bootstrap_servers)
    await bus.start()
    yield bus
    await bus.close()


class TestKafkaBus(BusSuite):
    """The promises."""

    async def settle(self, consumer: Consumer) -> None:
        """librdkafka looks the end up after the assignment."""
        for _ in range(5):
            assert await consumer.receive(timeout_seconds=0.3) == []

    async def put_out(self, bus: Bus, consumer: Consumer, group: str) -> None:
        """Say in the member's place that it leaves: LeaveGroup, version 3, to the only broker."""
        assert isinstance(bus, KafkaBus) and isinstance(consumer, KafkaConsumer) and consumer._client is not None
        member = consumer._client.memberid()
        body = struct.pack(">hhi", 13, 3, 1) + _text("test") + _text(group) + struct.pack(">i", 1)
        body += _text(member) + struct.pack(">h", -1)
        host, _, port = bus._settings["bootstrap.servers"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(struct.pack(">i", len(body)) + body)
        answer = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
        writer.close()
        assert struct.unpack(">iih", answer[:10])[2] == 0, answer


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


async def test_a_topic_has_the_settings_it_was_made_with(bus: KafkaBus, kafka: KafkaBroker) -> None:
    """Compaction of the loop's topics depends on it; a setting Kafka does not know is an error that names the topic."""
    name = f"story-{uuid4().hex[:10]}"
    with pytest.raises(BusError, match=rf"topic {name} cannot be created: .*no\.such\.setting"):
        await bus.ensure_topics([TopicSpec(name, PARTITIONS, {"no.such.setting": "1"})])
    await bus.ensure_topics([TopicSpec(name, PARTITIONS, {"max.message.bytes": "2000000"})])
    with pytest.raises(BusError, match=rf"kafka: {name} big: .*size"):
        await bus.publish(name, "big", b"x" * 9_000_000)


async def test_a_record_above_the_limit_of_its_topic_is_refused_for_good(bus: KafkaBus) -> None:
    """An administrator's limit is below Weir's own. The broker says so once, at once, and takes the next record."""
    name = f"story-{uuid4().hex[:10]}"
    await bus.ensure_topics([TopicSpec(name, 1, {"max.message.bytes": "1000"})])
    began = asyncio.get_running_loop().time()
    with pytest.raises(Refused, match=rf"kafka: {name} big: .*[Ss]ize"):
        await bus.publish(name, "big", os.urandom(2_000))  # of random bytes: compression would make it small
    assert asyncio.get_running_loop().time() - began < 5.0
    await bus.publish(name, "small", b"x" * 100)
    reader = bus.reader(name)
    received: list[str | None] = []
    while not await reader.caught_up():
        received += [record.key for record in await reader.receive(timeout_seconds=0.2)]
    assert received == ["small"]


async def test_three_services_make_the_topics_at_once(kafka: KafkaBroker) -> None:
    """All start together; who is second finds them there."""
    buses = [KafkaBus(kafka.bootstrap_servers) for _ in range(3)]
    specs = [TopicSpec(f"story-{uuid4().hex[:10]}", PARTITIONS) for _ in range(3)]
    try:
        for bus in buses:
            await bus.start()
        await asyncio.gather(*(bus.ensure_topics(specs) for bus in buses))
    finally:
        await asyncio.gather(*(bus.close() for bus in buses))


async def test_a_reader_of_an_unknown_topic_fails(bus: KafkaBus) -> None:
    """It is an error that names the topic, not an endless wait."""
    reader = bus.reader("story-nowhere")
    with pytest.raises(BusError, match="topic story-nowhere"):
        await reader.receive(timeout_seconds=1.0)


async def test_a_consumer_finds_a_topic_that_comes_later(bus: KafkaBus) -> None:
    """A service that subscribes before the topic exists begins as soon as it does."""
    name = f"story-{uuid4().hex[:10]}"
    consumer = bus.consumer([name], f"group-{name}")
    assert await consumer.receive(timeout_seconds=0.5) == []
    await bus.ensure_topics([TopicSpec(name, PARTITIONS)])
    await bus.publish(name, "a", b"1")
    async with asyncio.timeout(25):
        while not (records := await consumer.receive(timeout_seconds=1.0)):
            pass
    assert [r.value for r in records] == [b"1"]


async def test_a_commit_that_never_returns_costs_a_member_and_no_record(
    bus: KafkaBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka's commit has no time limit, and now and then it hangs (confluent-kafka-python's issue 1801; here after the
    broker stood still for 16 s). The consumer reported nothing and received nothing until its service was restarted."""
    name = f"story-{uuid4().hex[:10]}"
    await bus.ensure_topics([TopicSpec(name, PARTITIONS)])
    await bus.publish(name, "a", b"1")
    lost: list[frozenset[int]] = []
    consumer = bus.consumer([name], f"group-{name}", on_revoked=lost.append)
    async with asyncio.timeout(30):
        while not (records := await consumer.receive(timeout_seconds=1.0)):
            pass
    hangs, send = threading.Event(), KafkaConsumer._send
    monkeypatch.setattr("weir_runtime.kafka_consumer.MAX_POLL_SECONDS", 1.0)
    monkeypatch.setattr(KafkaConsumer, "_send", lambda *_: hangs.wait(60))
    waiting = asyncio.create_task(consumer.receive(timeout_seconds=0.1))
    with pytest.raises(BusError, match=r"no answer to its commit for 1 s and joins again"):
        await asyncio.gather(consumer.commit(), waiting)
    await asyncio.sleep(0)
    assert lost == [frozenset(range(PARTITIONS))]
    monkeypatch.setattr(KafkaConsumer, "_send", send)
    hangs.set()  # the member that was given up leaves the group, and takes nothing from the new one
    async with asyncio.timeout(30):
        while not (again := await consumer.receive(timeout_seconds=1.0)):
            pass
        while len(consumer.assignment) < PARTITIONS:
            await consumer.receive(timeout_seconds=0.2)
    assert [record.value for record in again] == [record.value for record in records]
    await consumer.commit()
    await consumer.close()


async def test_a_large_batch_is_acknowledged_in_good_time(bus: KafkaBus) -> None:
    """A thousand messages are one wait, not a thousand."""
    name = f"story-{uuid4().hex[:10]}"
    await bus.ensure_topics([TopicSpec(name, PARTITIONS)])
    async with asyncio.timeout(10):
        await bus.publish_many([Outgoing(name, f"k{i}", b"x" * 1000) for i in range(1000)])
    assert len(await read_to_end(bus.reader(name))) == 1000


async def test_a_bus_that_was_not_started_fails(kafka: KafkaBroker) -> None:
    """Instead of an error from deep inside."""
    bus = KafkaBus(kafka.bootstrap_servers)
    with pytest.raises(BusError, match="not started"):
        await bus.publish("t", "k", b"")
    with pytest.raises(BusError, match="not started"):
        await bus.ping()


async def test_a_transaction_with_a_record_that_the_topic_refuses_writes_nothing(bus: KafkaBus) -> None:
    """The record is too large for its topic: `Refused`, and no other record of the transaction is written. The next
    transaction is."""
    name, group = f"story-{uuid4().hex[:10]}", f"group-{uuid4().hex[:10]}"
    await bus.ensure_topics([TopicSpec(name, PARTITIONS, {"max.message.bytes": "20000"})])
    consumer = bus.consumer([name], group, positioned=True)
    await until(lambda: len(consumer.assignment) == PARTITIONS, consumer)
    writing = bus.transactions(group, consumer)
    await writing.fence()
    large = Outgoing(name, "large", os.urandom(30_000))
    with pytest.raises(Refused, match="size"):
        await writing.commit([Outgoing(name, "small", b"1"), large], (name, 0), Committed(1, ""))
    assert await read_to_end(bus.reader(name)) == []
    assert await consumer.committed((name, 0)) == Committed(None, "")
    await writing.fence()
    await writing.commit([Outgoing(name, "small", b"2")], (name, 0), Committed(2, "newest 9"))
    assert [r.value for r in await read_to_end(bus.reader(name))] == [b"2"]
    assert await consumer.committed((name, 0)) == Committed(2, "newest 9")
