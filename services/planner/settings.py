"""The planner's settings."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from runtime.settings import ServiceSettings, http_port


class PlannerSettings(ServiceSettings):
    """Settings of the planner: `WEIR_PLANNER_…` and the shared ones."""

    model_config = SettingsConfigDict(env_prefix="WEIR_PLANNER_", frozen=True, extra="ignore", populate_by_name=True)

    http_port: int = http_port(8093)
    workers: int = Field(default=1, ge=1, le=64, description="processes that planners run in, beside the event loop")
    observations_kept: int = Field(
        default=30, ge=0, le=120, description="raw observations of each application a planner may look at, newest"
    )
    history_kept: int = Field(default=20, ge=0, le=50, description="past turns of the loop a planner may look at")
