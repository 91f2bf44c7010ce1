"""Planners that are simulated beside the one that decides, and how they did.

`Shadows` is the planner service's own: what it needs to go on, and the scores of the current and the last hour. `Scores` is what
knowledge makes of many hours.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field

from .base import (
    ApplicationId,
    Count,
    Derived,
    Message,
    Name,
    OperatorName,
    Parallelism,
    Sentence,
    Share,
    Timestamp,
)
from .planning import LoopResult, PlanState

MAX_CANDIDATES = 7
"""Five shadows, the chosen planner, and what really runs."""
MAX_HOURS = 2
MAX_ARRIVED = 60

Role = Literal["chosen", "shadow", "observed"]
"""chosen: the policy's planner, simulated as the shadows are. observed: what really ran, for comparison."""


def parameters_id(parameters: Mapping[str, Any]) -> str:
    """Tells a planner's parameters from others."""
    text = json.dumps(parameters, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


class VirtualBacklog(Message):
    """What would wait at a source."""

    records: Derived
    age_seconds: Derived = 0.0
    """Of the oldest."""


class VirtualRescale(Message):
    """One restart of a simulated application."""

    id: UUID
    at: Timestamp
    running_at: Timestamp
    before: Parallelism
    wanted: Parallelism


class VirtualReading(Message):
    """What a scrape of a simulated application would have read; for planners that look at raw observations."""

    at: Timestamp
    parallelism: Parallelism
    records_in: Annotated[dict[OperatorName, Derived], Field(fail_fast=True)] = Field(default_factory=dict)
    """Since the simulated run began."""
    records_out: Annotated[dict[OperatorName, Derived], Field(fail_fast=True)] = Field(default_factory=dict)
    busy_seconds: Annotated[dict[OperatorName, Derived], Field(fail_fast=True)] = Field(default_factory=dict)
    """Over all subtasks."""
    backlogs: Annotated[dict[OperatorName, Derived], Field(fail_fast=True)] = Field(default_factory=dict)


class Supply(Message):
    """What ran from an instant on."""

    at: Timestamp
    parallelism: Parallelism


class Candidate(Message):
    """A simulated application under one planner; with role `observed` the real one."""

    label: Name
    planner: Name
    parameters_id: Annotated[str, Field(max_length=16)]
    """Of the planner's parameters: others begin anew."""
    role: Role
    parallelism: Parallelism
    backlogs: Annotated[dict[OperatorName, VirtualBacklog], Field(fail_fast=True)] = Field(default_factory=dict)
    down_seconds: Derived = 0.0
    """Left of the last restart."""
    replay: bool = False
    """Whether the last checkpoint has yet to be gone back to."""
    running_since: Timestamp | None = None
    """Since when it runs without a restart."""
    rescales: Annotated[list[VirtualRescale], Field(max_length=20)] = Field(default_factory=list)
    """Newest first."""
    state: PlanState = Field(default_factory=PlanState)
    history: Annotated[list[LoopResult], Field(max_length=20)] = Field(default_factory=list)
    """Newest first; for planners that look at it."""
    readings: Annotated[list[VirtualReading], Field(max_length=120)] = Field(default_factory=list)
    """Oldest first; for planners that look at them."""
    supplies: Annotated[list[Supply], Field(max_length=200)] = Field(default_factory=list)
    """What ran since the oldest instant that is not judged yet, oldest first."""
    judged_supply: Count | None = None
    """Subtasks at the last instant that was judged."""


class Arrived(Message):
    """What really arrived up to an instant that is not judged yet, in records/s by source."""

    at: Timestamp
    seconds: Derived
    rates: Annotated[dict[OperatorName, Derived], Field(fail_fast=True)]


class CandidateScore(Message):
    """How a planner did in some time, as sums that add up.

    Formulas: SPEC RG's elasticity metrics. d: the least parallelism that the arrivals really needed, known afterwards; s: what the
    planner would have run.
    """

    label: Name
    planner: Name
    parameters_id: Annotated[str, Field(max_length=16)]
    role: Role
    simulated_seconds: Derived = 0.0
    slot_seconds: Derived = 0.0
    violation_seconds: Derived = 0.0
    """Above the objective."""
    rescales: Count = 0
    turns: Count = 0
    unanswered: Count = 0
    """Turns in which the planner failed, was too slow, or said what cannot be used."""
    judged_seconds: Derived = 0.0
    """Of which d is known; the figures below are of them."""
    needed_slot_seconds: Derived = 0.0
    short: Derived = 0.0
    """Sum of max(d - s, 0)/d * dt over subtasks."""
    spare: Derived = 0.0
    """Sum of max(s - d, 0)/d * dt over slots."""
    short_seconds: Derived = 0.0
    """In which some operator had less than it needed."""
    spare_seconds: Derived = 0.0
    """In which it held more slots than needed."""
    unstable_seconds: Derived = 0.0
    """In which s moved unlike d."""
    compared_seconds: Derived = 0.0
    """In which the simulation could be held beside what really happened (role `chosen`)."""
    error: Derived = 0.0
    """Sum of the relative error * dt in them."""


class ScoredHour(Message):
    """The sums of one hour, which `hour` begins."""

    hour: Timestamp
    scores: Annotated[list[CandidateScore], Field(max_length=3 * MAX_CANDIDATES)]


class Shadows(Message):
    """All simulated copies of one application at one instant, with the scores of the current and the last hour."""

    id: UUID
    application: ApplicationId
    observation_id: UUID
    at: Timestamp
    job_id: Annotated[str, Field(max_length=200)]
    graph_hash: Annotated[str, Field(max_length=64)]
    candidates: Annotated[list[Candidate], Field(max_length=MAX_CANDIDATES)]
    arrived: Annotated[list[Arrived], Field(max_length=MAX_ARRIVED)] = Field(default_factory=list)
    """Not judged yet, and what came shortly before, oldest first: what was needed is known only afterwards."""
    judged_until: Timestamp | None = None
    judged_need: Count | None = None
    """Subtasks needed at the last instant that was judged."""
    hours: Annotated[list[ScoredHour], Field(max_length=MAX_HOURS)] = Field(default_factory=list)
    """Oldest first."""


class PlannerScore(Message):
    """How one planner did, or would have done. Percentages are of the time that was judged; None: too little is known."""

    label: Name
    planner: Name
    role: Role
    current: bool = True
    """Whether the policy still lists it with these parameters."""
    seconds: Derived
    """Simulated, or for `observed` watched."""
    slot_hours: Derived
    mean_slots: Derived | None = None
    needed_slot_hours: Derived | None = None
    """The least that the arrivals needed in the time that was judged, rescaled for free."""
    violation_seconds: Derived
    violation_share: Share | None = None
    rescales: Count
    under_provisioning: Derived | None = None
    """thU: 100/T * sum max(d - s, 0)/d * dt, over subtasks."""
    over_provisioning: Derived | None = None
    """thO: 100/T * sum max(s - d, 0)/d * dt, over slots."""
    under_provisioned_time: Derived | None = None
    """tU, in % of the time."""
    over_provisioned_time: Derived | None = None
    """tO, in % of the time."""
    instability: Derived | None = None
    """u, in % of the time."""
    unanswered: Count = 0
    turns: Count = 0


class Scores(Message):
    """How the chosen planner and its shadows did in a period."""

    application: ApplicationId
    since: Timestamp
    until: Timestamp
    sentence: Sentence
    """Which planner would have been cheaper at equal violation."""
    confidence: Share | None = None
    """1 - the mean relative error of the chosen planner's simulation against what really happened; None: they could not be compared."""
    compared_seconds: Derived = 0.0
    cheaper: Name | None = None
    """The label of the cheapest that is cheaper than the chosen one without more violation."""
    planners: Annotated[list[PlannerScore], Field(max_length=100)]
