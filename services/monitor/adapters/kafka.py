"""One Kafka cluster, shared by all applications that read from it.

The admin client answers through futures. Blocking calls (the list of topics, a group's commits, reading a record) run
on dedicated threads, so that neither the event loop nor another group waits for brokers that are away.

Two limits of confluent-kafka 2.16: an admin client must have no callbacks (to destroy it while one is due ends the
process), and its `list_consumer_group_offsets` ends the process while the group's coordinator loads, so commits are
read by a consumer that never subscribes.

librdkafka resolves names and connects by itself, so hosts are checked separately: those of the policy before a client
is made, those that the brokers advertise before any request but the list of topics, and all of them with each new list.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec
from weir_contracts import Problem

from engines.kafka_streams.group import DescribedGroup
from runtime.addresses import TARGETS, AddressRefused, Allowed, Resolve, checked_addresses, hosts_of, resolve
from runtime.bus import BusError
from runtime.clock import Clock
from runtime.kafka_thread import ClientThread, connection, explain

from .kafka_groups import described_group, group_of, metadata_of, raw_group
from .partitions import Brokers, BrokersAway, End, Isolation, Offsets, Place

TOPICS_KEPT_SECONDS = 30.0
FRESH_SECONDS = 5.0
CLOSE_SECONDS = 1.0
LOOKUP_SECONDS = 0.5
"""Limit of all lookups of a scrape together: they are only needed while there is long lag."""
MAX_BROKERS = 1_000
IDLE_GROUP_SECONDS = 900.0
"""Longer than any policy's interval: a group not requested for so long has no application any more."""


@dataclass
class _Group:
    """A consumer that reads a group's commits and never joins it."""

    thread: ClientThread
    consumer: Consumer
    used_at: float

    async def close(self) -> None:
        await asyncio.wait({asyncio.ensure_future(self.thread.call(self.consumer.close))}, timeout=CLOSE_SECONDS)
        self.thread.close()


class KafkaBrokers:
    """A real cluster. Opens its clients at the first request."""

    def __init__(
        self,
        bootstrap_servers: str,
        timeout_seconds: float,
        clock: Clock,
        allowed: Allowed = TARGETS,
        resolve: Resolve = resolve,
        *,
        security: Mapping[str, str] | None = None,
        refusal: str = "",
    ) -> None:
        self._refusal = refusal
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._servers = hosts_of(bootstrap_servers)
        self._allowed = allowed
        self._resolve = resolve
        # Silent: every failure becomes a problem of an observation.
        timeout_ms = max(1000, int(timeout_seconds * 1000))
        self._settings = connection(bootstrap_servers, {"socket.timeout.ms": timeout_ms, **(security or {})})
        self._admin: AdminClient | None = None
        self._metadata = ClientThread("monitor-topics")
        self._lookups = ClientThread("monitor-lookups")
        self._listed_groups = ClientThread("monitor-groups")
        self._groups: dict[str, _Group] = {}
        self._readers: dict[Isolation, Consumer] = {}
        self._topics: tuple[float, Mapping[str, Sequence[int]]] | None = None
        self._listing: asyncio.Future[Mapping[str, Sequence[int]]] | None = None
        self._looking = asyncio.Lock()
        self._closing: set[asyncio.Future[None]] = set()

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(self._settings)
        return self._admin

    async def topics(self, *, fresh: bool = False) -> Mapping[str, Sequence[int]]:
        if self._refusal:
            raise BrokersAway(self._refusal)
        kept_seconds = FRESH_SECONDS if fresh else TOPICS_KEPT_SECONDS
        if self._topics is not None and self._clock.monotonic() - self._topics[0] < kept_seconds:
            return self._topics[1]
        # Concurrent calls share one request: brokers that are away must not collect a queue of them.
        if self._listing is None or self._listing.done():
            self._listing = asyncio.ensure_future(self._list())
            self._listing.add_done_callback(_retrieve_error)
        topics: Mapping[str, Sequence[int]] = await _response(asyncio.shield(self._listing), self._timeout_seconds)
        return topics

    async def _list(self) -> Mapping[str, Sequence[int]]:
        await self._check(self._servers)
        # No frame of a failure may hold the client, or it would live after `_let_go`.
        listed = await self._metadata.call(lambda: self._client().list_topics(timeout=self._timeout_seconds))
        await self._check(broker.host for broker in listed.brokers.values())
        topics = {name: sorted(topic.partitions) for name, topic in listed.topics.items() if topic.error is None}
        self._topics = (self._clock.monotonic(), topics)
        return topics

    async def _check(self, hosts: Iterable[str]) -> None:
        """`BrokersAway` if an address of any host is not allowed; then no client stays open.

        A host without an address passes: librdkafka cannot connect to it either.
        """
        names = set(hosts)
        if len(names) > MAX_BROKERS:
            refused: BaseException | None = BrokersAway(f"the brokers list {len(names)} hosts, more than {MAX_BROKERS}")
        else:
            looked_up = (checked_addresses(name, 0, self._allowed, self._resolve) for name in names)
            found = await asyncio.gather(*looked_up, return_exceptions=True)
            refused = next((each for each in found if isinstance(each, AddressRefused)), None)
        if refused is not None:
            self._topics = None
            await self._let_go()
            raise BrokersAway(str(refused))

    async def ends(self, places: Sequence[Place], end: End, isolation: Isolation) -> Offsets:
        spec = OffsetSpec.earliest() if end == "first" else OffsetSpec.latest()
        committed = isolation == "read_committed"
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        futures = self._client().list_offsets(
            {TopicPartition(*place): spec for place in places},
            isolation_level=level,
            request_timeout=self._timeout_seconds,
        )
        answers = await asyncio.gather(*(self._settled(future) for future in futures.values()), return_exceptions=True)
        found: dict[Place, int] = {}
        problems: list[Problem] = []
        for place, answer in zip(futures, answers, strict=True):
            if isinstance(answer, BrokersAway):
                problems.append(_problem(f"{end} offset of {place.topic}/{place.partition}", answer))
            elif isinstance(answer, BaseException):
                raise answer
            elif answer.offset >= 0:
                found[place.topic, place.partition] = int(answer.offset)
        if problems and not found:
            raise BrokersAway(problems[0].what)
        return Offsets(found, tuple(problems))

    async def commits(self, places: Sequence[Place], group: str) -> Offsets:
        member = self._group(group)
        wanted, seconds = [TopicPartition(*place) for place in places], self._timeout_seconds
        try:
            answer = await _response(
                member.thread.call(lambda: member.consumer.committed(wanted, timeout=seconds)), seconds
            )
        except BrokersAway as error:
            return Offsets({}, (_problem(f"commits of group {group}", error),))
        # a negative offset: this group has committed nothing there
        found = {(p.topic, p.partition): int(p.offset) for p in answer if p.error is None and p.offset >= 0}
        failed = [p for p in answer if p.error is not None]
        return Offsets(
            found,
            tuple(
                Problem(where=f"commit of {group} at {p.topic}/{p.partition}", what=p.error.str()) for p in failed[:5]
            ),
            {place: text for p in answer if (place := (p.topic, p.partition)) in found and (text := metadata_of(p))},
        )

    async def group(self, name: str, *, raw: bool) -> DescribedGroup:
        described, listed = await asyncio.gather(
            self._settled(described_group(self._client(), name, self._timeout_seconds)),
            self._raw_group(name) if raw else _nothing(),
        )
        return group_of(name, described, listed)

    async def _raw_group(self, name: str) -> Any:
        listing = self._listed_groups.call(lambda: raw_group(self._client(), name, self._timeout_seconds))
        return await _response(listing, self._timeout_seconds)

    def _group(self, name: str) -> _Group:
        now = self._clock.monotonic()
        for idle in [n for n, g in self._groups.items() if now - g.used_at > IDLE_GROUP_SECONDS]:
            closing = asyncio.ensure_future(self._groups.pop(idle).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        if name not in self._groups:
            settings = {**self._settings, "group.id": name, "enable.auto.commit": False}
            self._groups[name] = _Group(ClientThread(f"commits-{name}"[:40]), Consumer(settings), now)
        self._groups[name].used_at = now
        return self._groups[name]

    async def _settled(self, future: "Future[Any]") -> Any:
        return await _response(asyncio.wrap_future(future), self._timeout_seconds)

    async def appended_at(self, positions: Mapping[Place, int], isolation: Isolation) -> Mapping[Place, datetime]:
        if self._looking.locked():
            return {}  # another application's lookup runs; the next scrape tries again
        async with self._looking:
            try:
                return await self._lookups.call(self._look_up, positions, isolation)
            except BusError:
                return {}

    def _look_up(self, positions: Mapping[Place, int], isolation: Isolation) -> Mapping[Place, datetime]:
        consumer = self._readers.get(isolation) or self._new_consumer(isolation)
        consumer.assign([TopicPartition(*place, offset) for place, offset in positions.items()])
        found: dict[Place, datetime] = {}
        done: set[Place] = set()
        until = self._clock.monotonic() + LOOKUP_SECONDS
        while len(done) < len(positions) and (left := until - self._clock.monotonic()) > 0:
            message = consumer.poll(left)
            if message is None or message.error() is not None:
                continue
            place = (message.topic(), message.partition())
            if place in positions and place not in done and message.offset() >= positions[place]:
                done.add(place)
                if (at := _timestamp(message)) is not None:
                    found[place] = at
        consumer.unassign()
        return found

    def _new_consumer(self, isolation: Isolation) -> Consumer:
        consumer = self._readers[isolation] = Consumer(
            {
                **self._settings,
                "group.id": "weir-monitor-lookup",  # never joined, never committed to
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": isolation,
                # Where retention has deleted the position, the oldest record there is waits longest.
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                # One record of each partition is needed; brokers send batches.
                "max.partition.fetch.bytes": 16_384,
                "queued.min.messages": 1,
            }
        )
        return consumer

    async def close(self) -> None:
        """End the clients and their threads."""
        await self._let_go()
        self._lookups.close()
        self._listed_groups.close()
        self._metadata.close()

    async def _let_go(self) -> None:
        """End the clients, each on its thread. One that waits for brokers that are away ends by itself."""
        groups, self._groups = self._groups, {}
        held: list[Any] = [self._admin, *self._readers.values()]
        self._admin = None
        self._readers = {}
        await asyncio.gather(*(group.close() for group in groups.values()))

        def drop() -> None:
            for client in held[1:]:
                client.close()
            held.clear()

        await asyncio.wait({asyncio.ensure_future(self._lookups.call(drop))}, timeout=CLOSE_SECONDS)


Cluster = tuple[str, str | None]
"""Bootstrap servers, and the name of the credentials for them."""


class BrokersPool:
    """Clusters by address and credentials, each open while an application uses it."""

    def __init__(self, open_brokers: Callable[[Cluster], KafkaBrokers]) -> None:
        self._open = open_brokers
        self._used: dict[Cluster, tuple[KafkaBrokers, int]] = {}

    def take(self, cluster: Cluster) -> Brokers:
        """Return the clients of a cluster; every caller releases them."""
        brokers, users = self._used.get(cluster) or (self._open(cluster), 0)
        self._used[cluster] = (brokers, users + 1)
        return brokers

    async def release(self, cluster: Cluster) -> None:
        """End one use; the last one closes the clients."""
        brokers, users = self._used[cluster]
        if users > 1:
            self._used[cluster] = (brokers, users - 1)
            return
        del self._used[cluster]
        await brokers.close()


async def _response(waiting: Awaitable[Any], timeout_seconds: float) -> Any:
    """Return a client's response; `BrokersAway` for its errors, and after one and a half times its own time limit."""
    try:
        async with asyncio.timeout(timeout_seconds * 1.5):
            return await waiting
    except TimeoutError:
        raise BrokersAway(f"no answer within {timeout_seconds * 1.5:g} s") from None
    except (KafkaException, BusError) as error:
        raise BrokersAway(explain(error)) from None


async def _nothing() -> None:
    """Return None, in place of a request that is not needed."""


def _retrieve_error(future: "asyncio.Future[Any]") -> None:
    """Retrieve the error of a request that all callers have stopped waiting for."""
    if not future.cancelled():
        future.exception()


def _problem(where: str, error: BaseException) -> Problem:
    return Problem(where=where, what=(str(error) or type(error).__name__))


def _timestamp(message: Message) -> datetime | None:
    kind, milliseconds = message.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE else datetime.fromtimestamp(milliseconds / 1000, UTC)
