"""What the planner's HTTP API takes and gives, and how its answers are described."""

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field
from weir_contracts import NewPlanner
from weir_contracts.base import NAME_PATTERN, Name, Timestamp

from runtime.problems import documented

PlannerName = Annotated[str, Path(pattern=rf"^{NAME_PATTERN}$", description="the planner's name")]


class PlannerToRegister(NewPlanner):
    """A planner to be registered. Here an unknown field is a mistake and not a newer version."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [{"name": "mine", "url": "https://planner.example.org/mine", "credential": "for-mine"}]
        },
    )


class CircuitView(BaseModel):
    """Whether a planner is asked: after several failures in a row nobody asks it for a while."""

    state: Literal["closed", "open", "half-open"]
    failures_in_a_row: int
    asked_again_in_seconds: float
    last_failure: str | None


class PlannerView(BaseModel):
    """A planner that policies can name. Fields of another kind are null; a credential is its name, never its value."""

    name: str
    kind: Literal["built-in", "installed", "http", "kta"]
    description: str | None
    parameters: dict[str, Any] | None
    """JSON Schema of its parameters; null where it has not told."""
    scope: Literal["operator", "application"] | None = None
    planner_version: str | None = None
    """What it calls its own version."""
    contract_versions: list[str] | None = None
    version: int | None = None
    """Of the registration."""
    url: str | None = None
    monitor_url: str | None = None
    analyze_url: str | None = None
    plan_url: str | None = None
    credential: str | None = None
    result_history_length: int | None = None
    offer_analysis: bool | None = None
    registered_at: Timestamp | None = None
    registered_by: str | None = None
    breaker: CircuitView | None = None
    package: str | None = None
    """The installed Python package that brings it."""
    problem: str | None = None
    """Why a planner of an installed package cannot be used."""


class PlannerViews(BaseModel):
    planners: list[PlannerView]


class CheckView(BaseModel):
    """One obligation of the contract."""

    check: str
    ok: bool
    sentence: str


class ReportView(BaseModel):
    """What the conformance suite found."""

    ok: bool
    checks: list[CheckView]


class Registered(BaseModel):
    """A planner that was registered, and what was checked before."""

    planner: PlannerView
    checks: list[CheckView]


class Choice(BaseModel):
    """A planner as a policy names it. `field` is where it stands there, for the answer."""

    field: Annotated[str, Field(max_length=200)] = "spec.planner"
    name: Name
    parameters: Annotated[dict[str, Any], Field(max_length=50)] = Field(default_factory=dict)


class Choices(BaseModel):
    choices: Annotated[list[Choice], Field(max_length=20)]


class Wrong(BaseModel):
    field: str
    message: str


class Verdict(BaseModel):
    """What is wrong with the choices; nothing, if all of them can be used."""

    problems: list[Wrong]


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": documented(
        "What is wrong with the request",
        422,
        "there is no planner 'magic'; there are: rate",
        ("policy.spec.planner.name", "there is no planner 'magic'; there are: rate"),
    ),
    "5XX": documented("What is away", 503, "the registered planners are still being read"),
}
REFUSED: dict[int | str, dict[str, Any]] = {
    422: documented(
        "It was checked and does not keep the contract; `errors` has each check that failed",
        422,
        "mine does not keep the plugin contract: nothing-known: answered 500: KeyError",
        ("nothing-known", "answered 500: KeyError"),
    ),
    409: documented(
        "The name is taken",
        409,
        "mine is registered already, with version 1767268800000: replace it with replace=true (--replace)",
    ),
}
