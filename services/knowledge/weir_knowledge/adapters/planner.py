"""Checks the planners and parameters of a policy with the planner service, when the policy is written."""

from typing import Any

import httpx
from pydantic import SecretStr

from weir_contracts import PlannerChoice, PlannerFallback, PolicySpec
from weir_runtime.http_client import async_client

Wrong = list[tuple[str, str]]
"""Fields of the policy, and what is wrong."""


class PlannerAway(Exception):
    """The planner service did not check the policy; the sentence gives the reason."""


class PlannerCatalogue:
    """`POST /v1/planners/validate` of the planner service. Without a `url` nothing is checked."""

    def __init__(self, url: str | None, token: SecretStr | None = None, timeout_seconds: float = 3.0) -> None:
        self._url = url
        self._token = token
        self._timeout_seconds = timeout_seconds

    @property
    def asks(self) -> bool:
        """Return whether a planner service is configured."""
        return self._url is not None

    def _client(self, url: str) -> httpx.AsyncClient:
        return async_client(url, self._token, self._timeout_seconds)

    async def problems(self, spec: PolicySpec) -> Wrong:
        """Return `(field, sentence)` for each problem of the policy's planners. Raises `PlannerAway`."""
        if self._url is None:
            return []
        try:
            async with self._client(self._url) as client:
                answer = await client.post("/v1/planners/validate", json={"choices": named(spec)})
        except httpx.HTTPError as error:
            raise PlannerAway(f"it does not answer ({type(error).__name__})") from None
        if answer.status_code in (401, 403):
            raise PlannerAway("it does not accept WEIR_KNOWLEDGE_PLANNER_TOKEN")
        if answer.status_code != 200:
            raise PlannerAway(f"it answered {answer.status_code}")
        try:
            return [(str(each["field"]), str(each["message"])) for each in answer.json()["problems"]]
        except (ValueError, KeyError, TypeError):
            raise PlannerAway("it answered with an unknown document") from None


def named(spec: PolicySpec) -> list[dict[str, Any]]:
    """Return every planner that a policy names with its field: the chosen one, its fallback, candidates and shadows."""
    fallback = [] if spec.planner.fallback is None else [("spec.planner.fallback", spec.planner.fallback)]
    choices: list[tuple[str, PlannerChoice | PlannerFallback]] = [
        ("spec.planner", spec.planner),
        *fallback,
        *((f"spec.shadows.{i}", each) for i, each in enumerate(spec.shadows)),
        *((f"spec.candidates.{i}", each) for i, each in enumerate(spec.candidates)),
    ]
    return [{"field": field, "name": each.name, "parameters": each.parameters} for field, each in choices]
