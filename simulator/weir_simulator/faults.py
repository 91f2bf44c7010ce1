"""Faults: conditions of the application and its cluster, faults and noise of the observations."""

from dataclasses import dataclass
from typing import Literal

FaultKind = Literal["missing", "frozen", "lost", "delayed", "unreachable", "not-found", "brokers-away"]


@dataclass
class Conditions:
    """Condition of the job and its cluster; mutable, healthy by default."""

    slots: int
    """Slots of the cluster."""
    away: str | None = None
    """Why the cluster does not answer; the job runs on."""
    refuses: str | None = None
    """Why the cluster rejects every request."""
    lost_answers: int = 0
    """Number of accepted requests whose response is lost."""
    restart_factor: float = 1.0
    """Factor on the duration of a restart."""
    hangs: bool = False
    """Restarts do not end while this is set."""
    crash_above: int | None = None
    """The job fails soon after each start with any operator above this parallelism."""
    crash_lag_seconds: float | None = None
    """The job fails at this lag: a crash loop from overload."""
    checkpoints_fail: bool = False
    capacity_factor: float = 1.0
    """Factor on every operator's capacity: a noisy neighbour, or a faster machine."""


@dataclass(frozen=True)
class Fault:
    """Fault of the observations from `since_seconds` until `until_seconds` of the simulation.

    missing: a field of the readings of `operator` (all operators if None; all fields if `field` is None) is unknown, as
    it is where the engine says NaN. frozen: counters stand still. lost: there is no observation. delayed: it comes
    `delay_seconds` later. unreachable, not-found: the cluster's response about the job. brokers-away: no offsets.
    """

    kind: FaultKind
    since_seconds: float = 0.0
    until_seconds: float = float("inf")
    operator: str | None = None
    field: str | None = None
    delay_seconds: float = 0.0

    def holds(self, now: float) -> bool:
        """Return whether the fault is present at `now` seconds."""
        return self.since_seconds <= now < self.until_seconds


@dataclass(frozen=True)
class Noise:
    """Random errors of the observations, drawn from the observer's seed; none by default."""

    relative: float = 0.0
    """Standard deviation of a counter's growth between two scrapes, as a share: readings of one scrape are of slightly
    different moments. Counters of records still never fall, and the error does not add up."""
    lost_share: float = 0.0
    """Share of the observations that are lost."""
    delayed_share: float = 0.0
    delay_seconds: float = 0.0
    """How late a delayed observation comes."""
    missing_share: float = 0.0
    """Share of the operators' readings without times (busy, backpressured, idle), drawn for each scrape."""
    refresh_seconds: float = 0.0
    """Interval in which the engine refreshes its counters; a scrape in between reads the same values again."""

    def __post_init__(self) -> None:
        for name in ("relative", "lost_share", "delayed_share", "missing_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: must lie between 0 and 1, is {getattr(self, name)}")
        if self.delay_seconds < 0 or self.refresh_seconds < 0:
            raise ValueError("delay_seconds, refresh_seconds: must not be negative")


CLEAR = Noise()
"""Nothing is wrong with any reading."""
