"""Flow of records through an application over time: what arrives, what is processed, and how old the rest is.

Each source has a backlog that its arrivals fill and its intake drains; an operator that cannot follow slows the intake
(`flow.throttle`). With constant arrivals a single source has a closed form; arrivals that change are followed from step
to step, and a step ends where a rate begins to change otherwise. Arrays have a row for each vector that is compared and
a column for each step.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from .flow import Limit, loads_of, throttle
from .forecast import union_of
from .model import MIN_RATE, Model, Restart

UNLIMITED = 1e290
"""Records/s of an intake that no operator limits; its product with a time is finite."""
MIN_STEP_SECONDS = 1e-9
"""Nothing is processed in a shorter step: the backlog divided by its length may overflow."""


class Flows(NamedTuple):
    """Cumulative records of each source at each step, counted from the oldest waiting record."""

    times: np.ndarray
    arrived: Mapping[str, np.ndarray]
    processed: Mapping[str, np.ndarray]


def simulate(  # noqa: PLR0917 - the question in the order of `predict`
    model: Model,
    capacities: Sequence[Mapping[str, float]],
    restarts: Sequence[Restart],
    horizon_seconds: float,
    steps: int,
    present: Mapping[str, float] | None = None,
) -> Flows:
    """Let the application run with each of `capacities` (records/s by operator; one that is missing limits nothing), all of
    it away for its restart's `seconds`. `present` are the capacities until its `capacity_after_seconds`, where the new
    ones are not smaller."""
    if model.paths or (present is not None and any(r.capacity_after_seconds > r.seconds for r in restarts)):
        return _simulate_changes(model, capacities, restarts, horizon_seconds, steps, present or {})
    times = times_of(horizon_seconds, steps)
    sources, rates = list(model.arrivals), list(model.arrivals.values())
    if len(sources) > 1:
        arriving, rows = [rate * times for rate in rates], []
        for limits, restart in zip(_limits(model, capacities), restarts, strict=True):
            running = _running(horizon_seconds, steps, restart.seconds).tolist()
            rows.append(_drained(arriving, running, [limits] * len(running), model, restart))
        return _flows(sources, times, rows)
    (source,), (rate,), waiting = sources, rates, model.backlogs[sources[0]].records
    shares = [(name, share) for name, fed in model.flow.items() if (share := fed.get(source, 0.0)) > 0]
    intakes = [min([c[name] / share for name, share in shares if name in c], default=UNLIMITED) for c in capacities]
    # Replayed records are work still to do, although they arrived before everything that waits.
    first = [
        waiting + min(rate, intake) * restart.replay_seconds for intake, restart in zip(intakes, restarts, strict=True)
    ]
    arrivals = rate * times + np.array(first)[:, None]
    # Both rates are constant, so the source never waits for records before it has caught up.
    up = _up(horizon_seconds, steps, tuple([restart.seconds for restart in restarts]))
    able = up * np.array(intakes)[:, None]
    return Flows(times, {source: arrivals}, {source: np.minimum(arrivals, able)})


def _simulate_changes(  # noqa: PLR0917 - the arguments of `simulate`
    model: Model,
    capacities: Sequence[Mapping[str, float]],
    restarts: Sequence[Restart],
    horizon_seconds: float,
    steps: int,
    present: Mapping[str, float],
) -> Flows:
    """Return `simulate` for arrivals or capacities that change; a step of the result may consist of several."""
    times, paths = times_of(horizon_seconds, steps), model.paths
    changes = [at for path in paths.values() for at in path.within(horizon_seconds)]
    at_first = [{name: min(rate, present.get(name, rate)) for name, rate in each.items()} for each in capacities]
    early, late = _limits(model, at_first), _limits(model, capacities)
    rows = []
    for first, then, restart in zip(early, late, restarts, strict=True):
        added_at = restart.capacity_after_seconds
        ends = union_of(times, [*changes, added_at] if 0 < added_at < horizon_seconds else changes)
        running = np.diff(np.maximum(0.0, ends - restart.seconds)).tolist()
        arriving = [paths[s].arrived_by(ends) if s in paths else rate * ends for s, rate in model.arrivals.items()]
        before = int(np.count_nonzero(ends[:-1] < added_at)) if present else 0
        limits = [first] * before + [then] * (len(running) - before)
        arrived, processed = _drained(arriving, running, limits, model, restart)
        at = np.searchsorted(ends, times)
        rows.append(([each[at] for each in arrived], processed[:, at]))
    return _flows(list(model.arrivals), times, rows)


def _limits(model: Model, capacities: Sequence[Mapping[str, float]]) -> list[list[Limit]]:
    return [[(each[name], fed) for name, fed in model.fed.items() if name in each] for each in capacities]


def _flows(sources: list[str], times: np.ndarray, rows: Sequence[tuple[list[np.ndarray], np.ndarray]]) -> Flows:
    arrived, processed = (np.array(each).transpose(1, 0, 2) for each in zip(*rows, strict=True))
    return Flows(times, dict(zip(sources, arrived, strict=True)), dict(zip(sources, processed, strict=True)))


def _drained(
    arriving: Sequence[np.ndarray],
    running: Sequence[float],
    limits: Sequence[Sequence[Limit]],
    model: Model,
    restart: Restart,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return arrived and processed records of sources that share what lies behind them: step by step, in plain floats.

    `arriving` are the records that arrive until each step's end, `running` the seconds of each step in which the
    application runs, `limits` its capacities then.
    """
    first = [model.backlogs[source].records for source in model.arrivals]
    if restart.replay_seconds > 0:
        taken = throttle(limits[0], list(model.arrivals.values()))
        first = [left + rate * restart.replay_seconds for left, rate in zip(first, taken, strict=True)]
    arrived = [left + come for left, come in zip(first, arriving, strict=True)]
    done = [0.0] * len(arrived)
    processed = [list(done)]
    for seconds, limit, *counts in zip(running, limits, *(a[1:].tolist() for a in arrived), strict=True):
        if seconds > MIN_STEP_SECONDS:
            left = [count - so_far for count, so_far in zip(counts, done, strict=True)]
            taken = throttle(limit, [waiting / seconds for waiting in left])
            done = [d + min(waiting, rate * seconds) for d, waiting, rate in zip(done, left, taken, strict=True)]
        processed.append(done)
    return arrived, np.array(processed).T


def lag_of(flows: Flows, model: Model, source: str) -> np.ndarray:
    """Return lag in seconds, `t − A⁻¹(P(t))`: with constant arrivals the backlog over their rate, once the records that
    waited at the start are processed; before that their age, as they are taken to have arrived evenly."""
    arrived, processed, rate = flows.arrived[source], flows.processed[source], model.arrivals[source]
    left: np.ndarray = arrived - processed
    path = model.paths.get(source)
    # Less than a thousandth of a second's arrivals is a rounding error, not a backlog.
    if path is None:
        waits = left > max(1e-6, rate * 1e-3)
    else:
        waits = left > np.maximum(1e-6, np.maximum(path.rates_at(flows.times) * 1e-3, arrived * 1e-9))
    if not np.count_nonzero(waits):
        return np.zeros(left.shape)
    waiting, at_start = arrived[:, :1], model.backlogs[source]
    arrives = rate > MIN_RATE
    age = at_start.age_seconds
    if age is None or age <= 0:
        age = at_start.records / rate if arrives else 0.0
    if path is None:
        left /= rate if arrives else math.inf
    else:
        times = union_of(flows.times, path.within(float(flows.times[-1])))
        left = flows.times - np.interp(processed - waiting, path.arrived_by(times), times)
    old = processed < waiting
    if np.count_nonzero(old):
        # Replayed records are a little older still.
        ages = age + (waiting - at_start.records) / rate if arrives else age
        # Where nothing waited nothing is old.
        done = np.divide(processed, waiting, out=np.zeros_like(processed), where=old)
        np.subtract(flows.times + ages, done * ages, out=left, where=old)
    # Not as a product, which may be −0.
    return np.where(waits, left, 0.0)


def latency_of(flows: Flows, source: str) -> np.ndarray:
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


def late_after(  # noqa: PLR0917 - of one row of `simulate`
    model: Model,
    flows: Flows,
    row: int,
    capacities: Mapping[str, float],
    objective_seconds: float,
    of_latency: bool,
) -> float:
    """Return seconds from the horizon's end until the backlog is within the objective, if all goes on as in the last
    step.

    What an operator leaves a source, as other sources have a backlog there, lasts no longer than those backlogs.
    """
    maximum, horizon = 0.0, float(flows.times[-1])
    step_seconds = horizon / (len(flows.times) - 1)
    rates = model.rates_at(horizon)
    left = {source: float(flows.arrived[source][row, -1] - flows.processed[source][row, -1]) for source in rates}
    shared = _worked_off_after(model, rates, left, capacities) if len(rates) > 1 else {}
    for source, rate in rates.items():
        done = flows.processed[source][row]
        taken = float(done[-1] - done[-2]) / step_seconds
        over = left[source] - objective_seconds * (taken if of_latency else rate)
        if over <= 0:
            continue
        drained = taken - rate
        seconds = over / drained if drained > max(MIN_RATE, rate * 1e-9) else math.inf
        maximum = max(maximum, min(seconds, shared.get(source, math.inf)))
    return maximum


def _worked_off_after(
    model: Model, rates: Mapping[str, float], left: Mapping[str, float], capacities: Mapping[str, float]
) -> dict[str, float]:
    """Return by source the seconds until no operator behind it has a backlog, that of other sources included; infinite if
    one has no capacity for it, or none is known."""
    loads, waiting = loads_of(model.flow, rates), loads_of(model.flow, left)
    seconds: dict[str, float] = {}
    for name, shares in model.flow.items():
        if name not in capacities:
            continue
        free = capacities[name] - loads[name]
        longest = waiting[name] / free if free > MIN_RATE else math.inf
        for source, share in shares.items():
            if share > 0:
                seconds[source] = max(seconds.get(source, 0.0), longest)
    return seconds


@lru_cache(maxsize=64)
def times_of(horizon_seconds: float, steps: int) -> np.ndarray:
    """Return the steps' ends; horizons repeat from cycle to cycle."""
    return _read_only(np.linspace(0.0, horizon_seconds, steps + 1))


@lru_cache(maxsize=64)
def _running(horizon_seconds: float, steps: int, down_seconds: float) -> np.ndarray:
    """Return the seconds of each step in which the application runs, if it is down at first."""
    up = np.maximum(0.0, times_of(horizon_seconds, steps)[1:] - down_seconds)
    return _read_only(np.minimum(horizon_seconds / steps, up))


@lru_cache(maxsize=64)
def _up(horizon_seconds: float, steps: int, down_seconds: tuple[float, ...]) -> np.ndarray:
    """Return the seconds that the application has run until each step's end, one row for each of the
    downtimes at the start."""
    return _read_only(np.maximum(0.0, times_of(horizon_seconds, steps) - np.array(down_seconds)[:, None]))


@lru_cache(maxsize=8)
def _rising(count: int) -> np.ndarray:
    """Return increments that make constant counts grow, by too little to matter."""
    return _read_only(np.arange(count) * 1e-9)


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
