"""The knowledge service over HTTP: the policy in force, and the action by compare-and-swap."""

import json
from contextlib import suppress
from typing import Any

import httpx
import structlog
from pydantic import ValidationError
from weir_contracts import ActionState, InvalidDocument, Outcome, ScalingPolicy

from runtime.loop import Stop
from services.executor.core import Conflict, PolicyReading, Recorded, Unanswered

TOKEN_SETTING = "WEIR_KNOWLEDGE_TOKEN"  # noqa: S105 - the name of a setting
_TOKEN_REFUSED = (401, 403)
_ANYTHING = "/v1/policies/weir/readiness"
"""Policy that need not exist: the request is cheap for knowledge, and needs a token."""


class NotUsable(Exception):
    """The response of knowledge is unusable; the message gives the reason."""


class HttpKnowledge:
    """Client with timeouts (`runtime.http_client`); every error is a response, not an exception."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._log = structlog.get_logger("executor")
        self._answered = False
        self._refused: str | None = None
        """The method that the token was refused for, until it is accepted again."""

    async def _ask(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        response = await self._client.request(method, path, **arguments)
        self._answered = True
        if response.status_code in _TOKEN_REFUSED:
            if self._refused is None:
                self._refused = method
                self._log.warning("knowledge-refuses-the-token", reason=_detail(response))
        elif self._refused in ("GET", method):
            # A token that may read need not be allowed to write.
            self._refused = None
            self._log.info("knowledge-accepts-the-token")
        return response

    async def policy(self, application: str) -> PolicyReading:
        path = f"/v1/policies/{application}"
        try:
            response = await self._ask("GET", path)
        except httpx.HTTPError as error:
            return PolicyReading(reachable=False, because=f"GET {path}: {str(error) or type(error).__name__}")
        if response.status_code == 404:
            return PolicyReading(reachable=True, because="there is no such policy")
        if response.status_code != 200:
            return PolicyReading(reachable=False, because=f"GET {path}: {_detail(response)}")
        try:
            return PolicyReading(reachable=True, policy=ScalingPolicy.model_validate_json(response.content))
        except ValidationError as error:
            return PolicyReading(reachable=False, because=f"GET {path}: {InvalidDocument.of(error, 'policy')}")

    async def outcome(self, application: str) -> Outcome | Unanswered | None:
        path = f"/v1/applications/{application}/outcome"
        try:
            response = await self._ask("GET", path)
            if response.status_code == 404:
                return None
            if response.status_code == 200:
                return Outcome.model_validate_json(response.content)
        except httpx.HTTPError as error:
            return Unanswered(f"GET {path}: {str(error) or type(error).__name__}")
        except ValidationError as error:
            return Unanswered(f"GET {path}: {InvalidDocument.of(error, 'outcome')}")
        return Unanswered(f"GET {path}: {_detail(response)}")

    async def record(self, action: ActionState, version: int) -> Recorded | Conflict | Unanswered:
        path = f"/v1/applications/{action.application}/action"
        try:
            response = await self._ask(
                "PUT",
                path,
                content=action.model_dump_json(),
                headers={"Content-Type": "application/json", "If-Match": str(version)},
            )
        except httpx.HTTPError as error:
            return Unanswered(f"PUT {path}: {str(error) or type(error).__name__}")
        if response.status_code in (200, 201, 204):
            return Recorded()
        if response.status_code in (409, 412):
            return _conflict(response, path)
        return Unanswered(f"PUT {path}: {_detail(response)}")

    async def ping(self) -> None:
        """Return if knowledge accepts this token; raise `NotUsable` or `httpx.HTTPError` otherwise."""
        response = await self._ask("GET", _ANYTHING)
        if response.status_code not in (200, 404):
            raise NotUsable(_detail(response))

    async def until_answered(self, stop: Stop, again_seconds: float = 5.0) -> None:
        """Ask until a response arrives, so that a refused token is logged before a plan needs it."""
        while not stop.requested and not self._answered:
            with suppress(httpx.HTTPError, NotUsable):
                await self.ping()
            if not self._answered:
                await stop.wait(again_seconds)

    async def close(self) -> None:
        await self._client.aclose()


def _conflict(response: httpx.Response, path: str) -> Conflict | Unanswered:
    """Return the stored action: the body, or `current` of a problem document."""
    try:
        document = json.loads(response.content)
        current = document.get("current", document) if isinstance(document, dict) else document
        return Conflict(None if current is None else ActionState.model_validate(current))
    except ValidationError as error:
        return Unanswered(f"PUT {path}: 409 without the current action: {InvalidDocument.of(error, 'action')}")
    except ValueError:
        return Unanswered(f"PUT {path}: 409 with a body that is no JSON")


def _detail(response: httpx.Response) -> str:
    try:
        document: Any = json.loads(response.content)
    except ValueError:
        document = None
    detail = document.get("detail") if isinstance(document, dict) else None
    detail = f"{str(detail)[:300] if detail else response.reason_phrase}"
    if response.status_code not in _TOKEN_REFUSED:
        return f"{response.status_code} {detail}"
    role = "" if response.status_code == 401 else " one of role write"
    return (
        f"knowledge refused the token ({response.status_code} {detail}): set{role} {TOKEN_SETTING}, "
        f"or the file {TOKEN_SETTING} in WEIR_SECRETS_FOLDER"
    )
