"""Where a planner may be asked at: schemes, hosts and networks that the operator of Weir has listed. Pure.

A planner's address is what somebody registered; without a list it would be a way to reach whatever this process can reach.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

SCHEMES = "WEIR_PLANNER_PLUGIN_SCHEMES"
HOSTS = "WEIR_PLANNER_PLUGIN_HOSTS"
NETWORKS = "WEIR_PLANNER_PLUGIN_NETWORKS"
PUBLIC = "public"
"""In the list of networks: every address of the internet at large."""

# https://www.rfc-editor.org/rfc/rfc6052#section-2.1, rfc8215, rfc4291#section-2.5.5.1, rfc2765 (::ffff:0:0:0/96)
_CARRIES_V4 = tuple(ipaddress.ip_network(n) for n in ("64:ff9b::/96", "64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96"))
_KINDS = (
    ("is_unspecified", "the unspecified address"),
    ("is_loopback", "a loopback address"),
    ("is_link_local", "a link-local address"),
    ("is_multicast", "a multicast address"),
    ("is_private", "a private address"),
    ("is_reserved", "a reserved address"),
)


class AddressRefused(Exception):
    """Not an address that planners may be asked at; the sentence names the setting."""


@dataclass(frozen=True)
class Allowed:
    """What the settings list. A host is a name, `*.example.org` for all names below it, or `*` for any."""

    schemes: frozenset[str]
    hosts: tuple[str, ...]
    networks: tuple[Network, ...]
    public: bool

    @classmethod
    def of(cls, schemes: str, hosts: str, networks: str) -> Self:
        """From comma-separated lists; `ValueError` that names what is wrong."""
        ranges = _parts(networks)
        found = []
        for text in ranges:
            if text == PUBLIC:
                continue
            try:
                found.append(ipaddress.ip_network(text))
            except ValueError as error:
                raise ValueError(f"{text!r} is neither a network such as 10.0.0.0/8 nor {PUBLIC}: {error}") from None
        unknown = set(_parts(schemes)) - {"http", "https"}
        if unknown:
            raise ValueError(f"{', '.join(sorted(unknown))}: only http and https are schemes")
        return cls(frozenset(_parts(schemes)), tuple(_parts(hosts)), tuple(found), PUBLIC in ranges)

    def check_url(self, url: str) -> None:
        """`AddressRefused` unless scheme and host are listed, and the address, where the host is one."""
        parts = urlsplit(url)
        host = _plain(parts.hostname or "")
        if parts.scheme not in self.schemes:
            raise AddressRefused(
                f"{parts.scheme}: is not among the schemes that {SCHEMES} allows: {_listed(sorted(self.schemes))}"
            )
        if not any(_fits(host, pattern) for pattern in self.hosts):
            raise AddressRefused(f"{host} is not among the hosts that {HOSTS} allows: {_listed(self.hosts)}")
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
                    f"{text}{of} is {_kind(meant)}, which {NETWORKS} does not allow; it allows: {_listed(self._ranges())}"
                )

    def _reachable(self, address: Address) -> bool:
        if address.is_unspecified or address.is_multicast:
            return False  # nobody answers there, but some systems take it for this machine
        if any(address in network for network in self.networks):
            return True
        return self.public and address.is_global and not address.is_reserved

    def _ranges(self) -> list[str]:
        return [*([PUBLIC] if self.public else []), *map(str, self.networks)]


def _meant(address: Address) -> list[Address]:
    """The address and every IPv4 address that it carries: a packet to it may end there."""
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
    usual = "a public address" if address.is_global else "an address of no public network"
    return next((words for name, words in _KINDS if getattr(address, name)), usual)


def _plain(host: str) -> str:
    return host.lower().rstrip(".")


def _fits(host: str, pattern: str) -> bool:
    pattern = _plain(pattern)
    return pattern in ("*", host) or (pattern.startswith("*.") and host.endswith(pattern[1:]))


def _parts(text: str) -> list[str]:
    return [part.strip().lower() for part in text.split(",") if part.strip()]


def _listed(items: Iterable[str]) -> str:
    return ", ".join(items) or "none"
