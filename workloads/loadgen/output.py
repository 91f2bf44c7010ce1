"""Output of the generator: a Kafka topic."""

import time
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
