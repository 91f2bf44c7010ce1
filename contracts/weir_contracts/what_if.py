"""What an application would do at a parallelism and a load that somebody asks about."""

from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from .base import ApplicationId, Count, Derived, Message, OperatorName, Parallelism, Sentence, Share, Timestamp
from .planning import Infeasible, Prediction


class WhatIfOperator(Message):
    """One operator at the asked parallelism and load. Rates in records/s, once nothing waits any more."""

    operator: OperatorName
    parallelism_now: Annotated[int | None, Field(default=None, ge=1)] = None
    parallelism: Annotated[int, Field(ge=1)]
    arrival_rate: Derived | None = None
    """What would arrive if nothing held the sources back."""
    input_rate: Derived | None = None
    """What it would take in: less than what arrives where an operator that cannot follow slows its sources."""
    capacity: Derived | None = None
    """The most it sustains at this parallelism, from what was learnt; None where that is unknown."""
    utilisation: Share | None = None
    """Input rate over capacity: its busy share."""
    least_parallelism: Annotated[int | None, Field(default=None, ge=1)] = None
    """The smallest parallelism that sustains what arrives; None: unknown, or there is none."""
    seen_at: Annotated[list[int], Field(max_length=65)] = Field(default_factory=list)
    """The parallelisms at which its capacity was seen; with one of them only, it is a straight line."""
    confidence: Share | None = None


class Unknown(Message):
    """Something the answer would need and that is not known."""

    operator: OperatorName
    what: Literal["arrival rate", "lag", "capacity", "input"]
    because: Sentence


class WhatIf(Message):
    """The answer. What rests on something unknown is None, and `unknown` says what and why."""

    application: ApplicationId
    analysis_id: UUID
    observed_at: Timestamp
    """Of the readings it rests on."""
    sentence: Sentence
    possible: bool
    """Whether bounds, key groups and slots allow the asked parallelism."""
    keeps_up: bool | None = None
    """Whether every operator sustains what arrives at it. None: those that are known do."""
    parallelism_now: Parallelism
    parallelism: Parallelism
    """As asked; operators that were not named stay as they are."""
    slots_now: Count
    slots: Count
    arrival_rate_now: Derived
    arrival_rate: Derived
    """Records/s at all sources together, as asked."""
    load_factor: Derived | None = None
    """Of the present arrivals; None where nothing arrives now."""
    throughput: Derived | None = None
    """Records/s that the sources would take in for good."""
    throughput_at_most: Derived
    """The same as far as operators are known: the unknown ones can only make it less."""
    bottleneck: OperatorName | None = None
    """The operator that is full first as the load grows, of those that are known."""
    breaks_at_load: Derived | None = None
    """Load, as a factor of the present arrivals, beyond which the bottleneck cannot follow at the asked parallelism."""
    breaks_at_rate: Derived | None = None
    """The same in records/s at all sources together."""
    objective_seconds: Derived | None = None
    prediction: Prediction | None = None
    """The trajectory from now on, the restart that the change costs included."""
    operators: Annotated[list[WhatIfOperator], Field(max_length=1000)] = Field(default_factory=list)
    infeasible: Annotated[list[Infeasible], Field(max_length=100)] = Field(default_factory=list)
    """What forbids the asked parallelism, makes it useless, or keeps the bottleneck from getting what it would need."""
    unknown: Annotated[list[Unknown], Field(max_length=4000)] = Field(default_factory=list)
    notes: Annotated[list[Sentence], Field(max_length=100)] = Field(default_factory=list)
    """What to bear in mind: extrapolations, skew, an assumed restart."""
