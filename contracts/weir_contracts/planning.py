"""What a planner is asked, what it answers, and the plan that the guards make of the answer."""

import json
from datetime import timedelta
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import AfterValidator, Field, model_validator

from .analysis import Analysis
from .base import (
    ApplicationId,
    Code,
    Count,
    Derived,
    Message,
    Name,
    NonNegative,
    OperatorName,
    Parallelism,
    Quantity,
    Sentence,
    Share,
    Timestamp,
    writable,
)
from .deployment import Deployment, DeploymentRef, Topology
from .observation import Observation
from .outcome import ActionState, Outcome, QuarantinedVector
from .policy import ScalingPolicy

MEMORY_LIMIT_BYTES = 16_384
"""What a planner may hand back to itself with each reply, as JSON."""

MAX_OBSERVATIONS = 120
MAX_HISTORY = 50
MAX_OUTCOMES = 20


def _within_memory_limit(memory: dict[str, Any]) -> dict[str, Any]:
    size = len(json.dumps(memory, separators=(",", ":"), default=str).encode()) if memory else 0
    if size > MEMORY_LIMIT_BYTES:
        raise ValueError(f"is {size} bytes, more than the {MEMORY_LIMIT_BYTES} a planner may keep")
    return memory


PlannerMemory = Annotated[dict[str, Any], AfterValidator(writable), AfterValidator(_within_memory_limit)]
Number = float | int | str | bool | None


class ScaleAction(Message):
    """Set the parallelism of every operator of the topology."""

    kind: Literal["scale"] = "scale"
    parallelism: Parallelism


Action = ScaleAction
"""What can be done to an application: a union by `kind`, with room for more."""


class TrajectoryPoint(Message):
    """The predicted state `at_seconds` after now."""

    at_seconds: Derived
    lag_seconds: Derived
    backlog_records: Derived
    throughput: Derived
    """Records/s taken from the sources."""


class Prediction(Message):
    """What the predictor expects of one parallelism vector over the horizon."""

    horizon_seconds: Derived
    max_lag_seconds: Derived
    final_lag_seconds: Derived
    violation_seconds: Derived
    """Time above the objective."""
    objective_left_at_seconds: Derived | None = None
    """When it is first above the objective; None: not within the horizon."""
    objective_met_at_seconds: Derived | None = None
    """From when on the objective holds until the horizon's end; None: not within it."""
    downtime_seconds: Derived = 0.0
    max_utilisation: Derived | None = None
    bottleneck: OperatorName | None = None
    points: Annotated[list[TrajectoryPoint], Field(max_length=200)] = Field(default_factory=list)


class Alternative(Message):
    """A vector that was considered and not taken."""

    parallelism: Parallelism
    cost_slots: Count
    violation_seconds: Derived
    because: Sentence


class Infeasible(Message):
    """What was wanted and cannot be had."""

    operator: OperatorName | None = None
    wanted: Derived | None = None
    limit: Derived | None = None
    code: Code
    because: Sentence


class Recommendation(Message):
    """What a planner wanted at one time; kept in plans for stabilisation."""

    at: Timestamp
    parallelism: Parallelism


class Amendment(Message):
    """One guard's change to a plan. `after is None`: it turned the plan into a hold."""

    guard: Name
    code: Code
    because: Sentence
    before: Parallelism | None = None
    after: Parallelism | None = None


class LoopResult(Message):
    """One past turn of the loop, in short, newest first in a request."""

    at: Timestamp
    plan_id: UUID
    kind: Literal["scale", "hold"]
    code: Code
    current: Parallelism
    approved: Parallelism | None = None
    lag_seconds: NonNegative | None = None
    arrival_rate: NonNegative | None = None
    outcome: Annotated[str | None, Field(max_length=64)] = None


class UsualArrivals(Message):
    """What arrives at all sources together when nothing is wrong upstream."""

    at: Timestamp
    """When they were last looked at."""
    records_per_second: NonNegative
    """The highest of late, fading."""
    collapsed_since: Timestamp | None = None
    """Since when most of it is missing; None: it is not."""
    lately: NonNegative | None = None
    """The mean of the last minutes, newer ones counting more."""
    fell_from: NonNegative | None = None
    """What `lately` was before most of it went missing."""


class PastAction(Message):
    """An action that the engine accepted, as the guards remember it."""

    id: UUID
    at: Timestamp
    """When it was accepted."""
    before: Parallelism = Field(default_factory=dict)
    """Of the operators it changed."""
    after: Parallelism = Field(default_factory=dict)
    undone: bool = False
    """Whether it was rolled back."""


class PlanState(Message):
    """What the next plan of this application needs from this one; bounded, so that no planner owns a database."""

    recommendations: Annotated[list[Recommendation], Field(max_length=400)] = Field(default_factory=list)
    """What the planner wanted in the stabilisation windows, oldest first."""
    memory: PlannerMemory = Field(default_factory=dict)
    """The planner's own."""
    planner: Name | None = None
    """Whose memory it is: another planner starts with none."""
    arrivals: UsualArrivals | None = None
    """None until the arrival rates were known once."""
    actions: Annotated[list[PastAction], Field(max_length=60)] = Field(default_factory=list)
    """Of the last hour, oldest first."""


class PlanRequest(Message):
    """All a planner may know, taken at one instant. Obligations of a planner: answer within `policy.planner.timeout`, keep no
    state but `memory`, give the same answer to the same request, cover every operator of the topology or hold."""

    id: UUID
    application: ApplicationId
    now: Timestamp
    policy: ScalingPolicy
    analysis: Analysis
    topology: Topology | None = None
    deployment: Deployment | None = None
    observations: Annotated[list[Observation], Field(max_length=MAX_OBSERVATIONS)] = Field(default_factory=list)
    """Recent raw observations, newest last."""
    signals: Annotated[dict[str, Quantity | None], Field(max_length=200, fail_fast=True)] = Field(default_factory=dict)
    history: Annotated[list[LoopResult], Field(max_length=MAX_HISTORY)] = Field(default_factory=list)
    """Past turns of the loop, newest first."""
    outcomes: Annotated[list[Outcome], Field(max_length=MAX_OUTCOMES)] = Field(default_factory=list)
    """Last outcomes of actions, newest first."""
    quarantine: Annotated[list[QuarantinedVector], Field(max_length=50)] = Field(default_factory=list)
    memory: PlannerMemory = Field(default_factory=dict)
    """What this planner returned with its last reply."""
    state: PlanState = Field(default_factory=PlanState)
    """What the last plan left for the guards: wishes of the stabilisation windows, usual arrivals."""

    @property
    def newest_action(self) -> ActionState | None:
        """The application's newest action, as far as its outcomes tell."""
        return next((o.newest_action for o in self.outcomes if o.newest_action is not None), None)

    @model_validator(mode="after")
    def _one_application(self) -> Self:
        for field, application in (
            ("policy", self.policy.application),
            ("analysis", self.analysis.application),
        ):
            if application != self.application:
                raise ValueError(f"{field}: is of {application}, the request of {self.application}")
        return self


class PlanReply(Message):
    """A planner's answer: a vector for the whole topology, or a hold. Either way with its reason."""

    kind: Literal["scale", "hold"]
    parallelism: Parallelism | None = None
    code: Code
    sentence: Sentence
    evidence: Annotated[dict[str, Number], Field(max_length=200, fail_fast=True)] = Field(default_factory=dict)
    """The numbers used, named with their units."""
    prediction: Prediction | None = None
    """Of what is proposed (of staying, for a hold)."""
    hold_prediction: Prediction | None = None
    """Of staying as it is, to compare with."""
    infeasible: Annotated[list[Infeasible], Field(max_length=100)] = Field(default_factory=list)
    alternatives: Annotated[list[Alternative], Field(max_length=20)] = Field(default_factory=list)
    confidence: Share | None = None
    memory: PlannerMemory = Field(default_factory=dict)

    @model_validator(mode="after")
    def _scale_has_a_vector(self) -> Self:
        if (self.kind == "scale") != (self.parallelism is not None):
            raise ValueError("parallelism: a scale reply names one, a hold does not")
        return self

    def __str__(self) -> str:
        return self.sentence


class Plan(Message):
    """The decision of one turn of the loop; a hold is a plan too."""

    id: UUID
    application: ApplicationId
    analysis_id: UUID
    observation_id: UUID
    """Correlates reading, analysis, plan and outcome."""
    observed_at: Timestamp
    created_at: Timestamp
    expires_at: Timestamp
    policy_version: Annotated[int | None, Field(default=None, ge=1)] = None
    mode: Literal["advise", "act", "paused"]
    planner: Name
    deployment: DeploymentRef | None = None
    """The deployment this plan was made for; a plan for another one is refused."""
    current: Parallelism = Field(default_factory=dict)
    """Observed when the plan was made."""
    proposed: Parallelism | None = None
    """The planner's wish, before the guards; None: it held."""
    kind: Literal["scale", "hold"]
    action: Action | None = None
    """What the guards let through; None for a hold."""
    code: Code
    sentence: Sentence
    evidence: Annotated[dict[str, Number], Field(max_length=200, fail_fast=True)] = Field(default_factory=dict)
    prediction: Prediction | None = None
    hold_prediction: Prediction | None = None
    infeasible: Annotated[list[Infeasible], Field(max_length=100)] = Field(default_factory=list)
    alternatives: Annotated[list[Alternative], Field(max_length=20)] = Field(default_factory=list)
    amendments: Annotated[list[Amendment], Field(max_length=100)] = Field(default_factory=list)
    planning_seconds: NonNegative | None = None
    state: PlanState = Field(default_factory=PlanState)

    @model_validator(mode="after")
    def _scale_acts(self) -> Self:
        if (self.kind == "scale") != (self.action is not None):
            raise ValueError("action: a scale plan has one, a hold has none")
        if self.expires_at < self.created_at - timedelta(seconds=1):
            raise ValueError("expires_at: lies before created_at")
        return self

    @property
    def approved(self) -> Parallelism | None:
        """The vector to be applied, None for a hold."""
        return self.action.parallelism if self.action else None

    def in_short(self, lag_seconds: float | None, arrival_rate: float | None) -> LoopResult:
        """This turn of the loop with what was known of lag (s) and arrivals (records/s) when it was planned."""
        return LoopResult(
            at=self.created_at,
            plan_id=self.id,
            kind=self.kind,
            code=self.code,
            current=self.current,
            approved=self.approved,
            lag_seconds=lag_seconds,
            arrival_rate=arrival_rate,
        )

    def __str__(self) -> str:
        return self.sentence
