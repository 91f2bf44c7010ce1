"""Curves of a recording, and how far two recordings' are apart. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from weir_contracts import Observation, OperatorReading

from services.analyzer.core import advance

from .recording import Recording, Request

Values = list[float | None]

RATE_SECONDS, BUSY_SECONDS = 5.0, 10.0
"""Interval over which a counter's growth is measured: the engine updates idle and backpressured time every 5 s only."""
CAUGHT_UP_SECONDS = 2.0
"""A lag below this is none: the sources fetch and the windows give out in bursts of a second."""


@dataclass(frozen=True)
class Difference:
    """Difference of two curves at the same times, where both are known."""

    mean_abs: float
    p95_abs: float
    mean_real: float
    mean_simulated: float
    compared: int
    """Times."""


@dataclass(frozen=True)
class Rescale:
    """One rescale and what came of it, in seconds. None: it did not happen."""

    at_seconds: float
    wanted: int
    """Of the operator that was changed."""
    down_after_seconds: float | None
    """From the request until the job stopped."""
    down_seconds: float | None
    peak_lag_seconds: float | None
    """From this request until the next."""
    caught_up_after_seconds: float | None
    """From the request until the lag was gone, and stayed so for three observations."""


def curves(recording: Recording, rescaled: str) -> dict[str, Values]:
    """Throughput, busy shares, lag, and the parallelism of the operator that is rescaled, at the recording's observations."""
    names = [reading.operator for reading in recording.observations[0].operators]
    times = recording.times()
    found: dict[str, Values] = {
        "records/s": _growths(recording, times, names[0], lambda r: r.records_out, RATE_SECONDS)
    }
    for name in names:
        busy = _growths(recording, times, name, _busy_seconds, BUSY_SECONDS)
        found[f"busy {name}"] = [None if share is None else min(1.0, share) for share in busy]
    found["lag"] = lags(recording.observations)
    found["latency"] = _at(times, [(look.at_seconds, look.latency_seconds) for look in recording.looks])
    found[f"parallelism {rescaled}"] = [_parallelism(o, rescaled) for o in recording.observations]
    return found


def lags(observations: Sequence[Observation]) -> Values:
    """Lag in seconds as the analyzer publishes it."""
    memory, found = None, Values()
    for observation in observations:
        memory, analysis = advance(memory, observation)
        found.append(None if analysis is None else analysis.lag_seconds.value)
    return found


def difference(real: Values, simulated: Values) -> Difference | None:
    """How far apart they are; None where they are never both known."""
    pairs = [(r, s) for r, s in zip(real, simulated, strict=True) if r is not None and s is not None]
    if not pairs:
        return None
    apart = np.array([abs(r - s) for r, s in pairs])
    return Difference(
        mean_abs=round(float(apart.mean()), 4),
        p95_abs=round(float(np.percentile(apart, 95)), 4),
        mean_real=round(sum(r for r, _ in pairs) / len(pairs), 4),
        mean_simulated=round(sum(s for _, s in pairs) / len(pairs), 4),
        compared=len(pairs),
    )


def rescales(recording: Recording, operator: str, lags: Values) -> list[Rescale]:
    """Return the course of each rescale; `lags` is the lag at each observation."""
    times = recording.times()
    ends = [request.at_seconds for request in recording.requests[1:]] + [times[-1]]
    return [
        _rescale(recording, request, operator, [(t, lag) for t, lag in zip(times, lags, strict=True) if t < end], end)
        for request, end in zip(recording.requests, ends, strict=True)
    ]


def _rescale(
    recording: Recording, request: Request, operator: str, lags: Sequence[tuple[float, float | None]], end: float
) -> Rescale:
    began = request.at_seconds
    down = next(((a, b) for a, b in recording.downs() if began <= a < end), None)
    after = [(t, lag) for t, lag in lags if t >= began and lag is not None]
    caught_up = _caught_up([(t, lag) for t, lag in after if down is None or t >= down[1]])
    return Rescale(
        at_seconds=round(began, 1),
        wanted=request.parallelism[operator],
        down_after_seconds=None if down is None else round(down[0] - began, 2),
        down_seconds=None if down is None else round(down[1] - down[0], 2),
        peak_lag_seconds=round(max(lag for _, lag in after), 1) if after else None,
        caught_up_after_seconds=None if caught_up is None else round(caught_up - began, 1),
    )


def _caught_up(lags: Sequence[tuple[float, float]]) -> float | None:
    for i, (at, _) in enumerate(lags[:-2]):
        if max(lag for _, lag in lags[i : i + 3]) <= CAUGHT_UP_SECONDS:
            return at
    return None


def compare(real: Recording, simulated: Recording, operator: str) -> dict[str, Any]:
    """Differences by curve, rescales side by side, and the curves."""
    a, b = curves(real, operator), curves(simulated, operator)
    apart = {name: difference(a[name], b[name]) for name in a}
    both = zip(rescales(real, operator, a["lag"]), rescales(simulated, operator, b["lag"]), strict=True)
    return {
        "differences": {name: None if d is None else asdict(d) for name, d in apart.items()},
        "rescales": [{"real": asdict(r), "simulated": asdict(s)} for r, s in both],
        "seconds": [round(t, 1) for t in real.times()],
        "real": {name: _rounded(values) for name, values in a.items()},
        "simulated": {name: _rounded(values) for name, values in b.items()},
    }


def _growths(
    recording: Recording, times: Sequence[float], name: str, of: Callable[[OperatorReading], float | None], over: float
) -> Values:
    """Growth per second of a counter over the last `over` seconds of a run."""
    found, ring = Values(), list[tuple[float, float]]()
    run = None
    for at, observation in zip(times, recording.observations, strict=True):
        reading = next((r for r in observation.operators if r.operator == name and r.complete), None)
        value = None if reading is None else of(reading)
        since = None if observation.run is None else observation.run.running_since
        if value is None or since is None:
            found.append(None)
            continue
        if since != run:
            run, ring = since, []
        ring.append((at, value))
        while ring[0][0] < at - over - 0.5:
            del ring[0]
        took = at - ring[0][0]
        found.append(None if took < over / 2 else max(0.0, value - ring[0][1]) / took)
    return found


def _busy_seconds(reading: OperatorReading) -> float | None:
    """Average of a subtask."""
    return None if reading.busy_ms is None else reading.busy_ms / 1000 / reading.parallelism


def _at(times: Sequence[float], points: Sequence[tuple[float, float | None]]) -> Values:
    """The last of the points known at each time."""
    found, i = Values(), 0
    for at in times:
        while i + 1 < len(points) and points[i + 1][0] <= at:
            i += 1
        found.append(points[i][1] if points and points[i][0] <= at else None)
    return found


def _parallelism(observation: Observation, name: str) -> float | None:
    """Running parallelism: 0 while the job is down."""
    if observation.deployment is None:
        return None
    return float(observation.deployment.observed.get(name, 0)) if observation.status == "running" else 0.0


def _rounded(values: Values) -> Values:
    return [None if value is None else round(value, 3) for value in values]
