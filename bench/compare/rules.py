"""Alternatives to Weir: a parallelism that stays, and the reactive utilization rule of the Horizontal Pod Autoscaler.
Pure."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

STATIC_UTILIZATION = 0.8
"""Of the slowest operator at the rate that a static parallelism is made for."""


@dataclass(frozen=True)
class Busy:
    """An operator's accumulated times over all subtasks, in ms, None while tasks start, and its parallelism."""

    busy_ms: float | None
    idle_ms: float | None
    backpressured_ms: float | None
    parallelism: int

    def since(self, earlier: "Busy") -> float | None:
        """The busy share of the time since then; None if a counter is unknown or began again, as after a restart."""
        if self.parallelism != earlier.parallelism:
            return None
        spent = []
        for now, before in zip(self._times, earlier._times, strict=True):
            if now is None or before is None or now < before:
                return None
            spent.append(now - before)
        return spent[0] / sum(spent) if sum(spent) > 0 else None

    @property
    def _times(self) -> tuple[float | None, ...]:
        return self.busy_ms, self.idle_ms, self.backpressured_ms


@dataclass
class Reactive:
    """`desired = ceil(p · utilization / target)` within a tolerance, for each operator by itself; going down by the
    highest recommendation of a window (autoscaling/v2: target, tolerance, `scaleDown.stabilizationWindowSeconds`)."""

    target: float = 0.7
    tolerance: float = 0.1
    stabilization_seconds: float = 300.0
    min_parallelism: int = 1
    max_parallelism: int = 12
    _recommended: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)

    def decide(self, at: float, current: Mapping[str, int], utilization: Mapping[str, float | None]) -> dict[str, int]:
        """The parallelism of each operator from `at` (seconds) on; one without a reading stays."""
        return {name: self._one(at, name, p, utilization.get(name)) for name, p in current.items()}

    def _one(self, at: float, name: str, current: int, utilization: float | None) -> int:
        if utilization is None:
            return current
        ratio = utilization / self.target
        desired = current if abs(ratio - 1.0) <= self.tolerance else math.ceil(current * ratio)
        desired = min(self.max_parallelism, max(self.min_parallelism, desired))
        ring = self._recommended.setdefault(name, deque())
        ring.append((at, desired))
        while ring[0][0] < at - self.stabilization_seconds:
            ring.popleft()
        return desired if desired >= current else min(current, max(p for _, p in ring))


def min_parallelism_for(rate: float, *, subtask_rate: float, contention: float, utilization: float) -> int:
    """Return the smallest p with c·p / (1 + s·(p − 1)) · utilization ≥ rate; the choice of a user who knows the job."""
    p = 1
    while subtask_rate * p / (1 + contention * (p - 1)) * utilization < rate:
        p += 1
        if p > 1000:
            raise ValueError(f"no parallelism does {rate:g} records/s")
    return p
