"""TLS and SASL settings for the brokers of policies, by name: a policy names an entry and never contains a secret.

An entry lists the brokers that it is for. Without that list the author of a policy could have a password sent to a
server of their own.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Producer
from pydantic import model_validator
from pydantic_core import from_json

from .settings import TargetSettings, shared

SETTING = "WEIR_BROKER_CREDENTIALS_FILE"
MAX_BYTES = 1_000_000
SERVERS = "servers"
ALLOWED = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
    }
)
"""librdkafka's settings that an entry may have; others could load libraries or switch checks off."""


@dataclass(frozen=True)
class BrokerCredentials:
    """One entry. Its text shows no value."""

    servers: frozenset[str]
    settings: Mapping[str, str]

    def __repr__(self) -> str:
        return f"BrokerCredentials({len(self.settings)} settings for {len(self.servers)} servers)"


def read_broker_credentials(path: Path | None) -> Mapping[str, BrokerCredentials]:
    """Read `{"shop": {"servers": "kafka:9093", "security.protocol": "SASL_SSL", …}}`; without a file there are none.

    `ValueError` names the setting, the entry and its field, never a value.
    """
    if path is None:
        return {}
    try:
        content = path.read_bytes()
        document: Any = from_json(content) if len(content) <= MAX_BYTES else None
    except OSError as error:
        raise ValueError(f"{SETTING}: cannot read {path}: {type(error).__name__}") from None
    except ValueError:
        raise ValueError(f"{SETTING}: {path} is not JSON") from None
    if not isinstance(document, dict):
        what = f"must map names to entries, in at most {MAX_BYTES:,} bytes"
        raise ValueError(f"{SETTING}: {path} {what}")  # noqa: TRY004 - the content is wrong, not the caller
    return {name: _entry(name, entry) for name, entry in document.items()}


def _entry(name: str, entry: Any) -> BrokerCredentials:
    place = f"{SETTING}: {name[:60]!r}"
    if not isinstance(entry, dict):
        raise ValueError(f"{place} must be an object")  # noqa: TRY004
    for field, value in entry.items():
        if field != SERVERS and field not in ALLOWED:
            raise ValueError(f"{place}: {field[:60]!r} is not among {', '.join(sorted(ALLOWED | {SERVERS}))}")
        if not isinstance(value, str):
            raise ValueError(f"{place}: {field} must be text")  # noqa: TRY004
    servers = frozenset(part.strip().lower() for part in entry.get(SERVERS, "").split(",") if part.strip())
    if not servers:
        raise ValueError(f"{place}: {SERVERS} must list the brokers as host:port, separated by commas")
    return BrokerCredentials(servers, {field: value for field, value in entry.items() if field != SERVERS})


class BrokerSettings(TargetSettings):
    """Settings of a service that connects to the brokers of policies."""

    broker_credentials_file: Path | None = shared(
        "broker_credentials_file",
        default=None,
        description="JSON file with TLS and SASL settings for policies' brokers, by name; each entry lists its servers",
    )

    @model_validator(mode="after")
    def _readable_credentials_file(self) -> Self:
        read_broker_credentials(self.broker_credentials_file)
        return self

    @property
    def broker_credentials(self) -> Mapping[str, BrokerCredentials]:
        """The credentials of brokers by name; `ValueError` that names the setting if they cannot be read."""
        return read_broker_credentials(self.broker_credentials_file)


class CredentialsRefused(Exception):
    """Credentials that a policy may not use; the sentence says why."""


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


_REASON_SECONDS = 1.0
"""Maximum wait after the first error for one that names the reason: librdkafka may report the lost connection first."""


def connection_problem(bootstrap_servers: str, timeout_seconds: float, settings: Mapping[str, str]) -> str:
    """Return why brokers refuse a connection with `settings`; empty if they take it, or do not answer. Blocks.

    librdkafka reports this to a callback alone, which an admin client of confluent-kafka 2.16 must not have.
    """
    errors: list[KafkaError] = []
    of_client = {"bootstrap.servers": bootstrap_servers, "error_cb": errors.append, "log_level": 0}
    try:
        client = Producer({**settings, **of_client})
    except KafkaException as error:
        return f"the files of the credentials cannot be used: {error.args[0].str()[:200]}"
    until = time.monotonic() + timeout_seconds
    while not errors and time.monotonic() < until:
        client.poll(0.1)
    until = min(until, time.monotonic() + _REASON_SECONDS)
    while not (reason := _refusal(errors)) and time.monotonic() < until:
        client.poll(0.1)
    return reason


def _refusal(errors: Sequence[KafkaError]) -> str:
    """Return the reason of the first error that names one; empty if none does."""
    for each in errors:
        if each.code() == KafkaError._AUTHENTICATION:
            return "the brokers refuse the credentials: user or password is wrong"
        if each.code() == KafkaError._SSL:
            return f"TLS: {each.str().partition(': ')[2][:200]}"
    return ""
