"""The planner's parameters: the original's options with their defaults, times with their unit in the name."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Version = Literal["1.10.0", "1.15.0", "1.16.0", "1.16.1"]
Minutes = Annotated[float, Field(ge=0, le=366 * 24 * 60)]

_LACKING: dict[str, tuple[Version, ...]] = {
    "utilization_max": ("1.10.0",),
    "utilization_min": ("1.10.0",),
    "observed_scalability_enabled": ("1.10.0",),
    "key_group_partitions_adjust_mode": ("1.10.0",),
    "parallelism_alignment_mode": ("1.10.0", "1.15.0"),
}
"""Options that some versions do not have."""


class FlinkAutoscalerParameters(BaseModel):
    """The original's options (`job.autoscaler.…`), as far as they bear on parallelism."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    version: Version = Field(default="1.16.1", description="release of the original autoscaler that is reproduced")
    metrics_window_minutes: Annotated[float, Field(gt=0, le=24 * 60)] = Field(
        default=15.0, description="span of the samples that a decision rests on"
    )
    stabilization_interval_minutes: Minutes = Field(
        default=5.0, description="time after the job's start in which samples are taken and nothing is decided"
    )
    utilization_target: float = Field(default=0.7, ge=0, le=1, description="busy share that capacity is sized for")
    utilization_max: float | None = Field(
        default=None, ge=0, le=1, description="busy share above which it scales up; none: target + boundary"
    )
    utilization_min: float | None = Field(
        default=None, ge=0, le=1, description="busy share below which it scales down; none: target - boundary"
    )
    target_utilization_boundary: float = Field(
        default=0.3, ge=0, description="half the band around the target that is left alone"
    )
    scale_down_interval_minutes: Minutes = Field(
        default=60.0, description="time for which fewer subtasks must have been wanted before scaling down; 0: none"
    )
    scale_down_max_factor: float = Field(default=0.6, ge=0, description="largest share taken away in one step")
    scale_up_max_factor: float = Field(default=100_000.0, ge=0, description="largest share added in one step")
    vertex_min_parallelism: int = Field(default=1, ge=1, le=32768, description="smallest parallelism of an operator")
    vertex_max_parallelism: int = Field(
        default=200, ge=1, le=32768, description="largest parallelism of an operator; the policy's bounds apply as well"
    )
    vertex_exclude: list[str] = Field(
        default_factory=list, max_length=100, description="operators, by name or id, that keep their parallelism"
    )
    catch_up_duration_minutes: Minutes = Field(
        default=30.0, description="time in which a backlog is to be worked off; 0: lag is ignored"
    )
    restart_time_minutes: Minutes = Field(
        default=5.0, description="assumed downtime of a rescale until one has been measured"
    )
    restart_time_tracking_enabled: bool = Field(default=False, description="use the longest measured restart instead")
    restart_time_tracking_limit_minutes: Minutes = Field(default=15.0, description="upper limit of a measured restart")
    backlog_processing_lag_threshold_minutes: Minutes = Field(
        default=5.0, description="lag of a source from which nothing is scaled down and the upper bound is 100 %"
    )
    observed_true_processing_rate_lag_threshold_seconds: float = Field(
        default=30.0, ge=0, le=86_400, description="lag of a source from which its throughput is its capacity"
    )
    observed_true_processing_rate_switch_threshold: float = Field(
        default=0.15, ge=0, description="how far the capacity by busy time must exceed the observed one to be rejected"
    )
    observed_true_processing_rate_min_observations: int = Field(
        default=2, ge=1, le=1000, description="number of throughput samples that a capacity needs"
    )
    busy_time_aggregator: Literal["MAX", "AVG"] = Field(
        default="MAX",
        description="whose busy time counts: the busiest subtask's or the mean (the original's MIN is not available here)",
    )
    scaling_effectiveness_detection_enabled: bool = Field(
        default=False, description="do not scale up an operator again if the last time gained too little"
    )
    scaling_effectiveness_threshold: float = Field(
        default=0.1, ge=0, le=1, description="share of the expected gain below which a scale-up was ineffective"
    )
    observed_scalability_enabled: bool = Field(
        default=False, description="divide by the share of linear scaling that past decisions showed"
    )
    observed_scalability_min_observations: int = Field(
        default=3, ge=1, le=10, description="number of past decisions that this needs"
    )
    observed_scalability_coefficient_min: float = Field(default=0.5, ge=0.01, le=1, description="minimum of that share")
    history_max_count: int = Field(default=3, ge=1, le=10, description="number of decisions kept for each operator")
    history_max_age_hours: float = Field(default=24.0, ge=0, le=24 * 366, description="how long decisions are kept")
    parallelism_alignment_mode: Literal["BALANCED", "EVENLY_SPREAD", "OFF"] | None = Field(
        default=None, description="how a target is moved to fit key groups or partitions; none: BALANCED"
    )
    key_group_partitions_adjust_mode: Literal["EVENLY_SPREAD", "MAXIMIZE_UTILIZATION"] | None = Field(
        default=None, description="the same before release 1.16, whose default is EVENLY_SPREAD"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for option, without in _LACKING.items():
            if self.version in without and getattr(self, option) not in (None, False):
                raise ValueError(f"{option}: is not an option of version {self.version} of the autoscaler")
        if self.utilization_max is not None and self.utilization_max < self.utilization_target:
            raise ValueError("utilization_max: must not be below utilization_target")
        if self.utilization_min is not None and self.utilization_min > self.utilization_target:
            raise ValueError("utilization_min: must not be above utilization_target")
        if self.vertex_min_parallelism > self.vertex_max_parallelism:
            raise ValueError("vertex_min_parallelism: must not be above vertex_max_parallelism")
        return self

    @property
    def is_1_10(self) -> bool:
        """A waiting scale-down goes with another operator's change, alignment may reverse the direction, and rates have
        no minimal step."""
        return self.version == "1.10.0"

    @property
    def is_1_16(self) -> bool:
        """Alignment by regions, the expected rate of what is really taken, and input rates by the gauge."""
        return self.version in ("1.16.0", "1.16.1")

    @property
    def metrics_window_ms(self) -> int:
        return milliseconds(self.metrics_window_minutes)

    @property
    def catch_up_seconds(self) -> int:
        """Duration in seconds, truncated to an integer as in the original."""
        return milliseconds(self.catch_up_duration_minutes) // 1000


def milliseconds(minutes: float) -> int:
    return round(minutes * 60_000)
