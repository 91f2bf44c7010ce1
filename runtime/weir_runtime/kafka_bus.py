"""The bus on Kafka: confluent-kafka's synchronous clients, each on a dedicated thread, bridged to asyncio.

Records are acknowledged by all replicas, in order, idempotent. Its asyncio producer cannot send headers, which carry the
CloudEvents attributes; its asyncio consumer hangs with a commit that hangs (docs/adr/0008-libraries-instead-of-own-code.md).
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Unpack

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from .bus import (
    Bus,
    BusError,
    Committed,
    Consumer,
    Denied,
    MemberOptions,
    Outgoing,
    Place,
    Reader,
    ReaderOptions,
    Refused,
    TopicSpec,
    Transactions,
)
from .clock import Clock, SystemClock
from .kafka_client import (
    LOOP_SETTING,
    TOPICS_SECONDS,
    ClientThread,
    Complaints,
    begun,
    connection,
    connection_problem,
    create_missing,
    explain,
    running_future,
    shortfalls,
)
from .kafka_consumer import KafkaConsumer
from .kafka_reader import KafkaReader, Shared
from .messages import ENVELOPE_BYTES, MAX_MESSAGE_BYTES

PING_SECONDS = 2.0
FLUSH_SECONDS = 1.5
_REFUSALS = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_RECORD,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
"""Errors that the record causes, or its topic's name and limit. Rights, brokers' policies and clocks change without it."""
_DENIALS = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})
_OF_A_BATCH = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
"""Of these a broker may mean the batch that the record was sent in (librdkafka#488)."""


WRITING = {
    "enable.idempotence": True,
    "acks": "all",
    # Java's partitioner: librdkafka's own would put keys elsewhere than Spark does.
    "partitioner": "murmur2_random",
    "linger.ms": 2,
    "message.max.bytes": MAX_MESSAGE_BYTES + ENVELOPE_BYTES,
}
TRANSACTION_SECONDS = 10.0
"""For each step of a transaction; the brokers abort one that is open for as long, and its readers wait until then."""


class _RefusedInBatch(Refused):
    """The record's batch was refused; alone it may be accepted."""


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
        self._single: _Generation | None = None
        """Sends records in batches of one."""
        self._log = structlog.get_logger("kafka")
        self._settings = {
            **settings,
            **WRITING,
            # One request at a time, or an acknowledged record may be lost: if a broker refuses a producer's first batch
            # (it does not know yet that it leads the partition) and accepts the second, already sent one, librdkafka
            # counts the first as written (KAFKA-15591; 9 of 500 new topics). With distant brokers this costs latency:
            # one batch per round trip and connection.
            "max.in.flight.requests.per.connection": 1,
            "delivery.timeout.ms": int(delivery_timeout_seconds * 1000),
            "queue.buffering.max.kbytes": 65_536,
        }

    def start(self) -> None:
        """Open the producer; does not wait for the brokers."""
        if self._generation is None:
            self._generation = _Generation(self._make(self._settings))

    async def deliver(self, records: Sequence[Outgoing]) -> None:
        """Send records in order; return once all are acknowledged. `BusError` if one was not delivered, `Refused` if it never
        will be."""
        # Wait for all, so that each delivery report finds its future.
        reports = await asyncio.gather(*map(self.send, records), return_exceptions=True)
        failed: list[BaseException] = []
        for record, error in zip(records, reports, strict=True):
            try:
                if isinstance(error, _RefusedInBatch):
                    await self.send(record, alone=True)
                elif error is not None:
                    failed.append(error)
            except BusError as last:
                failed.append(Refused(str(last)) if isinstance(last, _RefusedInBatch) else last)
        if failed:
            raise failed[0]

    def send(self, record: Outgoing, *, alone: bool = False) -> asyncio.Future[None]:
        """Hand a record over, `alone` in a batch of one; the future ends with its delivery report, as `deliver`."""
        generation = self._usable(alone)
        report = running_future()

        def delivered(error: KafkaError | None, _message: Message) -> None:
            self._check_fatal(generation, error)
            if error is None:
                report.set_result(None)
            else:
                in_batch = error.code() in _OF_A_BATCH
                report.set_exception(_undelivered(record, error.str(), error.code(), in_batch=in_batch))

        try:
            generation.producer.produce(
                record.topic,
                key=record.key.encode(),
                value=record.value,
                headers=[(name, text.encode()) for name, text in record.headers.items()],
                on_delivery=delivered,
            )
        except (BufferError, KafkaException) as error:
            problem = error.args[0] if error.args else None
            self._check_fatal(generation, problem)
            code = problem.code() if isinstance(problem, KafkaError) else None
            report.set_exception(_undelivered(record, explain(error), code))
        return asyncio.wrap_future(report)

    def _usable(self, alone: bool) -> _Generation:
        if self._generation is None:
            raise BusError("kafka: the bus was not started")
        if alone:
            if self._single is None or self._single.broken:
                if self._single is not None:
                    self._single.retire()
                self._single = _Generation(self._make({**self._settings, "batch.num.messages": 1}))
            return self._single
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
        opened, self._generation, self._single = (self._generation, self._single), None, None
        await asyncio.gather(*(asyncio.to_thread(each.finish, seconds) for each in opened if each is not None))


def _undelivered(record: Outgoing, reason: str, code: int | None, *, in_batch: bool = False) -> BusError:
    kind = _RefusedInBatch if in_batch else Refused if code in _REFUSALS else Denied if code in _DENIALS else BusError
    return kind(f"kafka: {record.topic} {record.key}: {reason}")


class KafkaTransactions(Transactions):
    """A producer with a transactional id, on its thread. Each `fence` opens a new one."""

    def __init__(
        self, name: str, settings: Mapping[str, Any], consumer: KafkaConsumer, on_closed: Callable[[object], None]
    ) -> None:
        self._name = name
        self._consumer = consumer
        self._on_closed = on_closed
        self._thread = ClientThread(f"transactions-{name}")
        self._producer: Producer | None = None
        self._member: object = None
        self._settings = {
            **settings,
            **WRITING,
            "transactional.id": name,
            "transaction.timeout.ms": int(TRANSACTION_SECONDS * 1000),
            # Brokers still complete the transaction before, for some milliseconds.
            "retry.backoff.ms": 20,
        }

    async def fence(self) -> None:
        self._member = await self._consumer.membership()
        await self._thread.call(self._fence)

    def _fence(self) -> None:
        self._discard()
        self._producer = Producer(self._settings)
        self._producer.init_transactions(TRANSACTION_SECONDS)

    def _discard(self) -> None:
        opened, self._producer = self._producer, None
        if opened is not None:
            opened.purge()

    async def commit(self, records: Sequence[Outgoing], place: Place, position: Committed) -> None:
        await self._thread.call(self._commit, records, place, position)

    def _commit(self, records: Sequence[Outgoing], place: Place, position: Committed) -> None:
        producer, failed = self._producer, list[BusError]()
        if producer is None:
            raise BusError(f"kafka: {self._name} was not fenced")

        def delivered(record: Outgoing, error: KafkaError | None) -> None:
            if error is not None:
                failed.append(_undelivered(record, error.str(), error.code()))

        try:
            producer.begin_transaction()
            for record in records:
                producer.produce(
                    record.topic,
                    key=record.key.encode(),
                    value=record.value,
                    headers=[(name, text.encode()) for name, text in record.headers.items()],
                    on_delivery=lambda error, _message, record=record: delivered(record, error),
                )
            places = [TopicPartition(*place, position.offset or 0, metadata=position.note)]
            producer.send_offsets_to_transaction(places, self._member, TRANSACTION_SECONDS)
            producer.commit_transaction(TRANSACTION_SECONDS)
        except (BufferError, KafkaException) as error:
            with suppress(KafkaException):
                producer.abort_transaction(TRANSACTION_SECONDS)
            self._discard()
            refused = next((each for each in failed if isinstance(each, Refused)), None)
            problem = error.args[0] if error.args else None
            if refused is None and isinstance(problem, KafkaError) and problem.code() in _REFUSALS:
                refused = Refused(f"kafka: {self._name}: {explain(error)}")
            raise refused or BusError(f"kafka: {self._name}: {explain(error)}") from error

    async def close(self) -> None:
        self._on_closed(self)
        with suppress(BusError, TimeoutError):
            await asyncio.wait_for(self._thread.call(self._discard), FLUSH_SECONDS)
        self._thread.close()


_LIBRARY = logging.getLogger("weir.kafka")


class KafkaBus(Bus):
    """One connection to the brokers: a producer, consumers and readers. Not reopened after `close`."""

    def __init__(
        self,
        bootstrap_servers: str,
        security: Mapping[str, str] | None = None,
        *,
        clock: Clock | None = None,
        delivery_timeout_seconds: float = 30.0,
    ) -> None:
        """`security`: TLS and SASL settings of librdkafka."""
        self._clock = clock or SystemClock()
        complaints = Complaints(self._clock)
        # Its own log repeats every attempt to connect; `error_cb` gets the errors as well.
        logged = {"log_level": 2, "logger": _LIBRARY, "error_cb": complaints}
        self._bootstrap_servers = bootstrap_servers
        self._security = dict(security or {})
        self._settings = connection(bootstrap_servers, {**self._security, **logged})
        self._outbox = Outbox(self._settings, delivery_timeout_seconds)
        self._admin: AdminClient | None = None
        self._admin_thread = ClientThread("kafka-admin")
        self._ping_thread = ClientThread("kafka-ping")  # a ping must not wait for the creation of topics
        self._pinging: asyncio.Future[None] | None = None
        self._opened: set[KafkaConsumer | KafkaReader | KafkaTransactions] = set()
        self._shared = Shared(self._settings, self._clock, complaints, self._opened.discard)

    async def start(self) -> None:
        """Open the producer. Does not wait for the brokers: see `ping`."""
        if self._admin is None:
            self._outbox.start()
            # Silent: its callers get every failure, and the producer reports the same brokers.
            self._admin = AdminClient(connection(self._bootstrap_servers, self._security))

    async def close(self) -> None:
        log = structlog.get_logger("kafka")
        for outcome in await asyncio.gather(*(o.close() for o in list(self._opened)), return_exceptions=True):
            if isinstance(outcome, BaseException):
                log.warning("close-failed", reason=explain(outcome))
        await self._outbox.close(FLUSH_SECONDS)
        self._admin_thread.close()
        self._ping_thread.close()
        self._admin = None

    async def ping(self) -> None:
        # Concurrent callers share one request: an unreachable broker must not collect a queue of them.
        if self._pinging is None or self._pinging.done():
            self._pinging = begun(self._ping_thread.call(self._list))
        await asyncio.shield(self._pinging)

    def _list(self) -> None:
        try:
            with self._reachable() as admin:
                admin.list_topics(timeout=PING_SECONDS)
        except BusError as error:
            servers, security = self._bootstrap_servers, self._security
            if security and (reason := connection_problem(servers, PING_SECONDS, security)):
                raise BusError(f"kafka: {servers} ({LOOP_SETTING}): {reason}") from error
            raise

    @contextmanager
    def _reachable(self) -> Iterator[AdminClient]:
        """Give the admin client; `BusError` that names the address without a response, and its setting."""
        if self._admin is None:
            raise BusError("kafka: the bus was not started")
        try:
            yield self._admin
        except KafkaException as error:
            servers = self._bootstrap_servers
            raise BusError(f"kafka: {servers} (WEIR_KAFKA_BOOTSTRAP_SERVERS): {explain(error)}") from error

    async def publish_many(self, records: Sequence[Outgoing]) -> None:
        await self._outbox.deliver(records)

    async def ensure_topics(self, specs: Sequence[TopicSpec]) -> list[str]:
        return await self._admin_thread.call(self._ensure, specs)

    def _ensure(self, specs: Sequence[TopicSpec]) -> list[str]:
        with self._reachable() as admin:
            create_missing(admin, specs, self._clock, self._clock.monotonic() + TOPICS_SECONDS)
            return shortfalls(admin, specs)

    def consumer(self, topics: Sequence[str], group: str, **options: Unpack[MemberOptions]) -> Consumer:
        opened = KafkaConsumer(self._shared, topics, group, **options)
        self._opened.add(opened)
        return opened

    def transactions(self, name: str, consumer: Consumer) -> Transactions:
        if not isinstance(consumer, KafkaConsumer):
            raise TypeError("the consumer belongs to another bus")
        opened = KafkaTransactions(name, self._settings, consumer, self._opened.discard)
        self._opened.add(opened)
        return opened

    def reader(self, topic: str, **options: Unpack[ReaderOptions]) -> Reader:
        opened = KafkaReader(self._shared, topic, **options)
        self._opened.add(opened)
        return opened
