"""The consumer groups of Kafka brokers, for `weir run --kafka`."""

import asyncio
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, ClassVar, Protocol, Self

from weir_contracts import counted, listed, parse_policy, short_name
from weir_engines.kafka.assignment import Place
from weir_engines.kafka.brokers import KafkaBrokers
from weir_engines.kafka.collector import is_internal
from weir_engines.kafka.group import DescribedGroup, membership
from weir_engines.kafka.partitions import BrokersAway, BrokersRefuse, Offsets
from weir_runtime.clock import Clock
from weir_runtime.policy_credentials import BROKER_SETTING, BrokerCredentials, credentials_for
from weir_runtime.reach import ANY

from .client import InvalidInput, Unreachable
from .discovery import CALL_SECONDS, LAG_BOUND, MIN_BOUND, NAMESPACE, Candidate, Found

INTERNAL = ("weir-", "weir.")
"""Beginnings of the groups of Weir's own services: they are watched only by name."""
MAX_DESCRIBED = 2_000
"""Groups that are described at a look; of more, those that come first by name."""
_SERVERS = re.compile(r"[^\s,/@]+:\d{1,5}(,[^\s,/@]+:\d{1,5})*")
_STREAMS = "stream"
"""Name of the protocol that members of a Kafka Streams application agree on."""


class Groups(Protocol):
    """The groups of one Kafka cluster (`KafkaBrokers`). Calls raise `BrokersAway`."""

    async def groups(self) -> Sequence[DescribedGroup]:
        """Return all groups that may be described, without their members, by name."""

    async def group(self, name: str, *, raw: bool) -> DescribedGroup:
        """Return a group at its coordinator; one that does not exist is in state Dead."""

    async def all_commits(self, group: str) -> Offsets:
        """Return all committed offsets of the group."""

    async def topics(self) -> Collection[str]:
        """Return all topics."""

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Brokers:
    """Brokers, their group, and the name of the credentials for them, if there are any."""

    servers: str
    group: str | None = None
    credentials: str | None = None

    @classmethod
    def of(cls, servers: str, group: str | None, known: Mapping[str, BrokerCredentials]) -> Self:
        """Return the brokers of the options, with the entry of the credentials that is for all of them. `InvalidInput` for
        text that names none, if several entries are, or none that the found policies may name."""
        if not _SERVERS.fullmatch(servers):
            raise InvalidInput(f"--kafka: {servers!r} names no brokers: write HOST:PORT, several with commas")
        fitting = {name: each for name, each in known.items() if set(servers.lower().split(",")) <= each.servers}
        usable = [name for name, each in fitting.items() if {ANY, NAMESPACE} & each.namespaces]
        if len(usable) > 1:
            raise InvalidInput(f"{BROKER_SETTING}: {listed(usable)} are all for {servers}: keep one of them")
        if fitting and not usable:
            raise InvalidInput(
                f"{BROKER_SETTING}: {next(iter(fitting))!r} is for {servers}, but not for policies of namespace {NAMESPACE}: "
                "add it to the entry's namespaces"
            )
        return cls(servers, group, *usable)

    @property
    def signals(self) -> dict[str, str]:
        """`signals.kafka` of a policy, without the group."""
        own = {} if self.credentials is None else {"credentials": self.credentials}
        return {"bootstrapServers": self.servers, **own}


def candidate(
    brokers: Brokers, group: DescribedGroup, committed: Collection[Place] = (), *, inner: bool = False
) -> Candidate:
    """Return a described group as candidate. It is bounded by its partitions, since more members than that are idle. Of one
    without members these are the `committed` ones, and `inner` whether Kafka Streams has made topics for it."""
    is_streams = group.assignor == _STREAMS or inner
    members = membership(group, is_streams=is_streams).members
    partitions = len({place for member in members for place in member.places or ()} or committed)
    application = (
        {"kafkaStreams": {"applicationId": group.id}} if is_streams else {"consumerGroup": {"groupId": group.id}}
    )
    spec: dict[str, Any] = {
        "application": application,
        "signals": {"kafka": brokers.signals},
        "objective": {"maxLag": LAG_BOUND},
        "bounds": {"max": max(MIN_BOUND, partitions, len(members))},
    }
    return Candidate(group.id, hashlib.sha256(group.id.encode()).hexdigest()[:8], spec)


@dataclass(eq=False)
class ConsumerGroups:
    """Source of the groups with members, or of the group of `brokers`, which may have none. Without `groups` it connects to the
    brokers."""

    brokers: Brokers
    clock: Clock
    known: Mapping[str, BrokerCredentials] = field(default_factory=dict)
    """Credentials by name, as they are now."""
    groups: Groups | None = None
    label: ClassVar[str] = "kafka"
    option: ClassVar[str] = "--kafka"
    max_watched: ClassVar[int | None] = 100
    _groups: Groups = field(init=False)
    _seen: dict[str, Candidate] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        name, servers = self.brokers.credentials, self.brokers.servers
        self._groups = self.groups or KafkaBrokers(
            servers, CALL_SECONDS, self.clock, credentials=lambda: credentials_for(name, servers, self.known)
        )

    @property
    def place(self) -> str:
        return self.brokers.servers

    async def find(self) -> Found:
        """Return the group, or all with members. `Unreachable` or `InvalidInput` with what to do if the brokers do not say."""
        try:
            return await (self._all() if self.brokers.group is None else self._one(self.brokers.group))
        except BrokersRefuse as error:
            used = (
                f"entry {self.brokers.credentials!r} of {BROKER_SETTING}"
                if self.brokers.credentials
                else f"no entry of {BROKER_SETTING} is for {self.place}"
            )
            raise Unreachable(f"--kafka: {self.place}: {error} ({used})") from None
        except BrokersAway as error:
            raise Unreachable(
                f"--kafka: no brokers answer at {self.place} ({error}): start them, or correct the address"
            ) from None

    async def _one(self, name: str) -> Found:
        """Return the group, also one without members: then its records wait."""
        groups = await self._groups.groups()
        there = await self._described(name)
        if isinstance(there, str):
            return Found((), f"{self.place}: {there}: if it may not be read, grant Describe, or write a policy (-f)")
        if there.state == "Dead":
            others = _others(name, groups)
            return Found((), f"{self.place} has no group {short_name(name)} yet: start its consumers{others}")
        if there.type not in ("", "consumer"):
            raise InvalidInput(
                f"--group: {short_name(name)} is a group of type {short_name(there.type)}, not of consumers: name another one"
            )
        if there.state == "Empty" and name not in self._seen:
            committed = (await self._groups.all_commits(name)).found
            inner = any(is_internal(topic, name) for topic in await self._groups.topics())
            self._seen[name] = candidate(self.brokers, there, committed, inner=inner)
        self._keep(there)
        members = (
            f"{self.place}: group {short_name(name)} is {there.state} with {counted(len(there.members), 'member')}"
        )
        sentence = members if there.members else f"{members}: it is watched, start its consumers"
        return Found(list(self._seen.values()), sentence)

    async def _all(self) -> Found:
        consumers = [
            each
            for each in await self._groups.groups()
            if each.type in ("", "consumer") and each.state != "Dead" and not each.id.startswith(INTERNAL)
        ]
        active = [each for each in consumers if each.state != "Empty"]
        empty = [short_name(each.id) for each in consumers if each.state == "Empty"]
        answers = await asyncio.gather(*(self._described(each.id) for each in active[:MAX_DESCRIBED]))
        refused = [each for each in answers if isinstance(each, str)]
        described = {each.id: each for each in answers if isinstance(each, DescribedGroup) and each.members}
        self._seen = {name: each for name, each in self._seen.items() if name in described}
        for each in described.values():
            self._keep(each)
        rest = f"; {len(refused)} cannot be described: {refused[0]}" if refused else ""
        if empty:
            rest += f"; {listed(empty)} without members: --group watches one"
        if not self._seen:
            none = f"no group that may be described at {self.place} has members"
            return Found((), f"{none}: start consumers, or grant Describe{rest}")
        return Found(list(self._seen.values()), f"{self.place}: {counted(len(self._seen), 'group')} with members{rest}")

    def _keep(self, group: DescribedGroup) -> None:
        """Remember a settled group with members: while it rebalances neither its assignor nor its partitions are known."""
        if group.members and not group.rebalances:
            self._seen[group.id] = candidate(self.brokers, group)

    async def _described(self, name: str) -> DescribedGroup | str:
        """Return the group, or why its coordinator does not describe it."""
        try:
            return await self._groups.group(name, raw=True)
        except BrokersAway as error:
            return str(error)

    def covers(self, policy: Mapping[str, Any]) -> bool:
        subject = parse_policy(policy).subject
        kafka, group = subject.signals.kafka, subject.application.group_id
        return kafka is not None and kafka.bootstrap_servers == self.place and self.brokers.group in (None, group)

    async def close(self) -> None:
        await self._groups.close()


def _others(name: str, groups: Sequence[DescribedGroup]) -> str:
    """Return groups that may have been meant."""
    names = [each.id for each in groups if not each.id.startswith(INTERNAL)]
    meant = get_close_matches(name, names, n=3, cutoff=0.5) or names[:3]
    return f", or name one of its groups, such as {', '.join(map(short_name, meant))}" if meant else ""
