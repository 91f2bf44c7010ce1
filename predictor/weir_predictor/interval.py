"""One interval of a simulated application: its state after running with a parallelism against given arrivals.

The same fluid model as `predict`, but reported by source, so that the next interval can continue from it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .flow import throttled
from .fluid import lag_of, simulate
from .model import Backlog, Model, Restart

STEP_SECONDS = 0.5
MIN_STEPS, MAX_STEPS = 4, 240


@dataclass(frozen=True)
class Interval:
    """State at the end of an interval, and what happened in it."""

    seconds: float
    backlogs: Mapping[str, Backlog]
    """Of each source at the end."""
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
