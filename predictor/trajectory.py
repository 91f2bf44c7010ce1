"""The one predictor: what would happen to lag if the application ran with these parallelisms.

A fluid model. Each source has a backlog that its arrivals fill and its intake drains; the intake is held back by whatever operator
cannot follow (`flow.throttle`). A rescale costs `restart.seconds` without intake, and then what was processed since the last
checkpoint is processed again (replay). Lag in seconds is the age of the oldest unprocessed record: with A(t) records arrived and
P(t) processed, in order, `t − A⁻¹(P(t))`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import NamedTuple

import numpy as np
from weir_contracts import Prediction, Topology

from .capacity import CapacityCurve
from .flow import Fed, Flow, Limit, fed_by, loads_of, throttle

STEPS = 120
POINTS = 24
"""Of the trajectory that a plan carries; the figures come from all steps."""
LEAST_RATE = 1e-6
"""Records/s below which nothing arrives (one in eleven days): what a smoothed rate is on its way to 0."""


@dataclass(frozen=True)
class Backlog:
    """What waits at a source now, and how old its oldest record is (None: as old as it takes to arrive)."""

    records: float
    age_seconds: float | None = None


@dataclass(frozen=True)
class Restart:
    """What changing the parallelism costs. Both 0 for staying."""

    seconds: float = 0.0
    replay_seconds: float = 0.0
    """Age of the checkpoint it starts from when processing stops."""
    seen: bool = True
    """Whether one was; else `seconds` is what one usually takes."""


STAY = Restart()


@dataclass(frozen=True)
class Model:
    """What is known of an application: the same for every vector that is compared."""

    topology: Topology
    flow: Flow
    curves: Mapping[str, CapacityCurve]
    arrivals: Mapping[str, float]
    """Records/s of each source."""
    backlogs: Mapping[str, Backlog]

    def capacities(self, parallelism: Mapping[str, int]) -> dict[str, float]:
        """Records/s each known operator sustains; a source cannot use more subtasks than it has partitions."""
        found = {}
        for name, curve, partitions in self._known:
            p = parallelism.get(name)
            if p is not None:
                found[name] = curve.rate(p if partitions is None else min(p, partitions))
        return found

    @cached_property
    def loads(self) -> Mapping[str, float]:
        """Records/s that arrive at each operator of which it can be told."""
        return loads_of(self.flow, self.arrivals)

    @cached_property
    def _known(self) -> list[tuple[str, CapacityCurve, int | None]]:
        """Operators of known capacity with their curve and partitions."""
        operators = self.topology.operators
        return [(o.name, self.curves[o.name], o.source_partitions or None) for o in operators if o.name in self.curves]

    @cached_property
    def fed(self) -> Mapping[str, Fed]:
        """What feeds each operator, by the sources' places in `arrivals`."""
        return fed_by(self.flow, self.topology.names, list(self.arrivals))


class Outlook(NamedTuple):
    """What a parallelism would bring, as figures to compare by: a prediction that nobody has been told yet. Telling takes longer than
    finding it, and of a dozen that are compared two are told."""

    horizon_seconds: float
    downtime_seconds: float
    max_lag_seconds: float
    violation_seconds: float
    max_utilisation: float | None
    bottleneck: str | None
    times: np.ndarray
    lag: np.ndarray
    late: np.ndarray
    """Whether the objective does not hold, step by step."""
    late_steps: int
    late_after_seconds: float
    """For how long the objective will not hold beyond the horizon; infinite: what waits at its end does not shrink."""
    arrived: Mapping[str, np.ndarray]
    processed: Mapping[str, np.ndarray]
    capacities: Mapping[str, float]
    """Records/s that each operator of known capacity sustains with this parallelism."""

    @property
    def objective_left_at_seconds(self) -> float | None:
        """When the objective first does not hold; None: not within the horizon."""
        return round(float(self.times[int(self.late.argmax())]), 1) if self.late_steps else None

    @property
    def objective_met_at_seconds(self) -> float | None:
        """From when on the objective holds until the horizon's end; None: not within it."""
        if not self.late_steps:
            return 0.0
        last = len(self.late) - 1 - int(self.late[::-1].argmax())
        return round(float(self.times[last + 1]), 1) if last + 1 < len(self.times) else None

    @property
    def late_seconds(self) -> float:
        """For how long the objective does not hold, within the horizon and beyond; may be infinite."""
        return self.violation_seconds + self.late_after_seconds

    def told(self, points: int = POINTS) -> Prediction:
        """As a message, with so many points of the trajectory."""
        steps = len(self.times) - 1
        step, (chosen, before) = self.horizon_seconds / steps, _chosen(points, steps)
        backlog = _over_sources(np.add, [self.arrived[s][chosen] - self.processed[s][chosen] for s in self.arrived])
        together = _over_sources(np.add, list(self.processed.values()))
        taken = (together[chosen] - together[before]) / step
        # Validated as one document: making each point by itself takes longer than the whole prediction.
        return Prediction.model_validate(
            {
                "horizon_seconds": self.horizon_seconds,
                "max_lag_seconds": self.max_lag_seconds,
                "final_lag_seconds": round(float(self.lag[-1]), 2),
                "violation_seconds": self.violation_seconds,
                "objective_left_at_seconds": self.objective_left_at_seconds,
                "objective_met_at_seconds": self.objective_met_at_seconds,
                "downtime_seconds": self.downtime_seconds,
                "max_utilisation": self.max_utilisation,
                "bottleneck": self.bottleneck,
                "points": [
                    {"at_seconds": at, "lag_seconds": late_by, "backlog_records": left, "throughput": rate}
                    for at, late_by, left, rate in zip(
                        _told_times(self.horizon_seconds, steps, points),
                        self.lag[chosen].round(2).tolist(),
                        np.maximum(0.0, backlog).round(1).tolist(),
                        np.maximum(0.0, taken).round(1).tolist(),
                        strict=True,
                    )
                ],
            }
        )


def predict(
    model: Model,
    parallelism: Mapping[str, int],
    restart: Restart,
    *,
    horizon_seconds: float,
    objective_seconds: float | None,
    of_latency: bool = False,
    points: int = POINTS,
    steps: int = STEPS,
) -> Prediction:
    """The trajectory of lag over `horizon_seconds` with `parallelism`. Conserves records: arrived + backlog = processed + left.

    The objective bounds lag, or with `of_latency` the time from a record's arrival until it is done.
    """
    found = outlook(
        model,
        parallelism,
        restart,
        horizon_seconds=horizon_seconds,
        objective_seconds=objective_seconds,
        of_latency=of_latency,
        steps=steps,
    )
    return found.told(points)


def outlook(
    model: Model,
    parallelism: Mapping[str, int],
    restart: Restart,
    *,
    horizon_seconds: float,
    objective_seconds: float | None,
    of_latency: bool = False,
    steps: int = STEPS,
) -> Outlook:
    """`predict`, not yet told."""
    capacities = model.capacities(parallelism)
    times, arrived, processed = _run(model, capacities, restart, horizon_seconds, steps)
    lag = _over_sources(np.maximum, [_lag(times, arrived[s], processed[s], model, s) for s in model.arrivals])
    bounded = np.max([_latency(times, arrived[s], processed[s]) for s in model.arrivals], axis=0) if of_latency else lag
    late = bounded > objective_seconds if objective_seconds is not None else np.zeros_like(lag, dtype=bool)
    late_steps = int(np.count_nonzero(late))
    utilisation, bottleneck = _busiest(capacities, model.loads)
    return Outlook(
        horizon_seconds=horizon_seconds,
        downtime_seconds=restart.seconds,
        max_lag_seconds=round(float(np.maximum.reduce(lag)), 2),
        violation_seconds=round(float(late_steps) * (horizon_seconds / steps), 2),
        max_utilisation=None if utilisation is None else round(utilisation, 3),
        bottleneck=bottleneck,
        times=times,
        lag=lag,
        late=late,
        late_steps=late_steps,
        late_after_seconds=(
            _late_after(model, arrived, processed, horizon_seconds / steps, objective_seconds or 0.0, of_latency)
            if late[-1]
            else 0.0
        ),
        arrived=arrived,
        processed=processed,
        capacities=capacities,
    )


def _late_after(  # noqa: PLR0917 - the end of a trajectory
    model: Model,
    arrived: Mapping[str, np.ndarray],
    processed: Mapping[str, np.ndarray],
    step_seconds: float,
    objective_seconds: float,
    of_latency: bool,
) -> float:
    """Seconds from the horizon's end until no more waits than the objective allows, if all goes on as in the last step."""
    longest = 0.0
    for source, rate in model.arrivals.items():
        done = processed[source]
        taken = float(done[-1] - done[-2]) / step_seconds
        over = float(arrived[source][-1] - done[-1]) - objective_seconds * (taken if of_latency else rate)
        if over <= 0:
            continue
        drained = taken - rate
        if drained <= max(LEAST_RATE, rate * 1e-9):
            return math.inf
        longest = max(longest, over / drained)
    return longest


def _over_sources(join: np.ufunc, each: Sequence[np.ndarray]) -> np.ndarray:
    """The sources' arrays joined; mostly there is one."""
    return reduce(join, each)


@lru_cache(maxsize=8)
def _chosen(points: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The steps that are told, evenly spaced, the first and the last of them always; and the step before each."""
    chosen = np.unique(np.linspace(0, steps, points).astype(int))
    return chosen, np.maximum(0, chosen - 1)


@lru_cache(maxsize=64)
def _times(horizon_seconds: float, steps: int) -> np.ndarray:
    """The steps' ends; horizons repeat from turn to turn."""
    times = np.linspace(0.0, horizon_seconds, steps + 1)
    times.flags.writeable = False
    return times


@lru_cache(maxsize=64)
def _told_times(horizon_seconds: float, steps: int, points: int) -> tuple[float, ...]:
    return tuple(_times(horizon_seconds, steps)[_chosen(points, steps)[0]].round(1).tolist())


@lru_cache(maxsize=64)
def _running(horizon_seconds: float, steps: int, down_seconds: float) -> np.ndarray:
    """Seconds of each step in which the application runs, when it is down at first."""
    running: np.ndarray = np.minimum(
        horizon_seconds / steps, np.maximum(0.0, _times(horizon_seconds, steps)[1:] - down_seconds)
    )
    running.flags.writeable = False
    return running


@lru_cache(maxsize=64)
def _up(horizon_seconds: float, steps: int, down_seconds: float) -> np.ndarray:
    """Seconds that the application has run until each step's end, when it is down at first."""
    up: np.ndarray = np.maximum(0.0, _times(horizon_seconds, steps) - down_seconds)
    up.flags.writeable = False
    return up


@lru_cache(maxsize=8)
def _rising(count: int) -> np.ndarray:
    """What makes counts that stand still grow, by less than matters."""
    rising = np.arange(count) * 1e-9
    rising.flags.writeable = False
    return rising


def _run(
    model: Model, capacities: Mapping[str, float], restart: Restart, horizon_seconds: float, steps: int
) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Cumulative records arrived and processed by source at each step; counted from the oldest waiting record."""
    times = _times(horizon_seconds, steps)
    sources, rates = list(model.arrivals), list(model.arrivals.values())
    limits = [(capacities[name], fed) for name, fed in model.fed.items() if name in capacities]
    alone = len(sources) == 1
    most = min([capacity / fed[0][1] for capacity, fed in limits], default=math.inf) if alone else math.inf
    # What is processed again: counted as work still to do, though it arrived before everything that waits.
    at_first = [model.backlogs[s].records for s in sources]
    if restart.replay_seconds > 0:
        taken = [min(rates[0], most)] if alone else throttle(limits, rates)
        at_first = [left + rate * restart.replay_seconds for left, rate in zip(at_first, taken, strict=True)]
    arrived = [first + rate * times for first, rate in zip(at_first, rates, strict=True)]
    if alone:
        processed = [_drained(arrived[0], _up(horizon_seconds, steps, restart.seconds), most)]
    else:
        processed = _drained_together(arrived, _running(horizon_seconds, steps, restart.seconds), limits)
    return times, dict(zip(sources, arrived, strict=True)), dict(zip(sources, processed, strict=True))


def _drained(arrived: np.ndarray, up_seconds: np.ndarray, rate: float) -> np.ndarray:
    """Processed by a single source that takes in at most `rate`: as much as it could, of what has arrived. As both rates are
    constant, it never waits for records before it has caught up."""
    if not math.isfinite(rate):
        return np.where(up_seconds > 0, arrived, 0.0)
    processed: np.ndarray = np.minimum(arrived, rate * up_seconds)
    return processed


def _drained_together(arrived: Sequence[np.ndarray], running: np.ndarray, limits: Sequence[Limit]) -> list[np.ndarray]:
    """Processed by each of several sources, which share what lies behind them: step by step, in plain floats."""
    done = [0.0] * len(arrived)
    processed = [list(done)]
    for seconds, *counts in zip(running.tolist(), *(a[1:].tolist() for a in arrived), strict=True):
        if seconds > 0:
            left = [count - so_far for count, so_far in zip(counts, done, strict=True)]
            taken = throttle(limits, [waiting / seconds for waiting in left])
            done = [d + min(waiting, rate * seconds) for d, waiting, rate in zip(done, left, taken, strict=True)]
        processed.append(done)
    return list(np.array(processed).T)


def _lag(times: np.ndarray, arrived: np.ndarray, processed: np.ndarray, model: Model, source: str) -> np.ndarray:
    """`t − A⁻¹(P(t))`: with constant arrivals what waits over their rate, once what waited at the start is done; before that its age,
    as it is taken to have arrived evenly."""
    waiting, rate = float(arrived[0]), model.arrivals[source]
    left = arrived - processed
    # Less than a thousandth of a second's arrivals is a rounding error, not a backlog.
    waits = left > max(1e-6, rate * 1e-3)
    if not np.count_nonzero(waits):
        return np.zeros(len(times))
    known = model.backlogs[source]
    age = known.age_seconds
    if age is None or age <= 0:
        age = known.records / rate if rate > LEAST_RATE else 0.0
    # Replayed records are a little older still.
    age += (waiting - known.records) / rate if rate > LEAST_RATE else 0.0
    lag: np.ndarray = left / rate if rate > LEAST_RATE else np.zeros(len(times))
    old = int(processed.searchsorted(waiting))
    if old:
        lag[:old] = times[:old] + age - processed[:old] / waiting * age
    lag *= waits
    return lag


def _latency(times: np.ndarray, arrived: np.ndarray, processed: np.ndarray) -> np.ndarray:
    """`P⁻¹(A(t)) − t`: how long what arrives at t will wait; beyond the horizon at the rate of the last step, at most as long again."""
    horizon, step = float(times[-1]), float(times[1] - times[0])
    count = processed + _rising(len(processed))
    done = np.interp(arrived, count, times)
    rate = float(processed[-1] - processed[-2]) / step
    beyond = np.maximum(0.0, arrived - processed[-1])
    more = beyond / rate if rate > LEAST_RATE else np.where(beyond > 0, horizon, 0.0)
    waits: np.ndarray = np.maximum(0.0, done + np.minimum(more, horizon) - times)
    return waits


def busiest(
    model: Model, capacities: Mapping[str, float], rates: Mapping[str, float]
) -> tuple[float | None, str | None]:
    """The highest load over capacity among operators of which both are known, and whose it is."""
    return _busiest(capacities, model.loads if rates is model.arrivals else loads_of(model.flow, rates))


def _busiest(capacities: Mapping[str, float], arriving: Mapping[str, float]) -> tuple[float | None, str | None]:
    highest: float | None = None
    where = None
    for name, rate in capacities.items():
        if rate > 0 and name in arriving:
            load = arriving[name] / rate
            if highest is None or load > highest:
                highest, where = load, name
    return highest, where
