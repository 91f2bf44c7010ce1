"""Parameters of the executor's decisions: times in seconds, shares from 0 to 1."""

from pydantic import BaseModel, ConfigDict, Field


class RuleSettings(BaseModel):
    """The rules that a user may set."""

    settle_seconds: float = Field(
        10.0,
        ge=0,
        le=3600,
        description="time without a restart before the new parallelism counts as verified, in seconds",
    )
    deadline_floor_seconds: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="minimum time limit of a rescale, whatever the cluster's settings add up to, in seconds",
    )
    container_start_seconds: float = Field(
        60.0,
        ge=0,
        le=3600,
        description="additional time for a rescale by instances such as pods, which start first, in seconds",
    )
    request_retry_seconds: float = Field(
        30.0,
        gt=0,
        le=3600,
        description="time for which an unanswered request is repeated, at most until the plan expires",
    )
    restart_loop: int = Field(
        3, ge=1, le=1000, description="restarts beyond the rescale's own that count as a restart loop"
    )
    restart_loop_seconds: float = Field(
        20.0, ge=0, le=3600, description="minimum duration of a restart loop, from the request, in seconds"
    )
    capacity_share: float = Field(
        0.9, gt=0, le=1, description="roll back if capacity falls below this share of the capacity before"
    )
    capacity_window_seconds: float = Field(
        30.0, gt=0, le=3600, description="minimum length of a warm window in which capacity is judged, in seconds"
    )
    capacity_watch_seconds: float = Field(
        120.0,
        ge=0,
        le=86400,
        description="time after verification in which lower capacity in a warm window leads to a rollback, in seconds",
    )
    quarantine_first_seconds: float = Field(
        300.0, gt=0, le=86400, description="quarantine after a first rollback, doubling with each, in seconds"
    )
    quarantine_max_seconds: float = Field(
        7200.0,
        gt=0,
        le=604800,
        description="maximum quarantine of a parallelism; this long after its end earlier rollbacks no longer count, in seconds",
    )
    contested_hold_seconds: float = Field(
        600.0,
        ge=0,
        le=86400,
        description="time without a further write of another client after which requirements that it set are changed again, doubling "
        "while it writes after Weir each time, at most a day, in seconds; 0: only after a change, or pause and resume, of the policy",
    )
    max_actions: int = Field(
        10, ge=1, le=10000, description="applications that restart at once for an action, over all replicas"
    )
    max_actions_per_cluster: int = Field(
        2,
        ge=1,
        le=10000,
        description="applications of one cluster that restart at once for an action, over all replicas",
    )
    fleet_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="hold scale-downs if this share of all applications begins to shrink within the window below",
    )
    fleet_min_applications: int = Field(
        5,
        ge=1,
        le=100000,
        description="minimum number of applications that begin to shrink together before any is held",
    )
    fleet_window_seconds: float = Field(
        60.0, gt=0, le=3600, description="window in which applications begin to shrink together, in seconds"
    )
    fleet_hold_seconds: float = Field(
        600.0,
        ge=0,
        le=86400,
        description="time for which such a scale-down is held, from the start of its recommendation, in seconds; 0: none is held",
    )


class Rules(RuleSettings):
    """All rules."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    restart_estimate_seconds: float = 30.0
    """Assumed restart time until one is measured."""
    unobserved_limit_seconds: float = 600.0
    """Time for which an action stays open while its cluster is unreachable."""
    stopped_limit_seconds: float = 86_400.0
    """Time for which an action that has stopped its job waits for an unreachable cluster, to start the job again."""
    comparable_demand: float = 0.25
    """Demand may differ by this share from before for two capacities to be compared."""
    min_confidence: float = 0.5
    """Estimates below this confidence are not compared."""
    restart_pause_seconds: float = 3600.0
    """Minimum time between two restarts of instances of one application."""
    min_utilization: float = 0.5
    """Operators below this utilization are not compared, since their capacity is extrapolated."""

    def contested_seconds(self, contests: int) -> float | None:
        """Return for how long the requirements of another client are kept after its last write; None: without limit."""
        if self.contested_hold_seconds == 0:
            return None
        return min(86_400.0, self.contested_hold_seconds * 2.0 ** min(20, max(0, contests - 1)))
