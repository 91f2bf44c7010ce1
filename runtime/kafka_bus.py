"""The bus on a real Kafka: confluent-kafka's synchronous clients, each on a thread of its own, bridged to asyncio.

(Its asyncio producer cannot send headers, which carry the CloudEvents attributes.)
"""

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from .bus import BusError, Consumer, PartitionsChanged, Reader
from .clock import Clock, SystemClock
from .kafka_clients import KafkaConsumer, KafkaReader
from .kafka_producer import Outbox
from .kafka_thread import ClientThread, Complaints, code_of, explain
from .records import Outgoing, TopicSpec

PING_SECONDS = 2.0
FLUSH_SECONDS = 1.5
METADATA_SECONDS = 5.0
TOPICS_SECONDS = 15.0
"""How long new topics may take until every broker knows them."""

_LIBRARY = logging.getLogger("weir.kafka")


def partition_counts(metadata: ClusterMetadata) -> dict[str, int]:
    """Partitions by topic, of those that the broker knows."""
    return {name: len(topic.partitions) for name, topic in metadata.topics.items() if topic.partitions}


class KafkaBus:
    """One connection to the brokers: a producer, and whatever consumers and readers are asked for. Used once: not reopened."""

    def __init__(
        self, bootstrap_servers: str, *, clock: Clock | None = None, delivery_timeout_seconds: float = 30.0
    ) -> None:
        self._clock = clock or SystemClock()
        self._complaints = Complaints(self._clock)
        self._settings = {
            "bootstrap.servers": bootstrap_servers,
            # Its own log repeats every attempt to connect; what matters of it comes to `error_cb` too.
            "log_level": 2,
            "logger": _LIBRARY,
            "error_cb": self._complaints,
            "reconnect.backoff.ms": 100,
            "reconnect.backoff.max.ms": 2_000,
        }
        self._outbox = Outbox(self._settings, delivery_timeout_seconds)
        self._admin: AdminClient | None = None
        self._admin_thread = ClientThread("kafka-admin")
        self._ping_thread = ClientThread("kafka-ping")  # an answer must not wait behind the making of topics
        self._pinging: asyncio.Future[None] | None = None
        self._opened: set[KafkaConsumer | KafkaReader] = set()

    async def start(self) -> None:
        """Open the producer. Does not wait for the brokers: see `ping`."""
        if self._admin is None:
            self._outbox.start()
            # Silent: its callers hear of every failure, and the producer complains of the same brokers.
            self._admin = AdminClient({"bootstrap.servers": self._settings["bootstrap.servers"], "log_level": 0})

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
        # Those who ask while an answer is waited for share it: a broker that is away must not collect a queue of questions.
        if self._pinging is None or self._pinging.done():
            self._pinging = asyncio.ensure_future(self._ping_thread.call(self._ask))
        await asyncio.shield(self._pinging)

    def _ask(self) -> None:
        self._metadata(PING_SECONDS)

    def _metadata(self, timeout_seconds: float) -> ClusterMetadata:
        """Every topic; `BusError` that says which address does not answer, and whose setting it is."""
        try:
            return self._opened_admin().list_topics(timeout=timeout_seconds)
        except KafkaException as error:
            servers = self._settings["bootstrap.servers"]
            raise BusError(f"kafka: {servers} (WEIR_KAFKA_BOOTSTRAP_SERVERS): {explain(error)}") from error

    def _opened_admin(self) -> AdminClient:
        if self._admin is None:
            raise BusError("kafka: the bus was not started")
        return self._admin

    async def publish(
        self, topic: str, key: str, value: bytes | None, headers: Mapping[str, str] | None = None
    ) -> None:
        await self.publish_many([Outgoing(topic, key, value, headers or {})])

    async def publish_many(self, records: Sequence[Outgoing]) -> None:
        # All are waited for, so that no delivery report comes to a future nobody holds.
        reports = [self._outbox.send(record) for record in records]
        failed = [r for r in await asyncio.gather(*reports, return_exceptions=True) if isinstance(r, BaseException)]
        if failed:
            raise failed[0]

    async def ensure_topics(self, specs: Sequence[TopicSpec]) -> None:
        await self._admin_thread.call(self._ensure, specs)

    def _ensure(self, specs: Sequence[TopicSpec]) -> None:
        counts = self._counts()
        missing = [spec for spec in specs if spec.name not in counts]
        if missing:
            self._create(missing)
            counts = self._wait_for({spec.name for spec in missing})
        for spec in specs:
            if counts[spec.name] != spec.partitions:
                raise BusError(
                    f"topic {spec.name} has {counts[spec.name]} partitions and must have {spec.partitions}: all topics of "
                    "the loop share one number (WEIR_PARTITIONS)"
                )

    def _counts(self) -> dict[str, int]:
        return partition_counts(self._metadata(METADATA_SECONDS))

    def _create(self, missing: Sequence[TopicSpec]) -> None:
        wanted = [NewTopic(spec.name, spec.partitions, config=dict(spec.configs)) for spec in missing]
        answers = self._opened_admin().create_topics(wanted, operation_timeout=TOPICS_SECONDS)
        for name, answer in answers.items():
            try:
                answer.result(timeout=TOPICS_SECONDS + 5.0)
            except KafkaException as error:
                # Another service starts at the same time and was first.
                if code_of(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise BusError(f"topic {name} cannot be created: {explain(error)}") from error

    def _wait_for(self, names: set[str]) -> dict[str, int]:
        deadline = self._clock.monotonic() + TOPICS_SECONDS
        pause = threading.Event()
        while names - (counts := self._counts()).keys():
            if self._clock.monotonic() > deadline:
                raise BusError(f"topics {', '.join(sorted(names - counts.keys()))} were created but do not appear")
            pause.wait(0.1)
        return counts

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
            self._settings,
            topics,
            group,
            from_beginning=from_beginning,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            clock=self._clock,
            complaints=self._complaints,
            on_closed=self._opened.discard,
        )
        self._opened.add(opened)
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
            self._settings,
            topic,
            partitions=partitions,
            since=since,
            from_beginning=from_beginning,
            clock=self._clock,
            complaints=self._complaints,
            on_closed=self._opened.discard,
        )
        self._opened.add(opened)
        return opened
