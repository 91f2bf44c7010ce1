"""Output of the generator: a Kafka topic."""

import time
import zlib
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

_ADMIN_TIMEOUT_SECONDS = 10.0
_NEW_TOPIC_SECONDS = 5.0
"""A new topic takes time to reach every broker; after this it counts as missing."""


class OutputError(Exception):
    """The topic cannot be written to; the sentence names broker and reason."""


class Output(Protocol):
    """Accepts records; never blocks for longer than the given timeout."""

    delivered: int
    """Records acknowledged by the broker."""
    failed: int
    """Records that could not be delivered."""
    problem: str | None
    """Reason why the last record failed or is late; None after the next delivery."""

    def send(self, key: bytes, value: bytes, produced_at_millis: int) -> bool:
        """Enqueue one record; returns False if the queue is full."""

    def serve(self, timeout_seconds: float = 0.0) -> None:
        """Poll delivery reports for up to `timeout_seconds`."""

    def close(self, timeout_seconds: float) -> None:
        """Wait for records in flight."""


class KafkaOutput:
    """Writes to a topic with the Java client's partitioner, as a Java producer of the same keys would.

    Acknowledged by the leader only: a load generator measures others' delivery, not its own.
    """

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.topic = topic
        self.delivered = 0
        self.failed = 0
        self.problem: str | None = None
        self._bootstrap_servers = bootstrap_servers
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "client.id": "weir-loadgen",
                "partitioner": "murmur2_random",
                "compression.type": "lz4",
                "linger.ms": 5,
                "acks": 1,
                # A longer queue than two seconds at full speed would hide that the broker is away.
                "queue.buffering.max.messages": 20_000,
                "message.timeout.ms": 30_000,
                "error_cb": self._late,
                "log_level": 3,
            }
        )

    def wait_topic(self, timeout_seconds: float, partitions: int | None = None) -> int:
        """Wait until the topic exists and return its partition count; with `partitions` a missing topic is created.

        Raises `OutputError` after the timeout, or sooner if the topic is missing and must not be created.
        """
        return self._wait(self.topic, timeout_seconds, partitions)

    def _wait(self, topic: str, timeout_seconds: float, partitions: int | None) -> int:
        admin = AdminClient({"bootstrap.servers": self._bootstrap_servers, "log_level": 0})
        began = time.monotonic()
        problem = "no answer"
        while (elapsed := time.monotonic() - began) < timeout_seconds:
            try:
                found = admin.list_topics(timeout=min(5.0, timeout_seconds)).topics.get(topic)
                if found is not None and found.error is None and found.partitions:
                    return len(found.partitions)
                problem = f"topic {topic!r} does not exist"
                if partitions is not None:
                    self._create(admin, topic, partitions)
                elif elapsed > _NEW_TOPIC_SECONDS:
                    break
            except KafkaException as error:
                problem = _reason(error)
            admin.poll(0.2)
        raise OutputError(f"{self._bootstrap_servers}: {problem}")

    def _create(self, admin: AdminClient, topic: str, partitions: int) -> None:
        made = admin.create_topics([NewTopic(topic, partitions, 1)])[topic]
        try:
            made.result(_ADMIN_TIMEOUT_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def send(self, key: bytes, value: bytes, produced_at_millis: int) -> bool:
        try:
            self._producer.produce(
                self.topic, value=value, key=key, timestamp=produced_at_millis, on_delivery=self._arrived
            )
        except BufferError:
            return False
        return True

    def serve(self, timeout_seconds: float = 0.0) -> None:
        self._producer.poll(timeout_seconds)

    def close(self, timeout_seconds: float) -> None:
        self._producer.flush(timeout_seconds)

    def _arrived(self, error: KafkaError | None, _message: Any) -> None:
        if error is None:
            self.delivered += 1
            self.problem = None
        else:
            self.failed += 1
            self.problem = str(error.str())

    def _late(self, error: KafkaError) -> None:
        self.problem = str(error.str())


def _reason(error: KafkaException) -> str:
    return str(error.args[0].str()) if error.args else type(error).__name__


Pending = tuple[bytes, bytes, int, int]
"""Key, value, time in milliseconds and partition of a payment."""


def partition_of(customer: bytes, partitions: int) -> int:
    """Return the partition of a customer's records, the same in topics of equally many partitions."""
    return zlib.crc32(customer) % partitions


class PairedOutput(KafkaOutput):
    """Writes each record to `topic` as an order, and a payment of the same key to `payments_topic`.

    Keys are unique, so that an order joins with its own payment only; records are partitioned by customer, so that a
    customer's state is in one partition. `delivered` counts orders; `failed` counts both.
    """

    def __init__(self, bootstrap_servers: str, topic: str, payments_topic: str) -> None:
        super().__init__(bootstrap_servers, topic)
        self.payments_topic = payments_topic
        self._partitions = 1
        self._number = 0
        self._owed: Pending | None = None
        """Payment of the last order, which the queue had no room for."""

    def wait_topic(self, timeout_seconds: float, partitions: int | None = None) -> int:
        """Wait for both topics; raises `OutputError` also if they differ in partitions, as they could not be joined."""
        self._partitions = super().wait_topic(timeout_seconds, partitions)
        of_payments = self._wait(self.payments_topic, timeout_seconds, partitions)
        if of_payments != self._partitions:
            raise OutputError(
                f"topics {self.topic!r} and {self.payments_topic!r} have {self._partitions} and {of_payments} "
                "partitions: a join needs equally many"
            )
        return self._partitions

    def send(self, key: bytes, value: bytes, produced_at_millis: int) -> bool:
        if not self._pay():
            return False
        self._number += 1
        unique = b"%s#%d.%d" % (key, produced_at_millis, self._number)
        partition = partition_of(key, self._partitions)
        if not self._write(self.topic, (unique, value, produced_at_millis, partition), self._arrived):
            return False
        self._owed = (unique, b"%d;%s;paid" % (produced_at_millis, key), produced_at_millis, partition)
        self._pay()
        return True

    def close(self, timeout_seconds: float) -> None:
        super().close(timeout_seconds)
        if self._owed is not None and self._pay():
            super().close(timeout_seconds)

    def _pay(self) -> bool:
        """Enqueue the payment that is owed; returns False if the queue is full."""
        if self._owed is not None and not self._write(self.payments_topic, self._owed, self._paid):
            return False
        self._owed = None
        return True

    def _paid(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._arrived(error, message)

    def _write(self, topic: str, record: Pending, on_delivery: Any) -> bool:
        key, value, at_millis, partition = record
        try:
            self._producer.produce(
                topic, value=value, key=key, timestamp=at_millis, partition=partition, on_delivery=on_delivery
            )
        except BufferError:
            return False
        return True
