"""Addresses, callers and responses of the API: response types that are no contracts, and the description of every route's responses."""

from datetime import timedelta
from functools import cache
from typing import Annotated, Any

from fastapi import Depends, Path
from pydantic import BaseModel, Field
from weir_contracts import (
    ActionState,
    Analysis,
    LoopResult,
    Message,
    Observation,
    Outcome,
    Plan,
    ScalingPolicy,
    Scores,
    WhatIf,
    example,
    parse_duration,
)

from runtime import problems
from runtime.auth import Caller, requires

from . import messages
from .core import Cycle, Summary

Responses = dict[int | str, dict[str, Any]]
Namespace = Annotated[str, Path(examples=["shop"])]
Name = Annotated[str, Path(examples=["orders"])]


def application_of(namespace: Namespace, name: Name) -> str:
    """Return the application that an address names."""
    return f"{namespace}/{name}"


Application = Annotated[str, Depends(application_of)]
Reader = Annotated[Caller, Depends(requires("read"))]
Writer = Annotated[Caller, Depends(requires("write"))]
Next = Annotated[str | None, Field(description="`after` of the next page; null: this was the last one")]


def duration_between(text: str, minimum: str, maximum: str) -> timedelta:
    """Parse a duration with bounds such as `10s` and `1d`. `ValueError` outside of them."""
    found = parse_duration(text)
    if not parse_duration(minimum) <= found <= parse_duration(maximum):
        raise ValueError(messages.outside(minimum, maximum))
    return found


class Policies(Message):
    """A page of policies."""

    items: list[ScalingPolicy]
    next: Next = None


class Applications(Message):
    """A page of applications."""

    items: list[Summary]
    next: Next = None


class History(Message):
    """Past cycles in one line each, newest first."""

    items: list[LoopResult]


class Explanation(Message):
    """The last decisions, newest first."""

    items: list[Cycle]


def _summary(observation: dict[str, Any], analysis: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    deployment = observation["deployment"]
    return {
        "application": observation["application"],
        "mode": plan["mode"],
        "status": observation["status"],
        "objective_seconds": 30.0,
        **{name: analysis[name]["value"] for name in ("lag_seconds", "lag_records", "arrival_rate")},
        "bottleneck": analysis["bottleneck"],
        "planned": plan["action"]["parallelism"],
        "requested": deployment["requested"],
        "observed": deployment["observed"],
        "decision": plan["sentence"],
        "decision_code": plan["code"],
        "decided_at": plan["created_at"],
        "ages_seconds": {"monitor": 1.2, "analyzer": 1.2, "planner": 1.2},
    }


def _cycle(
    observation: dict[str, Any], analysis: dict[str, Any], plan: dict[str, Any], outcome: dict[str, Any]
) -> dict[str, Any]:
    return {
        "correlation_id": observation["id"],
        "reading": {
            **{name: observation[name] for name in ("observed_at", "status", "message")},
            "observed": observation["deployment"]["observed"],
        },
        "analysis": {
            name: analysis[name] for name in ("arrival_rate", "lag_records", "lag_seconds", "bottleneck", "symptoms")
        },
        "plan": plan,
        "outcomes": [outcome],
    }


@cache
def examples() -> dict[type[BaseModel], Any]:
    """Return an example of every response: the contracts' golden examples, and what is built from them."""
    contracts: dict[type[BaseModel], str] = {
        ScalingPolicy: "policy",
        Observation: "observation",
        Analysis: "analysis",
        Plan: "plan",
        Outcome: "outcome",
        ActionState: "action-state",
        WhatIf: "what-if",
        Scores: "scores",
    }
    shown: dict[type[BaseModel], Any] = {model: example(name) for model, name in contracts.items()}
    observation, analysis, plan, outcome = (shown[model] for model in (Observation, Analysis, Plan, Outcome))
    shown[Summary] = _summary(observation, analysis, plan)
    shown[Cycle] = _cycle(observation, analysis, plan, outcome)
    line = Plan.model_validate(plan).in_short(analysis["lag_seconds"]["value"], analysis["arrival_rate"]["value"])
    shown[LoopResult] = {**line.model_dump(mode="json"), "outcome": outcome["phase"]}
    shown[Policies] = {"items": [shown[ScalingPolicy]], "next": None}
    shown[Applications] = {"items": [shown[Summary]], "next": None}
    shown[History] = {"items": [shown[LoopResult]]}
    shown[Explanation] = {"items": [shown[Cycle]]}
    return shown


def shows(model: type[BaseModel]) -> dict[str, Any]:
    """Return the content of a response, with the example of `model`."""
    return {"content": {"application/json": {"example": examples()[model]}}}


def responds(model: type[BaseModel], *more: Responses) -> dict[str, Any]:
    """Return the arguments of a route that responds with `model`: its type, its example, and further responses."""
    responses: Responses = {200: shows(model)}
    for each in more:
        responses |= each
    return {"response_model": model, "responses": responses}


def refuses(status: int, description: str, detail: str, *fields: tuple[str, str]) -> Responses:
    """Return a further response of a route: a problem document with its example."""
    return {status: problems.documented(description, status, detail, *fields)}


ERRORS: Responses = {
    "4XX": problems.documented("The request is wrong", 404, messages.unknown_application("shop/orders")),
    **refuses(503, "The store is away", "redis: connection refused"),
}
"""How every route may fail."""
CHANGED = refuses(409, "Another writer was first", messages.changed_by_another("shop/orders", 8))
_WRONG_LAG = "must be a duration with a unit such as 30s"
WRONG_POLICY = refuses(
    422, "Names every wrong field", f"spec.objective.maxLag: {_WRONG_LAG}", ("spec.objective.maxLag", _WRONG_LAG)
)
