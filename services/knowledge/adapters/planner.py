"""Asks the planner service which planners there are, so that a policy with an unknown one, or with parameters that it would
not take, is refused when it is written."""

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any

import httpx
from pydantic import Field, SecretStr, TypeAdapter, ValidationError
from weir_contracts import PlannerChoice

from runtime.http import async_client

Wrong = list[tuple[str, str]]
Properties = Mapping[str, Any]

_TYPES: dict[str, Any] = {"number": float, "integer": int, "boolean": bool, "string": str, "null": None}
_LIMITS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
    "minLength": "min_length",
    "maxLength": "max_length",
    "pattern": "pattern",
}
"""What JSON Schema calls a limit, and what pydantic does."""


class PlannerCatalogue:
    """`GET /v1/planners` of the planner service. A service that is away refuses nothing."""

    def __init__(self, url: str | None, token: SecretStr | None = None, timeout_seconds: float = 1.5) -> None:
        self._url = url
        self._token = token
        self._timeout_seconds = timeout_seconds

    def _client(self, url: str) -> httpx.AsyncClient:
        return async_client(url, self._token, self._timeout_seconds)

    async def problems(self, choice: PlannerChoice) -> Wrong | None:
        """`(field, sentence)` for each thing that is wrong with the choice; None if nobody could be asked."""
        if self._url is None:
            return None
        try:
            async with self._client(self._url) as client:
                answer = await client.get("/v1/planners")
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
            wrong for name, value in choice.parameters.items() for wrong in _wrong(choice.name, allowed, name, value)
        ]


def _schemas(document: Any) -> dict[str, Properties | None]:
    """Planner name → the schema of each of its parameters (None: it says nothing about them)."""
    entries = document.get("planners") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise ValueError("the planner service answered something else than a list")  # noqa: TRY004 - not a caller's argument
    found: dict[str, Properties | None] = {}
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            schema = entry.get("parameters")
            properties = schema.get("properties") if isinstance(schema, dict) else None
            found[entry["name"]] = properties if isinstance(properties, dict) else None
    return found


def _wrong(planner: str, allowed: Properties, name: str, value: Any) -> Wrong:
    field = f"spec.planner.parameters.{name}"
    if name not in allowed:
        return [(field, f"{planner} has no such parameter; it has: {', '.join(sorted(allowed))}")]
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(_type(allowed[name]))
    except (TypeError, ValueError, RuntimeError):
        return []  # limits that do not suit the type: the planner's mistake, which it finds itself
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        # A parameter of several types is refused by each of them.
        said = dict.fromkeys(each["msg"] for each in error.errors(include_url=False))
        return [(field, f"{' or: '.join(said)} (is {repr(value)[:80]})")]
    return []


def _type(schema: Any) -> Any:
    """The type that a parameter's JSON Schema stands for: numbers, text and choices between them with their limits. What it
    says beyond that is left to the planner."""
    if not isinstance(schema, dict):
        return Any
    choices = schema.get("anyOf")
    if isinstance(choices, list) and choices:
        types = [_type(choice) for choice in choices]
        return Any if Any in types else reduce(or_, types)
    kind = schema.get("type")
    if not isinstance(kind, str) or kind not in _TYPES:
        return Any
    limits = {_LIMITS[key]: limit for key, limit in schema.items() if key in _LIMITS}
    return Annotated[_TYPES[kind], Field(**limits)] if limits else _TYPES[kind]
