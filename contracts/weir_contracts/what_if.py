"""Predictions for people: the behaviour of an application at a requested parallelism and load, and the judgement of a
proposed parallelism."""

from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from .base import ApplicationId, Count, Derived, Message, OperatorName, Parallelism, Sentence, Share, Timestamp
from .planning import Infeasible, Prediction


class WhatIfOperator(Message):
    """One operator at the requested parallelism and load, after any backlog is processed."""

    operator: OperatorName
    parallelism_now: Annotated[int | None, Field(default=None, ge=1)] = None
    """Current parallelism, in subtasks. None: unknown."""
    parallelism: Annotated[int, Field(ge=1)]
    """Requested parallelism, in subtasks."""
    arrival_rate: Derived | None = None
    """Records/s that would arrive without backpressure. None: unknown."""
    input_rate: Derived | None = None
    """Records/s that it would take in; below the arrival rate if backpressure slows its sources. None: unknown."""
    capacity: Derived | None = None
    """Maximum sustained input rate at the requested parallelism, in records/s. None: unknown."""
    utilization: Share | None = None
    """Input rate divided by capacity, 0 to 1. None: unknown."""
    min_parallelism: Annotated[int | None, Field(default=None, ge=1)] = None
    """Minimum parallelism that sustains the arrivals, in subtasks. None: unknown, or there is none."""
    seen_at: Annotated[list[int], Field(max_length=65)] = Field(default_factory=list)
    """Parallelisms at which the capacity was measured; with a single one, capacity is assumed proportional."""
    confidence: Share | None = None
    """Confidence in the capacity, 0 to 1. None: unknown."""


class Unknown(Message):
    """Input of the prediction that is unknown."""

    operator: OperatorName
    """Operator whose input is unknown."""
    what: Literal["arrival rate", "lag", "capacity", "input"]
    """The unknown input."""
    because: Sentence
    """Reason why it is unknown."""


JudgedArrivals = Literal["present", "expected", "upper-edge"]
"""present: the arrivals of now, unchanged. expected: the middle of the forecast. upper-edge: the expected arrivals, raised
to the bound under which 90 % of such peaks stay."""


class JudgedLoad(Message):
    """Outcome of the proposal and of holding under one course of the arrivals."""

    arrivals: JudgedArrivals
    """The course of the arrivals."""
    max_arrival_rate: Derived
    """Highest records/s at all sources together within the horizon."""
    keeps_up: bool | None = None
    """Whether every operator sustains the highest arrivals. None: unknown."""
    late_seconds: Derived | None = None
    """Time above the objective in seconds, within the horizon and beyond it until the backlog is within the objective. With
    an objective of utilization: the horizon times the load beyond it. None: unknown, or it does not end."""
    recovers: bool | None = None
    """Whether the time above the objective ends, if arrivals stay as at the end of the horizon; false also where the
    application falls behind then but is not late yet. None: unknown."""
    hold_late_seconds: Derived | None = None
    """`late_seconds` of the present parallelism."""
    hold_recovers: bool | None = None
    """`recovers` of the present parallelism."""
    prediction: Prediction | None = None
    """Predicted course from now, the restart of the change included. None: unknown."""
    unknown: Annotated[list[Unknown], Field(max_length=4000)] = Field(default_factory=list)
    """Unknown inputs of the prediction."""


class WhatIf(Message):
    """Prediction for a requested parallelism and load. None: depends on an unknown input, which `unknown` lists."""

    application: ApplicationId
    analysis_id: UUID
    """Id of the analysis that the prediction rests on."""
    observed_at: Timestamp
    """Time of the analysed observation."""
    sentence: Sentence
    """Prediction in one sentence."""
    possible: bool
    """Whether bounds, key groups and slots allow the requested parallelism."""
    keeps_up: bool | None = None
    """Whether every operator sustains its arrivals. None: all operators with a known capacity do."""
    parallelism_now: Parallelism
    """Current parallelism by operator, in subtasks."""
    parallelism: Parallelism
    """Requested parallelism by operator, in subtasks; operators without a request keep the current one."""
    slots_now: Count
    """Number of slots that the current parallelism takes."""
    slots: Count
    """Number of slots that the requested parallelism takes."""
    arrival_rate_now: Derived
    """Records/s that arrive at all sources together now."""
    arrival_rate: Derived
    """Requested records/s at all sources together; the highest within the horizon if the load is the forecast."""
    load_factor: Derived | None = None
    """Requested arrival rate divided by the current one. None: nothing arrives now."""
    throughput: Derived | None = None
    """Records/s that all sources together would sustain. None: unknown."""
    max_throughput: Derived
    """Upper bound of the throughput in records/s, from the operators with a known capacity."""
    bottleneck: OperatorName | None = None
    """First operator with a known capacity that reaches it as the load grows. None: unknown."""
    breaks_at_load: Derived | None = None
    """Load beyond which the bottleneck cannot keep up, as a factor of the current arrival rate. None: unknown."""
    breaks_at_rate: Derived | None = None
    """Load beyond which the bottleneck cannot keep up, in records/s at all sources together. None: unknown."""
    objective_seconds: Derived | None = None
    """Upper bound of the policy's objective, in seconds. None: the objective is a utilization."""
    prediction: Prediction | None = None
    """Predicted course from now, the restart of the change included. None: unknown."""
    operators: Annotated[list[WhatIfOperator], Field(max_length=1000)] = Field(default_factory=list)
    """Operators of the application."""
    infeasible: Annotated[list[Infeasible], Field(max_length=100)] = Field(default_factory=list)
    """Limits that prevent the requested parallelism, leave subtasks idle, or prevent the bottleneck's need."""
    unknown: Annotated[list[Unknown], Field(max_length=4000)] = Field(default_factory=list)
    """Unknown inputs of the prediction."""
    notes: Annotated[list[Sentence], Field(max_length=100)] = Field(default_factory=list)
    """Caveats: extrapolation, skew, an assumed restart time."""
    after_seconds: Derived = 0.0
    """Time from the observation until the requested parallelism and load, in seconds; the prediction begins then."""
    loads: Annotated[list[JudgedLoad], Field(max_length=2)] = Field(default_factory=list)
    """Outcome under the forecast's middle and its upper edge. Empty: the load is not the forecast."""
    explained: Annotated[list[Sentence], Field(max_length=1000)] = Field(default_factory=list)
    """Where each figure of the forecast comes from. Empty: the load is not the forecast."""


class RestartCost(Message):
    """Cost of changing the parallelism; all times are 0 for the present parallelism."""

    seconds: Derived
    """Time without processing, in seconds."""
    away_share: Share = 1.0
    """Share of the application that does not process in that time, 0 to 1."""
    capacity_after_seconds: Derived
    """Time from the change until added capacity counts, in seconds."""
    measured: bool
    """Whether a rescale was measured; else the times are assumed."""


class Judgement(Message):
    """Judgement of a proposed parallelism by the predictor, without deciding. None: unknown."""

    application: ApplicationId
    analysis_id: UUID
    """Id of the analysis that the judgement rests on."""
    observed_at: Timestamp
    """Time of the analysed observation."""
    sentence: Sentence
    """Judgement in one sentence."""
    possible: bool
    """Whether bounds, key groups and slots allow the proposed parallelism."""
    parallelism_now: Parallelism
    """Current parallelism by operator, in subtasks."""
    parallelism: Parallelism
    """Proposed parallelism by operator, in subtasks; operators that the proposal does not name keep the current one."""
    objective_seconds: Derived | None = None
    """Upper bound of the policy's objective, in seconds. None: the objective is a utilization."""
    horizon_seconds: Derived
    """Length of the horizon, in seconds from now."""
    forecast_seconds: Derived = 0.0
    """Time from now that the forecast reaches, in seconds; behind it the last rate stays. 0: no source has a forecast."""
    restart: RestartCost
    """Cost of changing to the proposed parallelism."""
    slots_now: Count
    """Number of slots that the current parallelism takes."""
    slots: Count
    """Number of slots that the proposed parallelism takes."""
    slot_seconds: Derived
    """Slots over the horizon, in slot-seconds."""
    slot_hours: Derived
    """Slots over the horizon, in slot-hours."""
    loads: Annotated[list[JudgedLoad], Field(min_length=1, max_length=3)]
    """The expected arrivals and their upper edge, or the present ones if no source has a forecast."""
    infeasible: Annotated[list[Infeasible], Field(max_length=100)] = Field(default_factory=list)
    """Limits that prevent the proposed parallelism, or leave subtasks idle."""
    notes: Annotated[list[Sentence], Field(max_length=100)] = Field(default_factory=list)
    """Caveats: extrapolation, skew, an assumed restart time, the reach of the forecast."""

    def load(self, arrivals: JudgedArrivals) -> JudgedLoad | None:
        """Return the outcome under one course of the arrivals; None if it was not judged."""
        return next((each for each in self.loads if each.arrivals == arrivals), None)

    @property
    def worst(self) -> JudgedLoad:
        """The outcome under the highest arrivals that were judged."""
        return self.loads[-1]
