"""Credentials for the addresses of policies, by name: TLS and SASL settings for brokers, tokens, passwords and
certificates for HTTP. A policy names an entry and never contains a secret.

An entry has the brokers or the origin that it is for. Without them the author of a policy could have a password or a
token sent to a server of their own.
"""

import asyncio
import re
import ssl
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import httpx
from pydantic import (
    AfterValidator,
    AnyHttpUrl,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from weir_contracts.base import Name
from weir_contracts.document import sentence_of

from .files import (
    NAMESPACES,
    CredentialsRefused,
    FileState,
    FollowedFiles,
    FollowedMapping,
    read_credentials_file,
    read_namespaces,
    read_object,
    state_of,
)
from .http_client import Certificates, async_client, bearer, tls_context
from .kafka_client import FILES, check
from .reach import Reach
from .settings import TargetSettings, shared

BROKER_SETTING = "WEIR_BROKER_CREDENTIALS_FILE"
SERVERS = "servers"
FLINK_SETTING = "WEIR_FLINK_CREDENTIALS_FILE"
LAST_REQUEST_SECONDS = 60.0
"""For the requests that a client still sends when its credentials change."""


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
    document = read_object(path, BROKER_SETTING, "map names to entries")
    return {name: _broker_entry(entry, f"{BROKER_SETTING}: {path}: {name[:60]!r}") for name, entry in document.items()}


def _broker_entry(entry: Any, place: str) -> BrokerCredentials:
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
        return FollowedMapping(self.follow(_followed(path, BROKER_SETTING, lambda: read_broker_credentials(path))))

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
        raise CredentialsRefused(f"signals.kafka.credentials: {BROKER_SETTING} has no entry {name!r}")
    others = sorted({server.lower() for server in bootstrap_servers.split(",")} - entry.servers)
    if others:
        raise CredentialsRefused(f"signals.kafka.credentials: {name!r} is not for the broker {others[0][:100]}")
    return entry


def _origin_only(value: AnyHttpUrl) -> AnyHttpUrl:
    if value.username or value.password or value.query or value.fragment or value.path not in (None, "", "/"):
        raise ValueError("must be scheme, host and port only")
    return value


def _fits_header(value: SecretStr) -> SecretStr:
    if not all("!" <= character <= "~" for character in value.get_secret_value()):
        raise ValueError("must consist of visible ASCII characters")
    return value


def _fits_login(value: str) -> str:
    if ":" in value or not value.isprintable():
        raise ValueError("must not contain a colon or control characters")
    return value


class HttpCredential(BaseModel):
    """How to connect to one origin: scheme, host and port. Its text shows no secret."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    namespaces: Annotated[frozenset[str], BeforeValidator(read_namespaces)]
    """Namespaces of the policies that may use it."""
    origin: Annotated[AnyHttpUrl, AfterValidator(_origin_only)]
    token: Annotated[SecretStr, Field(min_length=1, max_length=4096), AfterValidator(_fits_header)] | None = None
    username: Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_fits_login)] | None = None
    password: Annotated[SecretStr, Field(min_length=1, max_length=4096)] | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    _files: tuple[FileState, ...] = ()

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password belong together")
        if self.token is not None and self.username is not None:
            raise ValueError("token and username exclude each other")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together")
        if self.certificates is not None and self.origin.scheme != "https":
            raise ValueError("ca_file and certificate_file need an origin with https")
        for field in ("ca_file", "certificate_file", "key_file"):
            if (path := getattr(self, field)) is not None:
                read_credentials_file(path, field)
        try:
            tls_context(self.certificates)
        except (OSError, ssl.SSLError) as error:
            sentence = "not PEM, or the key is of another certificate"
            raise ValueError(f"the certificates cannot be used: {sentence} ({type(error).__name__})") from None
        self._files = state_of(filter(None, self.certificates or ()))
        return self

    @property
    def files(self) -> tuple[FileState, ...]:
        """State of the certificates: an entry with other ones is another entry."""
        return self._files

    @property
    def certificates(self) -> Certificates | None:
        found = Certificates(self.ca_file, self.certificate_file, self.key_file)
        return found if any(found) else None

    @property
    def authorization(self) -> SecretStr | None:
        """Value of the Authorization header."""
        if self.token is not None:
            return bearer(self.token)
        if self.username is None or self.password is None:
            return None
        pair = f"{self.username}:{self.password.get_secret_value()}"
        return SecretStr(f"Basic {b64encode(pair.encode()).decode()}")


_ENTRIES = TypeAdapter(dict[Name, HttpCredential])


C = TypeVar("C", BrokerCredentials, HttpCredential)


def read_credentials(text: str | bytes) -> dict[str, HttpCredential]:
    """Read `{"supervisor": {"namespaces": ["shop"], "origin": "https://supervisor:8070", "token": "…"}}`; empty: none.

    `ValueError` names the entry and its field, never a value.
    """
    if not text.strip():
        return {}
    try:
        return _ENTRIES.validate_json(text)
    except ValidationError as error:
        first, *_ = error.errors(include_url=False, include_input=False)
        raise ValueError(_problem(first["type"], [str(part) for part in first["loc"]], sentence_of(first))) from None


def _problem(kind: str, place: Sequence[str], sentence: str) -> str:
    """Return what is wrong with the entries, and where."""
    if kind == "json_invalid":
        return "is not JSON"
    if not place:
        return "must map names to entries"
    if place[-1] == "[key]":
        return f"the name {place[0][:100]!r} {sentence}"
    if kind == "extra_forbidden":
        sentence = f"is not among {', '.join(HttpCredential.model_fields)}"
    elif len(place) == 1 and kind in ("model_type", "model_attributes_type", "dict_type"):
        sentence = "must be an object: the file maps names to entries"
    return f"{'.'.join(place)[:200]}: {sentence}"


def _origin(url: AnyHttpUrl) -> tuple[str, str, int | None]:
    return url.scheme, (url.host or "").lower().rstrip("."), url.port


class ClientsByCredential:
    """HTTP clients of one service, each made when it is first needed: one without credentials, and one of each entry. A
    changed entry has a new client; the one before is closed after the time of the requests that it still sends."""

    def __init__(self, entries: Mapping[str, HttpCredential] | None, setting: str, **options: Any) -> None:
        """`entries` are looked up at each use; `options` are those of `async_client`."""
        self._entries = {} if entries is None else entries
        self._setting = setting
        self._options = options
        self._clients: dict[str | None, tuple[HttpCredential | None, httpx.AsyncClient]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def of(self, name: str | None, url: AnyHttpUrl) -> httpx.AsyncClient:
        """Return the client for an address with the credentials that a policy names. Raises `CredentialsRefused`."""
        entry = None if name is None else self._entries.get(name)
        if name is not None and entry is None:
            raise CredentialsRefused(f"{self._setting} has no entry {name!r}")
        if entry is not None and _origin(entry.origin) != _origin(url):
            raise CredentialsRefused(f"{self._setting}: entry {name!r} is for another origin than {str(url)[:200]}")
        used, client = self._clients.get(name, (None, None))
        if client is None or used != entry:
            if client is not None:
                self._ending.add(ending := asyncio.create_task(self._end(client)))
                ending.add_done_callback(self._ending.discard)
            authorization, certificates = (None, None) if entry is None else (entry.authorization, entry.certificates)
            client = async_client(authorization=authorization, certificates=certificates, **self._options)
            self._clients[name] = (entry, client)
        return client

    async def _end(self, client: httpx.AsyncClient) -> None:
        try:
            await asyncio.sleep(LAST_REQUEST_SECONDS)
        finally:
            await client.aclose()

    async def close(self) -> None:
        for ending in self._ending:
            ending.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)
        for _, each in self._clients.values():
            await each.aclose()


class FlinkSettings(TargetSettings):
    """Settings of a service that connects to the Flink clusters of policies."""

    flink_credentials_file: Path | None = shared(
        "flink_credentials_file",
        default=None,
        description="JSON file with tokens, passwords and certificates for policies' Flink clusters, by name; each entry has its origin "
        "and the namespaces of its policies",
    )

    @model_validator(mode="after")
    def _readable_flink_credentials(self) -> Self:
        _ = self.flink_credentials
        return self

    @cached_property
    def flink_credentials(self) -> Mapping[str, HttpCredential]:
        """The credentials of Flink clusters by name, as the file is now; `ValueError` that names the setting if they cannot be
        read."""
        path = self.flink_credentials_file
        return {} if path is None else FollowedMapping(self.follow(followed_credentials(path, FLINK_SETTING)))

    def reach(self) -> Reach:
        """Return what policies may name, with these credentials."""
        return super().reach().with_credentials("application.flink", self.flink_credentials)


def followed_credentials(path: Path, setting: str) -> FollowedFiles[Mapping[str, HttpCredential]]:
    """Return the entries of a file, which change with it and with the certificates that it names. `ValueError` names the
    setting."""

    def read() -> Mapping[str, HttpCredential]:
        content = read_credentials_file(path, setting)
        if not content.strip():
            raise ValueError(f"{setting}: {path}: is not JSON")
        try:
            return read_credentials(content)
        except ValueError as error:
            raise ValueError(f"{setting}: {path}: {error}") from None

    return _followed(path, setting, read)


def _followed(path: Path, setting: str, read: Callable[[], Mapping[str, C]]) -> FollowedFiles[Mapping[str, C]]:
    """Return what `read` reads, which changes with the file and with the certificates that its entries name."""

    def paths(entries: Mapping[str, C]) -> list[Path]:
        return [path, *(Path(file[0]) for entry in entries.values() for file in entry.files)]

    return FollowedFiles(setting, read, paths)
