"""Requests about consumer groups: one for all groups of a coordinator, by kafka-python.

confluent-kafka reads the commits of one group a request; of the bytes that members of the classic protocol exchange it
has only those of `list_groups`, one group a call. Its requests to a coordinator may also end the process: 2.16 does so
while the coordinator loads, and if brokers go away during a description (confluentinc/librdkafka#4605).

kafka-python ships no types, and takes librdkafka's settings under other names. It connects as soon as it is opened, so
callers check the addresses before. It has no request that describes groups of the `consumer` protocol: the two JSON
documents in this folder are its schemas, in the format of Apache Kafka and kafka-python.
"""

import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from weir_contracts import Problem
from weir_engines.kafka.assignment import Place
from weir_engines.kafka.group import DescribedGroup, DescribedMember
from weir_engines.kafka.partitions import BrokersAway, Offsets

Wanted = tuple[str, Sequence[Place]]
"""A group, and the places whose commits are read."""
Refusals = dict[str, "Refused"]

_NOT_FOUND = 69
"""Error code of a group that the protocol of the request does not have."""
_REASONS = {
    14: "the coordinator of the group loads its state",
    15: "the group has no coordinator yet",
    16: "the coordinator of the group has moved",
    29: "the topic may not be read with these credentials",
    30: "the group may not be read with these credentials",
}
"""Sentences for the brokers' error codes; the others are named as the protocol does."""
_MOVED = (15, 16)
_MAX_PROBLEMS = 5
_MULTI_GROUP, _MULTI_COORDINATOR = 8, 4
"""Versions of OffsetFetch and FindCoordinator from which one request is for many groups (Kafka 3.0)."""
_SETTINGS = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}
"""Names of librdkafka's settings in kafka-python: one for each that credentials may have."""


def open_admin(
    servers: Sequence[str], client_id: str, timeout_seconds: float, settings: Mapping[str, str] | None = None
) -> Any:
    """Return a connected client, whose thread runs until `close_admin`. Blocks.

    Raises kafka-python's `KafkaError` or `OSError` if the brokers cannot be reached or refuse the credentials.
    """
    # loaded at the first use: half a second and 20 MB that many processes do not need
    from kafka.admin import KafkaAdminClient

    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # its debug lines quote all settings
    named: dict[str, Any] = {}
    for name, value in (settings or {}).items():
        # librdkafka takes names of protocols in any case
        named[_SETTINGS[name]] = value.upper() if name in ("security.protocol", "sasl.mechanism") else value
    limit_ms = max(1000, int(timeout_seconds * 1000))
    named |= {"request_timeout_ms": limit_ms, "bootstrap_timeout_ms": limit_ms}
    # without an object at hand, an initialiser that cannot reach the brokers would leave its thread behind
    client: Any = KafkaAdminClient.__new__(KafkaAdminClient)
    try:
        client.__init__(bootstrap_servers=list(servers), client_id=client_id, **named)
    except BaseException:
        close_admin(client)
        raise
    return client


def close_admin(client: Any) -> None:
    """End a client and its thread, also one that never connected. Blocks until the thread has ended."""
    if hasattr(client, "_net"):
        client._closed = False
        client.close()


@dataclass(frozen=True)
class Refused:
    """A request about one group that failed. `code` is the brokers' error code, −1 without an answer."""

    code: int
    reason: str


class GroupRequests:
    """Client of one cluster for requests about groups. Its methods block: call them on one thread.

    It connects at the first request and again after a failure. `security` returns
    the settings of the credentials, `is_checked` whether a host may be connected to.
    """

    def __init__(
        self,
        servers: str,
        timeout_seconds: float,
        security: Callable[[], Mapping[str, str]],
        is_checked: Callable[[str], bool],
        client_id: str,
    ) -> None:
        self._servers = servers.split(",")
        self._client_id = client_id
        self._timeout_seconds = timeout_seconds
        self._security = security
        self._is_checked = is_checked
        self._client: Any = None
        self._coordinators: dict[str, int] = {}

    def commits(self, wanted: Iterable[Wanted]) -> dict[str, Offsets]:
        """Return the commits of each group; its problems say why some are missing. Raises `BrokersAway`."""
        places: dict[str, dict[Place, None]] = {}
        for group, some in wanted:
            places.setdefault(group, {}).update(dict.fromkeys(some))
        found: dict[str, Offsets] = self._run(self._commits, places)
        return found

    def all_commits(self, group: str) -> Offsets:
        """Return the commits of a group in all topics; its problems say why there are none. Raises `BrokersAway`."""
        found: dict[str, Offsets] = self._run(self._commits, {group: None})
        return found[group]

    def described(self, groups: Iterable[str]) -> dict[str, DescribedGroup | Refused]:
        """Return each group, of the classic or the `consumer` protocol. Raises `BrokersAway`."""
        found: dict[str, DescribedGroup | Refused] = self._run(self._described, list(dict.fromkeys(groups)))
        return found

    def listed(self) -> list[DescribedGroup]:
        """Return all groups that may be described, without their members, by name. Raises `BrokersAway`."""
        found: list[DescribedGroup] = self._run(self._listed)
        return found

    def close(self) -> None:
        """End the connections and their thread."""
        client, self._client = self._client, None
        self._coordinators = {}
        if client is not None:
            close_admin(client)

    def _run(self, request: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
        """Run a request on the client's thread; a failure of the client closes it, so that the next call connects."""
        from kafka.errors import KafkaError

        try:
            if self._client is None:
                self._client = open_admin(self._servers, self._client_id, self._timeout_seconds, self._security())
            return self._client._manager.run(request, *arguments)
        except (KafkaError, OSError) as error:
            self.close()
            raise BrokersAway(_explain(error)) from None

    async def _commits(self, places: Mapping[str, Iterable[Place] | None]) -> dict[str, Offsets]:
        def requests(groups: list[str]) -> list[tuple[list[str], Any]]:
            if self._version("OffsetFetch") < _MULTI_GROUP:
                return [([group], _offset_fetch_of_one(group, places[group])) for group in groups]
            return [(groups, _offset_fetch({group: places[group] for group in groups}))]

        def read(groups: list[str], response: Any) -> dict[str, Offsets | Refused]:
            if response.API_VERSION < _MULTI_GROUP:
                return {groups[0]: _offsets(groups[0], response)}
            return {answer.group_id: _offsets(answer.group_id, answer) for answer in response.groups}

        found = await self._answered(list(places), requests, read)
        return {group: _without_commits(group, a) if isinstance(a, Refused) else a for group, a in found.items()}

    async def _described(self, groups: list[str]) -> dict[str, DescribedGroup | Refused]:
        from kafka.protocol.admin import DescribeGroupsRequest

        def classic(groups: list[str]) -> list[tuple[list[str], Any]]:
            return [(groups, DescribeGroupsRequest(groups=groups))]

        def read_classic(_: list[str], response: Any) -> dict[str, DescribedGroup | Refused | None]:
            return {each.group_id: classic_group(each) for each in response.groups}

        def newer(groups: list[str]) -> list[tuple[list[str], Any]]:
            return [(groups, describe_messages()[0](group_ids=groups, include_authorized_operations=False))]

        def read_newer(_: list[str], response: Any) -> dict[str, DescribedGroup | Refused | None]:
            return {each.group_id: newer_group(each) for each in response.groups}

        found = await self._answered(groups, classic, read_classic)
        others = [group for group in groups if found.get(group) is None]
        if others and self._client._manager.broker_version_data.api_versions.get(describe_messages()[0].API_KEY):
            found |= await self._answered(others, newer, read_newer)
        return {group: found.get(group) or DescribedGroup(group, "Dead") for group in groups}

    async def _listed(self) -> list[DescribedGroup]:
        from kafka.protocol.admin import ListGroupsRequest

        self._check_hosts()
        manager, found = self._client._manager, dict[str, DescribedGroup]()
        for broker in manager.cluster.brokers():
            response = await manager.send(ListGroupsRequest(), node_id=broker.node_id)
            if response.error_code:
                raise BrokersAway(_refused(response.error_code).reason)
            found |= {each.id: each for each in listed_groups(response)}
        return sorted(found.values(), key=lambda each: each.id)

    async def _answered(
        self,
        groups: list[str],
        requests: Callable[[list[str]], list[tuple[list[str], Any]]],
        read: Callable[[list[str], Any], dict[str, Any]],
    ) -> dict[str, Any]:
        """Return the answer about each group; those whose coordinator has moved are requested once more."""
        found = await self._answered_once(groups, requests, read)
        moved = [g for g, answer in found.items() if isinstance(answer, Refused) and answer.code in _MOVED]
        if moved:
            for group in moved:
                self._coordinators.pop(group, None)
            found |= await self._answered_once(moved, requests, read)
        return found

    async def _answered_once(
        self,
        groups: list[str],
        requests: Callable[[list[str]], list[tuple[list[str], Any]]],
        read: Callable[[list[str], Any], dict[str, Any]],
    ) -> dict[str, Any]:
        found: dict[str, Any] = dict(await self._find_coordinators(groups))
        by_node: dict[int, list[str]] = {}
        for group in groups:
            if group not in found:
                by_node.setdefault(self._coordinators[group], []).append(group)
        call_soon = self._client._manager.call_soon
        sent = [
            call_soon(self._send, node, names, request, read)
            for node, some in by_node.items()
            for names, request in requests(some)
        ]
        for future in sent:
            found |= await future
        return found

    async def _send(
        self, node: int, groups: list[str], request: Any, read: Callable[[list[str], Any], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the answers of one coordinator. One that cannot be reached does not hide the others."""
        from kafka.errors import KafkaError

        try:
            self._check_hosts()
            return read(groups, await self._client._manager.send(request, node_id=node))
        except KafkaError as error:
            for group in groups:
                self._coordinators.pop(group, None)
            return dict.fromkeys(groups, Refused(-1, _explain(error)))

    async def _find_coordinators(self, groups: list[str]) -> Refusals:
        """Find the coordinators that are unknown; returns the groups that have none."""
        from kafka.protocol.metadata import FindCoordinatorRequest

        unknown = [group for group in groups if group not in self._coordinators]
        if not unknown:
            return {}
        self._check_hosts()
        send = self._client._manager.send
        if self._version("FindCoordinator") < _MULTI_COORDINATOR:
            rows = [
                (group, await send(FindCoordinatorRequest(key=group, key_type=0, max_version=_MULTI_COORDINATOR - 1)))
                for group in unknown
            ]
        else:
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=unknown, min_version=_MULTI_COORDINATOR)
            rows = [(row.key, row) for row in (await send(request)).coordinators]
        failed = {group: _refused(row.error_code) for group, row in rows if row.error_code}
        self._coordinators |= {group: row.node_id for group, row in rows if not row.error_code}
        failed |= {g: Refused(15, _REASONS[15]) for g in unknown if g not in self._coordinators and g not in failed}
        return failed

    def _check_hosts(self) -> None:
        """Raise `BrokersAway` if the brokers advertise a host to this client that was not checked."""
        for broker in self._client._manager.cluster.brokers():
            if not self._is_checked(broker.host):
                raise _unchecked(broker.host)

    def _version(self, name: str) -> int:
        """Return the newest version of a request that both sides know."""
        from kafka.protocol.consumer import OffsetFetchRequest
        from kafka.protocol.metadata import FindCoordinatorRequest

        request = {"OffsetFetch": OffsetFetchRequest, "FindCoordinator": FindCoordinatorRequest}[name]
        version: int = self._client._manager.broker_version_data.api_version(request)
        return version


@cache
def describe_messages() -> tuple[Any, Any]:
    """Return the classes of the request that describes groups of the `consumer` protocol (KIP-848), and of its response."""
    from kafka.protocol.api_message import ApiMessage

    made = type(ApiMessage)
    names = ("ConsumerGroupDescribeRequest", "ConsumerGroupDescribeResponse")
    request, response = [made(name, (ApiMessage,), {}, load_json=__package__) for name in names]
    return request, response


def listed_groups(response: Any) -> list[DescribedGroup]:
    """Return the groups of a ListGroups response. Brokers before Kafka 2.6 list no states, which are then empty."""
    return [
        DescribedGroup(each.group_id, getattr(each, "group_state", None) or "", type=each.protocol_type or "")
        for each in response.groups
    ]


def newer_group(described: Any) -> DescribedGroup | Refused | None:
    """Return the group of a ConsumerGroupDescribe response, whose assignments are decoded; None if that protocol has no
    such group."""
    if described.error_code:
        return None if described.error_code == _NOT_FOUND else _refused(described.error_code)
    members = tuple(
        [
            DescribedMember(
                id=member.member_id,
                client_id=member.client_id,
                host=member.client_host,
                static_id=member.instance_id or "",
                places=tuple([(t.topic_name, p) for t in member.assignment.topic_partitions for p in t.partitions]),
            )
            for member in described.members
        ]
    )
    return DescribedGroup(
        described.group_id, described.group_state, "consumer", "consumer", described.assignor_name or "", members
    )


def classic_group(described: Any) -> DescribedGroup | Refused | None:
    """Return the group of a DescribeGroups response; None if the classic protocol has no such group."""
    if described.error_code not in (0, _NOT_FOUND):
        return _refused(described.error_code)
    if described.error_code == _NOT_FOUND or described.group_state == "Dead":
        return None
    members = tuple(
        [
            DescribedMember(
                id=member.member_id,
                client_id=member.client_id,
                host=member.client_host,
                static_id=getattr(member, "group_instance_id", None) or "",
                assignment=bytes(member.member_assignment or b""),
                subscription=bytes(member.member_metadata or b""),
            )
            for member in described.members
        ]
    )
    return DescribedGroup(
        described.group_id,
        described.group_state,
        "classic",
        described.protocol_type,
        described.protocol_data,
        members,
    )


def _offset_fetch(places: Mapping[str, Iterable[Place] | None]) -> Any:
    """Return the request for the commits of groups at these places; None: at all."""
    from kafka.protocol.consumer import OffsetFetchRequest

    group_of, topic_of = (
        OffsetFetchRequest.OffsetFetchRequestGroup,
        OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics,
    )
    groups = [group_of(group_id=group, topics=_topics(topic_of, some)) for group, some in places.items()]
    return OffsetFetchRequest(groups=groups, min_version=_MULTI_GROUP, max_version=_MULTI_GROUP)


def _offset_fetch_of_one(group: str, places: Iterable[Place] | None) -> Any:
    from kafka.protocol.consumer import OffsetFetchRequest

    topics = _topics(OffsetFetchRequest.OffsetFetchRequestTopic, places)
    return OffsetFetchRequest(group_id=group, topics=topics, max_version=_MULTI_GROUP - 1)


def _topics(topic_of: Any, places: Iterable[Place] | None) -> list[Any] | None:
    """Return places by topic as a request has them; None: all topics."""
    if places is None:
        return None
    return [topic_of(name=name, partition_indexes=numbers) for name, numbers in _by_topic(places).items()]


def _by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for topic, number in places:
        numbers.setdefault(topic, []).append(number)
    return numbers


def _offsets(group: str, answer: Any) -> Offsets | Refused:
    """Return one group's commits of an OffsetFetch response."""
    if answer.error_code:
        return _refused(answer.error_code)
    found: dict[Place, int] = {}
    problems: list[Problem] = []
    for topic in answer.topics:
        name = topic.name
        for partition in topic.partitions:
            place = (name, partition.partition_index)
            if partition.error_code:
                where = f"commit of {group} at {name}/{partition.partition_index}"
                problems.append(Problem(where=where, what=_refused(partition.error_code).reason))
            elif partition.committed_offset >= 0:  # a negative offset: this group has committed nothing there
                found[place] = partition.committed_offset
    return Offsets(found, tuple(problems[:_MAX_PROBLEMS]))


def _without_commits(group: str, refused: Refused) -> Offsets:
    return Offsets({}, (Problem(where=f"commits of group {group}", what=refused.reason),))


def _refused(code: int) -> Refused:
    from kafka.errors import for_code

    return Refused(code, _REASONS.get(code) or f"the coordinator answers {_name(for_code(code))}")


def _unchecked(host: str) -> Exception:
    from kafka.errors import KafkaConnectionError

    error: Exception = KafkaConnectionError(f"the brokers advertise {host[:100]}, which was not checked")
    return error


def _explain(error: BaseException) -> str:
    """Return why no answer came, without the settings of the connection."""
    from kafka.errors import KafkaConnectionError, SaslAuthenticationFailedError

    if isinstance(error, SaslAuthenticationFailedError):
        return "the brokers refuse the credentials"
    if isinstance(error, OSError):
        return f"the brokers cannot be reached: {error.strerror or type(error).__name__}"
    if isinstance(error, KafkaConnectionError) and error.args:
        return str(error.args[0])[:300]
    return f"no answer from the brokers: {_name(type(error))}"


def _name(error: type[BaseException]) -> str:
    return error.__name__.removesuffix("Error")
