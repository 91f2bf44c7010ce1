"""Requests about consumer groups, and the translation of confluent-kafka's answers.

`describe_consumer_groups` knows the classic and the `consumer` protocol but not the bytes that members exchange;
`list_groups` has these, for the classic protocol alone, and is deprecated without a replacement.
"""

import warnings
from concurrent.futures import Future
from typing import Any

from confluent_kafka import ConsumerGroupType
from confluent_kafka.admin import AdminClient

from engines.kafka_streams.group import STATES, DescribedGroup, DescribedMember, Protocol

_RECONCILING = "Reconciling"
"""State of a group that confluent-kafka calls unknown: the `consumer` protocol has states that it does not name."""
_PROTOCOLS: dict[Any, Protocol] = {ConsumerGroupType.CLASSIC: "classic", ConsumerGroupType.CONSUMER: "consumer"}


def described_group(admin: AdminClient, name: str, timeout_seconds: float) -> "Future[Any]":
    """Request the description of a group."""
    found: Future[Any] = admin.describe_consumer_groups([name], request_timeout=timeout_seconds)[name]
    return found


def raw_group(admin: AdminClient, name: str, timeout_seconds: float) -> Any:
    """Return the group with the bytes of its members, or None without a group of the classic protocol. It blocks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        listed = admin.list_groups(name, timeout=timeout_seconds)
    found = next((each for each in listed if each.id == name and each.error is None), None)
    return None if found is None or found.state == "Dead" else found


def metadata_of(committed: Any) -> str:
    """Return the metadata of a commit; bytes of another use of the memory may follow it.

    confluent-kafka 2.16 takes the metadata for a text that ends with a zero byte, which brokers do not send: it reads on
    until there is one, and fails where that is no text.
    """
    try:
        return committed.metadata or ""
    except UnicodeDecodeError as error:
        return error.object[: error.start].decode()


def group_of(name: str, described: Any, listed: Any) -> DescribedGroup:
    """Return the group of a description, and of the bytes of its members if they were listed."""
    raw = {} if listed is None else {member.id: member for member in listed.members}
    static = {member.member_id: member.group_instance_id or "" for member in described.members}
    state = STATES.get(described.state.name, _RECONCILING)
    protocol = _PROTOCOLS.get(described.type)
    if listed is not None:
        members = tuple(
            [
                DescribedMember(
                    id=member.id,
                    client_id=member.client_id,
                    host=member.client_host,
                    static_id=static.get(member.id, ""),
                    assignment=member.assignment or b"",
                    subscription=member.metadata or b"",
                )
                for member in raw.values()
            ]
        )
        return DescribedGroup(name, listed.state, protocol, listed.protocol_type, listed.protocol, members)
    members = tuple(
        [
            DescribedMember(
                id=member.member_id,
                client_id=member.client_id,
                host=member.host,
                static_id=member.group_instance_id or "",
                places=tuple([(p.topic, p.partition) for p in member.assignment.topic_partitions]),
            )
            for member in described.members
        ]
    )
    return DescribedGroup(name, state, protocol, "consumer", described.partition_assignor or "", members)
