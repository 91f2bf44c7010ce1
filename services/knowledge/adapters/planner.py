"""Asks the planner service whether the planners that a policy names exist and take its parameters, when it is written."""

from typing import Any

import httpx
from pydantic import SecretStr
from weir_contracts import PolicySpec

from runtime.http_client import async_client

Wrong = list[tuple[str, str]]
"""Field of the policy, and what is wrong there."""


class PlannerAway(Exception):
    """The planner service gave no verdict; the sentence says why."""


class PlannerCatalogue:
    """`POST /v1/planners/validate` of the planner service. Without a `url` nothing is asked and nothing refused."""

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
        """`(field, sentence)` for each thing that is wrong with the planners it names. Raises `PlannerAway`."""
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
            raise PlannerAway("it answered something that is no verdict") from None


def named(spec: PolicySpec) -> list[dict[str, Any]]:
    """Every planner that a policy names, with where it does: the chosen one, shadows, and their fallbacks."""
    found = []
    for field, choice in [
        ("spec.planner", spec.planner),
        *((f"spec.shadows.{i}", s) for i, s in enumerate(spec.shadows)),
    ]:
        found.append({"field": field, "name": choice.name, "parameters": choice.parameters})
        if choice.fallback is not None:
            fallback = {"name": choice.fallback.name, "parameters": choice.fallback.parameters}
            found.append({"field": f"{field}.fallback", **fallback})
    return found
