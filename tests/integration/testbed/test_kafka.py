"""A broker really starts, answers, crashes, comes back with its data, and leaves nothing behind."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer

from testbed.kafka import KafkaBroker
from testbed.process import TestbedError, accepts_connections, wait_until


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    """A broker of this test's own, since it is going to suffer."""
    with KafkaBroker(tmp_path, heap_megabytes=256) as started:
        yield started


def _produce(broker: KafkaBroker, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, value)
    assert producer.flush(10) == 0


def _first_value(broker: KafkaBroker, topic: str) -> bytes | None:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": f"test-{uuid.uuid4()}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    try:
        message = consumer.poll(20)
        assert message is not None and message.error() is None
        return message.value()
    finally:
        consumer.close()


def test_the_shared_broker_answers(kafka: KafkaBroker) -> None:
    """Produced records can be consumed, by a consumer group too: the internal topics work on one node."""
    kafka.create_topic("testbed-echo")
    _produce(kafka, "testbed-echo", b"hello")
    assert _first_value(kafka, "testbed-echo") == b"hello"


def test_data_outlives_a_crash(broker: KafkaBroker) -> None:
    """A broker killed in the middle comes back on the same port, with what was acknowledged."""
    broker.create_topic("kept")
    _produce(broker, "kept", b"acknowledged")
    pid, port = broker.process.pid, broker.port

    broker.kill()
    assert not accepts_connections(port)
    assert not psutil.pid_exists(pid)

    broker.restart()
    assert broker.port == port
    assert _first_value(broker, "kept") == b"acknowledged"


def test_a_stopped_broker_leaves_nothing(broker: KafkaBroker) -> None:
    """After stop there is no process and no listener."""
    pid = broker.process.pid
    broker.stop()
    assert not psutil.pid_exists(pid)
    wait_until(lambda: not accepts_connections(broker.port), timeout_seconds=5, what="port closed")


def test_a_port_in_use_is_reported_before_anything_starts(kafka: KafkaBroker, tmp_path: Path) -> None:
    """Two brokers on one port: the second must not take the first one's answers for its own."""
    second = KafkaBroker(tmp_path, port=kafka.port, heap_megabytes=256)
    with pytest.raises(TestbedError, match=f"kafka: port {kafka.port} of 127.0.0.1 is in use"):
        second.start()
    assert not second.process.started


def test_a_topic_that_is_refused_names_itself(kafka: KafkaBroker) -> None:
    """The broker's own sentence is passed on."""
    kafka.create_topic("testbed-twice", 3, retention_ms="60000")
    with pytest.raises(TestbedError, match=r"cannot create topic testbed-twice: .*already exists"):
        kafka.create_topic("testbed-twice", 3)
