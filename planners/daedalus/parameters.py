"""Settings of the planner `daedalus`."""

from pydantic import BaseModel, ConfigDict, Field


class DaedalusParameters(BaseModel):
    """Parameters of the planner, by default the paper's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    warm_up_seconds: float = Field(
        default=120.0, ge=0, le=86_400, description="age of a run up to which its readings are dropped, in s"
    )
    quiet_seconds: float = Field(
        default=180.0, ge=0, le=86_400, description="time after a rescale in which nothing is done, in s"
    )
    settled_seconds: float = Field(
        default=600.0,
        ge=0,
        le=86_400,
        description="time after a rescale in which capacity that covers the load and the next minute is enough, in s",
    )
    recovery_seconds: float = Field(default=600.0, gt=0, le=86_400, description="longest allowed recovery, in s")
    forecast_minutes: int = Field(default=15, ge=1, le=60, description="how far the load is forecast, in minutes")
    history_minutes: int = Field(
        default=240, ge=10, le=360, description="minutes of load that are remembered and learned from"
    )
    order: int = Field(default=5, ge=1, le=15, description="differences that the AR model looks back at")
    regression_minutes: int = Field(default=10, ge=2, le=60, description="minutes of the linear regression")
    highest_wape: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="error of the last AR forecast over the load up to which the next is believed",
    )
    downtime_up_seconds: float = Field(default=30.0, ge=0, le=3600, description="of a rescale up, before one was seen")
    downtime_down_seconds: float = Field(
        default=15.0, ge=0, le=3600, description="of a rescale down, before one was seen"
    )
    checkpoint_seconds: float = Field(
        default=10.0, ge=0, le=3600, description="age of the last checkpoint if the engine does not report it, in s"
    )
