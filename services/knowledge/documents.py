"""Response types of the API that are not contracts, and how its description shows each response: a type and an example."""

from typing import Annotated, Any

from fastapi import Path
from pydantic import Field
from weir_contracts import LoopResult, Message, ScalingPolicy

from runtime import problems

from .core import Summary, Turn

Namespace = Annotated[str, Path(examples=["shop"])]
Name = Annotated[str, Path(examples=["orders"])]
Next = Annotated[str | None, Field(description="give it as `after` for the next page; null: this was the last one")]


class Policies(Message):
    """A page of policies."""

    items: list[ScalingPolicy]
    next: Next = None


class Applications(Message):
    """A page of applications."""

    items: list[Summary]
    next: Next = None


class History(Message):
    """Past turns in one line each, newest first."""

    items: list[LoopResult]


class Explanation(Message):
    """The last decisions, newest first."""

    items: list[Turn]


def example(value: Any, media_type: str = "application/json") -> dict[str, Any]:
    """An entry of `responses` that shows `value`; the type comes from the route's model."""
    return {"content": {media_type: {"example": value}}}


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": problems.documented("What is wrong with the request", 404, "nothing is known of shop/orders"),
    503: problems.documented("The store is away", 503, "redis: connection refused"),
}
"""How every route may fail."""
CHANGED: dict[int | str, dict[str, Any]] = {
    409: problems.documented(
        "Another writer was first", 409, "shop/orders was changed by another writer: its version is 8"
    )
}
WRONG_POLICY: dict[int | str, dict[str, Any]] = {
    422: problems.documented(
        "Names every wrong field",
        422,
        "spec.objective.maxLag: must be a duration with a unit such as 30s",
        ("spec.objective.maxLag", "must be a duration with a unit such as 30s"),
    )
}
