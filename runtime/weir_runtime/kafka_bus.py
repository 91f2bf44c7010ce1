"""The bus on Kafka: confluent-kafka's synchronous clients, each on a dedicated thread, bridged to asyncio.

(Its asyncio producer cannot send headers, which carry the CloudEvents attributes.)
"""

import asyncio
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Unpack

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from weir_contracts import counted

from .bus import Bus, BusError, Consumer, MemberOptions, Reader, ReaderOptions
from .clock import Clock, SystemClock
from .kafka_consumer import KafkaConsumer
from .kafka_producer import Outbox
from .kafka_reader import KafkaReader
from .kafka_security import LOOP_SETTING
from .kafka_thread import ClientThread, Complaints, Shared, code_of, connection, connection_problem, explain
from .records import Outgoing, TopicSpec

PING_SECONDS = 2.0
FLUSH_SECONDS = 1.5
METADATA_SECONDS = 5.0
TOPICS_SECONDS = 15.0
"""For new topics until every broker knows them."""
LISTED_PAUSE_SECONDS = 0.1
MIN_INSYNC = "min.insync.replicas"

_LIBRARY = logging.getLogger("weir.kafka")


class TooFewBrokers(BusError):
    """A topic that needs more brokers than there are; some may still start."""


def partition_counts(admin: AdminClient) -> dict[str, int]:
    """Return the number of partitions of each topic that the broker lists."""
    topics = admin.list_topics(timeout=METADATA_SECONDS).topics
    return {name: len(topic.partitions) for name, topic in topics.items() if topic.partitions}


def create_missing(admin: AdminClient, specs: Sequence[TopicSpec], clock: Clock, deadline: float) -> list[TopicSpec]:
    """Create missing topics and return those that this call created, once the broker lists all of them.

    `BusError` for a topic with another number of partitions, before anything is created: its keys would move; and for
    one that cannot be created, or is not listed at `deadline` (monotonic seconds).
    """
    listed = partition_counts(admin)
    _expect_partitions(specs, listed)
    missing = [spec for spec in specs if spec.name not in listed]
    created = _create(admin, missing)
    pause = threading.Event()
    while unlisted := {spec.name for spec in missing} - listed.keys():
        listed = partition_counts(admin)
        if unlisted <= listed.keys():
            break
        if clock.monotonic() >= deadline:
            raise BusError(f"created, but not listed by the broker: {', '.join(sorted(unlisted - listed.keys()))}")
        pause.wait(LISTED_PAUSE_SECONDS)
    _expect_partitions(missing, listed)
    return created


def _expect_partitions(specs: Sequence[TopicSpec], listed: Mapping[str, int]) -> None:
    for spec in specs:
        if listed.get(spec.name, spec.partitions) != spec.partitions:
            raise BusError(
                f"topic {spec.name} has {listed[spec.name]} partitions and must have {spec.partitions} (WEIR_PARTITIONS, one number for "
                "all topics of the loop): its keys would move, so delete it or change the setting"
            )


def _create(admin: AdminClient, specs: Sequence[TopicSpec]) -> list[TopicSpec]:
    """Return the topics that this call created. A broker lists a topic shortly after its creation, so that a missing
    one may exist."""
    wanted = [NewTopic(spec.name, spec.partitions, spec.replicas or -1, config=dict(spec.configs)) for spec in specs]
    results = admin.create_topics(wanted, operation_timeout=TOPICS_SECONDS) if wanted else {}
    created = []
    for spec in specs:
        try:
            results[spec.name].result(timeout=TOPICS_SECONDS + 5.0)
            created.append(spec)
        except KafkaException as error:
            if error.args[0].retriable():
                raise
            if code_of(error) == KafkaError.INVALID_REPLICATION_FACTOR:
                raise TooFewBrokers(
                    f"topic {spec.name} cannot be created with {spec.replicas or 'the default number of'} replicas "
                    f"(WEIR_REPLICATION_FACTOR): start more brokers or lower it; {explain(error)}"
                ) from error
            # Another service starts at the same time and was first.
            if code_of(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                raise BusError(f"topic {spec.name} cannot be created: {explain(error)}") from error
    return created


def shortfalls(admin: AdminClient, specs: Sequence[TopicSpec]) -> list[str]:
    """Return a sentence about existing topics with fewer replicas than specified, and one about a lower
    `min.insync.replicas`; none about what the brokers do not show."""
    wanted = [(spec, spec.replicas) for spec in specs if spec.replicas is not None]
    if not wanted:
        return []
    replicas = replica_counts(admin)
    few = [spec for spec, required in wanted if replicas.get(spec.name, required) < required]
    found = []
    if few:
        fewest = counted(min(replicas[spec.name] for spec in few), "replica")
        found.append(
            f"{_named(few)} {fewest}, not {few[0].replicas} (WEIR_REPLICATION_FACTOR): "
            "kafka-reassign-partitions.sh adds replicas"
        )
    lower = [
        spec for spec, is_now in _in_sync(admin, [spec for spec, _ in wanted]) if is_now < int(spec.configs[MIN_INSYNC])
    ]
    if lower:
        remedy = "add replicas first" if few else "python -m weir_runtime.topics sets it"
        found.append(
            f"{_named(lower)} {MIN_INSYNC} below {lower[0].configs[MIN_INSYNC]} (WEIR_MIN_INSYNC_REPLICAS): {remedy}"
        )
    return found


def replica_counts(admin: AdminClient) -> dict[str, int]:
    """Return the smallest number of replicas of a partition, of each topic that the broker lists."""
    topics = admin.list_topics(timeout=METADATA_SECONDS).topics
    return {
        name: min(len(partition.replicas) for partition in topic.partitions.values())
        for name, topic in topics.items()
        if topic.partitions
    }


def _in_sync(admin: AdminClient, specs: Sequence[TopicSpec]) -> Iterator[tuple[TopicSpec, int]]:
    """Yield the `min.insync.replicas` of topics that specify one, where the user may see it."""
    resources = {ConfigResource(ResourceType.TOPIC, s.name): s for s in specs if MIN_INSYNC in s.configs}
    described = admin.describe_configs(list(resources), request_timeout=METADATA_SECONDS) if resources else {}
    for resource, result in described.items():
        with suppress(KafkaException):
            yield resources[resource], int(result.result(METADATA_SECONDS + 1.0)[MIN_INSYNC].value)


def _named(specs: Sequence[TopicSpec]) -> str:
    return f"{specs[0].name} has" if len(specs) == 1 else f"{specs[0].name} and {len(specs) - 1} more topics have"


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
        self._opened: set[KafkaConsumer | KafkaReader] = set()
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
            self._pinging = asyncio.ensure_future(self._ping_thread.call(self._list))
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
        # Wait for all, so that each delivery report finds its future.
        reports = [self._outbox.send(record) for record in records]
        failed = [r for r in await asyncio.gather(*reports, return_exceptions=True) if isinstance(r, BaseException)]
        if failed:
            raise failed[0]

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

    def reader(self, topic: str, **options: Unpack[ReaderOptions]) -> Reader:
        opened = KafkaReader(self._shared, topic, **options)
        self._opened.add(opened)
        return opened
