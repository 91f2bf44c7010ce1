"""Receivers of notifications: entries of a file by namespace, which the operator writes.

Many addresses of webhooks are secrets themselves, so an address is never shown beyond scheme, host and port.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

import httpx
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from weir_contracts import NAME_PATTERN, Duration, NotificationKind
from weir_contracts.document import sentence_of
from weir_runtime.files import FileState, FollowedFiles, read_credentials_file, state_of
from weir_runtime.http_client import Certificates, async_client, tls_context
from weir_runtime.origins import is_loopback
from weir_runtime.reach import ANY, AddressRefused, Allowed

from .notifications import Format

SETTING = "WEIR_KNOWLEDGE_NOTIFICATIONS_FILE"
PREFIX = "WEIR_KNOWLEDGE_NOTIFICATION"
WAIT_SECONDS = 5.0
"""For each step of a request: connection, sending, the head of the response."""
MAX_HEADER = 8_192


def _address(value: SecretStr) -> SecretStr:
    try:
        parts = urlsplit(value.get_secret_value())
        port_is_possible = parts.port != 0
    except ValueError:
        raise ValueError("is not an address such as https://example.org/hook") from None
    if parts.scheme not in ("https", "http") or not parts.hostname or not port_is_possible:
        raise ValueError("must be an address such as https://example.org/hook")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ValueError("must be https: http is for loopback only")
    if parts.username or parts.password:
        raise ValueError("must not contain a user: name a file in authorization_file")
    if parts.fragment or not all("!" <= character <= "~" for character in value.get_secret_value()):
        raise ValueError("must consist of visible ASCII characters, without a fragment")
    return value


class Receiver(BaseModel):
    """Where the notifications of a namespace go. Its text shows no secret."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: Annotated[SecretStr, Field(min_length=1, max_length=2000), AfterValidator(_address)]
    format: Format = "cloudevents"
    authorization_file: Path | None = None
    """File with the value of the header Authorization, such as `Bearer …`."""
    ca_file: Path | None = None
    """PEM file of further authorities that the receiver's certificate may be signed by."""
    late_after: Duration = timedelta(minutes=5)
    """Time for which an objective is missed before the receiver is told."""
    kinds: frozenset[NotificationKind] | None = None
    """Kinds that the receiver is told of. None: all."""
    source: Annotated[str, Field(pattern=r"^[!-~]{1,200}$")] = "/weir/knowledge"
    """CloudEvents source: names this Weir where several have one receiver."""
    _authorization: SecretStr | None = None
    _files: tuple[FileState, ...] = ()

    @model_validator(mode="after")
    def _readable_files(self) -> "Receiver":
        if self.authorization_file is not None:
            text = read_credentials_file(self.authorization_file, "authorization_file").decode(errors="replace").strip()
            if not text or len(text) > MAX_HEADER or not all(" " <= character <= "~" for character in text):
                raise ValueError(
                    "authorization_file: must have the value of one header on one line, in visible ASCII characters"
                )
            self._authorization = SecretStr(text)
        if self.ca_file is not None:
            read_credentials_file(self.ca_file, "ca_file")
            try:
                tls_context(Certificates(self.ca_file))
            except OSError:
                raise ValueError("ca_file: is not PEM") from None
        self._files = state_of(filter(None, (self.authorization_file, self.ca_file)))
        return self

    @property
    def files(self) -> tuple[FileState, ...]:
        """State of the files that it names: a receiver with other ones is another one."""
        return self._files

    @property
    def _parts(self) -> SplitResult:
        return urlsplit(self.url.get_secret_value())

    @property
    def place(self) -> str:
        """Scheme, host and port, for logs."""
        return f"{self._parts.scheme}://{self._parts.netloc}"

    def allowed(self, networks: str) -> Allowed:
        """Return where its address may lead: into these networks, without TLS to loopback only."""
        listed = networks if self._parts.scheme == "https" else "loopback"
        return Allowed.of(self._parts.scheme, self._parts.hostname or "", listed, prefix=PREFIX)

    def client(self, networks: str) -> httpx.AsyncClient:
        """Return a client for its address alone."""
        return async_client(
            timeout_seconds=WAIT_SECONDS,
            connections=1,
            idle_connections=1,
            allowed=self.allowed(networks),
            authorization=self._authorization,
            certificates=None if self.ca_file is None else Certificates(self.ca_file),
        )


_ENTRIES = TypeAdapter(dict[Annotated[str, Field(pattern=rf"^({NAME_PATTERN}|\*)$")], Receiver])


class Receivers:
    """The receivers by namespace, as the file is now."""

    def __init__(self, path: Path | None, networks: str) -> None:
        """`ValueError` that names the setting, entry and field, never a value."""
        self.networks = networks
        self.files: FollowedFiles[Mapping[str, Receiver]] | None = None
        if path is not None:
            self.files = FollowedFiles(
                SETTING,
                lambda: read_receivers(path, networks),
                lambda entries: [path, *(Path(file[0]) for each in entries.values() for file in each.files)],
            )

    @property
    def entries(self) -> Mapping[str, Receiver]:
        return {} if self.files is None else self.files.value

    def entry_of(self, namespace: str) -> str | None:
        """Return the name of the entry that a namespace has: its own, or `*`. None: it has none."""
        return namespace if namespace in self.entries else ANY if ANY in self.entries else None

    def late_after(self, namespace: str) -> timedelta | None:
        """Return for how long an objective is missed before the receiver is notified; None without one."""
        entry = self.entry_of(namespace)
        return None if entry is None else self.entries[entry].late_after


def read_receivers(path: Path, networks: str) -> dict[str, Receiver]:
    """Read `{"shop": {"url": "https://…", "authorization_file": "…"}, "*": {…}}`; `ValueError` names the setting, the entry and
    its field, never a value."""
    content = read_credentials_file(path, SETTING)
    try:
        found = _ENTRIES.validate_json(content)
    except ValidationError as error:
        first, *_ = error.errors(include_url=False, include_input=False)
        raise ValueError(f"{SETTING}: {path}: {_problem(first)}") from None
    for name, each in found.items():
        try:
            each.allowed(networks).check_url(each.url.get_secret_value())
        except AddressRefused as error:
            raise ValueError(f"{SETTING}: {path}: {name}.url: {error}") from None
    return found


def _problem(error: Any) -> str:
    place, kind = [str(part) for part in error["loc"]], error["type"]
    if kind == "json_invalid":
        return "is not JSON"
    if not place:
        return "must map namespaces, or *, to entries"
    if place[-1] == "[key]":
        return f"{re.sub(r'[^ -~]', '?', place[0])[:80]!r} is neither a namespace nor *"
    if kind == "extra_forbidden":
        return f"{'.'.join(place)[:200]}: is not among {', '.join(Receiver.model_fields)}"
    if len(place) == 1 and kind in ("model_type", "model_attributes_type"):
        return f"{place[0][:100]}: must be an object"
    return f"{'.'.join(place)[:200]}: {sentence_of(error)}"
