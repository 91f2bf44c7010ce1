"""Faults: conditions of the application and its cluster, faults and noise of the observations."""

from dataclasses import dataclass
from typing import Literal

FaultKind = Literal["missing", "frozen", "lost", "delayed", "unreachable", "not-found", "brokers-away"]


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


@dataclass(frozen=True)
class Fault:
    """Something that is wrong from `since_seconds` until `until_seconds` of the simulation.

    missing: a field of the readings of `operator` (all operators if None; all fields if `field` is None) is unknown, as it is where
    the engine says NaN. frozen: counters stand still. lost: there is no observation. delayed: it comes `delay_seconds` later.
    unreachable, not-found: what the cluster says of the job. brokers-away: no offsets.
    """

    kind: FaultKind
    since_seconds: float = 0.0
    until_seconds: float = float("inf")
    operator: str | None = None
    field: str | None = None
    delay_seconds: float = 0.0

    def holds(self, now: float) -> bool:
        """Whether it is one of these seconds."""
        return self.since_seconds <= now < self.until_seconds


@dataclass(frozen=True)
class Noise:
    """Chance, drawn from the observer's seed. None of it by default."""

    relative: float = 0.0
    """Standard deviation of a counter's growth between two scrapes, as a share: readings of one scrape are of slightly different
    moments. Counters of records still never fall, and the error does not add up."""
    lost_share: float = 0.0
    """Of the observations."""
    delayed_share: float = 0.0
    delay_seconds: float = 0.0
    """How late a delayed observation comes."""
    missing_share: float = 0.0
    """Of the operators' readings, in each scrape, have no times (busy, backpressured, idle)."""
    refresh_seconds: float = 0.0
    """How often the engine refreshes what it tells; a scrape in between sees the same counters again."""

    def __post_init__(self) -> None:
        for name in ("relative", "lost_share", "delayed_share", "missing_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: must lie between 0 and 1, is {getattr(self, name)}")
        if self.delay_seconds < 0 or self.refresh_seconds < 0:
            raise ValueError("delay_seconds, refresh_seconds: must not be negative")


CLEAR = Noise()
"""Nothing is wrong with any reading."""
