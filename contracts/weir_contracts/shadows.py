"""Shadow planners: simulated applications, and scores of their planners.

`Shadows` is the state of the planner service, with the scores of the current and the last hour. `Scores` is knowledge's
summary of many hours.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field

from .base import ApplicationId, Count, Derived, Message, Name, OperatorName, Parallelism, Sentence, Share, Timestamp
from .plan_state import PlanState
from .planning import LoopResult

MAX_CANDIDATES = 7
"""Five shadows, the chosen planner, and the real application."""
MAX_HOURS = 2
MAX_ARRIVED = 60

ByOperator = Annotated[dict[OperatorName, Derived], Field(fail_fast=True)]

Role = Literal["chosen", "shadow", "observed"]
"""chosen: the policy's planner, simulated like a shadow. shadow: another planner. observed: the real application."""


def parameters_id(parameters: Mapping[str, Any]) -> str:
    """Return an id of a planner's parameters: 8 hexadecimal digits."""
    text = json.dumps(parameters, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


class VirtualBacklog(Message):
    """Unprocessed records at a source of a simulated application."""

    records: Derived
    """Number of unprocessed records."""
    age_seconds: Derived = 0.0
    """Age of the oldest unprocessed record, in seconds."""


class VirtualRescale(Message):
    """Rescale of a simulated application."""

    id: UUID
    at: Timestamp
    """Time of the request."""
    running_at: Timestamp
    """Time at which the wanted parallelism runs."""
    before: Parallelism
    """Parallelism before the rescale, in subtasks by operator."""
    wanted: Parallelism
    """Parallelism after the rescale, in subtasks by operator."""


class VirtualReading(Message):
    """Readings of a simulated application, for planners that read observations."""

    at: Timestamp
    """Time of the readings."""
    parallelism: Parallelism
    """Simulated parallelism, in subtasks by operator."""
    records_in: ByOperator = Field(default_factory=dict)
    """Records taken in since the simulated run began, by operator."""
    records_out: ByOperator = Field(default_factory=dict)
    """Records emitted since the simulated run began, by operator."""
    busy_seconds: ByOperator = Field(default_factory=dict)
    """Busy time of all subtasks since the simulated run began, in seconds by operator."""
    backlogs: ByOperator = Field(default_factory=dict)
    """Number of unprocessed records by source."""


class Supply(Message):
    """Parallelism that ran from an instant on."""

    at: Timestamp
    """Time from which the parallelism ran."""
    parallelism: Parallelism
    """Parallelism by operator, in subtasks."""


class _Labelled(Message):
    """Planner under which an application is simulated."""

    label: Name
    """Name of the scores."""
    planner: Name
    """Name of the planner."""
    role: Role
    """chosen: the policy's planner, simulated like a shadow. shadow: another planner. observed: the real
    application."""


class Candidate(_Labelled):
    """Simulated application under one planner; with role `observed` the real application."""

    parameters_id: Annotated[str, Field(max_length=16)]
    """Id of the planner's parameters; the simulation starts again when they change."""
    parallelism: Parallelism
    """Current parallelism by operator, in subtasks."""
    backlogs: Annotated[dict[OperatorName, VirtualBacklog], Field(fail_fast=True)] = Field(default_factory=dict)
    """Unprocessed records by source."""
    down_seconds: Derived = 0.0
    """Remaining time of the current restart, in seconds."""
    replay: bool = False
    """Whether the application still has to go back to its last checkpoint."""
    running_since: Timestamp | None = None
    """Time since which it runs without a restart. None: unknown."""
    rescales: Annotated[list[VirtualRescale], Field(max_length=20)] = Field(default_factory=list)
    """Last rescales, newest first."""
    state: PlanState = Field(default_factory=PlanState)
    """State that the last plan of the planner left for the next one."""
    history: Annotated[list[LoopResult], Field(max_length=20)] = Field(default_factory=list)
    """Past cycles, newest first, for planners that read them."""
    readings: Annotated[list[VirtualReading], Field(max_length=120)] = Field(default_factory=list)
    """Past readings, oldest first, for planners that read them."""
    supplies: Annotated[list[Supply], Field(max_length=200)] = Field(default_factory=list)
    """Parallelism since the oldest instant without a score, oldest first."""
    judged_supply: Count | None = None
    """Number of subtasks at the last scored instant. None: no instant has a score."""


class Arrived(Message):
    """Arrivals of the real application in an interval that has no score yet."""

    at: Timestamp
    """End of the interval."""
    seconds: Derived
    """Length of the interval in seconds."""
    rates: ByOperator
    """Records/s that arrived, by source."""


class CandidateScore(_Labelled):
    """Sums of one planner's score, which can be added over time.

    Formulas: SPEC RG's elasticity metrics. d is the minimum parallelism that the arrivals required, computed in
    retrospect; s is the parallelism that the planner would have run.
    """

    parameters_id: Annotated[str, Field(max_length=16)]
    """Id of the planner's parameters."""
    simulated_seconds: Derived = 0.0
    """Simulated time in seconds; for role `observed` the observed time."""
    slot_seconds: Derived = 0.0
    """Slots × seconds that were used."""
    violation_seconds: Derived = 0.0
    """Time above the objective, in seconds."""
    rescales: Count = 0
    """Number of rescales."""
    cycles: Count = 0
    """Number of calls of the planner."""
    unanswered: Count = 0
    """Number of calls in which the planner failed, was too slow, or gave an invalid reply."""
    judged_seconds: Derived = 0.0
    """Time in seconds for which d is known; the sums below cover this time."""
    needed_slot_seconds: Derived = 0.0
    """Slots × seconds that the arrivals required."""
    short: Derived = 0.0
    """Sum of max(d - s, 0)/d * dt over subtasks."""
    spare: Derived = 0.0
    """Sum of max(s - d, 0)/d * dt over slots."""
    short_seconds: Derived = 0.0
    """Time in seconds in which an operator had fewer subtasks than required."""
    spare_seconds: Derived = 0.0
    """Time in seconds in which more slots were used than required."""
    unstable_seconds: Derived = 0.0
    """Time in seconds in which s and d did not change in the same direction."""
    compared_seconds: Derived = 0.0
    """Time in seconds in which the simulation was compared with the real application (role `chosen`)."""
    error: Derived = 0.0
    """Sum of the simulation's relative error * dt over the compared time."""


class ScoredHour(Message):
    """Scores of one hour."""

    hour: Timestamp
    """Start of the hour."""
    scores: Annotated[list[CandidateScore], Field(max_length=3 * MAX_CANDIDATES)]
    """One score for each planner and set of parameters."""


class Shadows(Message):
    """Simulated applications of one application at one instant, with the scores of the current and the last hour."""

    id: UUID
    application: ApplicationId
    observation_id: UUID
    """Id of the observation up to which the applications are simulated."""
    at: Timestamp
    """Time of the observation."""
    job_id: Annotated[str, Field(max_length=200)]
    """Id of the real job; the simulation starts again when it changes."""
    graph_hash: Annotated[str, Field(max_length=64)]
    """Hash of the graph's names and edges; the simulation starts again when it changes."""
    candidates: Annotated[list[Candidate], Field(max_length=MAX_CANDIDATES)]
    """Simulated applications, and the real one."""
    arrived: Annotated[list[Arrived], Field(max_length=MAX_ARRIVED)] = Field(default_factory=list)
    """Arrivals without a score yet and those just before them, oldest first; scores are computed in retrospect."""
    judged_until: Timestamp | None = None
    """Last scored instant. None: no instant has a score."""
    judged_need: Count | None = None
    """Number of subtasks required at the last scored instant. None: no instant has a score."""
    hours: Annotated[list[ScoredHour], Field(max_length=MAX_HOURS)] = Field(default_factory=list)
    """Scores by hour, oldest first."""


class PlannerScore(_Labelled):
    """Score of one planner in a period. Percentages are of the scored time; None: not enough data."""

    current: bool = True
    """Whether the policy still lists the planner with these parameters."""
    seconds: Derived
    """Simulated time in seconds; for role `observed` the observed time."""
    slot_hours: Derived
    """Slots × hours that were used."""
    mean_slots: Derived | None = None
    """Mean number of slots. None: not enough data."""
    needed_slot_hours: Derived | None = None
    """Slots × hours that the arrivals required in the scored time, if rescales cost nothing. None: not enough data."""
    violation_seconds: Derived
    """Time above the objective, in seconds."""
    violation_share: Share | None = None
    """Share of the time above the objective, 0 to 1. None: not enough data."""
    rescales: Count
    """Number of rescales."""
    under_provisioning: Derived | None = None
    """thU: 100/T * sum max(d - s, 0)/d * dt over subtasks, in %. None: not enough data."""
    over_provisioning: Derived | None = None
    """thO: 100/T * sum max(s - d, 0)/d * dt over slots, in %. None: not enough data."""
    under_provisioned_time: Derived | None = None
    """tU: share of the time in which an operator had fewer subtasks than required, in %. None: not enough data."""
    over_provisioned_time: Derived | None = None
    """tO: share of the time in which more slots were used than required, in %. None: not enough data."""
    instability: Derived | None = None
    """u: share of the time in which s and d did not change in the same direction, in %. None: not enough data."""
    unanswered: Count = 0
    """Number of calls in which the planner failed, was too slow, or gave an invalid reply."""
    cycles: Count = 0
    """Number of calls of the planner."""


class Scores(Message):
    """Scores of the chosen planner and its shadows in a period."""

    application: ApplicationId
    since: Timestamp
    """Start of the period."""
    until: Timestamp
    """End of the period."""
    sentence: Sentence
    """Planner that would have been cheaper without more violation, in one sentence."""
    confidence: Share | None = None
    """1 minus the mean relative error of the chosen planner's simulation against the real application. None: they could
    not be compared."""
    compared_seconds: Derived = 0.0
    """Time in seconds in which they were compared."""
    cheaper: Name | None = None
    """Label of the cheapest planner that is cheaper than the chosen one without more violation. None: there is none."""
    planners: Annotated[list[PlannerScore], Field(max_length=100)]
    """Scores of the planners."""
