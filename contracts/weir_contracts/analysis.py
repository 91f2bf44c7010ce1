"""What the observations of an application mean."""

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field

from .base import (
    ApplicationId,
    Code,
    Count,
    Estimate,
    Message,
    NonNegative,
    OperatorName,
    Rate,
    Seconds,
    Sentence,
    Share,
    SubtaskCount,
    Timestamp,
)
from .deployment import Deployment, Run, Topology
from .observation import ObservationStatus, Problem
from .policy import ScalingPolicy

SymptomCode = Literal[
    "warming-up",
    "catching-up",
    "stalled",
    "restarting",
    "skewed",
    "source-bound",
    "downstream-bound",
    "unreachable",
    "not-running",
    "not-found",
    "metric-missing",
    "gap",
    "retention-gap",
    "ended",
]
"""The codes that this version's analyzer publishes."""


class Symptom(Message):
    """Something a person should know, with the numbers it rests on."""

    code: Code
    """One of `SymptomCode`, or a code of a newer version or of another engine, which readers pass on."""
    operator: OperatorName | None = None
    evidence: Sentence
    numbers: Annotated[dict[str, float | None], Field(fail_fast=True)] = Field(default_factory=dict)


class CapacityPoint(Message):
    """The greatest input rate an operator was seen to sustain at one parallelism; outlives runs."""

    parallelism: SubtaskCount
    records_per_second: Rate
    """Of the whole operator, if busy all the time (true processing rate)."""
    confidence: Share
    saturated: bool = False
    """Taken while backlogged, from observed throughput; otherwise from busy time."""
    samples: Count = 0
    measured_at: Timestamp
    job_id: Annotated[str, Field(max_length=200)] = ""


class RestartTimes(Message):
    """How long a rescale kept the application from processing, learnt from runs."""

    seconds: Seconds | None = None
    """Smoothed; None until one was seen."""
    last_seconds: Seconds | None = None
    samples: Count = 0


class OperatorAnalysis(Message):
    """Rates in records/s, of the whole operator unless named otherwise."""

    operator: OperatorName
    parallelism: SubtaskCount
    input_rate: Estimate
    output_rate: Estimate
    true_processing_rate: Estimate
    true_processing_rate_per_subtask: Estimate
    least_processing_rate: Estimate | None = None
    """What a hardly busy operator sustains at least, where a true rate would be noise. A bound and no rate: subtasks may be taken away
    by it, never added."""
    utilisation: Estimate
    """Busy share of the window, mean over subtasks."""
    backpressure: Estimate
    skew: Estimate
    """Busiest subtask's busy share over the mean: 1 is even."""
    target_input_rate: Estimate
    """What would arrive here if every source kept up with its arrivals and nothing held it back."""
    capacities: Annotated[list[CapacityPoint], Field(max_length=64)] = Field(default_factory=list)
    """Capacity seen at each parallelism, this one and others."""


class EdgeAnalysis(Message):
    source: OperatorName
    target: OperatorName
    selectivity: Estimate
    """Records that reach `target` per record that `source` takes in."""


class SourceAnalysis(Message):
    """A source's demand and lag. Records and seconds over all its partitions; seconds are the largest of them."""

    operator: OperatorName
    arrival_rate: Estimate
    arrival_rate_trend: Estimate
    """Change of the arrival rate in records/s per second."""
    lag_records: Estimate
    lag_growth: Estimate
    """Least squares over the window, records/s."""
    lag_seconds: Estimate
    """Age of the oldest unprocessed record."""
    expected_latency_seconds: Estimate
    """Lag records ÷ processing rate: when a record appended now will be done."""
    partitions: Count | None = None


class Window(Message):
    """The readings an analysis rests on; never of two runs."""

    started_at: Timestamp | None = None
    seconds: NonNegative = 0.0
    samples: Count = 0


class Analysis(Message):
    """The application's readings, understood. Passes topology, deployment and policy on."""

    id: UUID
    application: ApplicationId
    observation_id: UUID
    observed_at: Timestamp
    policy: ScalingPolicy
    status: ObservationStatus
    message: Annotated[str, Field(max_length=1000)] = ""
    run: Run | None = None
    deployment: Deployment | None = None
    topology: Topology | None = None
    window: Window = Field(default_factory=Window)
    operators: Annotated[list[OperatorAnalysis], Field(max_length=1000)] = Field(default_factory=list)
    edges: Annotated[list[EdgeAnalysis], Field(max_length=5000)] = Field(default_factory=list)
    sources: Annotated[list[SourceAnalysis], Field(max_length=1000)] = Field(default_factory=list)
    arrival_rate: Estimate
    lag_records: Estimate
    lag_growth: Estimate
    lag_seconds: Estimate
    expected_latency_seconds: Estimate
    bottleneck: OperatorName | None = None
    symptoms: Annotated[list[Symptom], Field(max_length=100)] = Field(default_factory=list)
    restart_times: RestartTimes = Field(default_factory=RestartTimes)
    problems: Annotated[list[Problem], Field(max_length=100)] = Field(default_factory=list)
    dropped_observations: Count = 0
    """Observations of this application lost to a retention gap, a duplicate or a wrong order, since its state began."""
    learnt: dict[str, Any] = Field(default_factory=dict)
    """The analyzer's own, versioned: what re-seeds a lost state. Nobody else reads it."""

    def operator(self, name: str) -> OperatorAnalysis | None:
        """The analysis of the operator called `name`."""
        return next((o for o in self.operators if o.operator == name), None)

    def has(self, code: Code) -> bool:
        """Whether a symptom is present."""
        return any(symptom.code == code for symptom in self.symptoms)
