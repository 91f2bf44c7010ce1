"""Bearer tokens with the roles read and write, kept as hashes only, and the authorisation of HTTP requests by them."""

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic_core import from_json
from weir_contracts.metadata import MAX_CALLER_CHARACTERS

from .problems import Problem

Role = Literal["read", "write"]
MIN_TOKEN_LENGTH = 16
_BEARER = HTTPBearer(auto_error=False, description="needed where the service was started with tokens")


@dataclass(frozen=True)
class Caller:
    """The author of a request, for the record of changes."""

    name: str
    role: Role


class Tokens:
    """Tokens and their callers."""

    def __init__(self, callers: dict[str, Caller]) -> None:
        self._callers = {hashlib.sha256(token.encode()).digest(): caller for token, caller in callers.items()}

    @property
    def required(self) -> bool:
        return bool(self._callers)

    def caller(self, token: str) -> Caller | None:
        """Return the caller of a token, in a time that is independent of the other tokens."""
        given = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        found = None
        for digest, caller in self._callers.items():
            if hmac.compare_digest(given, digest):
                found = caller
        return found


def read_tokens(path: Path | None, text: str | None = None) -> Tokens:
    """Read tokens from a file and from `text`: `{"token": {"name": "ada", "role": "write"}}`.

    `ValueError` names the setting and the invalid entry, never the token.
    """
    callers: dict[str, Caller] = {}
    if path is not None:
        try:
            content = path.read_text()
        except (OSError, ValueError) as error:
            raise ValueError(f"WEIR_TOKENS_FILE: cannot read {path}: {type(error).__name__}") from None
        callers |= _parse(content, "WEIR_TOKENS_FILE", str(path))
    if text is not None:
        callers |= _parse(text, "WEIR_TOKENS", "it")
    return Tokens(callers)


def _parse(content: str, setting: str, place: str) -> dict[str, Caller]:
    try:
        document: Any = from_json(content)
    except (ValueError, TypeError):  # TypeError: a lone surrogate in the text
        raise ValueError(f"{setting}: {place} is not JSON") from None
    if not isinstance(document, dict) or not document:
        raise ValueError(f"{setting}: {place} must map at least one token to its name and role")
    callers = {}
    for i, (token, entry) in enumerate(document.items()):
        name, role = (entry.get("name"), entry.get("role")) if isinstance(entry, dict) else (None, None)
        is_short = len(token) < MIN_TOKEN_LENGTH
        if (
            is_short
            or not isinstance(name, str)
            or not 0 < len(name) <= MAX_CALLER_CHARACTERS
            or role not in ("read", "write")
        ):
            raise ValueError(
                f"{setting}: entry {i + 1} of {place} needs a token of {MIN_TOKEN_LENGTH} characters or more, "
                f"a name of at most {MAX_CALLER_CHARACTERS}, and the role read or write"
            )
        callers[token] = Caller(name, role)
    return callers


def requires(role: Role) -> Callable[..., Awaitable[Caller]]:
    """Return a FastAPI dependency: the caller, with at least `role` (write includes read), by `app.state.tokens`;
    without tokens (loopback only) every caller is `local`.

    401 without a valid token, 403 without the role.
    """

    async def check(
        request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
    ) -> Caller:
        tokens: Tokens = request.app.state.tokens
        if not tokens.required:
            return Caller("local", "write")
        caller = tokens.caller(given.credentials.strip()) if given is not None else None
        if caller is None:
            raise Problem(401, "a known bearer token is needed", headers={"WWW-Authenticate": "Bearer"})
        if role == "write" and caller.role != "write":
            raise Problem(403, f"{caller.name} may read but not write")
        return caller

    return check
