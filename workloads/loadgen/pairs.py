"""Output of the generator for the Kafka Streams sample: an order and its payment, in two topics that are joined."""

import zlib
from typing import Any

from confluent_kafka import KafkaError

from .output import KafkaOutput, OutputError

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
