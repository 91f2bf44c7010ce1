"""Analysis of one application, computed from its observations: rates, capacities, lag, symptoms, and the forecast of
the arrivals at its sources."""

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
from .deployment import Deployment, Run
from .observation import ObservationStatus, Problem
from .policy import ScalingPolicy
from .topology import Topology

ForecastMethod = Literal["last-value", "smoothing", "damped-trend", "daily-profile", "weekly-profile"]
"""Methods that the analyzer of this version publishes."""

PEAK_CONFIDENCE = 0.9
"""Share of the horizons whose highest rate is to stay at or below its bound `peak_upper`."""
MAX_PATH_POINTS = 32
MAX_HORIZONS = 8


class ForecastPoint(Message):
    """Expected rate at one time to come."""

    after_seconds: Seconds
    """Time from the observation, in seconds."""
    records_per_second: NonNegative
    """Expected arrivals at all partitions of the source together, in records/s."""


class PeakForecast(Message):
    """Highest rate of a source within one horizon: the time from the observation until `horizon_seconds` later."""

    horizon_seconds: Annotated[Seconds, Field(gt=0)]
    """Length of the horizon, in seconds."""
    peak: NonNegative
    """Expected highest rate within the horizon, in records/s."""
    peak_upper: NonNegative | None = None
    """Upper bound of the highest rate within the horizon, in records/s: 0.9 of such rates stay at or below it
    (conformal, from the errors of past peaks). None: the history is too short for it."""
    peak_at_seconds: Seconds
    """Time from the observation until the highest rate of the expected path within the horizon, in seconds."""
    coverage: Share | None = None
    """Share of past high peaks that stayed at or below their bound, 0 to 1. A peak is high if it was expected or came in
    the upper part of the load, where growth is decided: quiet minutes do not count. None: none has been judged yet."""
    judged: Count = 0
    """Number of past high peaks that `coverage` rests on."""


class SourceForecast(Message):
    """Forecast of one source's arrival rate. Rates are in records/s of all its partitions together."""

    operator: OperatorName
    method: Code
    """Method with the smallest recent error on this source: one of `ForecastMethod`, or a code of a newer version."""
    path: Annotated[list[ForecastPoint], Field(max_length=MAX_PATH_POINTS)] = Field(default_factory=list)
    """Expected rates over the longest horizon, in order of time."""
    horizons: Annotated[list[PeakForecast], Field(max_length=MAX_HORIZONS)] = Field(default_factory=list)
    """Highest rates within several horizons, shortest first: fixed ones, and the time that this application needs until
    new capacity counts."""

    def within(self, seconds: float) -> PeakForecast | None:
        """Return the shortest horizon of at least `seconds`; None if all are shorter."""
        return next((each for each in self.horizons if each.horizon_seconds >= seconds), None)


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
    "pods-pending",
    "pods-crashing",
    "out-of-memory",
    "rollout",
    "rebalancing",
    "restoring",
    "migrating",
    "hot-partition",
    "offsets-reset",
    "records-expired",
    "position-beyond-log",
    "reads-uncommitted",
    "timestamps-refused",
    "brokers-bound",
    "instance-stuck",
    "contradiction",
    "late-at-source",
    "ended",
]
"""Codes that the analyzer of this version publishes."""


class Symptom(Message):
    """Condition that affects decisions or that the user should know of, with its evidence."""

    code: Code
    """One of `SymptomCode`, or a code of a newer version or of another engine, which readers pass on."""
    operator: OperatorName | None = None
    """Operator that has the symptom. None: the application."""
    instance: Annotated[str | None, Field(max_length=300)] = None
    """Instance of the deployment that has the symptom, by its id. None: the operator or the application."""
    evidence: Sentence
    """Sentence with the numbers that show the symptom."""
    numbers: Annotated[dict[str, float | None], Field(fail_fast=True)] = Field(default_factory=dict)
    """The numbers of `evidence` by name, units in the names. None: unknown."""


class CapacityPoint(Message):
    """Measured capacity of an operator at one parallelism; kept across runs."""

    parallelism: SubtaskCount
    """Parallelism of the measurement, in subtasks."""
    records_per_second: Rate
    """Input rate of all subtasks together if they were busy all the time (true processing rate), in records/s."""
    confidence: Share
    """Confidence in the rate, 0 to 1."""
    saturated: bool = False
    """True: measured as throughput while records were waiting. False: computed from busy time."""
    max_input_rate: Rate | None = None
    """Maximum input rate of a window at this parallelism, whether the operator was busy all the time or not, in
    records/s. None: unknown."""
    skew: NonNegative | None = None
    """Busiest subtask's busy share over the mean. None: unknown."""
    samples: Count = 0
    """Number of measurements that were merged."""
    measured_at: Timestamp
    """Time of the last measurement."""
    job_id: Annotated[str, Field(max_length=200)] = ""
    """Id of the job that was measured; empty if unknown."""


class RestartTimes(Message):
    """Time without processing that a rescale costs, measured between runs."""

    seconds: Seconds | None = None
    """Restart time in seconds, smoothed. None until a restart was observed."""
    last_seconds: Seconds | None = None
    """Time of the last restart, in seconds. None until a restart was observed."""
    samples: Count = 0
    """Number of restarts observed."""
    restore_seconds: Seconds | None = None
    """Time in which tasks of a consumer group restored their state after they had moved, in seconds, smoothed. None: none
    was seen to restore."""
    warm_up_seconds: Seconds | None = None
    """Time in which other instances warmed up state before tasks moved to them, in seconds, smoothed. None: none was seen."""


class OperatorAnalysis(Message):
    """Rates and capacity of one operator. Rates are in records/s over all subtasks unless a name says otherwise."""

    operator: OperatorName
    parallelism: SubtaskCount
    """Observed parallelism, in subtasks."""
    input_rate: Estimate
    """Records/s that the operator takes in."""
    output_rate: Estimate
    """Records/s that the operator emits."""
    true_processing_rate: Estimate
    """Records/s that the operator would take in if its subtasks were busy all the time."""
    true_processing_rate_per_subtask: Estimate
    """True processing rate of one subtask, in records/s."""
    min_processing_rate: Estimate | None = None
    """Lower bound of the capacity in records/s, for an operator too idle to have a true processing rate. It justifies
    removing subtasks, never adding them. None: no such bound."""
    utilization: Estimate
    """Busy share of the window, 0 to 1, mean over subtasks."""
    backpressure: Estimate
    """Share of the window in which the operator waited for its outputs, 0 to 1, mean over subtasks."""
    skew: Estimate
    """Busy share of the busiest subtask divided by the mean: 1 is even."""
    target_input_rate: Estimate
    """Records/s that would arrive at the operator if every source kept up with its arrivals."""
    capacities: Annotated[list[CapacityPoint], Field(max_length=64)] = Field(default_factory=list)
    """Measured capacities, one for each parallelism that was observed."""


class EdgeAnalysis(Message):
    """Flow along one edge of the graph."""

    source: OperatorName
    target: OperatorName
    selectivity: Estimate
    """Records that arrive at `target` for each record that `source` takes in."""


class SourceAnalysis(Message):
    """Demand and lag of one source over all its partitions: sums of records, maxima of seconds."""

    operator: OperatorName
    arrival_rate: Estimate
    """Records/s that producers append to the source's partitions."""
    arrival_rate_trend: Estimate
    """Change of the arrival rate, in records/s per second."""
    lag_records: Estimate
    """Number of records that were appended and not processed yet."""
    lag_growth: Estimate
    """Change of the lag in records/s, by least squares over the window."""
    lag_seconds: Estimate
    """Age of the oldest unprocessed record, in seconds."""
    expected_latency_seconds: Estimate
    """Time in seconds until a record appended now is processed: lag in records divided by the processing rate."""
    partitions: Count | None = None
    """Number of partitions. None: unknown."""


class Window(Message):
    """Observations that an analysis rests on, all of one run."""

    started_at: Timestamp | None = None
    """Time of the first observation in the window. None: the window is empty."""
    seconds: NonNegative = 0.0
    """Length of the window in seconds."""
    samples: Count = 0
    """Number of observations in the window."""


class Analysis(Message):
    """Rates, capacities, lag and symptoms of an application at one instant. Carries policy, topology and deployment."""

    id: UUID
    application: ApplicationId
    observation_id: UUID
    """Id of the observation that was analysed."""
    observed_at: Timestamp
    """Time of the observation."""
    policy: ScalingPolicy
    """Policy in force at the observation."""
    status: ObservationStatus
    """Status of the observation."""
    message: Annotated[str, Field(max_length=1000)] = ""
    """Detail of the status, for people."""
    run: Run | None = None
    """Run that was observed. None: the application does not run, or it is unknown."""
    deployment: Deployment | None = None
    """Deployment that was observed. None: unknown."""
    topology: Topology | None = None
    """Graph that was observed. None: unknown."""
    window: Window = Field(default_factory=Window)
    """Observations that the estimates rest on."""
    operators: Annotated[list[OperatorAnalysis], Field(max_length=1000)] = Field(default_factory=list)
    """Operators in topological order."""
    edges: Annotated[list[EdgeAnalysis], Field(max_length=5000)] = Field(default_factory=list)
    """Edges of the graph with their selectivities."""
    sources: Annotated[list[SourceAnalysis], Field(max_length=1000)] = Field(default_factory=list)
    """Sources with their demand and lag."""
    forecasts: Annotated[list[SourceForecast], Field(max_length=1000)] = Field(default_factory=list)
    """Forecasts of the sources' arrival rates; a source whose history is too short has none."""
    arrival_rate: Estimate
    """Records/s that arrive at all sources together."""
    lag_records: Estimate
    """Unprocessed records of all sources together."""
    lag_growth: Estimate
    """Change of the lag of all sources together, in records/s."""
    lag_seconds: Estimate
    """Age of the oldest unprocessed record of any source, in seconds."""
    expected_latency_seconds: Estimate
    """Maximum over the sources of the time in seconds until a record appended now is processed."""
    bottleneck: OperatorName | None = None
    """Operator that limits the throughput, or is nearest to its capacity. None: unknown."""
    symptoms: Annotated[list[Symptom], Field(max_length=100)] = Field(default_factory=list)
    restart_times: RestartTimes = Field(default_factory=RestartTimes)
    problems: Annotated[list[Problem], Field(max_length=100)] = Field(default_factory=list)
    """Values that could not be read."""
    dropped_observations: Count = 0
    """Number of observations that were lost, duplicate or out of order since the analyzer's state began."""
    learned: dict[str, Any] = Field(default_factory=dict)
    """Private, versioned state of the analyzer, which re-seeds a lost one. Other readers must ignore it."""

    def operator(self, name: str) -> OperatorAnalysis | None:
        """Return the analysis of the operator `name`; None if there is none."""
        return next((o for o in self.operators if o.operator == name), None)

    @property
    def throughput(self) -> float | None:
        """Records/s that all sources together take in; None unless each is known."""
        found = [self.operator(source.operator) for source in self.sources]
        rates = [None if each is None else each.input_rate.value for each in found]
        return None if not rates or None in rates else sum(rate for rate in rates if rate is not None)

    def has(self, code: Code) -> bool:
        """Return whether a symptom is present."""
        return code in [symptom.code for symptom in self.symptoms]

    def forecast(self, operator: str) -> SourceForecast | None:
        """Return the forecast of a source; None if it has none."""
        return next((each for each in self.forecasts if each.operator == operator), None)
