"""TLS and SASL settings for the brokers of policies, by name: a policy names an entry and never contains a secret.

An entry lists the brokers that it is for. Without that list the author of a policy could have a password sent to a
server of their own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from .credentials import NAMESPACES, CredentialsRefused, read_namespaces, read_object
from .kafka_security import check
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

    def __repr__(self) -> str:
        return f"BrokerCredentials({len(self.settings)} settings for {len(self.servers)} servers)"


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
    return BrokerCredentials(servers, {f: value for f, value in entry.items() if f != SERVERS}, namespaces)


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
        read_broker_credentials(self.broker_credentials_file)
        return self

    @property
    def broker_credentials(self) -> Mapping[str, BrokerCredentials]:
        """The credentials of brokers by name; `ValueError` that names the setting if they cannot be read."""
        return read_broker_credentials(self.broker_credentials_file)


def credentials_for(
    name: str | None, bootstrap_servers: str, known: Mapping[str, BrokerCredentials]
) -> Mapping[str, str]:
    """Return librdkafka's settings of an entry; `CredentialsRefused` if there is none, or it is for other brokers."""
    if name is None:
        return {}
    entry = known.get(name)
    if entry is None:
        raise CredentialsRefused(f"signals.kafka.credentials: {SETTING} has no entry {name!r}")
    others = sorted({server.lower() for server in bootstrap_servers.split(",")} - entry.servers)
    if others:
        raise CredentialsRefused(f"signals.kafka.credentials: {name!r} is not for the broker {others[0][:100]}")
    return entry.settings
