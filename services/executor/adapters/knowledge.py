"""The knowledge service over HTTP: the policy in force, and the action by compare-and-swap."""

import json
from typing import Any

import httpx
from pydantic import ValidationError
from weir_contracts import ActionState, ScalingPolicy

from services.executor.core import Conflict, PolicyReading, Recorded, Unanswered


class HttpKnowledge:
    """A client with timeouts (`runtime.http.async_client`). Whatever goes wrong is an answer, never an exception."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def policy(self, application: str) -> PolicyReading:
        path = f"/v1/policies/{application}"
        try:
            response = await self._client.get(path)
        except httpx.HTTPError as error:
            return PolicyReading(reachable=False, because=f"GET {path}: {str(error) or type(error).__name__}")
        if response.status_code == 404:
            return PolicyReading(reachable=True, because="there is no such policy")
        if response.status_code != 200:
            return PolicyReading(reachable=False, because=f"GET {path}: {_said(response)}")
        try:
            return PolicyReading(reachable=True, policy=ScalingPolicy.model_validate_json(response.content))
        except ValidationError as error:
            return PolicyReading(reachable=False, because=f"GET {path}: {_first(error)}")

    async def record(self, action: ActionState, version: int) -> Recorded | Conflict | Unanswered:
        path = f"/v1/applications/{action.application}/action"
        try:
            response = await self._client.put(
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
        return Unanswered(f"PUT {path}: {_said(response)}")

    async def ping(self) -> None:
        (await self._client.get("/health/live")).raise_for_status()

    async def close(self) -> None:
        await self._client.aclose()


def _conflict(response: httpx.Response, path: str) -> Conflict | Unanswered:
    """The action that is there: the body itself, or its member `current` where the body is a problem document."""
    try:
        document = json.loads(response.content)
        current = document.get("current", document) if isinstance(document, dict) else document
        return Conflict(None if current is None else ActionState.model_validate(current))
    except ValidationError as error:
        return Unanswered(f"PUT {path}: 409 without the current action: {_first(error)}")
    except ValueError:
        return Unanswered(f"PUT {path}: 409 with a body that is no JSON")


def _said(response: httpx.Response) -> str:
    try:
        document: Any = json.loads(response.content)
    except ValueError:
        document = None
    detail = document.get("detail") if isinstance(document, dict) else None
    return f"{response.status_code} {str(detail)[:300] if detail else response.reason_phrase}"


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(p) for p in first['loc'])}: {first['msg']}"
