"""State that one plan of an application hands to the next one, so that the planner service needs no database."""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, Field

from .base import Count, Derived, Message, Name, NonNegative, OperatorName, Parallelism, Timestamp, writable

MAX_OTHERS = 15
"""Ten candidates and five shadows."""
MEMORY_LIMIT_BYTES = 16_384
"""Maximum size of a planner's memory as JSON."""


def _within_memory_limit(memory: dict[str, Any]) -> dict[str, Any]:
    size = len(json.dumps(memory, separators=(",", ":"), default=str).encode()) if memory else 0
    if size > MEMORY_LIMIT_BYTES:
        raise ValueError(f"is {size} bytes; a planner may keep {MEMORY_LIMIT_BYTES}")
    return memory


PlannerMemory = Annotated[dict[str, Any], AfterValidator(writable), AfterValidator(_within_memory_limit)]


def parameters_id(parameters: Mapping[str, Any]) -> str:
    """Return an id of a planner's parameters: 8 hexadecimal digits."""
    text = json.dumps(parameters, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


class Recommendation(Message):
    """Vector that a planner recommended, kept for the stabilisation windows."""

    at: Timestamp
    """Time of the recommendation."""
    parallelism: Parallelism
    """The vector, in subtasks by operator."""


class UsualArrivals(Message):
    """Usual arrival rate at all sources together, from which the guards recognise an upstream outage."""

    at: Timestamp
    """Time of the last update."""
    records_per_second: NonNegative
    """Decaying maximum of the arrival rate, in records/s."""
    outage_since: Timestamp | None = None
    """Time since which most arrivals are missing. None: they are not."""
    lately: NonNegative | None = None
    """Exponentially weighted mean arrival rate of the last minutes, in records/s. None: unknown."""
    rate_before_outage: NonNegative | None = None
    """Value of `lately` before most arrivals went missing, in records/s. None: it did not fall."""
    min_lately: NonNegative | None = None
    """Minimum of `lately` while nothing was missing, in records/s; doubles in the time in which the usual rate halves. None:
    unknown."""


class PastAction(Message):
    """Action of the last hour that the engine accepted, for the guards."""

    id: UUID
    at: Timestamp
    """Time at which the engine accepted the request."""
    before: Parallelism = Field(default_factory=dict)
    """Former parallelism of the operators that the action changed, in subtasks."""
    after: Parallelism = Field(default_factory=dict)
    """New parallelism of the operators that the action changed, in subtasks."""
    undone: bool = False
    """Whether the action was rolled back."""


class ContenderState(Message):
    """State of one of a policy's candidates or shadows, for its next proposal."""

    label: Name
    """Label of the candidate or shadow."""
    planner: Name
    """Name of its planner."""
    parameters_id: Annotated[str, Field(max_length=16)]
    """Id of its parameters; with others it starts with an empty state."""
    memory: PlannerMemory = Field(default_factory=dict)
    """Memory of the planner, at most 16,384 bytes as JSON; all candidates and shadows together keep at most 65,536."""
    recommendations: Annotated[list[Recommendation], Field(max_length=20)] = Field(default_factory=list)
    """Its recommendations within the stabilisation windows, oldest first."""


class Score(Message):
    """Totals of what the plans of a planner would have caused, by the predictor, with the arrivals that came."""

    label: Name
    """Label of the candidate or shadow; the name of the policy's planner."""
    planner: Name
    """Name of the planner."""
    since: Timestamp
    """Time of the first plan that counts. The score begins again with other parameters or another objective."""
    seconds: Derived = 0.0
    """Scored time, in seconds: without the time in which arrivals or a capacity were unknown."""
    late_seconds: Derived = 0.0
    """Time above the objective, in seconds."""
    slot_seconds: Derived = 0.0
    """Slots × seconds that were used."""
    restarts: Count = 0
    """Number of changes of the parallelism."""
    unanswered: Count = 0
    """Number of cycles in which the planner failed, was too slow, or gave an invalid reply."""


class WaitingRecords(Message):
    """Records that would wait at a source."""

    records: Derived
    """Number of unprocessed records."""
    age_seconds: Derived = 0.0
    """Age of the oldest unprocessed record, in seconds."""


class ScoredCourse(Message):
    """Score of a planner, and the predicted state of the application from which the next interval continues."""

    score: Score
    basis_id: Annotated[str, Field(max_length=16)]
    """Id of the planner's parameters and the policy's objective; with others the score begins again."""
    until: Timestamp
    """Time of the observation up to which the course goes."""
    parallelism: Parallelism
    """Vector that the planner's last plan leads to, in subtasks by operator."""
    waiting: Annotated[dict[OperatorName, WaitingRecords], Field(fail_fast=True)] = Field(default_factory=dict)
    """Records that would wait, by source."""
    down_seconds: Derived = 0.0
    """Remaining time of the last restart, in seconds."""
    replay_seconds: Derived = 0.0
    """Time by which a restart that begins goes back to its checkpoint, in seconds; 0 once it has."""


class PlanState(Message):
    """State that one plan of an application hands to the next one; bounded in size."""

    recommendations: Annotated[list[Recommendation], Field(max_length=400)] = Field(default_factory=list)
    """Recommendations of the planner within the stabilisation windows, oldest first."""
    memory: PlannerMemory = Field(default_factory=dict)
    """Memory of the planner, at most 16,384 bytes as JSON."""
    planner: Name | None = None
    """Planner that wrote `memory`; another planner starts with an empty one. None: it is empty."""
    arrivals: UsualArrivals | None = None
    """Usual arrival rate. None until arrival rates were known once."""
    actions: Annotated[list[PastAction], Field(max_length=60)] = Field(default_factory=list)
    """Actions of the last hour, oldest first."""
    contenders: Annotated[list[ContenderState], Field(max_length=MAX_OTHERS)] = Field(default_factory=list)
    """State of each of the policy's candidates and shadows."""
    courses: Annotated[list[ScoredCourse], Field(max_length=1 + MAX_OTHERS)] = Field(default_factory=list)
    """Scores of the policy's planner and of its candidates and shadows. Empty: it has neither, or nothing was judged yet."""
