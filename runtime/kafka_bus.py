"""The bus on a real Kafka: confluent-kafka's synchronous clients, each on a thread of its own, bridged to asyncio.

(Its asyncio producer cannot send headers, which carry the CloudEvents attributes.)
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import uuid4

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from .bus import BusError, Consumer, PartitionsChanged, Reader
from .clock import Clock, SystemClock
from .records import Outgoing, Record, TopicSpec

T = TypeVar("T")

_LOGGER = logging.getLogger("weir.kafka")


def _explain(error: BaseException) -> str:
    reason = error.args[0] if error.args else error
    return reason.str() if isinstance(reason, KafkaError) else str(reason)


def _on_error(error: KafkaError) -> None:
    # librdkafka retries by itself; a client that is really cut off shows in ping() and in delivery reports.
    _LOGGER.debug("kafka: %s", error.str())


class _Thread:
    """Runs a synchronous client's calls one after the other on one thread."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)
        except KafkaException as error:
            raise BusError(f"kafka: {_explain(error)}") from error

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


def _record(message: Message) -> Record:
    key = message.key()
    kind, milliseconds = message.timestamp()
    headers: dict[str, str] = {}
    for name, value in message.headers() or []:
        headers[str(name)] = value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
    return Record(
        topic=str(message.topic()),
        partition=int(message.partition() or 0),
        offset=int(message.offset() or 0),
        key=key.decode(errors="replace") if isinstance(key, bytes) else key,
        value=message.value(),
        headers=headers,
        timestamp=None if kind == TIMESTAMP_NOT_AVAILABLE else datetime.fromtimestamp(milliseconds / 1000, UTC),
    )


def _poll(client: ConfluentConsumer, max_records: int, timeout_seconds: float) -> tuple[list[Record], set[int]]:
    """Records, and the partitions whose end was reached. Waits for the first only: `consume` alone would wait for all."""
    first = client.poll(timeout_seconds)
    if first is None:
        return [], set()
    messages = [first, *(client.consume(max_records - 1, 0.0) if max_records > 1 else [])]
    records, ends = [], set()
    for message in messages:
        error = message.error()
        if error is None:
            records.append(_record(message))
        elif error.code() == KafkaError._PARTITION_EOF:
            ends.add(int(message.partition()))
        else:
            _on_error(error)
    return records, ends


class KafkaConsumer:
    """A group member. Its heartbeat is librdkafka's own; a killed member's partitions are taken over after 10 s."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        topics: Sequence[str],
        group: str,
        *,
        from_beginning: bool,
        on_assigned: PartitionsChanged | None,
        on_revoked: PartitionsChanged | None,
    ) -> None:
        self._settings = {
            **settings,
            "group.id": group,
            "client.id": f"{group}-{uuid4().hex[:8]}",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest" if from_beginning else "latest",
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 3_000,
            "max.poll.interval.ms": 300_000,
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 100,
            # Every member reads the same partition numbers of all its topics: one key, one owner.
            "partition.assignment.strategy": "range",
        }
        self._topics = list(topics)
        self._thread = _Thread(f"consumer-{group}")
        self._client: ConfluentConsumer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._positions: dict[tuple[str, int], int] = {}
        self._owned: frozenset[int] = frozenset()
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked

    @property
    def assignment(self) -> frozenset[int]:
        return self._owned

    async def receive(self, max_records: int = 500, timeout_seconds: float = 1.0) -> list[Record]:
        self._loop = asyncio.get_running_loop()
        records = await self._thread.call(self._receive, max_records, timeout_seconds)
        for record in records:
            self._positions[record.topic, record.partition] = record.offset + 1
        return records

    def _receive(self, max_records: int, timeout_seconds: float) -> list[Record]:
        if self._client is None:
            self._client = ConfluentConsumer(self._settings)
            self._client.subscribe(self._topics, on_assign=self._given, on_revoke=self._taken, on_lost=self._taken)
        return _poll(self._client, max_records, timeout_seconds)[0]

    def _given(self, _client: ConfluentConsumer, partitions: list[TopicPartition]) -> None:
        gained = frozenset(p.partition for p in partitions)
        self._owned |= gained
        self._tell(self._on_assigned, gained)

    def _taken(self, _client: ConfluentConsumer, partitions: list[TopicPartition]) -> None:
        lost = frozenset(p.partition for p in partitions)
        self._owned -= lost
        for place in [place for place in self._positions if place[1] in lost]:
            self._positions.pop(place, None)
        self._tell(self._on_revoked, lost)

    def _tell(self, callback: PartitionsChanged | None, partitions: frozenset[int]) -> None:
        if callback and partitions and self._loop and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, partitions)

    async def commit(self) -> None:
        await self._thread.call(self._commit)

    def _commit(self) -> None:
        offsets = [TopicPartition(t, p, o) for (t, p), o in list(self._positions.items()) if p in self._owned]
        if self._client is None or not offsets:
            return
        try:
            self._client.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in _LOST_MEMBERSHIP:
                raise
            # The partitions have another owner, who repeats what was not committed: consumers are idempotent.
            _LOGGER.info("kafka: commit left out after a rebalance: %s", _explain(error))

    async def close(self) -> None:
        if self._client is not None:
            await self._thread.call(self._client.close)
            self._client = None
        self._owned = frozenset()
        self._thread.close()


_LOST_MEMBERSHIP = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._NO_OFFSET,
    }
)


class KafkaReader:
    """Reads partitions by manual assignment; knows by the brokers' own end-of-partition events when it has caught up."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        topic: str,
        *,
        partitions: Iterable[int] | None,
        since: timedelta | None,
        from_beginning: bool,
        clock: Clock,
    ) -> None:
        self._settings = {
            **settings,
            # Never joined nor committed to; librdkafka wants one all the same.
            "group.id": f"weir-reader-{uuid4().hex[:12]}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 100,
        }
        self._topic = topic
        self._wanted: frozenset[int] | None = None if partitions is None else frozenset(partitions)
        self._since = since
        self._from_beginning = from_beginning
        self._clock = clock
        self._thread = _Thread(f"reader-{topic}")
        self._client: ConfluentConsumer | None = None
        self._assigned: frozenset[int] = frozenset()
        self._ended: set[int] = set()
        self._positions: dict[int, int] = {}

    async def receive(self, max_records: int = 500, timeout_seconds: float = 1.0) -> list[Record]:
        return await self._thread.call(self._receive, max_records, timeout_seconds)

    def _receive(self, max_records: int, timeout_seconds: float) -> list[Record]:
        client = self._opened()
        if not self._assigned:
            # poll() without an assignment returns at once; wait here instead of spinning.
            threading.Event().wait(min(timeout_seconds, 0.2))
            return []
        records, ends = _poll(client, max_records, timeout_seconds)
        self._ended |= ends
        for record in records:
            self._positions[record.partition] = record.offset + 1
        return records

    def _opened(self) -> ConfluentConsumer:
        if self._client is None:
            self._client = ConfluentConsumer(self._settings)
        if self._wanted is None:
            metadata = self._client.list_topics(self._topic, timeout=5.0).topics[self._topic]
            if metadata.error is not None:
                raise KafkaException(metadata.error)
            self._wanted = frozenset(metadata.partitions)
        if self._wanted != self._assigned:
            self._reassign(self._client, self._wanted)
        return self._client

    def _reassign(self, client: ConfluentConsumer, wanted: frozenset[int]) -> None:
        new = [TopicPartition(self._topic, p) for p in sorted(wanted) if p not in self._positions]
        if self._since is not None and new:
            oldest = int((self._clock.now() - self._since).timestamp() * 1000)
            for place in new:
                place.offset = oldest
            new = client.offsets_for_times(new, timeout=10.0)
        else:
            for place in new:
                place.offset = OFFSET_BEGINNING if self._from_beginning else OFFSET_END
        kept = [TopicPartition(self._topic, p, self._positions[p]) for p in sorted(wanted) if p in self._positions]
        client.assign([*new, *kept])
        self._positions = {p: o for p, o in self._positions.items() if p in wanted}
        self._ended &= wanted
        self._assigned = wanted

    async def assign(self, partitions: Iterable[int]) -> None:
        self._wanted = frozenset(partitions)
        await self._thread.call(self._opened)

    async def caught_up(self) -> bool:
        return self._wanted is not None and self._assigned == self._wanted and self._ended >= self._assigned

    async def close(self) -> None:
        if self._client is not None:
            await self._thread.call(self._client.close)
            self._client = None
        self._thread.close()


class KafkaBus:
    """One connection to the brokers: a producer, and whatever consumers and readers are asked for."""

    def __init__(
        self, bootstrap_servers: str, *, clock: Clock | None = None, delivery_timeout_seconds: float = 30.0
    ) -> None:
        self._settings = {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 3,
            "logger": _LOGGER,
            "error_cb": _on_error,
            "reconnect.backoff.ms": 100,
            "reconnect.backoff.max.ms": 2_000,
        }
        self._clock = clock or SystemClock()
        self._delivery_timeout_seconds = delivery_timeout_seconds
        self._producer: Producer | None = None
        self._admin: AdminClient | None = None
        self._admin_thread = _Thread("kafka-admin")
        self._polling = threading.Event()
        self._poller: threading.Thread | None = None
        self._opened: list[KafkaConsumer | KafkaReader] = []

    async def start(self) -> None:
        """Open the producer. Does not wait for the brokers: see `ping`."""
        if self._producer is not None:
            return
        self._producer = Producer(
            {
                **self._settings,
                "enable.idempotence": True,
                "acks": "all",
                # Java's partitioner: librdkafka's own would put keys elsewhere than Spark does.
                "partitioner": "murmur2_random",
                "linger.ms": 2,
                "compression.type": "lz4",
                "message.max.bytes": 8_000_000,
                "delivery.timeout.ms": int(self._delivery_timeout_seconds * 1000),
                "queue.buffering.max.kbytes": 65_536,
            }
        )
        self._admin = AdminClient(self._settings)
        self._polling.set()
        self._poller = threading.Thread(target=self._serve_reports, name="kafka-producer", daemon=True)
        self._poller.start()

    def _serve_reports(self) -> None:
        producer = self._producer
        while producer is not None and self._polling.is_set():
            producer.poll(0.1)

    async def close(self) -> None:
        for opened in self._opened:
            await opened.close()
        self._opened.clear()
        if self._producer is not None:
            await self._admin_thread.call(self._producer.flush, 5.0)
            self._polling.clear()
            if self._poller is not None:
                await asyncio.to_thread(self._poller.join, 2.0)
            self._producer = None
        self._admin_thread.close()

    async def ping(self) -> None:
        if self._admin is None:
            raise BusError("kafka: the bus was not started")
        await self._admin_thread.call(lambda admin: admin.list_topics(timeout=3.0), self._admin)

    async def publish(
        self, topic: str, key: str, value: bytes | None, headers: Mapping[str, str] | None = None
    ) -> None:
        await self.publish_many([Outgoing(topic, key, value, headers or {})])

    async def publish_many(self, records: Sequence[Outgoing]) -> None:
        # Not gather(): all are waited for, so that no delivery report comes to a future nobody holds.
        reports = [self._send(record) for record in records]
        failed = [r for r in await asyncio.gather(*reports, return_exceptions=True) if isinstance(r, BaseException)]
        if failed:
            raise failed[0]

    def _send(self, record: Outgoing) -> asyncio.Future[None]:
        if self._producer is None:
            raise BusError("kafka: the bus was not started")
        loop = asyncio.get_running_loop()
        report: asyncio.Future[None] = loop.create_future()

        def settle(error: KafkaError | None) -> None:
            if report.done():
                return
            if error is None:
                report.set_result(None)
            else:
                report.set_exception(BusError(f"kafka: {record.topic} {record.key}: {error.str()}"))

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, error)

        try:
            self._producer.produce(
                record.topic,
                key=record.key.encode(),
                value=record.value,
                headers=[(name, text.encode()) for name, text in record.headers.items()],
                on_delivery=delivered,
            )
        except (BufferError, KafkaException) as error:
            report.set_exception(BusError(f"kafka: {record.topic} {record.key}: {_explain(error)}"))
        return report

    async def ensure_topics(self, specs: Sequence[TopicSpec]) -> None:
        await self._admin_thread.call(self._ensure, specs)

    def _ensure(self, specs: Sequence[TopicSpec]) -> None:
        admin = self._admin
        if admin is None:
            raise BusError("kafka: the bus was not started")
        existing = admin.list_topics(timeout=10.0).topics
        missing = [s for s in specs if s.name not in existing]
        if missing:
            wanted = [NewTopic(s.name, s.partitions, config=dict(s.configs)) for s in missing]
            for future in admin.create_topics(wanted, operation_timeout=10.0).values():
                try:
                    future.result(timeout=15.0)
                except KafkaException as error:
                    # Another service starts at the same time and was first.
                    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                        raise
        existing = admin.list_topics(timeout=10.0).topics
        for spec in specs:
            count = len(existing[spec.name].partitions) if spec.name in existing else 0
            if count not in (0, spec.partitions):
                raise BusError(
                    f"topic {spec.name} has {count} partitions and must have {spec.partitions}: all topics of the loop share "
                    "one number (WEIR_PARTITIONS)"
                )

    def consumer(
        self,
        topics: Sequence[str],
        group: str,
        *,
        from_beginning: bool = True,
        on_assigned: PartitionsChanged | None = None,
        on_revoked: PartitionsChanged | None = None,
    ) -> Consumer:
        opened = KafkaConsumer(
            self._settings, topics, group, from_beginning=from_beginning, on_assigned=on_assigned, on_revoked=on_revoked
        )
        self._opened.append(opened)
        return opened

    def reader(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        since: timedelta | None = None,
        from_beginning: bool = True,
    ) -> Reader:
        opened = KafkaReader(
            self._settings, topic, partitions=partitions, since=since, from_beginning=from_beginning, clock=self._clock
        )
        self._opened.append(opened)
        return opened
