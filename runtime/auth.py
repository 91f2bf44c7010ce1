"""Who may do what over HTTP. Without tokens (loopback only) everybody is `local`."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from .problems import Problem
from .tokens import Caller, Role, Tokens, read_tokens

__all__ = ["Caller", "Role", "Tokens", "read_tokens", "requires"]

_BEARER = HTTPBearer(auto_error=False, description="needed where the service was started with tokens")


def requires(role: Role) -> Callable[..., Awaitable[Caller]]:
    """A FastAPI dependency: the caller, who must have `role` (write includes read). 401 without a known token, 403 with too
    little. The application's tokens are `app.state.tokens`."""

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
