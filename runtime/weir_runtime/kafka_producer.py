"""Writing to Kafka: acknowledged by all replicas, in order, idempotent."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from .bus import BusError
from .envelope import ENVELOPE_BYTES, MAX_MESSAGE_BYTES
from .kafka_thread import explain, running_future
from .records import Outgoing


class _Generation:
    """One librdkafka producer, and the thread that serves its delivery reports."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.broken = False
        self._retired = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="kafka-producer", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._retired.is_set():
            self.producer.poll(0.2)
        # Report undelivered records as failed: their senders wait.
        self.producer.purge()
        self.producer.flush(1.0)

    def retire(self) -> None:
        self._retired.set()

    def finish(self, seconds: float) -> None:
        """Wait up to `seconds` for pending deliveries, then end."""
        self.producer.flush(seconds)
        self.retire()
        self._thread.join(2.0)


class Outbox:
    """The producer. One that librdkafka declares unusable (a fatal error of idempotence) is replaced at the next send."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        delivery_timeout_seconds: float,
        make: Callable[[dict[str, Any]], Producer] = Producer,
    ) -> None:
        self._make = make
        self._generation: _Generation | None = None
        self._log = structlog.get_logger("kafka")
        self._settings = {
            **settings,
            "enable.idempotence": True,
            "acks": "all",
            # One request at a time, or an acknowledged record may be lost: if a broker refuses a producer's first batch
            # (it does not know yet that it leads the partition) and accepts the second, already sent one, librdkafka
            # counts the first as written (KAFKA-15591; 9 of 500 new topics). With distant brokers this costs latency:
            # one batch per round trip and connection.
            "max.in.flight.requests.per.connection": 1,
            # Java's partitioner: librdkafka's own would put keys elsewhere than Spark does.
            "partitioner": "murmur2_random",
            "linger.ms": 2,
            "compression.type": "lz4",
            "message.max.bytes": MAX_MESSAGE_BYTES + ENVELOPE_BYTES,
            "delivery.timeout.ms": int(delivery_timeout_seconds * 1000),
            "queue.buffering.max.kbytes": 65_536,
        }

    def start(self) -> None:
        """Open the producer; does not wait for the brokers."""
        if self._generation is None:
            self._generation = _Generation(self._make(self._settings))

    def send(self, record: Outgoing) -> asyncio.Future[None]:
        """Hand a record over; the future ends with its delivery report, a `BusError` if it was not delivered."""
        generation = self._usable()
        report = running_future()

        def delivered(error: KafkaError | None, _message: Message) -> None:
            self._check_fatal(generation, error)
            if error is None:
                report.set_result(None)
            else:
                report.set_exception(_undelivered(record, error.str()))

        try:
            generation.producer.produce(
                record.topic,
                key=record.key.encode(),
                value=record.value,
                headers=[(name, text.encode()) for name, text in record.headers.items()],
                on_delivery=delivered,
            )
        except (BufferError, KafkaException) as error:
            self._check_fatal(generation, error.args[0] if error.args else None)
            report.set_exception(_undelivered(record, explain(error)))
        return asyncio.wrap_future(report)

    def _usable(self) -> _Generation:
        if self._generation is None:
            raise BusError("kafka: the bus was not started")
        if self._generation.broken:
            self._generation.retire()
            self._generation = _Generation(self._make(self._settings))
        return self._generation

    def _check_fatal(self, generation: _Generation, error: object) -> None:
        if isinstance(error, KafkaError) and (error.fatal() or error.code() == KafkaError._FATAL):
            if not generation.broken:
                self._log.error("producer-replaced", reason=error.str())
            generation.broken = True

    async def close(self, seconds: float) -> None:
        """Flush for at most `seconds`; the rest is reported as not delivered."""
        generation, self._generation = self._generation, None
        if generation is not None:
            await asyncio.to_thread(generation.finish, seconds)


def _undelivered(record: Outgoing, reason: str) -> BusError:
    return BusError(f"kafka: {record.topic} {record.key}: {reason}")
