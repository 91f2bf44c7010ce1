"""The knowledge service as the executor asks it: the policy in force, and the action by compare-and-swap.

Over HTTP, or in memory for tests and for running the loop in one process: both pass one suite.
"""

import json
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, TypeVar

import httpx
import structlog
from pydantic import BaseModel, ValidationError

from weir_contracts import ActionState, InvalidDocument, Outcome, ScalingPolicy
from weir_contracts.document import read_json
from weir_engines.driver import Rejected, Unanswered
from weir_executor.core.observed import Conflict, PolicyReading, Recorded
from weir_runtime.access import MEDIA_TYPE
from weir_runtime.loop import Stop

M = TypeVar("M", bound=BaseModel)

TOKEN_SETTING = "WEIR_KNOWLEDGE_TOKEN"  # noqa: S105 - the name of a setting
_TOKEN_REFUSED = (401, 403)
_FOR_GOOD = (413, 414, 415)
"""Refusals of the request itself, which sending it again does not change."""
_FOR_GOOD_OF_KNOWLEDGE = (400, 422)
"""The same in a problem document of knowledge's; a proxy gives these for reasons of its own."""
_ANYTHING = "/v1/policies/weir/readiness"
"""Policy that need not exist: the request is cheap for knowledge, and needs a token."""


class NotUsable(Exception):
    """No usable response of knowledge; the message gives the reason. `is_refusal`: the request itself was refused."""

    def __init__(self, reason: str, *, is_refusal: bool = False) -> None:
        super().__init__(reason)
        self.is_refusal = is_refusal


class Knowledge(Protocol):
    """The executor's requests to the knowledge service."""

    async def policy(self, application: str) -> PolicyReading:
        """Read the current policy."""

    async def outcome(self, application: str) -> Outcome | Unanswered | None:
        """Return the newest stored outcome, or None."""

    async def record(self, action: ActionState, version: int) -> Recorded | Conflict | Rejected | Unanswered:
        """Store the action if the stored one has `version` (0: none is stored)."""

    async def ping(self) -> None:
        """Return if the service is usable, raise otherwise."""

    async def close(self) -> None: ...


class HttpKnowledge:
    """Client with timeouts (`weir_runtime.http_client`); every error is a response, not an exception."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._log = structlog.get_logger("executor")
        self._answered = False
        self._refused: str | None = None
        """The method that the token was refused for, until it is accepted again."""

    async def policy(self, application: str) -> PolicyReading:
        try:
            response = await self._request("GET", f"/v1/policies/{application}", 200, 404)
            if response.status_code == 404:
                return PolicyReading(reachable=True, reason="there is no such policy")
            policy = _read(ScalingPolicy, response, "policy")
            return PolicyReading(reachable=True, policy=policy, at=_time_of(response))
        except NotUsable as error:
            return PolicyReading(reachable=False, reason=str(error))

    async def outcome(self, application: str) -> Outcome | Unanswered | None:
        try:
            response = await self._request("GET", f"/v1/applications/{application}/outcome", 200, 404)
            return None if response.status_code == 404 else _read(Outcome, response, "outcome")
        except NotUsable as error:
            return Unanswered(str(error))

    async def record(self, action: ActionState, version: int) -> Recorded | Conflict | Rejected | Unanswered:
        path = f"/v1/applications/{action.application}/action"
        headers = {"Content-Type": "application/json", "If-Match": str(version)}
        try:
            response = await self._request(
                "PUT", path, 200, 201, 204, 409, 412, content=action.model_dump_json(), headers=headers
            )
            return _conflict(response) if response.status_code in (409, 412) else Recorded()
        except NotUsable as error:
            return Rejected(str(error)) if error.is_refusal else Unanswered(str(error))

    async def ping(self) -> None:
        """Return if knowledge accepts this token; raise `NotUsable` otherwise."""
        await self._request("GET", _ANYTHING, 200, 404)

    async def until_answered(self, stop: Stop, again_seconds: float = 5.0) -> None:
        """Ask until a response arrives, so that a refused token is logged before a plan needs it."""
        while not stop.requested and not self._answered:
            with suppress(NotUsable):
                await self.ping()
            if not self._answered:
                await stop.wait(again_seconds)

    async def close(self) -> None:
        await self._client.aclose()

    async def _request(self, method: str, path: str, *usable: int, **arguments: Any) -> httpx.Response:
        """Return a response with one of the usable status codes; raise `NotUsable` otherwise."""
        try:
            response = await self._client.request(method, path, **arguments)
        except httpx.HTTPError as error:
            raise NotUsable(f"{method} {path}: {str(error) or type(error).__name__}") from None
        self._answered = True
        if response.status_code in _TOKEN_REFUSED:
            reason = _token_refused(response)
            if self._refused is None:
                self._refused = method
                self._log.warning("knowledge-refuses-the-token", reason=reason)
            raise NotUsable(reason)
        if self._refused in ("GET", method):
            # A token that may read need not be allowed to write.
            self._refused = None
            self._log.info("knowledge-accepts-the-token")
        if response.status_code not in usable:
            is_own = response.headers.get("Content-Type", "").partition(";")[0] == MEDIA_TYPE
            refusals = (*_FOR_GOOD, *_FOR_GOOD_OF_KNOWLEDGE) if is_own else _FOR_GOOD
            raise NotUsable(f"{method} {path}: {_detail(response)}", is_refusal=response.status_code in refusals)
        return response


def _time_of(response: httpx.Response) -> datetime | None:
    """Return the server's time, to the second; None without a valid `Date`."""
    try:
        return parsedate_to_datetime(response.headers["Date"]).astimezone(UTC)
    except (KeyError, ValueError):
        return None


def _read(model: type[M], response: httpx.Response, root: str) -> M:
    try:
        return read_json(model, response.content)
    except ValidationError as error:
        request = response.request
        raise NotUsable(f"{request.method} {request.url.path}: {InvalidDocument.of(error, root)}") from None


def _conflict(response: httpx.Response) -> Conflict:
    """Return the stored action: the body, or `current` of a problem document."""
    path = response.request.url.path
    try:
        document = json.loads(response.content)
        current = document.get("current", document) if isinstance(document, dict) else document
        return Conflict(None if current is None else ActionState.model_validate(current))
    except ValidationError as error:
        raise NotUsable(f"PUT {path}: 409 without the current action: {InvalidDocument.of(error, 'action')}") from None
    except ValueError:
        raise NotUsable(f"PUT {path}: 409 with a body that is no JSON") from None


def _detail(response: httpx.Response) -> str:
    try:
        document: Any = json.loads(response.content)
    except ValueError:
        document = None
    detail = document.get("detail") if isinstance(document, dict) else None
    return f"{response.status_code} {str(detail)[:300] if detail else response.reason_phrase}"


def _token_refused(response: httpx.Response) -> str:
    role = "" if response.status_code == 401 else " one of role executor"
    return (
        f"knowledge refused the token ({_detail(response)}): set{role} {TOKEN_SETTING}, "
        f"or the file {TOKEN_SETTING} in WEIR_SECRETS_FOLDER"
    )


class MemoryKnowledge:
    """Policies and actions of a knowledge service. `away` makes it unreachable, `lost_answers` loses the responses to
    that many stored actions."""

    def __init__(self) -> None:
        self.policies: dict[str, ScalingPolicy] = {}
        self.actions: dict[str, ActionState] = {}
        self.outcomes: dict[str, Outcome] = {}
        """The newest outcomes, as read from their topic."""
        self.away: str | None = None
        self.lost_answers = 0

    async def policy(self, application: str) -> PolicyReading:
        if self.away:
            return PolicyReading(reachable=False, reason=self.away)
        return PolicyReading(reachable=True, policy=self.policies.get(application))

    async def outcome(self, application: str) -> Outcome | Unanswered | None:
        return Unanswered(self.away) if self.away else self.outcomes.get(application)

    async def record(self, action: ActionState, version: int) -> Recorded | Conflict | Rejected | Unanswered:
        if self.away:
            return Unanswered(self.away)
        current = self.actions.get(action.application)
        if (current.version if current else 0) != version:
            return Conflict(current)
        self.actions[action.application] = action
        if self.lost_answers > 0:
            self.lost_answers -= 1
            return Unanswered("the answer was lost")
        return Recorded()

    async def ping(self) -> None:
        if self.away:
            raise ConnectionError(self.away)

    async def close(self) -> None:
        return None

    def set_mode(self, application: str, mode: str, at: datetime) -> ScalingPolicy:
        """Change a policy's mode as the knowledge service does: a new version, made at `at`."""
        policy = self.policies[application]
        metadata = policy.metadata.model_copy(update={"version": (policy.metadata.version or 0) + 1, "updated_at": at})
        spec = policy.spec.model_copy(update={"mode": mode})
        changed = policy.model_copy(update={"metadata": metadata, "spec": spec})
        self.policies[application] = changed
        return changed
