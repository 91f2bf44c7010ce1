"""Windows of the analysis. All times are seconds of the observations' own clock."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

COMMITS_PER_WINDOW = 4
"""Commit intervals in a window: with fewer, a commit more or less changes a rate by a third."""
_RATE_WINDOW_SECONDS = 15.0


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

    _commit_seconds: float = PrivateAttr(default=0.0)
    _counts_commits: bool = PrivateAttr(default=False)
    _own_capacity_seconds: float | None = PrivateAttr(default=None)

    def following(self, commit_interval_seconds: float | None, *, counts_commits: bool) -> Self:
        """Return the windows for an application that commits: those of lag span at least four commits, and with
        `counts_commits`, where throughput is known from commits, those of throughput and capacity, too.

        Windows of demand stay as they are, since log ends do not wait for commits.
        """
        if not commit_interval_seconds:
            return self
        seconds = self.capacity_window_seconds
        if counts_commits:
            seconds = max(seconds, COMMITS_PER_WINDOW * commit_interval_seconds)
        found = self.model_copy(update={"capacity_window_seconds": seconds})
        found._commit_seconds, found._counts_commits = commit_interval_seconds, counts_commits
        found._own_capacity_seconds = self.capacity_window_seconds
        return found

    @property
    def commit_seconds(self) -> float:
        """Time between two commits, in s; 0 if the application commits none or lag is not known from them."""
        return self._commit_seconds

    @property
    def counts_commits(self) -> bool:
        """Whether throughput is known from commits."""
        return self._counts_commits

    @property
    def rate_window_seconds(self) -> float:
        """Window of the input and output rates of operators."""
        return max(_RATE_WINDOW_SECONDS, COMMITS_PER_WINDOW * self._commit_seconds if self._counts_commits else 0.0)

    @property
    def lag_window_seconds(self) -> float:
        """Window of the growth of lag."""
        return max(self.capacity_window_seconds, COMMITS_PER_WINDOW * self._commit_seconds)

    @property
    def trend_window_seconds(self) -> float:
        """Length of the rings of samples."""
        return max(60.0, 2 * self.lag_window_seconds)

    @property
    def demand_window_seconds(self) -> float:
        """Window of the arrival rate's trend."""
        return max(60.0, 2 * (self._own_capacity_seconds or self.capacity_window_seconds))
