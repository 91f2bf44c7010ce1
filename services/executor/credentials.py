"""Tokens for endpoints, which policies name and the executor's settings hold."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import AnyHttpUrl, BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError, field_validator
from weir_contracts import EndpointTarget
from weir_contracts.base import Name
from weir_contracts.document import sentence_of

SETTING = "WEIR_EXECUTOR_ENDPOINT_CREDENTIALS"


class CredentialRefused(Exception):
    """A credential that does not exist, or not for this address; the sentence names the setting."""


class _Entry(BaseModel):
    """Entry of the setting."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    origin: AnyHttpUrl
    token: SecretStr = Field(min_length=1, max_length=4096)

    @field_validator("origin")
    @classmethod
    def _only_origin(cls, value: AnyHttpUrl) -> AnyHttpUrl:
        if value.username or value.password or value.query or value.fragment or value.path not in (None, "", "/"):
            raise ValueError("must be scheme, host and port only")
        return value

    @field_validator("token")
    @classmethod
    def _fits_header(cls, value: SecretStr) -> SecretStr:
        if not all("!" <= character <= "~" for character in value.get_secret_value()):
            raise ValueError("must consist of visible ASCII characters")
        return value


_ENTRIES = TypeAdapter(dict[Name, _Entry])


@dataclass(frozen=True)
class Credential:
    """Token, and the scheme, host and port that it is sent to: a policy's author could name any other."""

    origin: tuple[str, str, int | None]
    token: SecretStr


def read_credentials(text: str) -> dict[str, Credential]:
    """Read `{"supervisor": {"origin": "https://supervisor:8070", "token": "…"}}`; empty: none.

    `ValueError` names the entry and its field, never a value.
    """
    if not text.strip():
        return {}
    try:
        entries = _ENTRIES.validate_json(text)
    except ValidationError as error:
        first, *_ = error.errors(include_url=False, include_input=False)
        if first["type"] == "json_invalid":
            raise ValueError("is not JSON") from None
        raise ValueError(f"{'.'.join(map(str, first['loc']))[:200]}: {sentence_of(first)}") from None
    return {name: Credential(_origin(entry.origin), entry.token) for name, entry in entries.items()}


def token_for(target: EndpointTarget, credentials: Mapping[str, Credential]) -> SecretStr | None:
    """Return the token for a target, or None if it names no credentials. Raises `CredentialRefused`."""
    if target.credentials is None:
        return None
    found = credentials.get(target.credentials)
    if found is None:
        raise CredentialRefused(f"{SETTING} has no entry {target.credentials!r}")
    if found.origin != _origin(target.url):
        raise CredentialRefused(f"{SETTING}: entry {target.credentials!r} is for another origin than the endpoint's")
    return found.token


def _origin(url: AnyHttpUrl) -> tuple[str, str, int | None]:
    return url.scheme, (url.host or "").lower().rstrip("."), url.port
