"""Documents of the planner's HTTP API."""

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from weir_contracts import Analysis, NewPlanner, Outcome, Parallelism, example
from weir_contracts.base import NAME_PATTERN, Name, Timestamp
from weir_predictor.judgement import HORIZON_SECONDS, MAX_HORIZON_SECONDS, MIN_HORIZON_SECONDS
from weir_runtime.access import documented

PlannerName = Annotated[str, Path(pattern=rf"^{NAME_PATTERN}$", description="the planner's name")]


class PlannerToRegister(NewPlanner):
    """A planner to be registered; here an unknown field is a mistake, not a newer version."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [{"name": "mine", "url": "https://planner.example.org/mine", "credential": "for-mine"}]
        },
    )


class Proposal(BaseModel):
    """A parallelism to be judged, and what is known of its application. An unknown field is a mistake."""

    model_config = ConfigDict(
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        json_schema_extra={"examples": [{"analysis": example("analysis"), "parallelism": {"enrich": 6}}]},
    )

    analysis: Analysis
    """An analysis of the application, with its policy, graph, deployment and forecasts."""
    parallelism: Parallelism = Field(default_factory=dict)
    """Parallelism by operator, in subtasks; operators that are not named keep the present one."""
    outcomes: Annotated[list[Outcome], Field(max_length=1000)] = Field(default_factory=list)
    """Outcomes of past actions, newest first: the cost of a restart is learned from them."""
    horizon_seconds: Annotated[float, Field(ge=MIN_HORIZON_SECONDS, le=MAX_HORIZON_SECONDS)] = HORIZON_SECONDS
    """Length of the horizon, in seconds from the analysed observation."""


class CircuitView(BaseModel):
    """A planner's circuit: after several failures in a row it is not called for a while."""

    state: Literal["closed", "open", "half-open"]
    failures_in_a_row: int
    asked_again_in_seconds: float
    last_failure: str | None


class PlannerView(BaseModel):
    """A planner that policies can name. Fields of another kind are null; a credential is a name, never a value."""

    name: str
    kind: Literal["built-in", "installed", "http"]
    description: str | None
    parameters: dict[str, Any] | None
    """JSON Schema of its parameters; null if it has none."""
    scope: Literal["operator", "application"] | None = None
    planner_version: str | None = None
    """The planner's own version."""
    contract_versions: list[str] | None = None
    version: int | None = None
    """The registration's version."""
    url: str | None = None
    credential: str | None = None
    registered_at: Timestamp | None = None
    registered_by: str | None = None
    breaker: CircuitView | None = None
    package: str | None = None
    """The installed Python package that contains it."""
    problem: str | None = None
    """Why a planner of an installed package cannot be used."""


class PlannerViews(BaseModel):
    planners: list[PlannerView]


class Trial(BaseModel):
    """Result of one trial request: the reply in short, or why there is no valid one."""

    ok: bool
    sentence: str


class Registered(BaseModel):
    """A registered planner, and its reply to the trial request."""

    planner: PlannerView
    trial: Trial


class Choice(BaseModel):
    """A planner as a policy names it, at `field` of the policy."""

    field: Annotated[str, Field(max_length=200)] = "spec.planner"
    name: Name
    parameters: Annotated[dict[str, Any], Field(max_length=50)] = Field(default_factory=dict)


class Choices(BaseModel):
    choices: Annotated[list[Choice], Field(max_length=40)]


class ChoiceProblem(BaseModel):
    field: str
    message: str


class ChoiceProblems(BaseModel):
    """The problems of the choices; none if all can be used."""

    problems: list[ChoiceProblem]


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": documented(
        "The request is invalid",
        422,
        "there is no planner 'magic'; there are: rate",
        ("policy.spec.planner.name", "there is no planner 'magic'; there are: rate"),
    ),
    "5XX": documented("A dependency is unavailable", 503, "the registered planners are still being read"),
}
REFUSED: dict[int | str, dict[str, Any]] = {
    422: documented(
        "The planner gives no valid answer to a trial request",
        422,
        "mine failed its trial request: answered 500: KeyError",
    ),
    409: documented(
        "The name is taken",
        409,
        "mine is registered already, with version 1767268800000: replace it with replace=true (--replace)",
    ),
}
NOT_JUDGED: dict[int | str, dict[str, Any]] = {
    409: documented(
        "Too little is known yet", 409, "shop/orders cannot be judged yet: no operator's capacity is known yet"
    ),
    422: documented(
        "The proposal is invalid",
        422,
        "there is no operator 'enrch'; there are: Source: orders, enrich, sink: Writer",
        ("body.parallelism", "there is no operator 'enrch'; there are: Source: orders, enrich, sink: Writer"),
    ),
}
