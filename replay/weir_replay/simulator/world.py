"""A simulated world, of a Flink job or of a Kafka Streams application: its time and load, the conditions of the
application and its cluster, faults and noise of the observations.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from weir_contracts import Observation

START = datetime(2026, 1, 5, tzinfo=UTC)
"""Default for second 0 of a simulation: a Monday."""
CALM_SECONDS, CALM_UTILIZATION = 10.0, 0.8
"""Longest step by default, and the utilization of the busiest part up to which it is taken."""
FOREVER = math.inf

FaultKind = Literal["missing", "frozen", "lost", "delayed", "unreachable", "not-found", "brokers-away"]


@dataclass
class Conditions:
    """Condition of the application and its cluster or endpoint; mutable, healthy by default."""

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
    stuck: set[str] = field(default_factory=set)
    """Instances of a group whose threads hang in the application's code, which counts as busy; their heartbeats continue."""


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

    def __post_init__(self) -> None:
        for name in ("relative", "lost_share", "delayed_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: must lie between 0 and 1, is {getattr(self, name)}")
        if self.delay_seconds < 0:
            raise ValueError("delay_seconds: must not be negative")


CLEAR = Noise()
"""Nothing is wrong with any reading."""


class World(ABC):
    """Time and load of one application. `arrivals(t)` is the load in records/s at second t, the inputs' shares not yet
    applied.

    Steps take `step_seconds`, and up to `calm_seconds` while no record waits. Only `advance` lets time pass; the result
    depends on its arguments and on earlier requests alone.
    """

    def __init__(self, arrivals: Callable[[float], float], step_seconds: float, calm_seconds: float) -> None:
        if not 0 < step_seconds <= 60:
            raise ValueError(f"step_seconds: must lie between 0 and 60, is {step_seconds}")
        self.arrivals = arrivals
        self.now = 0.0
        self.on_step: Callable[[float], None] | None = None
        """Called after each step with its length in seconds, to keep a score."""
        self._step_seconds, self._calm_seconds = step_seconds, calm_seconds

    def advance(self, to_seconds: float) -> None:
        """Let time pass until `to_seconds`.

        A step ends there, so that an overloaded application's course depends a little on the instants at which it is
        observed.
        """
        while self.now < to_seconds - 1e-9:
            until = min(to_seconds, self._next_event(), self.now + self._stride())
            seconds = max(until - self.now, 1e-9)
            self._elapse(seconds)
            if self.on_step is not None:
                self.on_step(seconds)
            self._run_events()

    def _stride(self) -> float:
        """Return the length of a step: longer while nothing waits and nothing will, as rates then stay constant."""
        limit = self._calm_rate() if self._calm_seconds > self._step_seconds else None
        if limit is None:
            return self._step_seconds
        soon = max(self.arrivals(self.now + part * self._calm_seconds) for part in (0.0, 0.25, 0.5, 0.75, 1.0))
        return self._calm_seconds if soon <= limit else self._step_seconds

    @abstractmethod
    def _calm_rate(self) -> float | None:
        """Return the load up to which nothing will wait; None while anything waits or moves."""

    @abstractmethod
    def _next_event(self) -> float:
        """Return the second of the next event after now."""

    @abstractmethod
    def _elapse(self, seconds: float) -> None:
        """Move the time on by one step, and the records with it."""

    @abstractmethod
    def _run_events(self) -> None:
        """Run the events due now."""


class Delivery:
    """Observations on their way: lost, late or at once."""

    def __init__(self) -> None:
        self._late: list[tuple[float, Observation]] = []

    def arriving(self, now: float, current: Observation, *, is_lost: bool, delay_seconds: float) -> list[Observation]:
        """Return the observations that arrive at second `now`, in order: those that were delayed until now, and the current
        one unless it is lost or delayed."""
        arriving = [observation for due, observation in self._late if due <= now + 1e-9]
        self._late = [(due, observation) for due, observation in self._late if due > now + 1e-9]
        if is_lost:
            return arriving
        if delay_seconds > 0:
            self._late.append((now + delay_seconds, current))
            return arriving
        return [*arriving, current]


def at(seconds: float) -> datetime:
    """Return the time of a simulated second."""
    return START + timedelta(seconds=round(seconds, 3))
