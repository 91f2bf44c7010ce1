"""Consumer groups at their coordinators.

confluent-kafka lists topics. kafka-python describes groups (`group_requests`) and removes members, for which librdkafka
2.16 has no call (neither LeaveGroup by an admin client nor RemoveMembersFromConsumerGroup). Each eviction opens its own
client.

Both clients resolve names and connect by themselves, so hosts are checked separately, as in the monitor: those of the
policy before a client is made, and those that the brokers advertise before any request but the list of topics.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka.admin import AdminClient

from weir_contracts import KafkaSignals
from weir_engines.driver import DepartedMember
from weir_engines.kafka.assignment import Undecodable, assigned
from weir_engines.kafka.group import DescribedGroup, DescribedMember
from weir_engines.kafka.group_requests import GroupRequests, Refused, close_admin, open_admin
from weir_engines.kafka.members import GroupMember, GroupReading, GroupUnread
from weir_engines.kafka.partitions import BrokersAway
from weir_runtime.bus import BusError
from weir_runtime.clock import Clock
from weir_runtime.files import CredentialsRefused
from weir_runtime.kafka_client import ClientThread, connection, connection_problem
from weir_runtime.policy_credentials import BrokerCredentials, credentials_for
from weir_runtime.reach import TARGETS, AddressRefused, Allowed, Resolve, checked_addresses, hosts_of, resolve

T = TypeVar("T")

TOPICS_KEPT_SECONDS = 10.0
IDLE_SECONDS = 900.0
"""Clients of brokers that were not used for so long are closed."""
MAX_BROKERS = 1_000
REASON = "its instance has ended"

_Key = tuple[str, str | None]
"""Bootstrap servers, and the name of the credentials."""


@dataclass
class _Cluster:
    """Clients of one cluster's brokers, and the partitions that they listed last."""

    thread: ClientThread
    credentials: BrokerCredentials
    requests: GroupRequests
    admin: AdminClient | None = None
    hosts: frozenset[str] = frozenset()
    """Those that the brokers advertise, all allowed."""
    partitions: Mapping[str, frozenset[int]] | None = None
    listed_at: float = 0.0
    used_at: float = 0.0


class KafkaGroups:
    """Groups of any brokers that policies name; a client for each address and credentials, opened at its first use."""

    def __init__(
        self,
        clock: Clock,
        credentials: Mapping[str, BrokerCredentials] | None = None,
        *,
        timeout_seconds: float = 5.0,
        allowed: Allowed = TARGETS,
        resolve: Resolve = resolve,
    ) -> None:
        self._clock = clock
        self._credentials = {} if credentials is None else credentials
        self._timeout_seconds = timeout_seconds
        self._allowed = allowed
        self._resolve = resolve
        self._clusters: dict[_Key, _Cluster] = {}

    async def close(self) -> None:
        for key in list(self._clusters):
            self._drop(key)

    async def read(self, kafka: KafkaSignals, group: str) -> GroupReading:
        cluster = self._cluster(kafka)
        partitions = await self._partitions(kafka, cluster)
        # connecting, finding the coordinator and describing have a time limit each
        describing = cluster.thread.call(cluster.requests.described, [group])
        described = (await self._in_time(describing, 3 * self._timeout_seconds))[group]
        if isinstance(described, Refused):
            raise GroupUnread(f"group {group[:60]}: {described.reason}")
        return _reading(described, partitions)

    async def evict(
        self, kafka: KafkaSignals, group: str, members: Sequence[DepartedMember]
    ) -> tuple[DepartedMember, ...]:
        cluster = self._cluster(kafka)
        await self._partitions(kafka, cluster)
        servers, seconds = kafka.bootstrap_servers.split(","), self._timeout_seconds
        removal = cluster.thread.call(_remove, servers, group, members, seconds, cluster.credentials.settings)
        answer = await self._in_time(removal, 3 * seconds)
        if not isinstance(answer, frozenset):
            raise GroupUnread(f"group {group[:60]}: {answer}")
        return tuple(member for member in members if member.id in answer)

    async def _partitions(self, kafka: KafkaSignals, cluster: _Cluster) -> Mapping[str, frozenset[int]]:
        """Return the partitions by topic, read again after a while; only then are all addresses known to be allowed."""
        now = self._clock.monotonic()
        if cluster.partitions is not None and now - cluster.listed_at < TOPICS_KEPT_SECONDS:
            return cluster.partitions
        await self._check(kafka, hosts_of(kafka.bootstrap_servers))
        if cluster.admin is None:
            settings = {"socket.timeout.ms": self._timeout_ms, **cluster.credentials.settings}
            cluster.admin = AdminClient(connection(kafka.bootstrap_servers, settings))
        admin, seconds = cluster.admin, self._timeout_seconds
        try:
            listed = await self._in_time(cluster.thread.call(lambda: admin.list_topics(timeout=seconds)))
        except GroupUnread:
            security = cluster.credentials.settings
            asking = cluster.thread.call(connection_problem, kafka.bootstrap_servers, seconds, security)
            if why := await self._in_time(asking):
                raise GroupUnread(why) from None
            raise
        hosts = frozenset(broker.host for broker in listed.brokers.values())
        await self._check(kafka, hosts)
        cluster.hosts = hosts
        cluster.partitions = {name: frozenset(t.partitions) for name, t in listed.topics.items() if t.error is None}
        cluster.listed_at = now
        return cluster.partitions

    async def _check(self, kafka: KafkaSignals, hosts: Iterable[str]) -> None:
        """Raise `GroupUnread` if an address of any host is not allowed; then no client stays open."""
        names = set(hosts)
        refused = f"the brokers list {len(names)} hosts, more than {MAX_BROKERS}" if len(names) > MAX_BROKERS else ""
        if not refused:
            looked_up = (checked_addresses(name, 0, self._allowed, self._resolve) for name in names)
            found = await asyncio.gather(*looked_up, return_exceptions=True)
            refused = next((str(each) for each in found if isinstance(each, AddressRefused)), "")
        if refused:
            self._drop((kafka.bootstrap_servers, kafka.credentials))
            raise GroupUnread(refused)

    async def _in_time(self, waiting: Awaitable[T], seconds: float | None = None) -> T:
        limit = seconds or 1.5 * self._timeout_seconds
        try:
            async with asyncio.timeout(limit):
                return await waiting
        except TimeoutError:
            raise GroupUnread(f"the brokers did not answer within {limit:g} s") from None
        except (BusError, BrokersAway) as error:
            raise GroupUnread(str(error)) from None

    @property
    def _timeout_ms(self) -> int:
        return max(1000, int(self._timeout_seconds * 1000))

    def _cluster(self, kafka: KafkaSignals) -> _Cluster:
        """Return the client's place for these brokers, and close the idle ones."""
        try:
            credentials = credentials_for(kafka.credentials, kafka.bootstrap_servers, self._credentials)
        except CredentialsRefused as error:
            raise GroupUnread(str(error)) from None
        now, key = self._clock.monotonic(), (kafka.bootstrap_servers, kafka.credentials)
        for idle in [each for each, found in self._clusters.items() if now - found.used_at > IDLE_SECONDS]:
            self._drop(idle)
        cluster = self._clusters.get(key)
        if cluster is not None and cluster.credentials != credentials:
            self._drop(key)
            cluster = None
        if cluster is None:
            cluster = self._clusters[key] = self._opened(kafka.bootstrap_servers, credentials)
        cluster.used_at = now
        return cluster

    def _opened(self, servers: str, credentials: BrokerCredentials) -> _Cluster:
        def is_checked(host: str) -> bool:
            return host in cluster.hosts

        requests = GroupRequests(
            servers, self._timeout_seconds, lambda: credentials.settings, is_checked, "weir-executor"
        )
        cluster = _Cluster(ClientThread(f"groups-{servers}"[:40]), credentials, requests)
        return cluster

    def _drop(self, key: "_Key") -> None:
        cluster = self._clusters.pop(key, None)
        if cluster is not None:
            cluster.admin = None
            cluster.thread.abandon("the client of the brokers was closed meanwhile", cluster.requests.close)


def _reading(described: DescribedGroup, partitions: Mapping[str, frozenset[int]]) -> GroupReading:
    found: dict[str, set[int]] = {}
    for member in described.members:
        for topic, number in _places(member):
            found.setdefault(topic, set()).add(number)
    members = tuple(
        GroupMember(member.id, member.client_id, member.static_id or None, member.host.removeprefix("/"))
        for member in described.members
    )
    unassigned = sum(len(partitions.get(topic, frozenset()) - numbers) for topic, numbers in found.items())
    return GroupReading(described.state, members, unassigned)


def _places(member: DescribedMember) -> Sequence[tuple[str, int]]:
    """Return a member's partitions; none where its bytes are of an unknown format."""
    try:
        return assigned(member.assignment).places if member.places is None else member.places
    except Undecodable:
        return ()


def _remove(
    servers: Sequence[str],
    group: str,
    members: Sequence[DepartedMember],
    seconds: float,
    settings: Mapping[str, str] | None = None,
) -> frozenset[str] | str:
    """Return the ids of the removed members, or the reason of a failure. Blocks.

    A static member is named by both ids: the coordinator then fences a request for an earlier holder of the instance id.
    """
    # loaded for the first eviction: few executors need it
    from kafka.admin import MemberToRemove
    from kafka.errors import KafkaError as BrokerError
    from kafka.errors import NoError

    removed = [MemberToRemove(each.id, each.static_id, REASON) for each in members]
    try:
        client = open_admin(servers, "weir-executor", seconds, settings)
        try:
            answer = client.remove_group_members(group, removed)
        finally:
            close_admin(client)
    except BrokerError as error:
        return f"{type(error).__name__} at the removal of members"
    except OSError as error:
        return f"the brokers cannot be reached: {error.strerror or type(error).__name__}"
    # brokers before Kafka 2.3 answer by id
    return frozenset(
        key if isinstance(key, str) else key.member_id for key, problem in answer.items() if problem is NoError
    )
