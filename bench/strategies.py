"""Alternatives to Weir: a parallelism that stays, the reactive utilization rule of the Horizontal Pod Autoscaler, and an
offline optimum that knows the load; each on a simulated application. The rules are pure.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from weir_replay.options import Replay
from weir_replay.run import Meter, Point, Score
from weir_replay.simulator import Simulation
from weir_replay.simulator.capacity import OfflineOptimum

STATIC_UTILIZATION = 0.8
"""Of the slowest operator at the rate that a static parallelism is made for."""
HPA_PERIOD_SECONDS = 15.0
BUCKET_SECONDS = 10.0
"""Of the offline optimum's points."""

Decide = Callable[[float, Mapping[str, int], Mapping[str, float | None]], dict[str, int]]
"""From time in s, parallelism and utilization of every operator to its parallelism."""


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


def static(replay: Replay, rate: float) -> tuple[Score, list[Point]]:
    """A parallelism that carries `rate` at 80 %, all the time."""
    first = optimum_of(replay).parallelism(rate / STATIC_UTILIZATION)
    started = replace(replay, application=replay.job.started_with(first))
    return _ruled(started, lambda _at, current, _shares: dict(current), 60.0)


def reactive(replay: Replay) -> tuple[Score, list[Point]]:
    """The rule of the Horizontal Pod Autoscaler on each operator's own utilization."""
    bounds = replay.policy.spec.bounds
    rule = Reactive(min_parallelism=bounds.min, max_parallelism=bounds.max)
    return _ruled(replay, rule.decide, HPA_PERIOD_SECONDS)


def optimum_of(replay: Replay) -> OfflineOptimum:
    """Return the offline optimum within the policy's maximum."""
    return OfflineOptimum(replay.job, replay.policy.spec.bounds.max)


def _ruled(replay: Replay, decide: Decide, period_seconds: float) -> tuple[Score, list[Point]]:
    simulation = Simulation(replay.job, replay.trace.rate_at, step_seconds=replay.step_seconds)
    meter = Meter(simulation, optimum_of(replay), replay.policy.spec.objective, replay.point_seconds)
    before: dict[str, Busy] = {}
    rescales, at = 0, 0.0
    while at < replay.duration_seconds - 1e-6:
        at = min(at + period_seconds, replay.duration_seconds)
        simulation.advance(at)
        if simulation.state != "RUNNING":
            continue
        flow = simulation.flow
        columns = zip(flow.operators, flow.busy_ms, flow.blocked_ms, flow.idle_ms, flow.parallelism, strict=True)
        now = {operator.name: Busy(busy, idle, blocked, p) for operator, busy, blocked, idle, p in columns}
        shares = {name: busy.since(before.get(name, busy)) for name, busy in now.items()}
        before = now
        # While a request is being done the rule does not ask again.
        if simulation.requested == simulation.observed:
            wanted = decide(at, simulation.observed, shares)
            if wanted != simulation.observed and simulation.request(wanted) is None:
                rescales += 1
    return meter.score(rescales), meter.points


def clairvoyant(replay: Replay) -> tuple[Score, list[Point]]:
    """The offline optimum: it knows the load, rescales for free and is never late."""
    optimum = optimum_of(replay)
    count = round(replay.duration_seconds / BUCKET_SECONDS)
    each = replay.duration_seconds / count
    points = []
    for i in range(count):
        rate = replay.trace.rate_at((i + 0.5) * each)
        slots = optimum.slots(rate, (i + 0.5) * each)
        points.append(Point(i * each, rate, 0.0, float(slots), slots))
    whole = sum(p.slots for p in points) * each
    peak = max(p.optimum_slots for p in points) * replay.duration_seconds
    score = Score(
        seconds=replay.duration_seconds,
        objective_seconds=replay.policy.spec.objective.bound_seconds,
        violation_share=0.0,
        slot_seconds=round(whole, 1),
        rescales=sum(1 for a, b in pairwise(points) if a.optimum_slots != b.optimum_slots),
        max_lag_seconds=0.0,
        optimum_slot_seconds=round(whole, 1),
        peak_slot_seconds=round(peak, 1),
    )
    return score, points


def elasticity(points: Sequence[Point]) -> dict[str, float]:
    """Return under- and over-provisioning in % (SPEC RG's thU, thO, tU, tO): of slots, against the offline optimum."""
    if not points:
        return {}
    n = len(points)
    under = [max(0.0, p.optimum_slots - p.slots) / max(1, p.optimum_slots) for p in points]
    over = [max(0.0, p.slots - p.optimum_slots) / max(1, p.optimum_slots) for p in points]
    return {
        "under_accuracy_percent": round(100 * sum(under) / n, 2),
        "over_accuracy_percent": round(100 * sum(over) / n, 2),
        "under_time_percent": round(100 * sum(u > 0.01 for u in under) / n, 2),
        "over_time_percent": round(100 * sum(o > 0.01 for o in over) / n, 2),
    }
