"""Clients that read from Kafka, each on a dedicated thread, and the reader of partitions by manual assignment, without a
group."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from .bus import BusError, Place, Record
from .clock import Clock
from .kafka_client import AWAY, ClientThread, Complaints, begun, code_of, explain
from .messages import ENVELOPE_BYTES, MAX_MESSAGE_BYTES

CLOSE_SECONDS = 2.0
"""For leaving the group; librdkafka blocks for longer while the brokers are away, and the session expires anyway."""

MAX_RECEIVED_BYTES = 4_000_000
"""Size after which `receive` takes no further record: 500 of the largest would exceed the memory of a container."""
READING = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 100,
    # Bounded buffers of prefetched records. A larger record than a partition's share comes alone.
    "queued.max.messages.kbytes": 1_024,
    "fetch.message.max.bytes": 262_144,
    "fetch.max.bytes": MAX_MESSAGE_BYTES + ENVELOPE_BYTES,
    # New topics and partitions are noticed within this.
    "topic.metadata.refresh.interval.ms": 10_000,
}


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


@dataclass(frozen=True)
class Shared:
    """Shared parts of the clients of one bus."""

    settings: Mapping[str, Any]
    clock: Clock
    complaints: Complaints
    on_closed: Callable[[object], None]


class ReadingClient:
    """A confluent-kafka consumer on its thread. The records of a cancelled `receive` go to the next one."""

    def __init__(self, name: str, shared: Shared) -> None:
        self._thread = ClientThread(name)
        self._client: Consumer | None = None
        self._clock = shared.clock
        self._complaints = shared.complaints
        self._on_closed = shared.on_closed
        self._under_way: asyncio.Future[list[Record]] | None = None

    async def _take(self, max_records: int, timeout_seconds: float) -> list[Record]:
        if self._under_way is None:
            self._under_way = begun(self._thread.call(self._receive, max_records, timeout_seconds))
        try:
            records = await asyncio.shield(self._under_way)
        except asyncio.CancelledError:
            raise  # kept: its records would otherwise be lost
        except BaseException:
            self._under_way = None
            raise
        self._under_way = None
        return records

    def _receive(self, max_records: int, timeout_seconds: float) -> list[Record]:
        raise NotImplementedError

    def _poll(self, client: Consumer, max_records: int, timeout_seconds: float) -> tuple[list[Record], set[Place]]:
        """Return records, and places read to their end. Waits for the first record only."""
        records, ends, size = list[Record](), set[Place](), 0
        message = client.poll(timeout_seconds)
        while message is not None:
            error = message.error()
            if error is None:
                records.append(_record(message))
                size += len(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends.add((str(message.topic()), int(message.partition())))
            else:
                self._complaints(error)
            enough = len(records) >= max_records or size >= MAX_RECEIVED_BYTES
            message = None if enough else client.poll(0.0)
        return records, ends

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    async def close(self) -> None:
        self._on_closed(self)
        try:
            await asyncio.wait_for(self._thread.call(self._close), CLOSE_SECONDS)
        except (BusError, TimeoutError) as error:
            structlog.get_logger("kafka").info("closed-without-leaving", reason=explain(error))
        finally:
            self._thread.close()


class KafkaReader(ReadingClient):
    """Reads partitions by manual assignment; end-of-partition events of the brokers show when it has caught up."""

    def __init__(
        self,
        shared: Shared,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        since: timedelta | None = None,
        from_beginning: bool = True,
    ) -> None:
        super().__init__(f"reader-{topic}", shared)
        self._settings = {
            **shared.settings,
            **READING,
            # Neither joined nor committed to, but required by librdkafka.
            "group.id": f"weir-reader-{uuid4().hex[:12]}",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
        self._topic = topic
        self._wanted: frozenset[int] | None = None if partitions is None else frozenset(partitions)
        self._since = since
        self._from_beginning = from_beginning
        self._assigned: frozenset[int] = frozenset()
        self._ended: frozenset[int] = frozenset()
        self._positions: dict[int, int] = {}

    async def receive(self, max_records: int = 500, timeout_seconds: float = 1.0) -> list[Record]:
        records = await self._take(max_records, timeout_seconds)
        if not records and not self._assigned and self._wanted is not None:
            # Without an assignment poll() returns at once, and the caller would spin.
            await asyncio.sleep(min(timeout_seconds, 0.2))
        return [record for record in records if self._wanted is None or record.partition in self._wanted]

    def _receive(self, max_records: int, timeout_seconds: float) -> list[Record]:
        client = self._ready(timeout_seconds)
        if client is None or not self._assigned:
            return []
        records, ends = self._poll(client, max_records, timeout_seconds)
        self._ended |= {partition for _, partition in ends}
        for record in records:
            self._positions[record.partition] = record.offset + 1
        return records

    def _ready(self, timeout_seconds: float) -> Consumer | None:
        """Return the client with the wanted assignment; None while the brokers are away."""
        if self._client is None:
            self._client = Consumer(self._settings)
        try:
            if self._wanted is None:
                self._wanted = self._all(self._client, timeout_seconds)
            if (wanted := self._wanted) != self._assigned:
                self._reassign(self._client, wanted, timeout_seconds)
        except KafkaException as error:
            if code_of(error) not in AWAY:
                raise
            self._complaints(error.args[0])
            return None
        return self._client

    def _all(self, client: Consumer, timeout_seconds: float) -> frozenset[int]:
        metadata = client.list_topics(self._topic, timeout=max(timeout_seconds, 0.5)).topics[self._topic]
        if metadata.error is not None:
            if metadata.error.code() in AWAY:
                raise KafkaException(metadata.error)
            raise BusError(f"kafka: topic {self._topic}: {metadata.error.str()}")
        return frozenset(metadata.partitions)

    def _reassign(self, client: Consumer, wanted: frozenset[int], timeout_seconds: float) -> None:
        starts = self._starts(client, sorted(wanted - self._positions.keys()), max(timeout_seconds, 0.5))
        positions = {p: o for p, o in {**starts, **self._positions}.items() if p in wanted}
        client.assign([TopicPartition(self._topic, p, o) for p, o in positions.items()])
        # Retention may move the beginning, so it is no position to resume from.
        self._positions = {p: o for p, o in positions.items() if o >= 0}
        self._ended &= wanted & self._assigned
        self._assigned = wanted

    def _starts(self, client: Consumer, partitions: list[int], timeout_seconds: float) -> dict[int, int]:
        """Return the first offsets to read. Ends are looked up now: a logical end would skip records until librdkafka
        resolves it."""
        if not partitions:
            return {}
        if self._since is None and self._from_beginning:
            return dict.fromkeys(partitions, OFFSET_BEGINNING)
        ends = self._offsets(client, partitions, OFFSET_END, timeout_seconds)
        if self._since is None:
            return ends
        oldest = max(0, int((self._clock.now() - self._since).timestamp() * 1000))
        found = self._offsets(client, partitions, oldest, timeout_seconds)
        return {p: found[p] if found[p] >= 0 else ends[p] for p in partitions}

    def _offsets(self, client: Consumer, partitions: list[int], at: int, timeout_seconds: float) -> dict[int, int]:
        """Return each partition's first offset at or after `at` milliseconds (−1: none), or its end (`OFFSET_END`)."""
        places = [TopicPartition(self._topic, p, at) for p in partitions]
        answers = client.offsets_for_times(places, timeout=timeout_seconds)
        for answer in answers:
            if answer.error is not None:
                raise KafkaException(answer.error)
        return {answer.partition: answer.offset for answer in answers}

    async def assign(self, partitions: Iterable[int]) -> None:
        wanted = frozenset(partitions)
        if wanted == self._wanted == self._assigned:
            return
        self._wanted = wanted
        await self._thread.call(self._ready, 1.0)

    async def caught_up(self) -> bool:
        return self._wanted is not None and self._assigned == self._wanted and self._ended >= self._assigned
