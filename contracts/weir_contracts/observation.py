"""Observation: readings of one application at one instant."""

from datetime import datetime
from math import sqrt
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field

from .base import (
    MAX_SENTENCE,
    ApplicationId,
    Count,
    Message,
    NonNegative,
    OperatorName,
    Quantity,
    Seconds,
    Share,
    SubtaskCount,
    Timestamp,
    cut_to,
    observation_id,
)
from .deployment import Deployment, Run
from .policy import ScalingPolicy
from .topology import Topology

ObservationStatus = Literal["running", "not_running", "not_found", "unreachable", "ended"]
"""running: readings are usable. not_running: the job is starting, restarting, failed or finished. not_found: the
cluster answers and has no such job. unreachable: no answer, so the state is unknown. ended: the policy was deleted."""


class OperatorReading(Message):
    """Counters and gauges of one operator. Counters are sums over all subtasks that start at 0 with a run; None:
    unknown."""

    operator: OperatorName
    parallelism: SubtaskCount
    """Observed parallelism, in subtasks."""
    complete: bool = True
    """False while the engine lacks the counters of a subtask: the reading must not be used for estimates."""
    finished: bool = False
    """True: all its subtasks have ended while the job goes on, as those of a bounded source do. It processes nothing any
    more."""
    records_in: Count | None = None
    """Records taken in since the run began. None: unknown."""
    records_out: Count | None = None
    """Records emitted since the run began. None: unknown."""
    records_at_commits: bool | None = None
    """Whether the records are known from commits, so that their counters stand still in between. None: unknown."""
    busy_ms: NonNegative | None = None
    """Busy time of all subtasks since the run began, in ms. It may fall between two readings, since Flink counts idle
    time late. None: unknown."""
    backpressured_ms: NonNegative | None = None
    """Time that all subtasks waited for their outputs since the run began, in ms. None: unknown."""
    idle_ms: NonNegative | None = None
    """Idle time of all subtasks since the run began, in ms. None: unknown."""
    busy_share_mean: Share | None = None
    """Busy share of time, 0 to 1, mean over subtasks of the engine's gauge (Flink: a 60 s average). None: unknown."""
    busy_share_max: Share | None = None
    """Busy share of time, 0 to 1, maximum over subtasks of the engine's gauge. None: unknown."""
    backpressure_share_mean: Share | None = None
    """Backpressured share of time, 0 to 1, mean over subtasks of the engine's gauge. None: unknown."""
    backpressure_share_max: Share | None = None
    """Backpressured share of time, 0 to 1, maximum over subtasks of the engine's gauge. None: unknown."""
    pending_records: Count | None = None
    """Unprocessed records that a source reports. None: not a source, it reports none, or no record was read yet."""
    pending_refused: Annotated[str, Field(max_length=200), cut_to(200)] = ""
    """Why the unprocessed records that a source reports are unusable, such as a negative number. Empty: they are usable, or
    it reports none."""
    idle_seconds: Seconds | None = None
    """Time since a source ran out of records, in seconds; of several subtasks the shortest. 0: it has some. None: not
    reported."""
    behind_seconds: Seconds | None = None
    """Age of the next record of a source by the clock of the system that it reads, in seconds; of several shards the
    longest. 0: it has read all. None: not reported."""
    behind_shortest_seconds: Seconds | None = None
    """The shortest such age of several shards."""
    fetch_lag_seconds: Seconds | None = None
    """Age of the last record of a source when it was fetched, by the record's own timestamp, in seconds; of several
    subtasks the longest. None: not reported."""
    watermark_lag_seconds: Seconds | None = None
    """Time by which a source's watermark is behind the clock, in seconds; of several subtasks the longest. None: not
    reported."""


class PartitionReading(Message):
    """Offsets of one partition of a source, from the broker and from the source."""

    operator: OperatorName
    """Name of the source."""
    topic: Annotated[str, Field(max_length=249)]
    partition: Count
    log_start_offset: Count | None = None
    """Offset of the first record in the log. None: unknown."""
    log_end_offset: Count | None = None
    """Offset after the last record that is visible at the policy's isolation level. None: unknown."""
    committed_offset: Count | None = None
    """Offset that the policy's consumer group has committed. None: unknown, or it has committed none."""
    committed_at: Timestamp | None = None
    """Time at which the monitor first read this committed offset; the commit may be older. None: unknown."""
    current_offset: Count | None = None
    """Next offset to process, as the source reports it. None: unknown."""
    next_record_offset: Count | None = None
    """Offset of the first record at or after the source's position, or `log_end_offset` if none follows: markers of
    transactions, aborted and compacted records have offsets, too. None: not looked up."""
    position_appended_at: Timestamp | None = None
    """Append time of the record at `next_record_offset`. None: not looked up, or its timestamp is no append time."""
    refused_timestamp_ms: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    """Timestamp of that record, in ms since 1970, which cannot be its append time. None: there is none to refuse."""
    high_watermark: Count | None = None
    """Offset after the last record, those of open transactions included. None: not read, since the source's position is
    not beyond `log_end_offset`."""
    rewound_at: Timestamp | None = None
    """Time at which the monitor saw the committed offset or the end of the log fall: offsets were reset, or the topic
    was created again. None: not seen."""
    owner: Annotated[str, Field(max_length=300)] = ""
    """Id of the instance that the partition is assigned to. Empty: none, or unknown."""


def off_level(records: float, expected: float, noise_share: float) -> int:
    """Return 1 if more records were counted than expected, -1 if fewer, 0 if the difference is noise: up to `noise_share`
    of the expected ones, or up to four standard deviations of a Poisson distribution."""
    difference = records - expected
    if abs(difference) <= max(noise_share * expected, 4.0 * sqrt(max(1.0, expected))):
        return 0
    return 1 if difference > 0 else -1


class Problem(Message):
    """Value that could not be read."""

    where: Annotated[str, Field(max_length=300), cut_to(300)]
    """Call and field that failed."""
    what: Annotated[str, Field(max_length=1000), cut_to(MAX_SENTENCE)]
    """Error, or the content that came instead."""


class Imported(Message):
    """Knowledge of an application that `weir import` carries from another Weir into the log."""

    learned: dict[str, Any] = Field(default_factory=dict)
    """`learned` of the newest analysis there, private to the analyzer. Empty: nothing was learned."""
    past: dict[str, Any] = Field(default_factory=dict)
    """Past cycles of the loop there, private to knowledge. Empty: none are carried."""


class Observation(Message):
    """Topology, readings, deployment and policy of one application at one instant."""

    id: UUID
    application: ApplicationId
    observed_at: Timestamp
    """Time at the end of the scrape, by the monitor's clock."""
    source_time: Timestamp | None = None
    """Time of the readings by the engine's clock. None: unknown."""
    scrape_seconds: NonNegative | None = None
    """Duration of the scrape in seconds. None: nothing was scraped."""
    policy: ScalingPolicy
    """Policy in force at the scrape."""
    status: ObservationStatus
    """running: readings are usable. not_running: the job is starting, restarting, failed or finished. not_found: the
    cluster answers and has no such job. unreachable: no answer, so the state is unknown. ended: the policy was
    deleted."""
    message: Annotated[str, Field(max_length=1000), cut_to(1000)] = ""
    """Detail of the status, for people."""
    run: Run | None = None
    """Current run. None: the application does not run, or it is unknown."""
    deployment: Deployment | None = None
    """State of the application in its engine. None: unknown."""
    topology: Topology | None = None
    """Graph of operators. None: unknown."""
    operators: Annotated[list[OperatorReading], Field(max_length=1000)] = Field(default_factory=list)
    """Readings of the operators."""
    partitions: Annotated[list[PartitionReading], Field(max_length=10000)] = Field(default_factory=list)
    """Offsets of the sources' partitions."""
    signals: Annotated[dict[str, Quantity | None], Field(max_length=200, fail_fast=True)] = Field(default_factory=dict)
    """Readings of other collectors by name, for planners that use them. None: unknown."""
    problems: Annotated[list[Problem], Field(max_length=100)] = Field(default_factory=list)
    """Values that could not be read."""
    imported: Imported | None = None
    """What another Weir knew. An observation that carries it has no readings, and no plan follows from it. None: it is a
    reading."""


def ended_observation(policy: ScalingPolicy, at: datetime, message: str = "its policy was deleted") -> Observation:
    """Return the last observation of an application, after which services forget it. `policy` is its last policy."""
    return Observation(
        id=observation_id(policy.application, at),
        application=policy.application,
        observed_at=at,
        policy=policy,
        status="ended",
        message=message,
    )


def imported_observation(policy: ScalingPolicy, at: datetime, imported: Imported) -> Observation:
    """Return the observation that carries what another Weir knew to the services that keep it."""
    return Observation(
        id=observation_id(policy.application, at),
        application=policy.application,
        observed_at=at,
        policy=policy,
        status="unreachable",
        message="what another Weir knew of it was imported; nothing was read",
        imported=imported,
    )
