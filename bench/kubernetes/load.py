"""Simulated service: a queue that as many replicas empty as are ready, and the load that arrives. Pure."""

import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

CAPACITY = 100.0
"""Records per second of one ready replica."""
PHASES = ((240.0, 160.0), (300.0, 720.0), (300.0, 240.0))
"""Duration in seconds and records per second, one after another: before a step, after it, and after the step back."""
WAVE_SECONDS, WAVE_PERIOD_SECONDS, WAVE_MEAN, WAVE_AMPLITUDE = 540.0, 270.0, 550.0, 350.0
END_SECONDS, END_RATE = 120.0, 160.0
DURATION_SECONDS = sum(seconds for seconds, _ in PHASES) + WAVE_SECONDS + END_SECONDS


def rate_at(seconds: float) -> float:
    """Return the arrivals in records per second; before 0 those at 0."""
    for duration, rate in PHASES:
        if seconds < duration:
            return rate
        seconds -= duration
    if seconds < WAVE_SECONDS:
        return WAVE_MEAN - WAVE_AMPLITUDE * math.cos(2 * math.pi * seconds / WAVE_PERIOD_SECONDS)
    return END_RATE


@dataclass
class ServiceQueue:
    """Queue of one workload, first in, first out."""

    arrived: float = 0.0
    processed: float = 0.0
    busy_share: float = 0.0
    """Share of the ready replicas' capacity in use during the last step."""
    _arrivals: deque[tuple[float, float]] = field(default_factory=deque)
    """End of each step and the records that had arrived by then; the oldest one may be partly processed."""

    @property
    def waiting(self) -> float:
        return self.arrived - self.processed

    def step(self, now: float, seconds: float, rate: float, ready: int) -> None:
        """Advance by `seconds` to the time `now`."""
        self.arrived += rate * seconds
        self._arrivals.append((now, self.arrived))
        capacity = ready * CAPACITY * seconds
        done = min(self.waiting, capacity)
        self.processed += done
        self.busy_share = done / capacity if capacity else 0.0
        while self._arrivals and self._arrivals[0][1] <= self.processed + 1e-6:
            self._arrivals.popleft()

    def age_seconds(self, now: float) -> float:
        """Return the age of the oldest waiting record, to the length of a step."""
        return now - self._arrivals[0][0] if self._arrivals else 0.0


@dataclass(frozen=True)
class Sample:
    """State of one workload at one time."""

    at: float
    rate: float
    age_seconds: float
    requested: int
    existing: int
    ready: int


def summary(samples: Sequence[Sample], objective_seconds: float) -> dict[str, object]:
    """Return late share, cost and changes of one workload. Existing pods cost, whether they are ready or not."""
    steps = [(b, b.at - a.at) for a, b in itertools.pairwise(samples)]
    total = sum(seconds for _, seconds in steps)
    late = sum(seconds for each, seconds in steps if each.age_seconds > objective_seconds)
    changes = sum(1 for a, b in itertools.pairwise(samples) if a.requested != b.requested)
    return {
        "late_share": round(late / total, 4),
        "replica_seconds": round(sum(each.existing * seconds for each, seconds in steps)),
        "max_age_seconds": round(max(each.age_seconds for each in samples), 1),
        "changes_of_replicas": changes,
        "replicas_each_minute": [each.existing for each in _each(samples, 60.0)],
    }


def needed_replica_seconds(samples: Sequence[Sample]) -> int:
    """Return the replica-seconds of a workload that always has just enough replicas for the arrivals."""
    return round(sum(math.ceil(b.rate / CAPACITY) * (b.at - a.at) for a, b in itertools.pairwise(samples)))


def _each(samples: Sequence[Sample], seconds: float) -> list[Sample]:
    found: list[Sample] = []
    for each in samples:
        if not found or each.at >= found[0].at + len(found) * seconds:
            found.append(each)
    return found
