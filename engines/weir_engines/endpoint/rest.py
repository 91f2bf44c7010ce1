"""Endpoint of one application over an HTTP client that the caller creates, limits and closes.

No text of a response is passed on in errors: a policy's author chooses the address that it comes from.
"""

import asyncio
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpx
from pydantic import ValidationError

from weir_contracts.document import read_json, sentence_of
from weir_contracts.plugins import EndpointRequest, EndpointRestart, EndpointState

MAX_ANSWER_BYTES = 1_000_000
_CONFLICT, _NOT_FOUND = 409, 404
_DENIED = frozenset({401, 403})
_FINAL = frozenset({400, 401, 403, 404, 405, 410, 415, 422})
"""Statuses that a repeated request would get again."""


class EndpointFailed(Exception):
    """Error of a call without a usable response, or refused with `status`."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(reason)

    @property
    def is_denied(self) -> bool:
        """Whether the token is missing or wrong."""
        return self.status in _DENIED

    @property
    def is_missing(self) -> bool:
        """Whether the endpoint does not know the application."""
        return self.status == _NOT_FOUND

    @property
    def is_conflict(self) -> bool:
        """Whether the endpoint has another version, and changed nothing."""
        return self.status == _CONFLICT

    @property
    def is_final(self) -> bool:
        """Whether a repeated call would fail in the same way."""
        return self.status in _FINAL


class Endpoint:
    """One endpoint. A call ends within `answer_seconds`."""

    def __init__(self, client: httpx.AsyncClient, url: str, answer_seconds: float) -> None:
        self._client = client
        self._url = url
        self._answer_seconds = answer_seconds

    async def read(self) -> EndpointState:
        """Return the instances. Raises `EndpointFailed`."""
        content = await self._send("GET")
        try:
            return read_json(EndpointState, content)
        except ValidationError as error:
            raise EndpointFailed(f"the endpoint's answer to GET is invalid: {_problem(error)}") from None

    async def scale(self, replicas: int, version: str, timeout: httpx.Timeout) -> None:
        """Request a number of instances if the endpoint still has this version. Raises `EndpointFailed`.

        The body of the response is not used: the next reading shows what the endpoint has.
        """
        body = EndpointRequest(replicas=replicas, version=version)
        await self._send("PUT", json=body.model_dump(mode="json", by_alias=True), timeout=timeout)

    async def restart(self, instance: str, action: UUID, version: str, timeout: httpx.Timeout) -> None:
        """Restart one instance if the endpoint still has this version. Raises `EndpointFailed`."""
        body = EndpointRestart(action=action, version=version).model_dump(mode="json", by_alias=True)
        await self._send("POST", f"/instances/{quote(instance, safe='')}/restart", json=body, timeout=timeout)

    async def _send(self, method: str, path: str = "", **arguments: Any) -> bytes:
        try:
            # httpx limits each wait for bytes: without this limit of the call a slow response would block the caller.
            async with asyncio.timeout(self._answer_seconds):
                url = f"{self._url.rstrip('/')}{path}" if path else self._url
                response = await self._client.request(method, url, **arguments)
        except (httpx.TimeoutException, TimeoutError):
            raise EndpointFailed(f"the endpoint did not answer {method} within {self._answer_seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EndpointFailed(
                f"{method} of the endpoint failed: {str(error)[:200] or type(error).__name__}"
            ) from None
        status = response.status_code
        if response.is_redirect or 300 <= status < 400:
            raise EndpointFailed(f"the endpoint redirects {method} ({status}), which is not followed", status)
        if not response.is_success:
            phrase = httpx.codes.get_reason_phrase(status)
            raise EndpointFailed(f"the endpoint answered {method} with {status} {phrase}".rstrip(), status)
        return response.content


def _problem(error: ValidationError) -> str:
    """Return the first invalid field and the reason, without its value."""
    first, *_ = error.errors(include_url=False, include_input=False)
    if first["type"] == "json_invalid":
        return "it is not JSON"
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {sentence_of(first)}"[:200] if place else sentence_of(first)[:200]
