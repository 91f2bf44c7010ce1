"""The predictor: what happens to lag if the application runs with given parallelisms.

A fluid model (`fluid`). A rescale costs `restart.seconds` without intake, and then what was processed since the last
checkpoint is processed again (replay). If only a part of the application is away in that time, it and the rest have each
their share of arrivals and capacity, and lag is that of the part. Lag in seconds is the age of the oldest unprocessed
record: with A(t) records arrived and P(t) processed, in order, `t − A⁻¹(P(t))`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import NamedTuple

import numpy as np

from weir_contracts import Parallelism, Prediction

from .flow import throttled
from .fluid import Flows, lag_of, late_after, latency_of, simulate, times_of
from .model import Backlog, Model, Restart

STEPS = 120
STEP_SECONDS = 0.5
MIN_STEPS, MAX_STEPS = 4, 240
"""Of `run_interval`."""
POINTS = 24
"""Points of the trajectory in a plan; the figures come from all steps."""
_PRECISIONS = np.array([[100.0], [10.0], [10.0]])
"""Steps in a second of lag, in a record of the backlog and in a record/s of throughput that a message has."""


class Outlook(NamedTuple):
    """Figures of one vector to compare by. `prediction` makes the message of it, which takes longer than finding the
    figures."""

    horizon_seconds: float
    downtime_seconds: float
    max_lag_seconds: float
    violation_seconds: float
    max_utilization: float | None
    bottleneck: str | None
    times: np.ndarray
    lag: np.ndarray
    late: np.ndarray
    """Whether the objective is violated, step by step."""
    late_after_seconds: float
    """Violation beyond the horizon in seconds; infinite if the backlog at its end does not shrink."""
    arrived: np.ndarray
    """Records of all sources since now, waiting ones included, as `processed`."""
    processed: np.ndarray
    capacities: Mapping[str, float]
    """Records/s that each operator with a curve sustains with this parallelism."""

    @property
    def objective_left_at_seconds(self) -> float | None:
        """Time of the first violation; None: none within the horizon."""
        return round(float(self.times[int(self.late.argmax())]), 1) if self.violation_seconds else None

    @property
    def objective_met_at_seconds(self) -> float | None:
        """Time from which the objective holds until the horizon's end; None: it does not."""
        if not self.violation_seconds:
            return 0.0
        last = len(self.late) - 1 - int(self.late[::-1].argmax())
        return round(float(self.times[last + 1]), 1) if last + 1 < len(self.times) else None

    @property
    def late_seconds(self) -> float:
        """Violation in seconds, within the horizon and beyond; may be infinite."""
        return self.violation_seconds + self.late_after_seconds

    def prediction(self, points: int = POINTS) -> Prediction:
        """Return the message, with so many points of the trajectory."""
        steps = len(self.times) - 1
        chosen, before = _chosen(points, steps)
        processed = self.processed.take(chosen)
        backlog = self.arrived.take(chosen) - processed
        throughput = (processed - self.processed.take(before)) / (self.horizon_seconds / steps)
        figures = np.maximum((self.lag.take(chosen), backlog, throughput), 0.0)
        # As `round`, which takes longer.
        rounded = np.rint(figures * _PRECISIONS) / _PRECISIONS
        rows = zip(_point_times(self.horizon_seconds, steps, points), *rounded.tolist(), strict=True)
        # Validated as one document: constructing each point separately takes longer than the prediction.
        return Prediction.model_validate(
            {
                "horizon_seconds": self.horizon_seconds,
                "max_lag_seconds": self.max_lag_seconds,
                "final_lag_seconds": round(float(self.lag[-1]), 2),
                "violation_seconds": round(self.violation_seconds, 2),
                "objective_left_at_seconds": self.objective_left_at_seconds,
                "objective_met_at_seconds": self.objective_met_at_seconds,
                "downtime_seconds": self.downtime_seconds,
                "max_utilization": self.max_utilization,
                "bottleneck": self.bottleneck,
                "points": [
                    {"at_seconds": at, "lag_seconds": lag, "backlog_records": left, "throughput": rate}
                    for at, lag, left, rate in rows
                ],
            }
        )


def predict(
    model: Model,
    parallelism: Parallelism,
    restart: Restart,
    *,
    horizon_seconds: float,
    objective_seconds: float | None,
    of_latency: bool = False,
    present: Parallelism | None = None,
    points: int = POINTS,
    steps: int = STEPS,
) -> Prediction:
    """Return the trajectory of lag over `horizon_seconds` with `parallelism`, under the model's arrivals, which may
    change over time. Records are conserved: arrived + backlog = processed + left. Utilization is that of the highest load.

    `present` is the parallelism until added capacity counts (`restart.capacity_after_seconds`). The objective bounds lag,
    or with `of_latency` the time from a record's arrival until it is processed.
    """
    (found,) = outlooks(
        model,
        [parallelism],
        [restart],
        horizon_seconds=horizon_seconds,
        objective_seconds=objective_seconds,
        of_latency=of_latency,
        present=present,
        steps=steps,
    )
    return found.prediction(points)


def outlooks(
    model: Model,
    vectors: Sequence[Parallelism],
    restarts: Sequence[Restart],
    *,
    horizon_seconds: float,
    objective_seconds: float | None,
    of_latency: bool = False,
    present: Parallelism | None = None,
    steps: int = STEPS,
) -> list[Outlook]:
    """Return the figures of each vector with its restart; arguments as of `predict`."""
    capacities = [model.capacities(vector) for vector in vectors]
    is_late = present is not None and any(r.capacity_after_seconds > r.seconds for r in restarts)
    before = model.capacities(present or {}) if is_late else None
    away = [r if r.away_share > 0 else replace(r, seconds=0.0, replay_seconds=0.0) for r in restarts]
    flows = simulate(model, capacities, away, horizon_seconds, steps, before)
    sources, times = list(model.arrivals), flows.times
    lag = reduce(np.maximum, [lag_of(flows, model, source) for source in sources])
    bounded = reduce(np.maximum, [latency_of(flows, source) for source in sources]) if of_latency else lag
    late = bounded > (math.inf if objective_seconds is None else objective_seconds)
    arrived, processed = _total(flows)
    if any(0 < r.away_share < 1 for r in restarts):
        rest = [replace(r, seconds=0.0, replay_seconds=0.0) for r in restarts]
        arrived_there, processed_there = _total(simulate(model, capacities, rest, horizon_seconds, steps, before))
        share = np.array([r.away_share or 1.0 for r in restarts])[:, None]
        arrived = share * arrived + (1 - share) * arrived_there
        processed = share * processed + (1 - share) * processed_there
    max_lags = np.maximum.reduce(lag, 1).tolist()
    late_seconds = [0.0] * len(vectors)
    if objective_seconds is not None and np.count_nonzero(late):
        late_seconds = (_steps_above(bounded - objective_seconds) * (horizon_seconds / steps)).tolist()
    loads = model.max_loads(horizon_seconds) if model.paths else model.loads
    found = []
    figures = zip(capacities, restarts, max_lags, late_seconds, strict=True)
    for row, (each, restart, max_lag, violation_seconds) in enumerate(figures):
        utilization, bottleneck = busiest(loads, each)
        found.append(
            Outlook(
                horizon_seconds,
                restart.seconds,
                round(max_lag, 2),
                violation_seconds,
                None if utilization is None else round(utilization, 3),
                bottleneck,
                times,
                lag[row],
                late[row],
                late_after(model, flows, row, each, objective_seconds or 0.0, of_latency) if late[row, -1] else 0.0,
                arrived[row],
                processed[row],
                each,
            )
        )
    return found


def _steps_above(excess: np.ndarray) -> np.ndarray:
    """Return for each row the steps in which it is above zero, with the part of a step until or from a crossing.

    A quick fall ends within its last step, so its slope is that of the step before where that is steeper.
    """
    size, above = np.abs(excess), np.maximum(excess, 0.0)
    both = size[:, 1:] + size[:, :-1]
    share = np.divide(above[:, 1:] + above[:, :-1], both, out=np.zeros_like(both), where=both > 0)
    fall = excess[:, :-2] - excess[:, 1:-1]
    last = (fall > 0) & (above[:, 1:-1] > 0) & (excess[:, 2:] <= 0)
    np.minimum(share[:, 1:], np.divide(above[:, 1:-1], fall, out=np.ones_like(fall), where=last), out=share[:, 1:])
    found: np.ndarray = np.add.reduce(share, 1)
    return found


def _total(flows: Flows) -> tuple[np.ndarray, np.ndarray]:
    """Return arrived and processed records of all sources."""
    return reduce(np.add, flows.arrived.values()), reduce(np.add, flows.processed.values())


@lru_cache(maxsize=8)
def _chosen(points: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of a message's points, evenly spaced from the first to the last, and the step before each."""
    chosen = np.unique(np.linspace(0, steps, points).astype(int))
    return chosen, np.maximum(0, chosen - 1)


@lru_cache(maxsize=64)
def _point_times(horizon_seconds: float, steps: int, points: int) -> tuple[float, ...]:
    return tuple(times_of(horizon_seconds, steps)[_chosen(points, steps)[0]].round(1).tolist())


def busiest(loads: Mapping[str, float], capacities: Mapping[str, float]) -> tuple[float | None, str | None]:
    """Return the highest load over capacity among operators of which both are known, and whose it is."""
    maximum: float | None = None
    where = None
    for name, rate in capacities.items():
        if rate > 0 and name in loads:
            load = loads[name] / rate
            if maximum is None or load > maximum:
                maximum, where = load, name
    return maximum, where


@dataclass(frozen=True)
class Interval:
    """State of a simulated application at the end of an interval, from which the next interval continues, and totals over
    the interval."""

    seconds: float
    backlogs: Mapping[str, Backlog]
    """By source, at the end."""
    taken: Mapping[str, float]
    """Records that each source took in, replayed ones included."""
    lag_seconds: float
    """Age of the oldest unprocessed record at the end."""
    latency_seconds: float
    """Time that records which arrive at the end would wait."""
    violation_seconds: float
    """Time above the objective."""


def run_interval(
    model: Model,
    capacities: Mapping[str, float],
    restart: Restart,
    seconds: float,
    *,
    objective_seconds: float | None,
    of_latency: bool = False,
) -> Interval:
    """Let the application run for `seconds` from `model.backlogs` on; it is down for the first `restart.seconds`.

    `capacities` in records/s by operator; an operator that is missing limits nothing. Without an objective in seconds
    there is no violation.
    """
    steps = min(MAX_STEPS, max(MIN_STEPS, math.ceil(seconds / STEP_SECONDS)))
    flows = simulate(model, [capacities], [restart], seconds, steps)
    times = flows.times
    left = {s: np.maximum(0.0, flows.arrived[s][0] - flows.processed[s][0]) for s in model.arrivals}
    lags = {s: lag_of(flows, model, s)[0] for s in model.arrivals}
    down = np.maximum(0.0, restart.seconds - times)
    waits = {
        s: down + left[s] / rate if rate > 0 else np.zeros_like(times)
        for s, rate in _drain(model, capacities, left).items()
    }
    bounded = np.max(list((waits if of_latency else lags).values()), axis=0)
    late = 0.0 if objective_seconds is None else float((bounded[1:] > objective_seconds).sum()) * seconds / steps
    return Interval(
        seconds=seconds,
        backlogs={s: Backlog(float(left[s][-1]), float(lags[s][-1])) for s in model.arrivals},
        taken={s: float(flows.processed[s][0, -1]) for s in model.arrivals},
        lag_seconds=max(float(lag[-1]) for lag in lags.values()),
        latency_seconds=max(float(wait[-1]) for wait in waits.values()),
        violation_seconds=late,
    )


def _drain(model: Model, capacities: Mapping[str, float], left: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return records/s that each source takes in while records wait at it; 0 for a source without a backlog."""
    wanted = {s: model.arrivals[s] + float(waiting.max()) for s, waiting in left.items()}
    return throttled(model.flow, model.topology.names, capacities, wanted)
