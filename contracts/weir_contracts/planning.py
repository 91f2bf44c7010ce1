"""Request to a planner, its reply, and the plan that the guards make of the reply."""

from datetime import timedelta
from typing import Annotated, Literal, Self
from uuid import UUID

from pydantic import Field, model_validator

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
)
from .deployment import Deployment, DeploymentRef, InstanceRef
from .observation import Observation
from .outcome import ActionState, Outcome, QuarantinedVector
from .plan_state import MAX_OTHERS, PlannerMemory, PlanState, Score
from .policy import ScalingPolicy
from .topology import Topology

MAX_OBSERVATIONS = 120
MAX_HISTORY = 50
MAX_OUTCOMES = 20

Number = float | int | str | bool | None

NO_REPLY = frozenset({"planner-timeout", "planner-failed", "planner-invalid", "invalid-reply"})
"""Codes of holds for planners without a usable reply; no planner may use them itself."""
NO_OPINION = NO_REPLY | {"metric-missing", "stale", "unreachable", "not-found", "job-ended", "paused"}
"""Codes of holds that recommend nothing; every other hold recommends the present parallelism."""


class ScaleAction(Message):
    """Sets the parallelism of every operator of the topology."""

    kind: Literal["scale"] = "scale"
    parallelism: Parallelism
    """Parallelism by operator, in subtasks."""


class RestartInstanceAction(Message):
    """Ends one instance of a consumer group, in whose place its target starts another; the parallelism stays."""

    kind: Literal["restart_instance"] = "restart_instance"
    instance: InstanceRef


Action = ScaleAction | RestartInstanceAction
"""Change of an application, by `kind`."""


class TrajectoryPoint(Message):
    """Predicted state at one instant."""

    at_seconds: Derived
    """Time from now, in seconds."""
    lag_seconds: Derived
    """Age of the oldest unprocessed record, in seconds."""
    backlog_records: Derived
    """Number of unprocessed records."""
    throughput: Derived
    """Records/s that all sources together take in."""


class Prediction(Message):
    """Predicted course of one parallelism vector over the horizon, the restart of a change included."""

    horizon_seconds: Derived
    """Length of the horizon, in seconds from now."""
    max_lag_seconds: Derived
    """Maximum lag within the horizon, in seconds."""
    final_lag_seconds: Derived
    """Lag at the end of the horizon, in seconds."""
    violation_seconds: Derived
    """Time within the horizon in which the lag is above the objective, in seconds."""
    objective_left_at_seconds: Derived | None = None
    """Time from now at which the lag first exceeds the objective, in seconds. None: not within the horizon."""
    objective_met_at_seconds: Derived | None = None
    """Time from now after which the lag stays within the objective, in seconds. None: not within the horizon."""
    downtime_seconds: Derived = 0.0
    """Time without processing that the change costs, in seconds."""
    max_utilization: Derived | None = None
    """Demand of the busiest operator divided by its capacity. None: unknown."""
    bottleneck: OperatorName | None = None
    """Operator that limits the throughput. None: unknown."""
    points: Annotated[list[TrajectoryPoint], Field(max_length=200)] = Field(default_factory=list)
    """Course over time."""


class Alternative(Message):
    """Vector that the planner considered and did not choose."""

    parallelism: Parallelism
    """The vector, in subtasks by operator."""
    cost_slots: Count
    """Number of slots that the vector takes."""
    violation_seconds: Derived
    """Predicted time above the objective, in seconds."""
    because: Sentence
    """Reason why it was not chosen."""


class Infeasible(Message):
    """Need that a limit prevents."""

    operator: OperatorName | None = None
    """Operator that has the need. None: the application."""
    wanted: Derived | None = None
    """Needed value, in the unit of `limit`. None: unknown."""
    limit: Derived | None = None
    """Maximum that the limit allows. None: unknown."""
    code: Code
    """Limit, for programs."""
    because: Sentence
    """Limit, for people."""


class Amendment(Message):
    """Change of a plan by one guard."""

    guard: Name
    """Name of the guard."""
    code: Code
    """Reason, for programs."""
    because: Sentence
    """Reason, for people."""
    before: Parallelism | None = None
    """Vector before the change, in subtasks by operator. None: the plan was a hold."""
    after: Parallelism | None = None
    """Vector after the change, in subtasks by operator. None: the guard made the plan a hold."""


class LoopResult(Message):
    """Summary of one past cycle of the loop."""

    at: Timestamp
    """Time of the plan."""
    plan_id: UUID
    kind: Literal["scale", "restart_instance", "hold"]
    """Whether the plan was a change of the parallelism, the restart of an instance or a hold."""
    code: Code
    """Reason of the plan, for programs."""
    current: Parallelism
    """Observed parallelism when the plan was made, in subtasks by operator."""
    approved: Parallelism | None = None
    """Vector that the guards approved, in subtasks by operator. None: a hold, or the restart of an instance."""
    lag_seconds: NonNegative | None = None
    """Lag when the plan was made, in seconds. None: unknown."""
    arrival_rate: NonNegative | None = None
    """Records/s that arrived at all sources when the plan was made. None: unknown."""
    throughput: NonNegative | None = None
    """Records/s that all sources together took in when the plan was made. None: unknown."""
    outcome: Annotated[str | None, Field(max_length=64)] = None
    """Last phase of the plan's action. None: no action, or no outcome yet."""


class PlanRequest(Message):
    """Input of a planner, taken at one instant. A planner answers within `policy.planner.timeout`, keeps no state but
    `memory`, gives the same answer to the same request, and covers every operator of the topology or holds."""

    id: UUID
    application: ApplicationId
    now: Timestamp
    """Time of the request; a planner uses it instead of a clock."""
    policy: ScalingPolicy
    """Policy in force."""
    analysis: Analysis
    """Analysis to decide on."""
    topology: Topology | None = None
    """Graph of operators. None: unknown, so the planner must hold."""
    deployment: Deployment | None = None
    """State of the application in its engine. None: unknown."""
    observations: Annotated[list[Observation], Field(max_length=MAX_OBSERVATIONS)] = Field(default_factory=list)
    """Recent observations, newest last."""
    signals: Annotated[dict[str, Quantity | None], Field(max_length=200, fail_fast=True)] = Field(default_factory=dict)
    """Readings of other collectors by name. None: unknown."""
    history: Annotated[list[LoopResult], Field(max_length=MAX_HISTORY)] = Field(default_factory=list)
    """Past cycles of the loop, newest first."""
    outcomes: Annotated[list[Outcome], Field(max_length=MAX_OUTCOMES)] = Field(default_factory=list)
    """Last outcomes of the application's actions, newest first."""
    quarantine: Annotated[list[QuarantinedVector], Field(max_length=50)] = Field(default_factory=list)
    """Vectors that were rolled back and are not applied again for a time."""
    memory: PlannerMemory = Field(default_factory=dict)
    """Memory that this planner returned with its last reply, at most 16,384 bytes as JSON."""
    state: PlanState = Field(default_factory=PlanState)
    """State that the last plan left for the guards."""

    @property
    def newest_action(self) -> ActionState | None:
        """Newest action of the application in `outcomes`; None if there is none."""
        return next((o.newest_action for o in self.outcomes if o.newest_action is not None), None)

    @model_validator(mode="after")
    def _one_application(self) -> Self:
        for field, application in (("policy", self.policy.application), ("analysis", self.analysis.application)):
            if application != self.application:
                raise ValueError(f"{field}: is of {application}, the request of {self.application}")
        return self


class _Decision(Message):
    """Decision with its reason."""

    code: Code
    """Reason, for programs."""
    sentence: Sentence
    """Reason, for people: one sentence with its numbers."""
    evidence: Annotated[dict[str, Number], Field(max_length=200, fail_fast=True)] = Field(default_factory=dict)
    """Numbers that the decision rests on, by name, units in the names. None: unknown."""
    prediction: Prediction | None = None
    """Prediction for the vector, or for no change in case of a hold. None: not predicted."""
    hold_prediction: Prediction | None = None
    """Prediction for no change, to compare with. None: not predicted."""
    infeasible: Annotated[list[Infeasible], Field(max_length=100)] = Field(default_factory=list)
    """Needs that limits prevent."""
    alternatives: Annotated[list[Alternative], Field(max_length=20)] = Field(default_factory=list)
    """Vectors that were considered and not chosen."""

    def __str__(self) -> str:
        return self.sentence


class PlanReply(_Decision):
    """Reply of a planner: a vector for all operators, or a hold, with its reason."""

    kind: Literal["scale", "hold"]
    """`scale` changes the parallelism, `hold` does not."""
    parallelism: Parallelism | None = None
    """Proposed parallelism of every operator, in subtasks. None for a hold."""
    confidence: Share | None = None
    """Confidence in the proposal, 0 to 1. None: unknown."""
    memory: PlannerMemory = Field(default_factory=dict)
    """Memory for the next request of the same application, at most 16,384 bytes as JSON."""

    @model_validator(mode="after")
    def _scale_has_a_vector(self) -> Self:
        if (self.kind == "scale") != (self.parallelism is not None):
            raise ValueError("parallelism: a scale reply names one, a hold does not")
        return self


class Contender(Message):
    """Proposal of the policy's planner or of one of its candidates or shadows, as the predictor judged it after the guards."""

    label: Name
    """Label of the candidate or shadow; the name of the policy's planner."""
    planner: Name
    """Name of the planner."""
    is_shadow: bool = False
    """Whether it is a shadow, whose plan is never chosen."""
    proposed: Parallelism | None = None
    """Vector that it proposed, before the guards. None: it held or gave no proposal."""
    approved: Parallelism | None = None
    """Vector that the guards approved. None: a hold, or no proposal."""
    code: Code
    """Reason of its plan, for programs; a code of a failure where it gave no proposal."""
    sentence: Sentence
    """Reason of its plan, for people."""
    cost_slots: Count | None = None
    """Number of slots that its plan leads to. None: unknown, or no proposal."""
    violation_seconds: Derived | None = None
    """Predicted time above the objective, in seconds. None: not judged."""
    max_lag_seconds: Derived | None = None
    """Predicted maximum lag, in seconds. None: not judged."""
    max_utilization: Derived | None = None
    """Predicted demand of the busiest operator divided by its capacity. None: unknown, or not judged."""
    lost_because: Sentence | None = None
    """Reason why it lost; of a shadow, how its plan compares. None: it won, and its plan is this plan."""
    score: Score | None = None
    """Its score in retrospect, up to this cycle. None: nothing was judged yet."""


class Plan(_Decision):
    """Decision of one cycle of the loop; a hold is a plan as well."""

    id: UUID
    kind: Literal["scale", "restart_instance", "hold"]
    """`scale` changes the parallelism, `restart_instance` restarts an instance, `hold` does neither."""
    application: ApplicationId
    analysis_id: UUID
    """Id of the analysis that the plan rests on."""
    observation_id: UUID
    """Id of the observation that the plan rests on; analysis, plan and outcomes of one cycle share it."""
    observed_at: Timestamp
    """Time of the observation."""
    created_at: Timestamp
    """Time of the plan."""
    expires_at: Timestamp
    """Time after which the executor refuses the plan."""
    policy_version: Annotated[int | None, Field(default=None, ge=1)] = None
    """Version of the policy that the plan follows. None: unknown."""
    mode: Literal["advise", "act", "paused"]
    """Mode of the policy; only plans with `act` are executed."""
    planner: Name
    """Name of the planner that decided."""
    deployment: DeploymentRef | None = None
    """Deployment that the plan was made for; the executor refuses the plan for another one. None: unknown."""
    current: Parallelism = Field(default_factory=dict)
    """Observed parallelism when the plan was made, in subtasks by operator."""
    proposed: Parallelism | None = None
    """Vector that the planner recommended, before the guards. None: it held."""
    action: Action | None = None
    """Action that the guards approved. None for a hold."""
    amendments: Annotated[list[Amendment], Field(max_length=100)] = Field(default_factory=list)
    """Changes by the guards, in their order."""
    contenders: Annotated[list[Contender], Field(max_length=1 + MAX_OTHERS)] = Field(default_factory=list)
    """Proposals of the policy's planner, its candidates and its shadows. Empty: the policy lists neither, or none was asked."""
    planning_seconds: NonNegative | None = None
    """Duration of planning in seconds. None: not measured."""
    state: PlanState = Field(default_factory=PlanState)
    """State for the next plan of the application."""

    @model_validator(mode="after")
    def _acts_as_its_kind(self) -> Self:
        if self.kind != ("hold" if self.action is None else self.action.kind):
            raise ValueError("action: a plan has the action of its kind, a hold has none")
        if self.expires_at < self.created_at - timedelta(seconds=1):
            raise ValueError("expires_at: lies before created_at")
        return self

    @property
    def approved(self) -> Parallelism | None:
        """Vector to apply; None for a hold and for a restart."""
        return self.action.parallelism if isinstance(self.action, ScaleAction) else None

    @property
    def restarts(self) -> InstanceRef | None:
        """Instance to restart; None for every other plan."""
        return self.action.instance if isinstance(self.action, RestartInstanceAction) else None

    def in_short(
        self, lag_seconds: float | None, arrival_rate: float | None, throughput: float | None = None
    ) -> LoopResult:
        """Return a summary of this cycle, with lag (s), arrival rate and throughput (records/s) when the plan was made."""
        return LoopResult(
            at=self.created_at,
            plan_id=self.id,
            kind=self.kind,
            code=self.code,
            current=self.current,
            approved=self.approved,
            lag_seconds=lag_seconds,
            arrival_rate=arrival_rate,
            throughput=throughput,
        )
