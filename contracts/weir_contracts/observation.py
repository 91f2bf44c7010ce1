"""One application at one instant, as its monitor saw it."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from .base import (
    ApplicationId,
    Count,
    Message,
    NonNegative,
    OperatorName,
    Quantity,
    Share,
    SubtaskCount,
    Timestamp,
    observation_id,
)
from .deployment import Deployment, Run, Topology
from .policy import ScalingPolicy

ObservationStatus = Literal["running", "not_running", "not_found", "unreachable", "ended"]
"""running: readings are usable. not_running: found, but (re)starting, failed or finished. not_found: the cluster answers
and has no such job. unreachable: nothing can be said. ended: the policy was deleted, forget the application."""


class OperatorReading(Message):
    """An operator's cumulative counters and gauges. All counters start at 0 with a run; None is unknown."""

    operator: OperatorName
    parallelism: SubtaskCount
    complete: bool = True
    """False while the engine has not heard of every subtask: then nothing may be learnt from this reading."""
    records_in: Count | None = None
    records_out: Count | None = None
    busy_ms: NonNegative | None = None
    """Accumulated over all subtasks since the run began. May fall between two readings (Flink books idle time late)."""
    backpressured_ms: NonNegative | None = None
    idle_ms: NonNegative | None = None
    busy_share_mean: Share | None = None
    """Mean over subtasks of the engine's own gauge (Flink: a 60 s average)."""
    busy_share_max: Share | None = None
    backpressure_share_mean: Share | None = None
    backpressure_share_max: Share | None = None
    pending_records: Count | None = None
    """What a source says is waiting. Absent until the first record was read."""


class PartitionReading(Message):
    """One partition of a source, offsets as the broker and the source tell them."""

    operator: OperatorName
    topic: Annotated[str, Field(max_length=249)]
    partition: Count
    log_start_offset: Count | None = None
    log_end_offset: Count | None = None
    """Next offset to be written that a reader at the policy's isolation level would see."""
    committed_offset: Count | None = None
    committed_at: Timestamp | None = None
    """When the monitor first saw this committed offset: its age is at least the time since."""
    current_offset: Count | None = None
    """Next offset the source will process, from the source itself."""
    position_appended_at: Timestamp | None = None
    """When the record at the source's position was appended, where it was looked up in the log."""


class Problem(Message):
    """Something that could not be read: `where` names call and field, `what` says what came instead."""

    where: Annotated[str, Field(max_length=300)]
    what: Annotated[str, Field(max_length=1000)]


class Observation(Message):
    """Topology, readings, deployment and the policy in force, taken together; nobody joins topics to see them whole."""

    id: UUID
    application: ApplicationId
    observed_at: Timestamp
    """The monitor's clock at the end of the scrape."""
    source_time: Timestamp | None = None
    """The engine's own clock in the same answer."""
    scrape_seconds: NonNegative | None = None
    policy: ScalingPolicy
    status: ObservationStatus
    message: Annotated[str, Field(max_length=1000)] = ""
    run: Run | None = None
    deployment: Deployment | None = None
    topology: Topology | None = None
    operators: Annotated[list[OperatorReading], Field(max_length=1000)] = Field(default_factory=list)
    partitions: Annotated[list[PartitionReading], Field(max_length=10000)] = Field(default_factory=list)
    signals: Annotated[dict[str, Quantity | None], Field(max_length=200, fail_fast=True)] = Field(default_factory=dict)
    """Named readings of other collectors, for planners that want them."""
    problems: Annotated[list[Problem], Field(max_length=100)] = Field(default_factory=list)


def ended_observation(policy: ScalingPolicy, at: datetime, message: str = "its policy was deleted") -> Observation:
    """Return the last observation of an application: every service may forget it. `policy` is the last one it had."""
    return Observation(
        id=observation_id(policy.application, at),
        application=policy.application,
        observed_at=at,
        policy=policy,
        status="ended",
        message=message,
    )
