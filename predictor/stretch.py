"""One stretch of time of a simulated application: what is left behind when it ran with this parallelism against these arrivals.

The same fluid model as `predict`, but told by source, so that the next stretch can go on from it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .flow import throttled
from .trajectory import Backlog, Model, Restart, _lag, _run

STEP_SECONDS = 0.5
FEWEST_STEPS, MOST_STEPS = 4, 240


@dataclass(frozen=True)
class Stretch:
    """What a stretch of time left behind, and what happened in it."""

    seconds: float
    backlogs: Mapping[str, Backlog]
    """At its end."""
    taken: Mapping[str, float]
    """Records that each source took in, what was replayed included."""
    lag_seconds: float
    """At its end: the age of the oldest unprocessed record."""
    latency_seconds: float
    """At its end: how long what arrives then would wait."""
    violation_seconds: float
    """Above the objective."""


def run_on(
    model: Model,
    capacities: Mapping[str, float],
    restart: Restart,
    seconds: float,
    *,
    objective_seconds: float | None,
    of_latency: bool = False,
) -> Stretch:
    """Let the application run for `seconds` from `model.backlogs` on; the first `restart.seconds` of them it is down.

    `capacities` in records/s by operator; one that is left out holds nothing back. Without an objective in seconds nothing is in
    violation here.
    """
    steps = min(MOST_STEPS, max(FEWEST_STEPS, math.ceil(seconds / STEP_SECONDS)))
    times, arrived, processed = _run(model, capacities, restart, seconds, steps)
    left = {s: np.maximum(0.0, arrived[s] - processed[s]) for s in model.arrivals}
    lags = {s: _lag(times, arrived[s], processed[s], model, s) for s in model.arrivals}
    down = np.maximum(0.0, restart.seconds - times)
    waits = {
        s: down + left[s] / rate if rate > 0 else np.zeros_like(times)
        for s, rate in _drain(model, capacities, left).items()
    }
    bounded = np.max(list((waits if of_latency else lags).values()), axis=0)
    late = 0.0 if objective_seconds is None else float((bounded[1:] > objective_seconds).sum()) * seconds / steps
    return Stretch(
        seconds=seconds,
        backlogs={s: Backlog(float(left[s][-1]), float(lags[s][-1])) for s in model.arrivals},
        taken={s: float(processed[s][-1]) for s in model.arrivals},
        lag_seconds=max(float(lag[-1]) for lag in lags.values()),
        latency_seconds=max(float(wait[-1]) for wait in waits.values()),
        violation_seconds=late,
    )


def _drain(model: Model, capacities: Mapping[str, float], left: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Records/s that each source takes in while something waits at it; 0 where nothing ever does."""
    wanted = {s: model.arrivals[s] + float(waiting.max()) for s, waiting in left.items()}
    return throttled(model.flow, model.topology.names, capacities, wanted)
