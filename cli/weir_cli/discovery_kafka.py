"""The consumer groups of Kafka brokers, for `weir run --kafka`."""

import asyncio
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, ClassVar, Protocol

from weir_contracts import counted, short_name
from weir_engines.kafka.brokers import KafkaBrokers
from weir_engines.kafka.group import DescribedGroup, membership
from weir_engines.kafka.partitions import BrokersAway
from weir_runtime.clock import Clock

from .client import InvalidInput, Unreachable
from .discovery import CALL_SECONDS, LAG_BOUND, MIN_BOUND, Candidate, Found

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

    async def close(self) -> None: ...


def candidate(servers: str, group: DescribedGroup) -> Candidate:
    """Return a described group as candidate. It is bounded by its partitions, since more members than that are idle."""
    is_streams = group.assignor == _STREAMS
    members = membership(group, is_streams=is_streams).members
    partitions = len({place for member in members for place in member.places or ()})
    application = (
        {"kafkaStreams": {"applicationId": group.id}} if is_streams else {"consumerGroup": {"groupId": group.id}}
    )
    spec: dict[str, Any] = {
        "application": application,
        "signals": {"kafka": {"bootstrapServers": servers}},
        "objective": {"maxLag": LAG_BOUND},
        "bounds": {"max": max(MIN_BOUND, partitions, len(members))},
    }
    return Candidate(group.id, hashlib.sha256(group.id.encode()).hexdigest()[:8], spec)


@dataclass(eq=False)
class ConsumerGroups:
    """Source of the groups with members, or of one group. Without `brokers` it connects to `servers`."""

    servers: str
    group: str | None
    clock: Clock
    brokers: Groups | None = None
    label: ClassVar[str] = "kafka"
    option: ClassVar[str] = "--kafka"
    max_watched: ClassVar[int | None] = 100
    _brokers: Groups = field(init=False)
    _seen: dict[str, Candidate] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if not _SERVERS.fullmatch(self.servers):
            raise InvalidInput(f"--kafka: {self.servers!r} names no brokers: write HOST:PORT, several with commas")
        self._brokers = self.brokers or KafkaBrokers(self.servers, CALL_SECONDS, self.clock)

    @property
    def place(self) -> str:
        return self.servers

    async def find(self) -> Found:
        """Return the group, or all with members. `Unreachable` or `InvalidInput` with what to do if the brokers do not say."""
        try:
            return await (self._all() if self.group is None else self._one(self.group))
        except BrokersAway as error:
            raise Unreachable(
                f"--kafka: no brokers answer at {self.servers} ({error}): start them, or correct the address; TLS or a login "
                "needs a policy (-f)"
            ) from None

    async def _one(self, name: str) -> Found:
        """Return the group. Once it was watched it stays so without members: then its records wait."""
        listed = await self._brokers.groups()
        there = await self._described(name)
        if isinstance(there, str):
            return Found((), f"{self.servers}: {there}: if it may not be read, grant Describe, or write a policy (-f)")
        if there.state == "Dead":
            return Found(
                (), f"{self.servers} has no group {short_name(name)} yet: start its consumers{_others(name, listed)}"
            )
        if there.type not in ("", "consumer"):
            raise InvalidInput(
                f"--group: {short_name(name)} is a group of type {short_name(there.type)}, not of consumers: name another one"
            )
        self._keep(there)
        members = (
            f"{self.servers}: group {short_name(name)} is {there.state} with {counted(len(there.members), 'member')}"
        )
        return Found(list(self._seen.values()), members if there.members else f"{members}: start its consumers")

    async def _all(self) -> Found:
        listed = [
            each
            for each in await self._brokers.groups()
            if each.type in ("", "consumer")
            and each.state not in ("Empty", "Dead")
            and not each.id.startswith(INTERNAL)
        ]
        answers = await asyncio.gather(*(self._described(each.id) for each in listed[:MAX_DESCRIBED]))
        refused = [each for each in answers if isinstance(each, str)]
        described = {each.id: each for each in answers if isinstance(each, DescribedGroup) and each.members}
        self._seen = {name: each for name, each in self._seen.items() if name in described}
        for each in described.values():
            self._keep(each)
        unread = f"; {len(refused)} cannot be described: {refused[0]}" if refused else ""
        if not self._seen:
            none = f"no group that may be described at {self.servers} has members"
            return Found((), f"{none}: start consumers, or grant Describe{unread}")
        return Found(
            list(self._seen.values()), f"{self.servers}: {counted(len(self._seen), 'group')} with members{unread}"
        )

    def _keep(self, group: DescribedGroup) -> None:
        """Remember a settled group with members: while it rebalances neither its assignor nor its partitions are known."""
        if group.members and not group.rebalances:
            self._seen[group.id] = candidate(self.servers, group)

    async def _described(self, name: str) -> DescribedGroup | str:
        """Return the group, or why its coordinator does not describe it."""
        try:
            return await self._brokers.group(name, raw=True)
        except BrokersAway as error:
            return str(error)

    async def close(self) -> None:
        await self._brokers.close()


def _others(name: str, listed: Sequence[DescribedGroup]) -> str:
    """Return groups that may have been meant."""
    names = [each.id for each in listed if not each.id.startswith(INTERNAL)]
    meant = get_close_matches(name, names, n=3, cutoff=0.5) or names[:3]
    return f", or name one of its groups, such as {', '.join(map(short_name, meant))}" if meant else ""
