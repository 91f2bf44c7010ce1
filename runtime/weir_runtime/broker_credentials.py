"""TLS and SASL settings for the brokers of policies, by name: a policy names an entry and never contains a secret.

An entry lists the brokers that it is for. Without that list the author of a policy could have a password sent to a
server of their own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from .credentials import NAMESPACES, CredentialsRefused, read_namespaces, read_object
from .followed_files import FileState, FollowedFiles, FollowedMapping, state_of
from .kafka_security import FILES, check
from .reach import Reach
from .settings import TargetSettings, shared

SETTING = "WEIR_BROKER_CREDENTIALS_FILE"
SERVERS = "servers"


@dataclass(frozen=True)
class BrokerCredentials:
    """One entry. Its text shows no value."""

    servers: frozenset[str]
    settings: Mapping[str, str]
    namespaces: frozenset[str]
    """Namespaces of the policies that may use it."""
    files: tuple[FileState, ...] = ()
    """State of the certificates that the settings name: an entry with other ones is another entry."""

    def __repr__(self) -> str:
        return f"BrokerCredentials({len(self.settings)} settings for {len(self.servers)} servers)"


NO_CREDENTIALS = BrokerCredentials(frozenset(), {}, frozenset())
"""Of a policy that names none."""


def read_broker_credentials(path: Path | None) -> Mapping[str, BrokerCredentials]:
    """Read `{"shop": {"namespaces": "shop", "servers": "kafka:9093", "security.protocol": "SASL_SSL", …}}`; without a file
    there are none.

    `ValueError` names the setting, the entry and its field, never a value.
    """
    if path is None:
        return {}
    document = read_object(path, SETTING, "map names to entries")
    return {name: _entry(entry, f"{SETTING}: {path}: {name[:60]!r}") for name, entry in document.items()}


def _entry(entry: Any, place: str) -> BrokerCredentials:
    if not isinstance(entry, dict):
        raise ValueError(f"{place} must be an object: the file maps names to entries")  # noqa: TRY004
    try:
        namespaces = read_namespaces(entry.get(NAMESPACES))
    except ValueError as error:
        raise ValueError(f"{place}: {NAMESPACES} {error}") from None
    entry = {field: value for field, value in entry.items() if field != NAMESPACES}
    check(entry, place, frozenset({SERVERS}))
    servers = frozenset(part.strip().lower() for part in entry.get(SERVERS, "").split(",") if part.strip())
    if not servers or not all(re.fullmatch(r"[^\s/@]+:\d{1,5}", server) for server in servers):
        raise ValueError(f"{place}: {SERVERS} must list the brokers as host:port, separated by commas")
    settings = {field: value for field, value in entry.items() if field != SERVERS}
    files = state_of(Path(settings[field]) for field in sorted(FILES & settings.keys()))
    return BrokerCredentials(servers, settings, namespaces, files)


class BrokerSettings(TargetSettings):
    """Settings of a service that connects to the brokers of policies."""

    broker_credentials_file: Path | None = shared(
        "broker_credentials_file",
        default=None,
        description="JSON file with TLS and SASL settings for policies' brokers, by name; each entry lists its servers and "
        "the namespaces of its policies",
    )

    @model_validator(mode="after")
    def _readable_credentials_file(self) -> Self:
        _ = self.broker_credentials
        return self

    @cached_property
    def broker_credentials(self) -> Mapping[str, BrokerCredentials]:
        """The credentials of brokers by name, as the file is now; `ValueError` that names the setting if they cannot be read."""
        path = self.broker_credentials_file
        if path is None:
            return {}

        def paths(found: Mapping[str, BrokerCredentials]) -> list[Path]:
            return [path, *(Path(file[0]) for entry in found.values() for file in entry.files)]

        return FollowedMapping(self.follow(FollowedFiles(SETTING, lambda: read_broker_credentials(path), paths)))

    def reach(self) -> Reach:
        """Return what policies may name, with these credentials."""
        return super().reach().with_credentials("signals.kafka", self.broker_credentials)


def credentials_for(
    name: str | None, bootstrap_servers: str, known: Mapping[str, BrokerCredentials]
) -> BrokerCredentials:
    """Return an entry; `CredentialsRefused` if there is none, or it is for other brokers."""
    if name is None:
        return NO_CREDENTIALS
    entry = known.get(name)
    if entry is None:
        raise CredentialsRefused(f"signals.kafka.credentials: {SETTING} has no entry {name!r}")
    others = sorted({server.lower() for server in bootstrap_servers.split(",")} - entry.servers)
    if others:
        raise CredentialsRefused(f"signals.kafka.credentials: {name!r} is not for the broker {others[0][:100]}")
    return entry
