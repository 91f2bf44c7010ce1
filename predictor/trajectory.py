"""The predictor: what happens to lag if the application runs with given parallelisms.

A fluid model. Each source has a backlog that its arrivals fill and its intake drains; an operator that cannot follow
slows the intake (`flow.throttle`). A rescale costs `restart.seconds` without intake, and then what was processed since
the last checkpoint is processed again (replay). Lag in seconds is the age of the oldest unprocessed record: with A(t)
records arrived and P(t) processed, in order, `t − A⁻¹(P(t))`. Arrays have a row for each vector that is compared and a
column for each step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import NamedTuple

import numpy as np
from weir_contracts import Parallelism, Prediction, Topology

from .capacity import CapacityCurve
from .flow import Fed, Flow, Limit, fed_by, loads_of, throttle

STEPS = 120
POINTS = 24
"""Points of the trajectory in a plan; the figures come from all steps."""
MIN_RATE = 1e-6
"""Records/s below which nothing arrives (one record in eleven days): a smoothed rate on its way to 0."""
UNLIMITED = 1e290
"""Records/s of an intake that no operator limits; its product with a time is finite."""


@dataclass(frozen=True)
class Backlog:
    """Records that wait at a source, and the age of the oldest (None: as old as it takes to arrive)."""

    records: float
    age_seconds: float | None = None


@dataclass(frozen=True)
class Restart:
    """Cost of changing the parallelism. Both times are 0 for staying."""

    seconds: float = 0.0
    replay_seconds: float = 0.0
    """Age of the checkpoint at the moment when processing stops."""
    measured: bool = True
    """Whether a rescale was measured; else `seconds` is an assumption."""


STAY = Restart()


@dataclass(frozen=True)
class Model:
    """An application as far as it is known: the same for every vector that is compared."""

    topology: Topology
    flow: Flow
    curves: Mapping[str, CapacityCurve]
    arrivals: Mapping[str, float]
    """Records/s of each source."""
    backlogs: Mapping[str, Backlog]

    def capacities(self, parallelism: Mapping[str, int]) -> dict[str, float]:
        """Return records/s that each operator with a curve sustains; a source uses at most one subtask for each
        partition."""
        found = {}
        for name, curve, partitions in self._curves:
            p = parallelism.get(name)
            if p is not None:
                found[name] = curve.rate(p if partitions is None else min(p, partitions))
        return found

    @cached_property
    def loads(self) -> Mapping[str, float]:
        """Records/s that arrive at each operator with a known flow."""
        return loads_of(self.flow, self.arrivals)

    @cached_property
    def _curves(self) -> list[tuple[str, CapacityCurve, int | None]]:
        operators = self.topology.operators
        return [(o.name, self.curves[o.name], o.source_partitions) for o in operators if o.name in self.curves]

    @cached_property
    def fed(self) -> Mapping[str, Fed]:
        """The sources that feed each operator, by their index in `arrivals`."""
        return fed_by(self.flow, self.topology.names, list(self.arrivals))


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
    late_steps: int
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
        return round(float(self.times[int(self.late.argmax())]), 1) if self.late_steps else None

    @property
    def objective_met_at_seconds(self) -> float | None:
        """Time from which the objective holds until the horizon's end; None: it does not."""
        if not self.late_steps:
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
        rows = zip(
            _point_times(self.horizon_seconds, steps, points),
            self.lag.take(chosen).round(2).tolist(),
            *np.maximum((backlog, throughput), 0.0).round(1).tolist(),
            strict=True,
        )
        # Validated as one document: constructing each point separately takes longer than the prediction.
        return Prediction.model_validate(
            {
                "horizon_seconds": self.horizon_seconds,
                "max_lag_seconds": self.max_lag_seconds,
                "final_lag_seconds": round(float(self.lag[-1]), 2),
                "violation_seconds": self.violation_seconds,
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
    points: int = POINTS,
    steps: int = STEPS,
) -> Prediction:
    """Return the trajectory of lag over `horizon_seconds` with `parallelism`. Records are conserved: arrived + backlog
    = processed + left.

    The objective bounds lag, or with `of_latency` the time from a record's arrival until it is processed.
    """
    (found,) = outlooks(
        model,
        [parallelism],
        restart,
        horizon_seconds=horizon_seconds,
        objective_seconds=objective_seconds,
        of_latency=of_latency,
        steps=steps,
    )
    return found.prediction(points)


def outlooks(
    model: Model,
    vectors: Sequence[Parallelism],
    restart: Restart,
    *,
    horizon_seconds: float,
    objective_seconds: float | None,
    of_latency: bool = False,
    steps: int = STEPS,
) -> list[Outlook]:
    """Return the figures of each vector; arguments as of `predict`."""
    capacities = [model.capacities(vector) for vector in vectors]
    flows = simulate(model, capacities, restart, horizon_seconds, steps)
    sources, times = list(model.arrivals), flows.times
    lag = reduce(np.maximum, [lag_of(flows, model, source) for source in sources])
    bounded = reduce(np.maximum, [_latency(flows, source) for source in sources]) if of_latency else lag
    late = bounded > (math.inf if objective_seconds is None else objective_seconds)
    arrived = reduce(np.add, [flows.arrived[source] for source in sources])
    processed = reduce(np.add, [flows.processed[source] for source in sources])
    max_lags, counts = np.maximum.reduce(lag, 1).tolist(), np.add.reduce(late, 1).tolist()
    found = []
    for row, (each, max_lag, late_steps) in enumerate(zip(capacities, max_lags, counts, strict=True)):
        utilization, bottleneck = busiest(model, each)
        found.append(
            Outlook(
                horizon_seconds,
                restart.seconds,
                round(max_lag, 2),
                round(late_steps * (horizon_seconds / steps), 2),
                None if utilization is None else round(utilization, 3),
                bottleneck,
                times,
                lag[row],
                late[row],
                late_steps,
                _late_after(model, flows, row, objective_seconds or 0.0, of_latency) if late[row, -1] else 0.0,
                arrived[row],
                processed[row],
                each,
            )
        )
    return found


class Flows(NamedTuple):
    """Cumulative records of each source at each step, counted from the oldest waiting record."""

    times: np.ndarray
    arrived: Mapping[str, np.ndarray]
    processed: Mapping[str, np.ndarray]


def simulate(
    model: Model, capacities: Sequence[Mapping[str, float]], restart: Restart, horizon_seconds: float, steps: int
) -> Flows:
    """Let the application run with each of `capacities` (records/s by operator; one that is missing limits nothing)."""
    times = _times(horizon_seconds, steps)
    sources, rates = list(model.arrivals), list(model.arrivals.values())
    backlogs = [model.backlogs[source].records for source in sources]
    if len(sources) > 1:
        limits = [[(each[name], fed) for name, fed in model.fed.items() if name in each] for each in capacities]
        running = _running(horizon_seconds, steps, restart.seconds)
        rows = [_drained_together(times, running, each, rates, backlogs, restart) for each in limits]
        arrived, processed = (np.array(each).transpose(1, 0, 2) for each in zip(*rows, strict=True))
        return Flows(times, dict(zip(sources, arrived, strict=True)), dict(zip(sources, processed, strict=True)))
    (source,), (rate,), (waiting,) = sources, rates, backlogs
    shares = [(name, fed[0][1]) for name, fed in model.fed.items()]
    intakes = [min([c[name] / share for name, share in shares if name in c], default=UNLIMITED) for c in capacities]
    # Replayed records are work still to do, although they arrived before everything that waits.
    first = [[waiting + min(rate, intake) * restart.replay_seconds] for intake in intakes]
    arrivals = rate * times + first
    # Both rates are constant, so the source never waits for records before it has caught up.
    able = np.multiply.outer(intakes, _up(horizon_seconds, steps, restart.seconds))
    return Flows(times, {source: arrivals}, {source: np.minimum(arrivals, able)})


def _drained_together(  # noqa: PLR0917 - a row of `simulate`
    times: np.ndarray,
    running: np.ndarray,
    limits: Sequence[Limit],
    rates: Sequence[float],
    backlogs: Sequence[float],
    restart: Restart,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return arrived and processed records of several sources that share what lies behind them: step by step, in plain
    floats."""
    first = list(backlogs)
    if restart.replay_seconds > 0:
        taken = throttle(limits, rates)
        first = [left + rate * restart.replay_seconds for left, rate in zip(backlogs, taken, strict=True)]
    arrived = [left + rate * times for left, rate in zip(first, rates, strict=True)]
    done = [0.0] * len(arrived)
    processed = [list(done)]
    for seconds, *counts in zip(running.tolist(), *(a[1:].tolist() for a in arrived), strict=True):
        if seconds > 0:
            left = [count - so_far for count, so_far in zip(counts, done, strict=True)]
            taken = throttle(limits, [waiting / seconds for waiting in left])
            done = [d + min(waiting, rate * seconds) for d, waiting, rate in zip(done, left, taken, strict=True)]
        processed.append(done)
    return arrived, np.array(processed).T


def lag_of(flows: Flows, model: Model, source: str) -> np.ndarray:
    """Return lag in seconds, `t − A⁻¹(P(t))`: with constant arrivals the backlog over their rate, once the records that
    waited at the start are processed; before that their age, as they are taken to have arrived evenly."""
    arrived, processed, rate = flows.arrived[source], flows.processed[source], model.arrivals[source]
    left: np.ndarray = arrived - processed
    # Less than a thousandth of a second's arrivals is a rounding error, not a backlog.
    waits = left > max(1e-6, rate * 1e-3)
    if not np.count_nonzero(waits):
        return np.zeros(left.shape)
    waiting, at_start = arrived[:, :1], model.backlogs[source]
    arrives = rate > MIN_RATE
    age = at_start.age_seconds
    if age is None or age <= 0:
        age = at_start.records / rate if arrives else 0.0
    left /= rate if arrives else math.inf
    old = processed < waiting
    if np.count_nonzero(old):
        done = np.minimum(processed, waiting) / np.where(waiting > 0, waiting, 1.0)
        # Replayed records are a little older still.
        ages = age + (waiting - at_start.records) / rate if arrives else age
        np.copyto(left, flows.times + ages - done * ages, where=old)
    left *= waits
    return left


def _latency(flows: Flows, source: str) -> np.ndarray:
    """Return `P⁻¹(A(t)) − t` in seconds: how long records that arrive at t will wait; beyond the horizon at the rate of
    the last step, at most the horizon again."""
    times, rows = flows.times, []
    horizon, step = float(times[-1]), float(times[1] - times[0])
    for arrived, processed in zip(flows.arrived[source], flows.processed[source], strict=True):
        done = np.interp(arrived, processed + _rising(len(processed)), times)
        rate = float(processed[-1] - processed[-2]) / step
        beyond = np.maximum(0.0, arrived - processed[-1])
        more = beyond / rate if rate > MIN_RATE else np.where(beyond > 0, horizon, 0.0)
        rows.append(np.maximum(0.0, done + np.minimum(more, horizon) - times))
    return np.array(rows)


def _late_after(model: Model, flows: Flows, row: int, objective_seconds: float, of_latency: bool) -> float:
    """Return seconds from the horizon's end until the backlog is within the objective, if all goes on as in the last
    step."""
    maximum, step_seconds = 0.0, float(flows.times[-1]) / (len(flows.times) - 1)
    for source, rate in model.arrivals.items():
        done = flows.processed[source][row]
        taken = float(done[-1] - done[-2]) / step_seconds
        over = float(flows.arrived[source][row, -1] - done[-1]) - objective_seconds * (taken if of_latency else rate)
        if over <= 0:
            continue
        drained = taken - rate
        if drained <= max(MIN_RATE, rate * 1e-9):
            return math.inf
        maximum = max(maximum, over / drained)
    return maximum


@lru_cache(maxsize=8)
def _chosen(points: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of a message's points, evenly spaced from the first to the last, and the step before each."""
    chosen = np.unique(np.linspace(0, steps, points).astype(int))
    return chosen, np.maximum(0, chosen - 1)


@lru_cache(maxsize=64)
def _times(horizon_seconds: float, steps: int) -> np.ndarray:
    """Return the steps' ends; horizons repeat from cycle to cycle."""
    return _read_only(np.linspace(0.0, horizon_seconds, steps + 1))


@lru_cache(maxsize=64)
def _point_times(horizon_seconds: float, steps: int, points: int) -> tuple[float, ...]:
    return tuple(_times(horizon_seconds, steps)[_chosen(points, steps)[0]].round(1).tolist())


@lru_cache(maxsize=64)
def _running(horizon_seconds: float, steps: int, down_seconds: float) -> np.ndarray:
    """Return the seconds of each step in which the application runs, if it is down at first."""
    up = np.maximum(0.0, _times(horizon_seconds, steps)[1:] - down_seconds)
    return _read_only(np.minimum(horizon_seconds / steps, up))


@lru_cache(maxsize=64)
def _up(horizon_seconds: float, steps: int, down_seconds: float) -> np.ndarray:
    """Return the seconds that the application has run until each step's end, if it is down at first."""
    return _read_only(np.maximum(0.0, _times(horizon_seconds, steps) - down_seconds))


@lru_cache(maxsize=8)
def _rising(count: int) -> np.ndarray:
    """Return increments that make constant counts grow, by too little to matter."""
    return _read_only(np.arange(count) * 1e-9)


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def busiest(model: Model, capacities: Mapping[str, float]) -> tuple[float | None, str | None]:
    """Return the highest load over capacity among operators of which both are known, and whose it is."""
    maximum: float | None = None
    where, loads = None, model.loads
    for name, rate in capacities.items():
        if rate > 0 and name in loads:
            load = loads[name] / rate
            if maximum is None or load > maximum:
                maximum, where = load, name
    return maximum, where
