"""Judgement of a proposed parallelism: what it costs, and how late it is under the expected load and its upper edge."""

from typing import Annotated
from uuid import UUID

from pydantic import Field

from .base import ApplicationId, Count, Derived, Message, Parallelism, Sentence, Share, Timestamp
from .planning import Infeasible
from .what_if import JudgedArrivals, JudgedLoad


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
