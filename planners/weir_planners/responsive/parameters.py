"""Settings of the planner `responsive`: each diagnoser with its own, by Responsive's names."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_NUMBER = 1e15


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


_Window = Annotated[float, Field(gt=0, le=86_400)]


class RateDiagnoser(_Settings):
    """A rate of one node, in records/s, over a window."""

    type: Literal["PROCESSING_RATE_SCALE_UP", "PROCESSING_RATE_SCALE_DOWN", "ARRIVAL_RATE_SCALE_UP"]
    rate: float = Field(gt=0, le=MAX_NUMBER, description="capacity of one node, in records/s")
    window_seconds: _Window = 15.0


class LagDiagnoser(_Settings):
    """The derivative of lag."""

    type: Literal["LAG_SCALE_UP"]
    min_growth_share: float = Field(
        default=0.05,
        ge=0,
        le=10,
        description="growth of lag, as a share of the arrivals, that counts as noise",
    )


class FixedReplica(_Settings):
    type: Literal["FIXED_REPLICA"]
    replicas: int = Field(default=1, ge=1, le=32_768)


class OtherStrategy(_Settings):
    type: Literal["RATE_BASED", "SCALE_TO_MAX"] = "RATE_BASED"


class LatencyDiagnoser(_Settings):
    """The latency to be expected by a record that arrives now."""

    type: Literal["EXPECTED_LATENCY"]
    max_expected_latency_seconds: float | None = Field(
        default=None, gt=0, le=86_400, description="by default the policy's objective, else 60"
    )
    projection_seconds: float = Field(default=60.0, ge=0, le=86_400, description="how far lag is projected, in s")
    scale_down_buffer_seconds: float = Field(
        default=60.0, gt=0, le=86_400, description="time to return below the maximum; smaller means more replicas"
    )
    grace_seconds: float = Field(
        default=60.0, ge=0, le=86_400, description="time after the start of a run without a diagnosis, in s"
    )
    stagger_seconds: float = Field(
        default=0.0, ge=0, le=86_400, description="minimum time between two recommendations of this diagnoser, in s"
    )
    scale_up_strategy: FixedReplica | OtherStrategy = Field(default=OtherStrategy(), discriminator="type")


class SaturationDiagnoser(_Settings):
    """Threads that are mostly blocked."""

    type: Literal["THREAD_SATURATION"]
    threshold: float = Field(default=0.65, gt=0, lt=1, description="share of time that every thread is blocked")
    window_seconds: _Window = 60.0
    num_windows: int = Field(
        default=2, ge=1, le=60, description="number of consecutive windows in which the condition must hold"
    )
    grace_seconds: float = Field(
        default=60.0, ge=0, le=86_400, description="time after the start of a run without a diagnosis, in s"
    )


Diagnoser = Annotated[
    RateDiagnoser | LagDiagnoser | LatencyDiagnoser | SaturationDiagnoser, Field(discriminator="type")
]


class ResponsiveParameters(_Settings):
    """Parameters of the planner; the default is the documentation's example. Replicas are bounded by the policy."""

    diagnosers: tuple[Diagnoser, ...] = Field(
        default=(LatencyDiagnoser(type="EXPECTED_LATENCY"), SaturationDiagnoser(type="THREAD_SATURATION")),
        min_length=1,
        max_length=20,
        description="diagnosers in order of priority: the first that recommends a change wins",
    )
    max_scale_up_replicas: int | None = Field(
        default=None, ge=1, le=32_768, description="largest number of replicas added by one evaluation"
    )
    state_transition_cooldown_seconds: float = Field(
        default=60.0, ge=0, le=86_400, description="time after an action without a diagnosis, in s"
    )
    rebalance_cooldown_seconds: float = Field(
        default=60.0,
        ge=0,
        le=86_400,
        description="time after the start of a run (a rebalance) without a diagnosis, in s",
    )
