"""Windows of the analysis. All times are seconds of the observations' own clock."""

from pydantic import BaseModel, ConfigDict, Field


class AnalysisSettings(BaseModel):
    """Windows of the analysis; the defaults are made for Flink scraped every 1 to 10 s."""

    model_config = ConfigDict(frozen=True)

    warm_up_seconds: float = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="time of a new run from which nothing is learned, in s; a cold JVM looks half as fast as a warm one",
    )
    capacity_window_seconds: float = Field(
        default=30.0,
        ge=5,
        le=3600,
        description="shortest window of capacity, utilization and selectivity, in s; Flink books idle time up to 5 s late",
    )
    arrival_window_seconds: float = Field(
        default=6.0,
        ge=1,
        le=600,
        description="window of the arrival rate, in s; at least two scrapes",
    )

    @property
    def trend_window_seconds(self) -> float:
        """Window of trends (arrival rate, growth of lag) and the length of the ring of samples."""
        return max(60.0, 2 * self.capacity_window_seconds)
