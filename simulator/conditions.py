"""What may go wrong with an application and its cluster; a story changes it while time passes."""

from dataclasses import dataclass


@dataclass
class Conditions:
    """Mutable, all well by default."""

    slots: int
    """Of the cluster."""
    away: str | None = None
    """Why the cluster does not answer; the job runs on."""
    refuses: str | None = None
    """Why the cluster rejects every request."""
    lost_answers: int = 0
    """So many accepted requests are to look as if nobody had answered."""
    restart_factor: float = 1.0
    """How many times longer a restart takes than it should."""
    hangs: bool = False
    """Restarts do not come to an end while this holds."""
    crash_above: int | None = None
    """With any operator above this parallelism the job fails soon after each start."""
    crash_lag_seconds: float | None = None
    """It fails when it is this far behind: a crash loop from overload."""
    checkpoints_fail: bool = False
    capacity_factor: float = 1.0
    """Of every operator: a noisy neighbour, or a faster machine."""
