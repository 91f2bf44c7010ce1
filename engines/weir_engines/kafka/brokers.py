"""One Kafka cluster, shared by all applications that read from it.

All applications share few requests: while one is under way, what the others ask waits for the next, which is for all of
them. Blocking calls (the list of topics, offsets, groups, reading a record) run on dedicated threads, so that neither
the event loop nor another kind of request waits for brokers that are away.

An admin client of confluent-kafka 2.16 must have no callbacks: to destroy it while one is due ends the process.

Both clients resolve names and connect by themselves, so hosts are checked separately: those of the policy before one
is made, those that the brokers advertise before any request but the list of topics, and all of them with each new list.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from weir_contracts import Problem
from weir_engines.kafka.assignment import Place
from weir_engines.kafka.group import DescribedGroup
from weir_engines.kafka.group_requests import GroupRequests, Refused, Wanted
from weir_engines.kafka.partitions import BrokersAway, BrokersRefuse, End, Isolation, Offsets
from weir_engines.kafka.positions import FirstRecord, FirstRecords
from weir_runtime.bus import BusError
from weir_runtime.clock import Clock
from weir_runtime.files import CredentialsRefused
from weir_runtime.kafka_client import ClientThread, begun, connection, connection_problem, explain, retrieve_error
from weir_runtime.policy_credentials import NO_CREDENTIALS, BrokerCredentials
from weir_runtime.reach import TARGETS, AddressRefused, Allowed, Resolve, checked_addresses, hosts_of, resolve

TOPICS_KEPT_SECONDS = 30.0
FRESH_SECONDS = 5.0
CLOSE_SECONDS = 1.0
LOOKUP_SECONDS, MAX_LOOKUP_SECONDS = 0.5, 2.0
"""Limit of all lookups of a scrape together: they are only needed while there is long lag. Each begins anew, so one that
was not enough is followed by a longer one."""
MAX_BROKERS = 1_000
_NO_TIMESTAMP = -1

EndKind = tuple[End, Isolation]
_Ends = Mapping[Place, "int | str"]
"""Offset of each place, or why it is unknown."""


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
        credentials: Callable[[], BrokerCredentials] = lambda: NO_CREDENTIALS,
    ) -> None:
        """`credentials` returns the present ones, or raises `CredentialsRefused`; each request looks at them."""
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._bootstrap_servers = bootstrap_servers
        self._find_credentials = credentials
        self._credentials = NO_CREDENTIALS
        """Those of the open clients."""
        self._servers = hosts_of(bootstrap_servers)
        self._allowed = allowed
        self._resolve = resolve
        self._admin: AdminClient | None = None
        self._metadata = ClientThread("monitor-topics")
        self._lookups = ClientThread("monitor-lookups")
        self._offsets = ClientThread("monitor-offsets")
        self._group_calls = ClientThread("monitor-groups")
        self._group_requests = GroupRequests(
            bootstrap_servers,
            timeout_seconds,
            lambda: self._credentials.settings,
            lambda host: host in self._checked_hosts,
            "weir-monitor",
        )
        self._checked_hosts: frozenset[str] = frozenset()
        self._ends: dict[EndKind, Batches[Sequence[Place], _Ends]] = {}
        self._commits = Batches[Wanted, Mapping[str, Offsets]](self._read_commits)
        self._described = Batches[str, Mapping[str, DescribedGroup | Refused]](self._describe)
        self._lookup_seconds = LOOKUP_SECONDS
        self._readers: dict[Isolation, Consumer] = {}
        self._topics: tuple[float, Mapping[str, Sequence[int]]] | None = None
        self._listing: asyncio.Future[Mapping[str, Sequence[int]]] | None = None
        self._looking = asyncio.Lock()

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(self._settings)
        return self._admin

    @property
    def _settings(self) -> dict[str, str | int]:
        # Silent: every failure becomes a problem of an observation.
        timeout_ms = max(1000, int(self._timeout_seconds * 1000))
        security = self._credentials.settings
        return connection(self._bootstrap_servers, {"socket.timeout.ms": timeout_ms, **security})

    async def _use_present_credentials(self) -> None:
        """Close clients with other credentials than the present ones; `BrokersAway` if the policy may use none."""
        refused, found = "", NO_CREDENTIALS
        try:
            found = self._find_credentials()
        except CredentialsRefused as error:
            refused = str(error)
        if found != self._credentials:
            self._credentials = found
            await self._forget_brokers()
        if refused:
            raise BrokersRefuse(refused)

    async def topics(self, *, fresh: bool = False) -> Mapping[str, Sequence[int]]:
        await self._use_present_credentials()
        kept_seconds = FRESH_SECONDS if fresh else TOPICS_KEPT_SECONDS
        if self._topics is not None and self._clock.monotonic() - self._topics[0] < kept_seconds:
            return self._topics[1]
        # Concurrent calls share one request: brokers that are away must not collect a queue of them.
        if self._listing is None or self._listing.done():
            self._listing = begun(self._list())
        # the reason of a failure is looked for, too
        topics: Mapping[str, Sequence[int]] = await _response(asyncio.shield(self._listing), 2 * self._timeout_seconds)
        return topics

    async def _list(self) -> Mapping[str, Sequence[int]]:
        await self._check(self._servers)
        # No frame of a failure may hold the client, or it would live after `_let_go`.
        try:
            listed = await self._metadata.call(lambda: self._client().list_topics(timeout=self._timeout_seconds))
        except BusError:
            servers, security = self._bootstrap_servers, self._credentials.settings
            problem = await self._metadata.call(connection_problem, servers, self._timeout_seconds, security)
            if problem:
                raise BrokersRefuse(problem) from None
            raise
        hosts = frozenset(broker.host for broker in listed.brokers.values())
        await self._check(hosts)
        self._checked_hosts = hosts
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
            await self._forget_brokers()
            raise BrokersAway(str(refused))

    async def _forget_brokers(self) -> None:
        self._topics = self._listing = None
        self._checked_hosts = frozenset()
        await self._let_go()

    async def _ready(self) -> AdminClient:
        """Return the client once the hosts of its brokers are checked."""
        await self._use_present_credentials()
        if self._topics is None or self._admin is None:
            await self.topics()
        return self._client()

    async def ends(self, places: Sequence[Place], end: End, isolation: Isolation) -> Offsets:
        kind = (end, isolation)
        if kind not in self._ends:
            self._ends[kind] = Batches(lambda requested: self._read_ends(requested, kind))
        answers = await self._ends[kind].request(places)
        found: dict[Place, int] = {}
        problems: list[Problem] = []
        for place in places:
            answer = answers[place]
            if isinstance(answer, str):
                problems.append(Problem(where=f"{end} offset of {place[0]}/{place[1]}", what=answer))
            elif answer >= 0:
                found[place] = answer
        if problems and not found:
            raise BrokersAway(problems[0].what)
        return Offsets(found, tuple(problems))

    async def _read_ends(self, requested: Sequence[Sequence[Place]], kind: EndKind) -> _Ends:
        places = {place for each in requested for place in each}
        client = await self._ready()
        reading = self._offsets.call(_list_offsets, client, places, kind, self._timeout_seconds)
        found: _Ends = await _response(reading, self._timeout_seconds)
        return found

    async def commits(self, places: Sequence[Place], group: str) -> Offsets:
        try:
            answer = (await self._commits.request((group, places)))[group]
        except BrokersAway as error:
            return Offsets({}, (Problem(where=f"commits of group {group}", what=str(error)),))
        if answer.found.keys() <= (wanted := set(places)):
            return answer
        found = {place: offset for place, offset in answer.found.items() if place in wanted}
        return Offsets(found, answer.problems)

    async def _read_commits(self, wanted: Sequence[Wanted]) -> Mapping[str, Offsets]:
        found: Mapping[str, Offsets] = await self._group_request(self._group_requests.commits, wanted)
        return found

    async def all_commits(self, group: str) -> Offsets:
        found: Offsets = await self._group_request(self._group_requests.all_commits, group)
        return found

    async def group(self, name: str, *, raw: bool) -> DescribedGroup:
        found = (await self._described.request(name))[name]
        if isinstance(found, Refused):
            raise BrokersAway(f"group {name[:60]}: {found.reason}")
        if raw:
            return found
        # plain consumers process the partitions that they were assigned, not all topics that they subscribe to
        return replace(found, members=tuple([replace(member, subscription=b"") for member in found.members]))

    async def groups(self) -> Sequence[DescribedGroup]:
        """Return all groups that may be described, without their members, by name."""
        found: Sequence[DescribedGroup] = await self._group_request(self._group_requests.listed)
        return found

    async def _describe(self, names: Sequence[str]) -> Mapping[str, DescribedGroup | Refused]:
        found: Mapping[str, DescribedGroup | Refused] = await self._group_request(self._group_requests.described, names)
        return found

    async def _group_request(self, request: Callable[..., Any], *arguments: Any) -> Any:
        await self._ready()
        # a request may connect and find the coordinators before, each within the time limit of a call
        return await _response(self._group_calls.call(request, *arguments), 2 * self._timeout_seconds)

    async def first_records(self, positions: Mapping[Place, int], isolation: Isolation) -> FirstRecords:
        if self._looking.locked():
            return FirstRecords()  # another application's lookup runs; the next scrape tries again
        async with self._looking:
            try:
                found: FirstRecords = await self._lookups.call(self._look_up, positions, isolation)
            except BusError:
                return FirstRecords()
            return found

    def _look_up(self, positions: Mapping[Place, int], isolation: Isolation) -> FirstRecords:
        consumer = self._readers.get(isolation) or self._new_consumer(isolation)
        consumer.assign([TopicPartition(*place, offset) for place, offset in positions.items()])
        found: dict[Place, FirstRecord] = {}
        refused: dict[Place, str] = {}
        until = self._clock.monotonic() + self._lookup_seconds
        while len(found) + len(refused) < len(positions) and (left := until - self._clock.monotonic()) > 0:
            message = consumer.poll(left)
            if message is None:
                continue
            place = (message.topic(), message.partition())
            if place not in positions or place in found:
                continue
            error, offset = message.error(), message.offset()
            if error is None:
                if offset >= positions[place]:
                    found[place] = _first_record(message, offset)
                    refused.pop(place, None)
            elif error.code() == KafkaError._PARTITION_EOF:
                end = positions[place] if offset is None else max(offset, positions[place])
                found[place] = FirstRecord(end, exists=False)
                refused.pop(place, None)
            elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                refused[place] = error.str()
        consumer.unassign()
        is_complete = len(found) + len(refused) == len(positions)
        self._lookup_seconds = LOOKUP_SECONDS if is_complete else min(MAX_LOOKUP_SECONDS, 2 * self._lookup_seconds)
        reasons = {topic: reason for (topic, _), reason in refused.items()}
        return FirstRecords(found, tuple([_unread(topic, reason) for topic, reason in sorted(reasons.items())]))

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
                # The end shows that no record follows, only markers of transactions or aborted records.
                "enable.partition.eof": True,
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
        for thread in (self._lookups, self._offsets, self._group_calls, self._metadata):
            thread.close()

    async def _let_go(self) -> None:
        """End the clients, each on its thread. One that waits for brokers that are away ends by itself."""
        held: list[Any] = [self._admin, *self._readers.values()]
        self._admin = None
        self._readers = {}

        def drop() -> None:
            for client in held[1:]:
                client.close()
            held.clear()

        ending = (self._lookups.call(drop), self._group_calls.call(self._group_requests.close))
        await asyncio.wait({asyncio.ensure_future(each) for each in ending}, timeout=CLOSE_SECONDS)


async def _response(waiting: Awaitable[Any], timeout_seconds: float) -> Any:
    """Return a client's response; `BrokersAway` for its errors, and after one and a half times its own time limit."""
    try:
        async with asyncio.timeout(timeout_seconds * 1.5):
            return await waiting
    except TimeoutError:
        raise BrokersAway(f"no answer within {timeout_seconds * 1.5:g} s") from None
    except (KafkaException, BusError) as error:
        raise BrokersAway(explain(error)) from None


def _list_offsets(client: AdminClient, places: Iterable[Place], kind: EndKind, timeout_seconds: float) -> _Ends:
    """Return an end of many logs. Blocks: to await a future of each place on the event loop takes ten times as long."""
    end, isolation = kind
    spec = OffsetSpec.earliest() if end == "first" else OffsetSpec.latest()
    committed = isolation == "read_committed"
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    wanted = {TopicPartition(*place): spec for place in places}
    if not wanted:
        return {}
    futures = client.list_offsets(wanted, isolation_level=level, request_timeout=timeout_seconds)
    found: dict[Place, int | str] = {}
    for place, future in futures.items():
        try:
            found[place.topic, place.partition] = future.result(1.5 * timeout_seconds).offset
        except KafkaException as error:
            found[place.topic, place.partition] = explain(error)
    return found


def _unread(topic: str, reason: str) -> Problem:
    what = f"the brokers show none ({reason}): markers of transactions count as records that wait; grant the right Read"
    return Problem(where=f"records of topic {topic}", what=what)


def _first_record(message: Message, offset: int) -> FirstRecord:
    kind, milliseconds = message.timestamp()
    has_none = kind == TIMESTAMP_NOT_AVAILABLE or milliseconds == _NO_TIMESTAMP
    is_append_time = kind == TIMESTAMP_LOG_APPEND_TIME
    return FirstRecord(offset, timestamp_ms=None if has_none else milliseconds, is_append_time=is_append_time)


Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass
class _Batch(Generic[Item, Answer]):
    answer: "asyncio.Future[Answer]"
    items: list[Item] = field(default_factory=list)


class Batches(Generic[Item, Answer]):
    """One request at a time, with the items of all callers that wait. No answer is older than its caller's request."""

    def __init__(self, serve: Callable[[Sequence[Item]], Awaitable[Answer]]) -> None:
        self._serve = serve
        self._next: _Batch[Item, Answer] | None = None
        self._running: asyncio.Task[None] | None = None

    async def request(self, item: Item) -> Answer:
        """Return the answer for all items of a batch that this one is among; raises what its request raised."""
        if self._next is None:
            self._next = _Batch(asyncio.get_running_loop().create_future())
            self._next.answer.add_done_callback(retrieve_error)
        batch = self._next
        batch.items.append(item)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        # one caller that stops waiting must not cancel the request of the others
        return await asyncio.shield(batch.answer)

    async def _run(self) -> None:
        while self._next is not None:
            await asyncio.sleep(0)  # callers that are due now join
            batch, self._next = self._next, None
            try:
                batch.answer.set_result(await self._serve(batch.items))
            except asyncio.CancelledError:
                batch.answer.cancel()
                raise
            except Exception as error:  # noqa: BLE001 - belongs to the callers
                batch.answer.set_exception(error)
