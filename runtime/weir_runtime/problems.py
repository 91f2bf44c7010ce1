"""Errors of an HTTP API as RFC 9457 problem documents that name the wrong field."""

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from weir_contracts import InvalidDocument, printable

MEDIA_TYPE = "application/problem+json"
MAX_DETAIL_CHARACTERS = 8000
"""Of a sentence: five problems of a document fit."""


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


def install(app: FastAPI) -> None:
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
