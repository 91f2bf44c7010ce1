"""Limits of what a policy may name beyond its own namespace: workloads, hosts and networks, consumer groups, credentials.

Without these limits the right to write a policy in one namespace would be a right over all others, and an address in a
document would let its author reach whatever the process can reach.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:  # the command line imports this module, and most commands need no contracts
    from weir_contracts import Subject

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a host for a port; `OSError` without any."""

_RESOLVERS = ThreadPoolExecutor(8, thread_name_prefix="resolve")
"""Own threads, so that a slow name server does not block other work."""

NAMESPACE = "{namespace}"
"""In a list of hosts: the namespace of the policy that names the host."""
PUBLIC = "public"
"""In a list of networks: every address of the public internet."""
_KINDS = (
    ("is_unspecified", "the unspecified address"),
    ("is_loopback", "a loopback address"),
    ("is_link_local", "a link-local address"),
    ("is_multicast", "a multicast address"),
    ("is_private", "a private address"),
    ("is_reserved", "a reserved address"),
)
USUAL_TARGETS = "public,private,loopback"
ANY = "*"
PAIRS, GROUPS, RESUBMIT_HOSTS = "WEIR_TARGET_NAMESPACES", "WEIR_TARGET_GROUPS", "WEIR_TARGET_RESUBMIT_HOSTS"


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


_NAMED: dict[str, tuple[Network, ...]] = {
    "loopback": _networks("127.0.0.0/8", "::1/128"),
    "private": _networks("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"),
}
# Metadata services hand out credentials. Most are link-local, which no name covers; these are in private or public
# networks: AWS and Google over IPv6, Alibaba Cloud, Oracle Cloud, Azure.
_METADATA = _networks(
    "fd00:ec2::254/128", "fd20:ce::254/128", "100.100.100.200/32", "192.0.0.192/32", "168.63.129.16/32"
)

# https://www.rfc-editor.org/rfc/rfc6052#section-2.1, rfc8215, rfc4291#section-2.5.5.1, rfc2765 (::ffff:0:0:0/96)
_CARRIES_V4 = tuple(ipaddress.ip_network(n) for n in ("64:ff9b::/96", "64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96"))


class AddressRefused(Exception):
    """An address that the settings do not allow; the sentence names the setting."""


@dataclass(frozen=True)
class Allowed:
    """Schemes, hosts and networks of the settings `<prefix>_SCHEMES`, `<prefix>_HOSTS` and `<prefix>_NETWORKS`.

    A host is a name, `*.example.org` for all names below it, or `*` for any. `{namespace}` in it is that of the policy;
    a connection, whose policy is not known, is checked for any.
    """

    schemes: frozenset[str]
    hosts: tuple[str, ...]
    networks: tuple[Network, ...]
    named: tuple[str, ...]
    prefix: str

    @classmethod
    def of(cls, schemes: str, hosts: str, networks: str, *, prefix: str) -> Self:
        """Read comma-separated lists; `ValueError` that names the invalid entry.

        A network is 10.0.0.0/8, or public, private (with 100.64.0.0/10) or loopback; these names exclude metadata
        services.
        """
        found, named = [], []
        for text in _parts(networks):
            if text == PUBLIC or text in _NAMED:
                named.append(text)
                continue
            try:
                found.append(ipaddress.ip_network(text))
            except ValueError as error:
                names = ", ".join((PUBLIC, *_NAMED))
                raise ValueError(
                    f"{text!r} is neither a network such as 10.0.0.0/8 nor one of {names}: {error}"
                ) from None
        unknown = set(_parts(schemes)) - {"http", "https"}
        if unknown:
            raise ValueError(f"{', '.join(sorted(unknown))}: only http and https are schemes")
        return cls(frozenset(_parts(schemes)), tuple(_parts(hosts)), tuple(found), tuple(named), prefix)

    def within(self, namespace: str) -> Self:
        """Return the allowed addresses for the policies of a namespace."""
        return replace(self, hosts=tuple(host.replace(NAMESPACE, namespace) for host in self.hosts))

    def check_url(self, url: str) -> None:
        """`AddressRefused` unless scheme and host are listed, and the address, where the host is one."""
        parts = urlsplit(url)
        if parts.scheme not in self.schemes:
            raise AddressRefused(
                f"{parts.scheme}: is not among the schemes that {self.prefix}_SCHEMES allows: {_listed(sorted(self.schemes))}"
            )
        self.check_host(parts.hostname or "")

    def check_host(self, host: str) -> None:
        """`AddressRefused` unless the host is listed, and its address, where it is one."""
        host = _plain(host)
        if not any(_fits(host, pattern) for pattern in self.hosts):
            raise AddressRefused(
                f"{host} is not among the hosts that {self.prefix}_HOSTS allows: {_listed(self.hosts)}"
            )
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return
        self.check_address(host, host)

    def check_address(self, text: str, host: str) -> None:
        """`AddressRefused` unless the address that `host` stands for lies in a listed network."""
        try:
            address: Address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            raise AddressRefused(f"{host} was resolved to {text!r}, which is no address") from None
        for meant in _meant(address):
            if not self._reachable(meant):
                of = "" if text == host else f" (of {host})"
                raise AddressRefused(
                    f"{text}{of} is {_kind(meant)}, which {self.prefix}_NETWORKS does not allow; "
                    f"it allows: {_listed([*self.named, *map(str, self.networks)])}"
                )

    def _reachable(self, address: Address) -> bool:
        if address.is_unspecified or address.is_multicast:
            return False  # no host has it, but some systems take it for this machine
        if any(address in network for network in self.networks):
            return True
        if any(address in network for network in _METADATA):
            return False
        if PUBLIC in self.named and address.is_global and not address.is_reserved:
            return True
        return any(address in network for name in self.named for network in _NAMED.get(name, ()))


def hosts_of(servers: str) -> list[str]:
    """Return the hosts of comma-separated `host:port`, IPv6 addresses without brackets."""
    return [server.strip().rpartition(":")[0].strip("[]") for server in servers.split(",")]


async def resolve(host: str, port: int) -> list[str]:
    """Look a name up on a separate thread; an address is returned as it is."""
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_RESOLVERS, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return list(dict.fromkeys(str(each[4][0]) for each in found))


async def checked_addresses(host: str, port: int, allowed: Allowed, resolve: Resolve = resolve) -> list[str]:
    """Return the host's addresses; `AddressRefused` if any of them is not allowed, `OSError` if it has none."""
    allowed.check_host(host)
    addresses = await resolve(host, port)
    for address in addresses:
        allowed.check_address(address, host)
    return addresses


def _meant(address: Address) -> list[Address]:
    """Return the address and every IPv4 address embedded in it: a packet to it may end there."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    carried: list[Address] = [address]
    if address.sixtofour is not None:
        carried.append(address.sixtofour)
    if address.teredo is not None:
        carried.extend(address.teredo)
    if any(address in network for network in _CARRIES_V4) and int(address) > 1:
        carried.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return carried


def _kind(address: Address) -> str:
    if any(address in network for network in _METADATA):
        return "the address of a cloud's metadata service"
    usual = "a public address" if address.is_global else "an address of no public network"
    return next((text for name, text in _KINDS if getattr(address, name)), usual)


def _plain(host: str) -> str:
    return host.lower().rstrip(".")


def _fits(host: str, pattern: str) -> bool:
    pattern = _plain(pattern)
    if NAMESPACE in pattern:
        return fnmatchcase(host, pattern.replace(NAMESPACE, "*"))
    return pattern in ("*", host) or (pattern.startswith("*.") and host.endswith(pattern[1:]))


def _parts(text: str) -> list[str]:
    return [part.strip().lower() for part in text.split(",") if part.strip()]


def _listed(items: Iterable[str]) -> str:
    return ", ".join(items) or "none"


TARGETS = Allowed.of("http,https", "*", USUAL_TARGETS, prefix="WEIR_TARGET")
"""Allowed addresses of targets and brokers by default."""


class Entry(Protocol):
    """Entry of credentials."""

    @property
    def namespaces(self) -> Collection[str]:
        """Namespaces of the policies that may use it."""


@dataclass(frozen=True)
class Reach:
    """Limits by a policy's namespace. By default its workloads are in that namespace, hosts and groups any, and it runs no jar."""

    allowed: Allowed = TARGETS
    groups: tuple[str, ...] = (ANY,)
    """Patterns of consumer groups, in which `{namespace}` is the policy's own."""
    pairs: Set[tuple[str, str]] = frozenset()
    """Namespaces of a policy and of the workloads that it may name besides those of its own namespace."""
    resubmit_hosts: tuple[str, ...] = ()
    """Hosts of Flink clusters, as in `Allowed`, on which policies may stop jobs and run jars."""
    credentials: Mapping[str, Mapping[str, Entry]] = field(default_factory=dict)
    """Entries by the path of the policy's field and the entry's name. Fields and entries that are not listed are not
    limited here."""

    @classmethod
    def of(cls, allowed: Allowed, groups: str, pairs: str, resubmit_hosts: str = "") -> Self:
        """Read comma-separated lists; `ValueError` that names the setting."""
        patterns = tuple(part.strip() for part in groups.split(",") if part.strip())
        return cls(allowed, patterns, read_pairs(pairs, PAIRS), tuple(_parts(resubmit_hosts)))

    def with_credentials(self, part: str, entries: Mapping[str, Entry]) -> Self:
        """Return the limits with those of the entries that a part of the policy, such as `signals.kafka`, may name."""
        return replace(self, credentials={**self.credentials, f"{part}.credentials": entries})

    def refusal(self, subject: "Subject") -> tuple[str, str] | None:
        """Return the field of `spec` that names something out of reach, with the reason; None if all is within."""
        own = subject.id.partition("/")[0]
        return (
            self._of_workloads(own, subject)
            or self._of_addresses(own, subject)
            or self._of_resubmit(own, subject)
            or self._of_groups(own, subject)
            or self._of_credentials(own, subject)
        )

    def _of_workloads(self, own: str, subject: "Subject") -> tuple[str, str] | None:
        named, managers = subject.namespace, subject.target.managers
        if own == named or any((a, b) in self.pairs for a in (own, ANY) for b in (named, ANY)):
            return None
        place = f"target.{subject.target.field}" if managers is None else "target.flink.taskManagers.kubernetes"
        return (
            f"{place}.namespace",
            f"a policy of namespace {own} may not name workloads of {named}: {PAIRS} does not list {own}:{named}",
        )

    def _of_addresses(self, own: str, subject: "Subject") -> tuple[str, str] | None:
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

    def _of_resubmit(self, own: str, subject: "Subject") -> tuple[str, str] | None:
        if subject.target.resubmit is None:
            return None
        host = _plain(urlsplit(str(subject.flink.url)).hostname or "")
        patterns = [pattern.replace(NAMESPACE, own) for pattern in self.resubmit_hosts]
        if any(_fits(host, pattern) for pattern in patterns):
            return None
        listed = _listed(patterns)
        return (
            "target.flink.resubmit",
            f"a policy of namespace {own} may not run jars at {host}: {RESUBMIT_HOSTS} allows: {listed}",
        )

    def _of_groups(self, own: str, subject: "Subject") -> tuple[str, str] | None:
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

    def _of_credentials(self, own: str, subject: "Subject") -> tuple[str, str] | None:
        flink, endpoint, kafka = subject.application.flink, subject.target.endpoint, subject.signals.kafka
        managers = None if subject.target.managers is None else subject.target.managers.endpoint
        named = {
            "application.flink.credentials": None if flink is None else flink.credentials,
            "target.endpoint.credentials": None if endpoint is None else endpoint.credentials,
            "target.flink.taskManagers.endpoint.credentials": None if managers is None else managers.credentials,
            "signals.kafka.credentials": None if kafka is None else kafka.credentials,
        }
        for place, name in named.items():
            entry = self.credentials.get(place, {}).get(name or "")
            if entry is not None and not {own, ANY} & set(entry.namespaces):
                return place, f"the entry {name!r} is not for policies of namespace {own} (its namespaces)"
        return None


def words(text: str) -> list[str]:
    """Return what commas and white space separate in a file; # begins a comment."""
    lines = (line.partition("#")[0] for line in text.splitlines())
    return [word for line in lines for word in line.replace(",", " ").split()]


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
