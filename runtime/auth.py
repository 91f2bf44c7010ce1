"""Authorisation of HTTP requests. Without tokens (loopback only) every caller is `local`."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from .problems import Problem
from .tokens import Caller, Role, Tokens, read_tokens

__all__ = ["Caller", "Role", "Tokens", "read_tokens", "requires"]

_BEARER = HTTPBearer(auto_error=False, description="needed where the service was started with tokens")


def requires(role: Role) -> Callable[..., Awaitable[Caller]]:
    """Return a FastAPI dependency: the caller, with at least `role` (write includes read), by `app.state.tokens`.

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
