"""Bearer tokens with the roles read and write. Without tokens (loopback only) everybody is `local`."""

import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastapi import Request

from .problems import Problem

Role = Literal["read", "write"]
LEAST_TOKEN_LENGTH = 16


@dataclass(frozen=True)
class Caller:
    """Who made a request, for the record of changes."""

    name: str
    role: Role


class Tokens:
    """Known tokens, kept as hashes only."""

    def __init__(self, callers: dict[str, Caller]) -> None:
        self._callers = {hashlib.sha256(token.encode()).digest(): caller for token, caller in callers.items()}

    @property
    def required(self) -> bool:
        return bool(self._callers)

    def caller(self, token: str) -> Caller | None:
        """Whose token it is, found in a time that tells nothing about the others."""
        given = hashlib.sha256(token.encode()).digest()
        found = None
        for known, caller in self._callers.items():
            if hmac.compare_digest(given, known):
                found = caller
        return found


def read_tokens(path: Path | None) -> Tokens:
    """Tokens from a file `{"token": {"name": "ada", "role": "write"}}`; none without a file.

    Raises `ValueError` that names the entry (never the token) if the file is not one.
    """
    if path is None:
        return Tokens({})
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"WEIR_TOKENS_FILE: cannot read {path}: {type(error).__name__}") from None
    if not isinstance(document, dict) or not document:
        raise ValueError(f"WEIR_TOKENS_FILE: {path} must map at least one token to its name and role")
    callers = {}
    for i, (token, entry) in enumerate(document.items()):
        name, role = (entry.get("name"), entry.get("role")) if isinstance(entry, dict) else (None, None)
        if len(token) < LEAST_TOKEN_LENGTH or not isinstance(name, str) or not name or role not in ("read", "write"):
            raise ValueError(
                f"WEIR_TOKENS_FILE: entry {i + 1} of {path} needs a token of {LEAST_TOKEN_LENGTH} characters or more, "
                "a name, and the role read or write"
            )
        callers[token] = Caller(name, role)
    return Tokens(callers)


def requires(role: Role) -> Callable[[Request], Caller]:
    """A FastAPI dependency: the caller, who must have `role` (write includes read). 401 without a known token, 403 with too
    little. The application's tokens are `app.state.tokens`."""

    def check(request: Request) -> Caller:
        tokens: Tokens = request.app.state.tokens
        if not tokens.required:
            return Caller("local", "write")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        caller = tokens.caller(token.strip()) if scheme.lower() == "bearer" and token else None
        if caller is None:
            raise Problem(401, "a bearer token is needed", headers={"WWW-Authenticate": "Bearer"})
        if role == "write" and caller.role != "write":
            raise Problem(403, f"{caller.name} may read but not write")
        return caller

    return check
