"""Asks the planner service which planners there are, so that a policy with an unknown one is refused when it is written."""

from typing import Any

import httpx
from weir_contracts import PlannerChoice


class PlannerCatalogue:
    """`GET /v1/planners` of the planner service. A service that is away refuses nothing."""

    def __init__(self, url: str | None, timeout_seconds: float = 1.5) -> None:
        self._url = url
        self._timeout_seconds = timeout_seconds

    async def problems(self, choice: PlannerChoice) -> list[tuple[str, str]] | None:
        """`(field, sentence)` for each thing that is wrong with the choice; None if nobody could be asked."""
        if self._url is None:
            return None
        try:
            async with httpx.AsyncClient(timeout=self._timeout_seconds, follow_redirects=False) as client:
                answer = await client.get(f"{self._url}/v1/planners")
                answer.raise_for_status()
                known = _schemas(answer.json())
        except (httpx.HTTPError, ValueError):
            return None
        if choice.name not in known:
            return [("spec.planner.name", f"{choice.name!r} is not known; there are: {', '.join(sorted(known))}")]
        allowed = known[choice.name]
        if allowed is None:
            return []
        return [
            (
                f"spec.planner.parameters.{name}",
                f"{choice.name} has no such parameter; it has: {', '.join(sorted(allowed))}",
            )
            for name in choice.parameters
            if name not in allowed
        ]


def _schemas(document: Any) -> dict[str, set[str] | None]:
    """Planner name → names of its parameters (None: it says nothing about them)."""
    entries = document.get("planners") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise ValueError("the planner service answered something else than a list")  # noqa: TRY004 - not a caller's argument
    found: dict[str, set[str] | None] = {}
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            schema = entry.get("parameters")
            properties = schema.get("properties") if isinstance(schema, dict) else None
            found[entry["name"]] = set(properties) if isinstance(properties, dict) else None
    return found
