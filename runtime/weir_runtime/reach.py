"""Limits of what a policy may name beyond its own namespace: workloads, hosts, consumer groups and credentials.

Without these limits the right to write a policy in one namespace would be a right over all others.
"""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Protocol, Self

from weir_contracts import Subject

from .addresses import NAMESPACE, TARGETS, AddressRefused, Allowed, hosts_of
from .credentials import ANY, words

PAIRS, GROUPS = "WEIR_TARGET_NAMESPACES", "WEIR_TARGET_GROUPS"


class Entry(Protocol):
    """Entry of credentials."""

    @property
    def namespaces(self) -> Collection[str]:
        """Namespaces of the policies that may use it."""


@dataclass(frozen=True)
class Reach:
    """Limits by a policy's namespace. By default its workloads are in that namespace, and hosts and groups any."""

    allowed: Allowed = TARGETS
    groups: tuple[str, ...] = (ANY,)
    """Patterns of consumer groups, in which `{namespace}` is the policy's own."""
    pairs: Set[tuple[str, str]] = frozenset()
    """Namespaces of a policy and of the workloads that it may name besides those of its own namespace."""
    credentials: Mapping[str, Mapping[str, Entry]] = field(default_factory=dict)
    """Entries by the path of the policy's field and the entry's name. Fields and entries that are not listed are not
    limited here."""

    @classmethod
    def of(cls, allowed: Allowed, groups: str, pairs: str) -> Self:
        """Read comma-separated lists; `ValueError` that names the setting."""
        patterns = tuple(part.strip() for part in groups.split(",") if part.strip())
        return cls(allowed, patterns, read_pairs(pairs, PAIRS))

    def with_credentials(self, part: str, entries: Mapping[str, Entry]) -> Self:
        """Return the limits with those of the entries that a part of the policy, such as `signals.kafka`, may name."""
        return replace(self, credentials={**self.credentials, f"{part}.credentials": entries})

    def refusal(self, subject: Subject) -> tuple[str, str] | None:
        """Return the field of `spec` that names something out of reach, with the reason; None if all is within."""
        own = subject.id.partition("/")[0]
        return (
            self._of_workloads(own, subject.namespace)
            or self._of_addresses(own, subject)
            or self._of_groups(own, subject)
            or self._of_credentials(own, subject)
        )

    def _of_workloads(self, own: str, named: str) -> tuple[str, str] | None:
        if own == named or any((a, b) in self.pairs for a in (own, ANY) for b in (named, ANY)):
            return None
        return (
            "target.kubernetes.namespace",
            f"a policy of namespace {own} may not name workloads of {named}: {PAIRS} does not list {own}:{named}",
        )

    def _of_addresses(self, own: str, subject: Subject) -> tuple[str, str] | None:
        """Check names and literal addresses; the addresses of a name are checked at each connect."""
        allowed, kafka = self.allowed.within(own), subject.signals.kafka
        try:
            for place, url in subject.urls:
                where = place
                allowed.check_url(str(url))
            for host in hosts_of(kafka.bootstrap_servers) if kafka is not None else ():
                where = "signals.kafka.bootstrapServers"
                allowed.check_host(host)
        except AddressRefused as error:
            return where, str(error)
        return None

    def _of_groups(self, own: str, subject: Subject) -> tuple[str, str] | None:
        kafka = subject.signals.kafka
        named = {
            "application": subject.application.group_id,
            "signals.kafka.groupId": None if kafka is None else kafka.group_id,
        }
        patterns = [pattern.replace(NAMESPACE, own) for pattern in self.groups]
        for place, group in named.items():
            if group is not None and not any(fnmatchcase(group, pattern) for pattern in patterns):
                listed = ", ".join(patterns)
                return place, f"the group {group} is not among those of namespace {own}, {listed} ({GROUPS})"
        return None

    def _of_credentials(self, own: str, subject: Subject) -> tuple[str, str] | None:
        flink, endpoint, kafka = subject.application.flink, subject.target.endpoint, subject.signals.kafka
        named = {
            "application.flink.credentials": None if flink is None else flink.credentials,
            "target.endpoint.credentials": None if endpoint is None else endpoint.credentials,
            "signals.kafka.credentials": None if kafka is None else kafka.credentials,
        }
        for place, name in named.items():
            entry = self.credentials.get(place, {}).get(name or "")
            if entry is not None and not {own, ANY} & set(entry.namespaces):
                return place, f"the entry {name!r} is not for policies of namespace {own} (its namespaces)"
        return None


def read_pairs(text: str, setting: str) -> frozenset[tuple[str, str]]:
    """Read pairs FROM:TO; `ValueError` that names the setting."""
    found = set()
    for word in words(text):
        own, _, other = word.partition(":")
        if not own or not other or ":" in other:
            raise ValueError(f"{setting}: {word[:150]!r} is not FROM:TO, two namespaces")
        found.add((own, other))
    return frozenset(found)


REACH = Reach()
"""What policies may name by default."""
