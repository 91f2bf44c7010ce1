"""Access to an HTTP API: bearer tokens with roles and namespaces, checked before a body is read, and errors as RFC 9457
problem documents that name the wrong field."""

import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import structlog
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from weir_contracts import InvalidDocument, printable
from weir_contracts.document import MAX_CALLER_CHARACTERS

MEDIA_TYPE = "application/problem+json"
MAX_DETAIL_CHARACTERS = 8000
"""Of a sentence: five problems of a document fit."""
Role = Literal["metrics", "read", "write", "planner-admin", "executor"]
MIN_TOKEN_LENGTH = 16
PUBLIC = ("/health", "/health/live", "/health/ready")
"""Paths without a token: probes have none, and the answers name no application."""
_BEARER = HTTPBearer(auto_error=False, description="needed where the service was started with tokens")


class Problem(Exception):
    """An error response. `errors` are `(field, sentence)` pairs."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        errors: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.status = status
        self.detail = detail
        self.errors = list(errors)
        self.headers = headers
        self.extra = dict(extra or {})
        super().__init__(detail)


def invalid(error: InvalidDocument) -> Problem:
    """Return a 422 that names the first wrong fields and counts the others."""
    return Problem(422, str(error), errors=error.problems)


class AnyText(JSONResponse):
    """Encode as JSON, replacing lone surrogates instead of failing."""

    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode(errors="replace")


def answer(problem: Problem) -> JSONResponse:
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": printable(problem.detail, MAX_DETAIL_CHARACTERS),
    }
    if problem.errors:
        body["errors"] = [
            {"field": printable(field, MAX_DETAIL_CHARACTERS), "message": printable(message, MAX_DETAIL_CHARACTERS)}
            for field, message in problem.errors
        ]
    body |= problem.extra
    return AnyText(body, status_code=problem.status, media_type=MEDIA_TYPE, headers=dict(problem.headers or {}))


_SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "description": "RFC 9457; `errors` names each field at fault.",
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
                "required": ["field", "message"],
            },
        },
    },
    "required": ["type", "title", "status", "detail"],
}


def documented(description: str, status: int, detail: str, *fields: tuple[str, str]) -> dict[str, Any]:
    """Return an entry of a route's `responses`: the schema of problems, with this one as the example."""
    shown = json.loads(bytes(answer(Problem(status, detail, errors=fields)).body))
    return {"description": description, "content": {MEDIA_TYPE: {"schema": _SCHEMA, "example": shown}}}


def install_problems(app: FastAPI) -> None:
    """Let `app` respond to every error with a problem document, without internals."""

    @app.exception_handler(Problem)
    async def _problem(_request: Request, error: Problem) -> JSONResponse:
        return answer(error)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        return answer(invalid(InvalidDocument.of(error.errors())))

    @app.exception_handler(HTTPException)
    async def _http(_request: Request, error: HTTPException) -> JSONResponse:
        return answer(Problem(error.status_code, str(error.detail), headers=error.headers))

    @app.exception_handler(ClientDisconnect)
    async def _disconnected(_request: Request, _error: ClientDisconnect) -> JSONResponse:
        return answer(Problem(400, "the client left before its body was complete"))

    @app.exception_handler(Exception)
    async def _bug(request: Request, error: Exception) -> JSONResponse:
        structlog.get_logger("http").exception("request-failed", path=request.url.path, error=type(error).__name__)
        return answer(Problem(500, "the service failed; its log has the reason"))


_INCLUDED: Mapping[Role, frozenset[Role]] = {
    "metrics": frozenset({"metrics"}),
    "read": frozenset({"metrics", "read"}),
    "write": frozenset({"metrics", "read", "write"}),
    "planner-admin": frozenset({"metrics", "read", "planner-admin"}),
    "executor": frozenset({"metrics", "read", "executor"}),
}
"""What each role may: `metrics` the Prometheus metrics alone, `write` policies, `planner-admin` registrations of
planners, `executor` the record of the action in flight."""


@dataclass(frozen=True)
class Caller:
    """The author of a request, for the record of changes."""

    name: str
    roles: frozenset[Role]
    namespaces: frozenset[str] | None = None
    """Whose policies and applications it may read and change; None: of all."""

    def may(self, role: Role) -> bool:
        return any(role in _INCLUDED[own] for own in self.roles)

    def may_see(self, application: str) -> bool:
        """Return whether it may read a namespace, or the application `namespace/name`."""
        return self.namespaces is None or application.partition("/")[0] in self.namespaces


LOCAL = Caller("local", frozenset(_INCLUDED))
"""Every caller of a listener without tokens, which is on loopback."""


class Tokens:
    """Tokens and their callers."""

    def __init__(self, callers: dict[str, Caller]) -> None:
        self._callers = {hashlib.sha256(token.encode()).digest(): caller for token, caller in callers.items()}

    @property
    def required(self) -> bool:
        return bool(self._callers)

    def with_own(self, token: str, caller: Caller) -> "Tokens":
        """Return these tokens and that of the process's own requests; without tokens every request is allowed anyway."""
        if not self.required:
            return self
        tokens = Tokens({token: caller})
        tokens._callers |= self._callers
        return tokens

    def caller(self, token: str) -> Caller | None:
        """Return the caller of a token, in a time that is independent of the other tokens."""
        given = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        found = None
        for digest, caller in self._callers.items():
            if hmac.compare_digest(given, digest):
                found = caller
        return found


def read_tokens(path: Path | None, text: str | None = None) -> Tokens:
    """Read tokens from a file and from `text`: `{"token": {"name": "ada", "role": "write"}}`. `role` may be a list,
    and `namespaces` a list of those that the caller may read and change.

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
        name, role, named = _field(entry, "name"), _field(entry, "role"), _field(entry, "namespaces")
        roles = _texts(role if isinstance(role, list) else [role])
        namespaces = None if named is None else _texts(named)
        if (
            len(token) < MIN_TOKEN_LENGTH
            or not isinstance(name, str)
            or not 0 < len(name) <= MAX_CALLER_CHARACTERS
            or not roles
            or not roles <= _INCLUDED.keys()
            or (named is not None and not namespaces)
        ):
            raise ValueError(
                f"{setting}: entry {i + 1} of {place} needs a token of {MIN_TOKEN_LENGTH} characters or more, "
                f"a name of at most {MAX_CALLER_CHARACTERS}, a role of {', '.join(_INCLUDED)}, "
                "and perhaps a list of namespaces"
            )
        callers[token] = Caller(name, cast("frozenset[Role]", roles), namespaces)
    return callers


def _field(entry: Any, name: str) -> Any:
    return entry.get(name) if isinstance(entry, dict) else None


def _texts(value: Any) -> frozenset[str] | None:
    """Return the texts of a list; None if it is no list of texts."""
    is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
    return frozenset(value) if is_list else None


class Authentication:
    """ASGI middleware that identifies the caller by `app.state.tokens` and responds 401 without a valid token, before
    the body is read. `/health/…` and the `public` paths need none. Without tokens (loopback only) every caller is
    `local`."""

    def __init__(self, app: ASGIApp, public: Collection[str] = ()) -> None:
        self._app = app
        self._public = frozenset((*PUBLIC, *public))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._public:
            caller = _caller(scope["app"].state.tokens, Headers(scope=scope).get("authorization", ""))
            if caller is None:
                headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
                refused = Problem(401, "a known bearer token is needed", headers=headers)
                await answer(refused)(scope, receive, send)
                return
            scope["state"] = {**scope.get("state", {}), "caller": caller}
        await self._app(scope, receive, send)


def _caller(tokens: Tokens, authorization: str) -> Caller | None:
    if not tokens.required:
        return LOCAL
    scheme, _, token = authorization.partition(" ")
    return tokens.caller(token.strip()) if scheme.lower() == "bearer" else None


def requires(role: Role) -> Callable[..., Awaitable[Caller]]:
    """Return a FastAPI dependency: the caller that `Authentication` found; 403 if none of its roles includes `role`, or
    if the path's namespace is not one of its own."""

    async def check(request: Request, _documented: Annotated[object, Depends(_BEARER)]) -> Caller:
        caller: Caller = request.state.caller
        if not caller.may(role):
            raise Problem(403, f"{caller.name} has no token of the role {role}")
        namespace = request.path_params.get("namespace")
        if namespace is not None and not caller.may_see(namespace):
            raise Problem(403, f"{caller.name} has no token for the namespace {namespace}")
        return caller

    return check
